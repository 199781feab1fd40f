"""`metaprobe quickstart`: a verdict that decides, from the base install, and the one that `metaprobe adapt` gives."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from test_architecture import HEAVY

from metaprobe import QualityPredictor
from metaprobe.cli import main
from metaprobe.eval.metrics.ranked import auroc
from metaprobe.quickstart import LABEL_COUNT, RECORDED, SAMPLED_ANSWERS, quickstart
from metaprobe.training.adapt import adapt_quality


def test_it_and_what_reads_lines_and_runs_beside_an_engine_need_the_base_install_only() -> None:
    blocked = f"import sys; sys.modules.update(dict.fromkeys({sorted({*HEAVY, 'sqlalchemy'})!r}))"
    beside = "metaprobe.records.importer, metaprobe.routing.watch_stream, metaprobe.production.http.middleware"
    code = f"{blocked}; import {beside}; from metaprobe.cli import main; main(['quickstart'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1].startswith("  metaprobe score out/mine")
    assert "FLAG" in done.stdout


def test_its_scores_and_threshold_are_those_of_adapt(tmp_path: Path) -> None:
    lines = RECORDED.read_text(encoding="utf-8").splitlines()
    labelled = tmp_path / "labelled.jsonl"
    labelled.write_text("\n".join(lines[:LABEL_COUNT]), encoding="utf-8")
    predictor = QualityPredictor(adapt_quality("bundled:quality", [labelled], out=tmp_path / "mine"))
    shown = quickstart()
    verdicts = predictor.predict_many([json.loads(line)["response"] for line in lines[LABEL_COUNT:]])
    scores = np.array([verdict.score for verdict in verdicts])
    assert scores == pytest.approx(np.array([one["score"] for one in shown["held_out"]]), abs=1e-4)
    # `adapt` expects the share of wrong ones by folds: a threshold one or two of the fifty answers away.
    assert abs(np.mean([verdict.flagged for verdict in verdicts]) - shown["flagged"].estimate) < 0.08


def test_the_fifty_are_of_other_groups_and_the_shares_are_those_of_the_answers_shown() -> None:
    groups = [json.loads(line)["group"] for line in RECORDED.read_text(encoding="utf-8").splitlines()]
    shown = quickstart()
    assert len(set(groups)) == len(groups) == LABEL_COUNT + len(shown["held_out"])
    assert np.mean([one["flagged"] for one in shown["held_out"] if not one["right"]]) == shown["caught"].estimate
    assert (
        shown["caught"].low > shown["flagged"].estimate > shown["right_flagged"].high
    )  # better than as many flags by lot


def test_agreement_is_learned_from_other_groups_without_a_label_and_shown_as_a_range() -> None:
    samples = [json.loads(line) for line in SAMPLED_ANSWERS.read_text(encoding="utf-8").splitlines()]
    held_out = [json.loads(line)["group"] for line in RECORDED.read_text(encoding="utf-8").splitlines()[LABEL_COUNT:]]
    assert not any("labels" in line for line in samples)
    assert not {line["group"] for line in samples} & set(held_out)
    shown = quickstart()
    ended = Counter(
        line["question_id"] for line in samples if line["response"]["choices"][0]["finish_reason"] == "stop"
    )
    assert shown["sampled_questions"] == sum(count == 2 for count in ended.values())
    agreements = np.array([one["agreement"] for one in shown["held_out"]])
    right = np.array([one["right"] for one in shown["held_out"]])
    assert shown["agreement_auroc"].estimate == pytest.approx(auroc(right, agreements))
    assert shown["agreement_auroc"].low > 0.5
    assert shown["wrong_among_least_sure"] > 1.5 * (1 - shown["right"])
    row = next(line for line in CliRunner().invoke(main, ["quickstart"]).stdout.splitlines() if "FLAG" in line)
    assert row.count(" to ") == 2  # agreement and P(right), each as a range


def test_the_recorded_answers_can_be_kept_and_the_result_read_by_a_program(tmp_path: Path) -> None:
    kept = tmp_path / "labelled.jsonl"
    done = CliRunner().invoke(main, ["quickstart", "--out", str(kept), "--json"])
    assert json.loads(done.stdout)["labels"] == LABEL_COUNT
    assert kept.read_bytes() == RECORDED.read_bytes()
