"""A report adds numbers from whole runs: tokens seen and stages."""

from pathlib import Path

import numpy as np
import pytest

from metaprobe.eval.answer_table import answer_table
from metaprobe.eval.answers import (
    auroc_by_tokens_seen,
    with_stage_accuracy,
)
from metaprobe.eval.results import Comparison
from metaprobe.records.errors import RecordError
from metaprobe.records.store import RunStore
from metaprobe.records.types import Call, Item, Label, Run

RECORDED = Path(__file__).parent.parent / "recorded"


def run(number, logprobs, right, *, agent="", label=True):
    call = Call(id=f"c{number}", stage="answer", agent=agent, model="m", logprobs=np.array(logprobs, dtype=np.float32))
    return Run(
        id=f"r{number}",
        system="s",
        variant="v",
        item=Item(id=f"i{number}", question="q", group=f"g{number}"),
        calls=(call,),
        labels=(Label(call.id, "correct", float(right), "program"),) if label else (),
        outcome=float(right),
    )


@pytest.fixture(scope="module")
def planted():
    """Right and wrong answers that begin alike and part at the sixth token."""
    rng = np.random.default_rng(0)
    runs = []
    for number in range(80):
        right = number % 2
        start = rng.normal(-1, 0.2, 5)
        runs.append(run(number, [*start, *([-0.1 if right else -4.0] * rng.integers(3, 9))], right))
    return runs


def test_what_parts_at_the_sixth_token_cannot_be_told_before_and_can_after(planted):
    seen = auroc_by_tokens_seen(answer_table(planted), resamples=50)
    mean = next(method for method in seen.methods if method.name == "mean log-probability")
    by_k = dict(zip(seen.tokens, mean.auroc, strict=True))
    assert by_k[5].low < 0.5 < by_k[5].high
    assert by_k[10].estimate == 1.0


def test_learned_scores_are_shown_at_their_own_tokens_and_must_have_the_same(planted):
    table = answer_table(planted)
    perfect = {4: table.y, 8: table.y}
    seen = auroc_by_tokens_seen(table, learned={"trees": perfect}, resamples=10)
    assert seen.tokens == (4, 8)
    assert [interval.estimate for interval in seen.methods[-1].auroc] == [1.0, 1.0]
    with pytest.raises(RecordError, match=r"b has scores for k in \[4\]; the others for k in \[4, 8\]"):
        auroc_by_tokens_seen(table, learned={"a": perfect, "b": {4: table.y}})


def test_recorded_metacrit_runs_fill_their_sections():
    runs = list(RunStore(RECORDED / "creak-metacrit"))
    empty = Comparison(title="t", provenance={}, y=np.array([0, 1]), methods=())
    found = with_stage_accuracy(empty, runs, resamples=20)
    assert {"answer", "synthesis", "final"} <= {row.stage for row in found.stages}
