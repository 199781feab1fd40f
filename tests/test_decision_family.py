"""Answers of decision models are a family of their own in a comparison, which learns which question tells."""

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from stored_runs import example

import metaprobe
from metaprobe.eval.compare import method_results
from metaprobe.eval.report import write
from metaprobe.eval.report.words import brief
from metaprobe.probes.decisions import decision_columns
from metaprobe.records.store import RunStore
from metaprobe.records.types import DecisionAnswer, Item, Label, Run
from metaprobe.training.evidence import load_evidence
from metaprobe.training.methods import DECISIONS
from metaprobe.training.study import crossfit, decision_methods


def test_levels_give_entropy_and_margin_and_what_is_unknown_stays_unknown() -> None:
    told = {"tone": 1.2, "tone=low": 0.1, "tone=mid": 0.6, "tone=high": 0.3}
    names, values = decision_columns([told, {"tone": 1.0, "tone=low": 0.2, "tone=mid": None}, {}])
    row = dict(zip(names, values[0].tolist(), strict=True))
    assert row["tone.entropy"] == pytest.approx(-sum(p * np.log(p) for p in (0.1, 0.6, 0.3)), abs=1e-6)
    assert row["tone.margin"] == pytest.approx(0.3)
    assert np.isnan(values[1, names.index("tone.margin")])
    assert np.isnan(values[2]).all()


def test_a_comparison_learns_the_question_that_tells_and_says_where_none_was_answered(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)

    def run(i: int) -> object:
        y, said = int(rng.integers(0, 2)), []
        for name, width in (("sound", 1.0), ("kind", 0.0)):
            p = float(1 / (1 + np.exp(-rng.normal(width * (2 * y - 1) * 1.5, 1.0))))
            said.append(DecisionAnswer(call_id=f"call-{i}", question=name, source="judge", kind="predicate", value=p))
        if i % 8 == 0:
            said = []
        item = Item(f"item-{i}", f"question {i} of {rng.integers(0, 10**9)}", group=f"g{i}")
        label = Label(f"call-{i}", "correct", float(y), "program")
        return replace(example(i), item=item, labels=(label,), decision_answers=tuple(said))

    RunStore(tmp_path).append([run(i) for i in range(240)])
    evidence = load_evidence([tmp_path])
    fits = crossfit(evidence, decision_methods(evidence))
    results = {result.name: result for result in method_results(evidence.table, fits.methods, resamples=200)}
    assert {result.family for result in results.values()} == {"decision"}
    assert results[DECISIONS].auroc.low > 0.8
    assert results["decision kind"].auroc.high < 0.65
    assert results[DECISIONS].itself == "decision sound", "what it is, and so is not held against"
    assert {one.name.removesuffix(", reversed") for one in results[DECISIONS].controls.controls} == {"decision kind"}
    assert results[DECISIONS].auroc == results["decision sound"].auroc
    assert results["decision sound"].controls is None
    assert all(result.coverage == 210 / 240 for result in results.values())
    right = {one.call_id: one.value for run in RunStore(tmp_path).runs() for one in run.labels}
    said = [one for run in RunStore(tmp_path).runs() for one in run.decision_answers if one.question == "sound"]
    given = results["decision sound"].stated
    assert given is not None
    assert given.brier.estimate == pytest.approx(np.mean([(one.value - right[one.call_id]) ** 2 for one in said]))
    assert (given.brier.n, given.ece.n) == (210, 210)
    assert results[DECISIONS].stated is None  # what is learned is no number that somebody gave


@pytest.mark.parametrize("asked", [pytest.param("right", marks=pytest.mark.slow), "wrong"])
def test_numbers_of_a_judge_are_shown_as_given_and_recalibrated(
    asked: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A judge that is too sure of P(right), or of P(wrong), which is then read as 1 - p; and a level is no number."""
    rng, runs, brier = np.random.default_rng(1), list[Run](), list[float]()
    for i in range(200):
        y = int(rng.integers(0, 2))
        p = 0.99 if rng.uniform() < (0.8 if y else 0.4) else 0.3
        brier.append((p - y) ** 2)
        call, value = f"call-{i}", p if asked == "right" else 1 - p
        said = [DecisionAnswer(call_id=call, question=asked, source="judge", kind="predicate", value=value)]
        levels, shares = ("low", "high"), (high := float(rng.uniform()), 1 - high)
        more = {"kind": "score", "value": shares[1], "options": levels, "probabilities": shares}
        said.append(DecisionAnswer(call_id=call, question="level", source="judge", **more))
        item = Item(f"item-{i}", f"question {i} of {rng.integers(0, 10**9)}", group=f"g{i}")
        label = (Label(call, "correct", float(y), "program"),)
        runs.append(replace(example(i), item=item, labels=label, decision_answers=tuple(said)))
    RunStore(tmp_path / "runs").append(runs)
    monkeypatch.setattr(write, "draw", lambda figure: {"svg": b""})  # only numbers and sentences are looked at
    compared = metaprobe.compare([tmp_path / "runs"], out=tmp_path / "out")
    name = "decision right" if asked == "right" else "decision wrong, reversed"
    judge = next(one for one in compared.methods if one.name == name)
    assert judge.stated is not None
    assert judge.stated.brier.estimate == pytest.approx(np.mean(brier), abs=1e-6)
    assert judge.stated.ece.estimate > judge.ece.estimate + 0.1
    assert next(one for one in compared.methods if one.name == "decision level").stated is None
    with (tmp_path / "out/tables/methods.csv").open(encoding="utf-8", newline="") as file:
        row = next(row for row in csv.DictReader(file) if row["method"] == name)
    assert float(row["brier_stated"]) == pytest.approx(np.mean(brier), abs=1e-6)
    assert float(row["brier"]) < float(row["brier_stated"])
    (told,) = [line for line in brief(compared).found if line.startswith(f"D{name[1:]} is")]
    assert f"{judge.stated.ece.estimate:.2f} as stated, {judge.ece.estimate:.2f} recalibrated" in told
    assert f"Brier score {np.mean(brier):.2f} and {judge.brier.estimate:.2f}" in told
