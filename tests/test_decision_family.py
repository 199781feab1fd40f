"""Answers of decision models are a family of their own in a comparison, which learns which question tells."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from stored_runs import example

from metaprobe.eval.compare import method_results
from metaprobe.probes.decisions import decision_columns
from metaprobe.records.store import RunStore
from metaprobe.records.types import DecisionAnswer, Item, Label
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
    fits = crossfit(evidence, decision_methods(evidence), folds=2)
    results = {result.name: result for result in method_results(evidence.table, fits.methods, resamples=200)}
    assert {result.family for result in results.values()} == {"decision"}
    assert results[DECISIONS].auroc.low > 0.8
    assert results["decision kind"].auroc.high < 0.65
    assert results[DECISIONS].controls.strongest.name == "decision sound"
    assert results["decision sound"].controls is None
    assert all(result.coverage == 210 / 240 for result in results.values())
