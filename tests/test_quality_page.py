"""The parts of docs/research/quality.md do what they say."""

from pathlib import Path

import numpy as np
import pytest

from metaprobe.eval.metrics.discrimination import auroc
from metaprobe.records.store import RunStore
from metaprobe.records.types import Call, Item, Label, Run
from research.quality.data import debates, mu_shroom, token_logprobs_qa
from research.quality.debates import single_feature
from research.quality.figures import StratifiedAuroc

ROOT = Path(__file__).parent.parent

DATA = ROOT.parent / "shared" / "data"


def test_stratified_auroc_is_auroc_in_one_stratum_and_ignores_shifts_between_strata() -> None:
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 200)
    score = rng.normal(size=200) + y
    strata = rng.integers(0, 4, 200)
    weight = rng.integers(0, 3, size=(5, 200))
    one = StratifiedAuroc(np.zeros(200, dtype=np.int64))
    assert one(y, score) == pytest.approx(auroc(y, score))
    assert one(y, score, weight) == pytest.approx(auroc(y, score, weight))
    within = StratifiedAuroc(strata)
    assert within(y, score + 100 * strata) == pytest.approx(within(y, score))
    assert auroc(y, score + 100 * strata) != pytest.approx(auroc(y, score), abs=0.05)
    pairs = [
        (score[i] > score[j]) + 0.5 * (score[i] == score[j])
        for i in np.flatnonzero(y == 1)
        for j in np.flatnonzero(y == 0)
        if strata[i] == strata[j]
    ]
    assert within(y, score) == pytest.approx(np.mean(pairs))


def argued(number: int) -> Run:
    """An Advocate whose judge looks at the range of the first three tokens, and a Skeptic whose judge does not."""
    rng = np.random.default_rng(number)
    item = Item(id=f"e{number}", question="", task="asap", group=f"e{number // 2}", dimension="set 7")
    calls, labels = [], []
    for role in ("advocate", "skeptic"):
        logprobs = -rng.exponential(1.0, size=40).astype(np.float32)
        spread = float(np.ptp(logprobs[:3])) if role == "advocate" else float(rng.exponential(1.5))
        calls.append(Call(id=f"{number}/{role}", stage="argument", agent=role, model="m", logprobs=logprobs))
        level = float(1 + (spread > 1) + (spread > 2))
        labels += [Label(f"{number}/{role}", name, level, "judge:j") for name in ("instruction", "justification")]
        labels.append(Label(f"{number}/{role}", "critical", float(spread < 0.5), "program"))
        labels.append(Label(f"{number}/{role}", "check:scored", 0.0, "program"))
    return Run(f"r{number}", "essay-debate", "paper", item, tuple(calls), labels=tuple(labels))


def test_a_debate_store_gives_a_set_for_each_role_source_and_target(tmp_path: Path) -> None:
    with RunStore(tmp_path / "store").writer() as writer:
        for number in range(160):
            writer.add(argued(number))
    sets = {of.name: of for of in debates(tmp_path / "store")}
    assert set(sets) == {
        f"{role}, {rest}"
        for role in ("advocate", "skeptic")
        for rest in ("judge:j, instruction", "judge:j, justification", "program, critical")
    }
    of = sets["advocate, judge:j, instruction"]
    table = of.evidence.table
    assert of.ordinal is not None
    assert (table.y == (of.ordinal == 3)).all()
    assert len(np.unique(table.groups)) == 80
    found = single_feature(of)
    assert set(found["chosen"]) == {"+first3.range"}
    assert found["held_out"][0] > 0.8
    nothing = single_feature(sets["skeptic, judge:j, instruction"])
    assert nothing["held_out"][1] < 0.2


@pytest.mark.skipif(not DATA.is_dir(), reason="the data sets are not here")
def test_the_open_sets_are_grouped_by_question_and_logits_become_ranks_within_the_model() -> None:
    (qa,) = token_logprobs_qa(DATA)
    names, counts = np.unique(qa.evidence.table.groups, return_counts=True)
    assert len(names) < len(qa.evidence.table)
    assert counts.max() > 3
    spans, share = mu_shroom(DATA)
    table = share.evidence.table
    assert all((x <= 0).all() for x in table.logprobs)
    for model in np.unique(table.models):
        joined = np.concatenate(table.logprobs[table.models == model])
        assert np.exp(joined).mean() == pytest.approx(0.5, abs=0.05)  # ranks: the same for all models
    assert spans.evidence.table.y.mean() < 0.1 < share.evidence.table.y.mean()
