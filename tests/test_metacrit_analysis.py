"""The analyses of MetaCrit's runs find what was planted in them."""

import numpy as np
import pytest

from metaprobe.eval.systems.metacrit_figures import (
    BOTH,
    COLLAPSE,
    CONTROL_ONLY,
    FINAL,
    GAP,
    MONITOR_ONLY,
    NEITHER,
    PATTERNS,
    RECONCILIATION,
    UNREADABLE,
    agreement,
    cost_table,
    failure_types,
    stage_accuracy,
)
from metaprobe.records.types import Call, Item, Label, Run, Statement, Usage

TEXTS = {"answer": "red green", "monitor": "green blue", "control": "blue blue", "synthesis": "blue"}


def make(
    number: int,
    *,
    first: int | None = 1,
    final: int | None = 1,
    monitor: float | None = 0,
    control: float | None = 0,
    item: str = "",
    model: str = "m",
    variant: str = "equations",
    **of_call: object,
) -> Run:
    """A run of the four agents: whether A1 and A4 were right, and who flagged."""
    calls = tuple(Call(id=f"{number}/{s}", stage=s, text=t, model=model, **of_call) for s, t in TEXTS.items())  # type: ignore[arg-type]
    labels = [(calls[0], first), (calls[3], final)]
    return Run(
        id=str(number),
        system="metacrit",
        variant=variant,
        item=Item(id=item or f"i{number}", question="q", gold=("blue",), task="t"),
        calls=calls,
        statements=(Statement(calls[1].id, "flags", monitor), Statement(calls[2].id, "flags", control)),
        labels=tuple(Label(call.id, "correct", value, "program") for call, value in labels if value is not None),
        outcome=final,
    )


def baseline(number: int, right: list[int], *, item: str, model: str = "m") -> Run:
    """Another system's run over an item, with an answer for each of `right`."""
    calls = tuple(Call(id=f"b{number}/{n}", stage="answer", model=model) for n in range(len(right)))
    labels = tuple(Label(call.id, "correct", value, "program") for call, value in zip(calls, right, strict=True))
    it = Item(id=item, question="q", task="t")
    return Run(id=f"b{number}", system="base", variant="plain", item=it, calls=calls, labels=labels, outcome=right[0])


def test_agreement_counts_who_flags_and_what_came_of_it() -> None:
    flags = {BOTH: (1, 1), CONTROL_ONLY: (0, 1), MONITOR_ONLY: (1, 0), NEITHER: (0, 0), UNREADABLE: (None, 1)}
    planted = {  # (first right, final right) of each run
        BOTH: [(0, 1), (0, 1), (0, 0), (1, 1)],
        CONTROL_ONLY: [(1, 0), (1, 1)],
        MONITOR_ONLY: [],
        NEITHER: [(1, 1)] * 3,
        UNREADABLE: [(0, 0)],
    }
    cases = [(pattern, *case) for pattern, found in planted.items() for case in found]
    runs = [
        make(n, first=first, final=final, monitor=flags[pattern][0], control=flags[pattern][1])
        for n, (pattern, first, final) in enumerate(cases)
    ]
    rows = {row.pattern: row for row in agreement(runs)}
    assert tuple(rows) == PATTERNS
    assert [row.n for row in rows.values()] == [len(planted[pattern]) for pattern in PATTERNS]
    assert rows[BOTH].accuracy.estimate == 0.75
    assert rows[BOTH].first_accuracy.estimate == 0.25
    assert rows[BOTH].repaired.estimate == pytest.approx(2 / 3)
    assert rows[BOTH].broken.estimate == 0
    assert rows[CONTROL_ONLY].broken.estimate == 0.5
    assert rows[CONTROL_ONLY].repaired is None
    assert rows[MONITOR_ONLY].accuracy is None


def test_failures_are_told_apart_by_what_spoke_for_another_answer_and_by_what_the_model_knows() -> None:
    runs = [
        make(0, first=1, final=0),  # A1 was right
        make(1, first=0, final=0, control=1),  # control objected
        make(2, first=0, final=0, monitor=1),  # only the monitor did, and the model never got it right
        make(3, first=0, final=0),  # the same, but one sample of the same model is right
        make(4, first=0, final=0, control=None),
        make(5, first=0, final=1),  # not wrong
        make(6, first=0, final=0),  # right by another model only
        baseline(0, [0, 0], item="i2"),
        baseline(1, [0, 1], item="i3"),
        baseline(2, [1], item="i6", model="other"),
    ]
    found = failure_types(runs)
    assert found.counts == {COLLAPSE: 1, GAP: 2, RECONCILIATION: 2, UNREADABLE: 1}
    assert found.wrong == 6
    assert found.share(GAP) == pytest.approx(1 / 3)
    assert found.evidence == pytest.approx((4 + 4 + 2) / 3)  # two answers of its own each, and two samples of i2 and i3


def test_accuracy_after_each_stage_is_paired_with_the_first_answer_and_resampled_by_group() -> None:
    rng = np.random.default_rng(0)
    first = rng.random(400) < 0.4
    final = first | (rng.random(400) < 0.5)
    runs = [
        make(n, first=int(a), final=int(b), item=f"i{n % 100}")
        for n, (a, b) in enumerate(zip(first, final, strict=True))
    ]
    rows = {row.stage: row for row in stage_accuracy(runs)}
    assert list(rows) == ["answer", "synthesis", FINAL]
    assert rows["answer"].gain is None
    assert rows["answer"].accuracy.estimate == pytest.approx(first.mean())
    assert rows["synthesis"].gain.estimate == pytest.approx(final.mean() - first.mean())
    assert rows["synthesis"].gain.low > 0.2
    assert rows["synthesis"].accuracy.groups == 100
    assert rows[FINAL].accuracy.estimate == rows["synthesis"].accuracy.estimate


def test_costs_are_in_the_papers_units() -> None:
    told = {"usage": Usage(90, 10), "latency_ms": 500.0, "cost_usd": 0.0005}
    ids = {"prompt_token_ids": np.arange(5), "token_ids": np.arange(2)}
    first, second, third = cost_table([make(0, **told), make(1, variant="ids", **ids), baseline(2, [1, 0], item="i")])
    assert (first.calls, first.tokens, first.latency_s, first.cost_per_1000) == (4, 400, 2.0, pytest.approx(2.0))
    assert first.accuracy.estimate == 1
    assert (second.tokens, second.latency_s, second.cost_per_1000) == (28, None, None)
    assert (third.n, third.calls, third.tokens) == (1, 2, None)
