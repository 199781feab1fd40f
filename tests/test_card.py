"""The card of a checkpoint says what it is, what was measured and what failed, the worst first."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from metaprobe.checkpoints import CheckpointExists, Generator, Training
from metaprobe.eval.metrics.bootstrap import Interval
from metaprobe.eval.results import Finding
from metaprobe.training.export import Export, model_card, write_checkpoint
from metaprobe.training.linear_probe import linear_graph
from metaprobe.training.training_options import ReplaceOptions


def export(**more: Any) -> Export:
    graph = linear_graph(
        input_name="x",
        mean=np.zeros(2),
        scale=np.ones(2),
        weights=np.ones((2, 1)),
        intercept=np.zeros(1),
        outputs=["correct"],
    )
    given: dict[str, Any] = {
        "kind": "quality",
        "title": "A predictor",
        "summary": "What goes in, what comes out.",
        "graph": graph,
        "inputs": {"x": np.zeros((3, 2), np.float32)},
        "expected": {"correct": np.full(3, 0.5)},
        "contract": {"schema": "full"},
        "generator": Generator("m", "r1", logprobs_mode="raw"),
        "training": Training("abc", 30, 10, 7, "a test", "2 questions joined"),
        "calibration": "platt",
        "metrics": {"auroc": Interval(0.75, 0.7, 0.8, 30, 10)},
        "thresholds": {"flag": 0.25},
    }
    return Export(**(given | more))


def test_the_card_holds_contract_figures_and_thresholds() -> None:
    card = model_card(export(heads=("correct: binary",)))
    assert card.startswith(
        "# A predictor\n\nWhat goes in, what comes out.\n\n## Flagging\n\nWhat the stored threshold 0.25"
    )
    assert "\n\n## Contract\n\n- answers of: m (r1)\n" in card
    for line in (
        "- log-probabilities: raw", "- trained on 30 answers in 10 groups", "- 2 questions joined",
        "- training data: abc", "- made by `a test`, seed 7", "- correct: binary", "- flag: 0.2500",
        "| auroc | 0.750 | 0.700 to 0.800 | 30 |",
    ):  # fmt: skip
        assert f"\n{line}\n" in card
    assert "## Audits" not in card
    assert "without` a task" not in card
    assert card.endswith("\n")


def test_audits_are_listed_with_how_bad_a_failure_is() -> None:
    findings = [Finding("splits", True, "fine", "invalid"), ("length", False, "as good")]
    card = model_card(export(audits=findings, not_audited=["refits: too few answers"]))
    assert card.startswith("> Weak: ")
    assert card.endswith(
        "- passed: splits: fine\n- **FAILED (weak)**: length: as good\n- not made: refits: too few answers\n"
    )
    loud = model_card(export(audits=[Finding("splits", False, "3 shared", "invalid")]))
    assert loud.startswith("> **NOT TRUSTWORTHY: ")
    assert "**FAILED (invalid)**: splits: 3 shared" in loud


def test_names_from_elsewhere_write_no_lines_and_no_tags_of_their_own() -> None:
    name = "m\n## Held-out metrics\n\n| auroc | 0.999 |\x1b[2J\u202e<img src=x>[x](http://e)`"
    hostile = export(generator=Generator(name, name), heads=(name,), audits=[(name, True, name)], logprobs_reader=name)
    card, plain = model_card(hostile), model_card(export(heads=("h",), audits=[("a", True, "d")], logprobs_reader="r"))
    assert len(card.splitlines()) == len(plain.splitlines())
    assert all(character.isprintable() or character == "\n" for character in card)
    [line] = [line for line in card.splitlines() if line.startswith("- answers of: ")]
    assert r"\<img src=x>\[x\](http://e)\`" in line


def test_what_is_written_is_what_was_exported(tmp_path: Any) -> None:
    given = export(audits=[("length", False, "as good")], extra={"more.txt": b"x"})
    made = write_checkpoint(tmp_path / "c", given)
    manifest = made.manifest
    assert (manifest.kind, manifest.contract, manifest.generator) == ("quality", {"schema": "full"}, given.generator)
    assert (manifest.thresholds, manifest.training) == ({"flag": 0.25}, given.training)
    assert manifest.calibration is not None
    assert (manifest.calibration.method, manifest.calibration.fitted_on) == (
        "platt",
        "calibration rows, by group; never the held-out ones",
    )
    auroc = manifest.metrics["auroc"]
    assert (auroc.estimate, auroc.low, auroc.high, auroc.n) == (0.75, 0.7, 0.8, 30)
    audit = manifest.audits["length"]
    assert (audit.passed, audit.detail, audit.severity) == (False, "as good", "weak")
    assert "scikit-learn" in manifest.versions
    assert made.extra == {"more.txt": b"x"}
    assert (tmp_path / "c" / "README.md").read_text() == model_card(given)
    with pytest.raises(CheckpointExists, match=f"holds checkpoint {made.digest}; .*--replace"):
        write_checkpoint(tmp_path / "c", replace(given, title="Another"))
    with ReplaceOptions(replace=True).replacing():  # it takes the old one's place
        write_checkpoint(tmp_path / "c", replace(given, title="Another"))
    assert "# Another" in (tmp_path / "c" / "README.md").read_text()
