"""The numbers of Monitor-Generate-Verify and its baselines, on planted runs."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from metaprobe.eval.systems.mgv_figures import EVALUATIONS, CycleReport, attempts, cycle_reports
from metaprobe.records.errors import RecordError
from metaprobe.records.types import Call, Decision, Item, Label, Run, Statement, Usage

Planted = Sequence[tuple[float, float | None]]
"""For each cycle: whether its answer is right, and how it was evaluated."""


def run(number: int, cycles: Planted, *, difficulty: float | None = 0.5, returned: int = -1, label: bool = True) -> Run:
    calls, statements, labels, decisions = [], [], [], []
    for n, (correct, quality) in enumerate(cycles):
        for stage, parent in (("monitor", None), ("answer", None), ("verify", f"{number}/answer/{n}")):
            usage = Usage(completion_tokens=10 * (n + 1))
            call_id = f"{number}/{stage}/{n}"
            calls.append(Call(id=call_id, stage=stage, round=n, parent=parent, usage=usage, latency_ms=5.0))
        statements.append(Statement(f"{number}/monitor/{n}", "difficulty", difficulty))
        statements += [Statement(f"{number}/verify/{n}", kind, quality) for kind in EVALUATIONS["verify"]]
        labels.append(Label(f"{number}/answer/{n}", "correct", correct, "program"))
        decisions.append(Decision(id=f"{number}/iterate/{n}", point="iterate", action="again"))
    return Run(
        id=str(number),
        system="monitor-generate-verify",
        variant="paper",
        item=Item(id=str(number), question="?"),
        calls=tuple(calls),
        statements=tuple(statements),
        labels=tuple(labels) if label else (),
        decisions=tuple(decisions),
        outcome=cycles[returned][0],
    )


def report(*runs: Run) -> CycleReport:
    (found,) = cycle_reports(runs, resamples=200)
    return found


def test_attempts_and_solved_shares_are_those_of_the_planted_runs() -> None:
    found = report(
        run(0, [(1, 0.9)]), run(1, [(0, 0.9)]), run(2, [(0, 0.1), (1, 0.9)]), run(3, [(0, 0.1), (0, 0.2), (1, 0.3)])
    )
    assert found.accuracy.estimate == 0.75
    assert found.attempts.estimate == 7 / 4
    assert (found.stopped_first.estimate, found.solved_first.estimate) == (0.5, 0.25)
    assert [(cycle.estimate, cycle.n) for cycle in found.by_cycle] == [(0.25, 4), (0.5, 2), (1.0, 1)]
    assert found.tokens.estimate == (30 + 30 + 90 + 180) / 4
    assert found.latency_ms is not None
    assert found.latency_ms.estimate == 15 * 7 / 4
    assert found.thresholds == ()  # runs of different length: some were stopped


def test_evaluations_that_tell_have_auroc_1_and_those_that_mislead_0() -> None:
    good = report(*(run(i, [(i % 2, 0.2 + 0.6 * (i % 2))], difficulty=i % 2) for i in range(8)))
    assert good.quality_auroc is not None
    assert good.quality_auroc.estimate == 1.0
    assert good.difficulty_auroc is not None
    assert good.difficulty_auroc.estimate == 0.0  # what was called hard was right
    assert (good.quality_given, good.difficulty_given) == (1.0, 1.0)


def test_a_threshold_stops_at_the_first_answer_that_reaches_it_and_returns_the_best_so_far() -> None:
    runs = [run(0, [(1, 0.6), (0, 0.95)]), run(1, [(0, 0.2), (1, 0.7)]), run(2, [(0, 0.5), (1, 0.4)])]
    found = {stop.threshold: stop for stop in report(*runs).thresholds}
    assert found[0.5].attempts.estimate == pytest.approx(4 / 3)  # the second run alone goes on
    assert found[0.5].accuracy.estimate == pytest.approx(2 / 3)
    assert found[0.5].tokens.estimate == pytest.approx((30 + 90 + 30) / 3)
    assert found[0.85].attempts.estimate == 2
    assert found[0.85].accuracy.estimate == pytest.approx(1 / 3)


def test_selection_is_compared_with_the_first_and_the_last_answer() -> None:
    tells = report(*(run(i, [(0, 0.1), (1, 0.9), (0, 0.2)]) for i in range(4)))
    assert tells.selection.best.estimate == 1.0
    assert (tells.selection.over_first.estimate, tells.selection.over_last.estimate) == (1.0, 1.0)
    misleads = report(*(run(i, [(0, 0.9), (1, 0.1)], returned=0) for i in range(4)))
    assert (misleads.selection.over_first.estimate, misleads.selection.over_last.estimate) == (0.0, -1.0)
    assert misleads.selection.oracle.estimate == 1.0


def test_self_verification_counts_drawing_and_verifying() -> None:
    def drawn(number: int, verified: float | None) -> Run:
        answers = [Call(id=f"{number}/answer/{n}", stage="answer", round=n) for n in range(3)]
        backward = [Call(id=f"{number}/b/{n}", stage="backward", round=n, parent=answers[0].id) for n in range(2)]
        return Run(
            id=str(number),
            system="self-verification",
            variant="paper",
            item=Item(id=str(number), question="?"),
            calls=(*answers, *(backward if number else ())),
            statements=(Statement(f"{number}/b/0", "verified", 1.0), Statement(f"{number}/b/1", "verified", verified)),
            labels=tuple(Label(call.id, "correct", 1.0, "program") for call in answers),
            outcome=1.0,
        )

    found = report(drawn(0, 0.0), drawn(1, 0.0))
    assert found.attempts.estimate == 1.5
    assert attempts(drawn(1, None))[0].quality == 0.5  # what cannot be read did not succeed
    assert attempts(drawn(0, None))[0].quality is None
    assert found.latency_ms is None


def test_answers_that_nobody_checked_are_refused() -> None:
    with pytest.raises(RecordError, match="no label 'correct'"):
        cycle_reports([run(0, [(1, 0.9)], label=False)])
    with pytest.raises(RecordError, match="run 0 has no checked answer"):
        attempts(replace(run(0, [(1, 0.9)]), outcome=None))
    with pytest.raises(RecordError, match="run 0 has no checked answer"):
        attempts(replace(run(0, [(1, 0.9)]), calls=()))
