"""The numbers of the essay debate, on runs whose truth was planted."""

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest

from metaprobe.records.errors import RecordError
from metaprobe.records.types import Call, Item, Label, Run
from research.papers.feature_associations import Association, feature_associations
from research.systems.debates import (
    checks,
    judge_agreement,
    score_agreement,
    verdicts,
)

JUDGE = "judge:j"

Found = dict[tuple[str, str, str], Association]
LabelsOf = Callable[[int, str, np.ndarray], dict[tuple[str, str], float]]


def given(number: int, role: str, logprobs: np.ndarray) -> dict[tuple[str, str], float]:
    """A judge who looks at the range of the first three tokens only, and a program that flags every fourth."""
    spread = float(np.ptp(logprobs[:3]))
    level = 1 + (spread > 1) + (spread > 2)
    critical = float(spread < 0.5)
    q = 0.0 if critical else 3.0 * level
    judged = {"instruction": level, "justification": level, "evidence": 3, "critical": critical, "q": q}
    program = {"critical": float(number % 4 == 0), "check:evidence": 1 + number % 3, "check:scored": 0.0}
    return {(JUDGE, k): float(v) for k, v in judged.items()} | {("program", k): float(v) for k, v in program.items()}


def run(number: int, *, essay_set: str = "set 7", labels: LabelsOf = given, score: str | None = None) -> Run:
    rng = np.random.default_rng(number)
    gold = number % 4
    item = Item(
        id=f"e{number // 2}/{number % 2}", question="", gold=(str(gold),), group=f"e{number // 2}", dimension=essay_set
    )
    calls, found = [], []
    for role in ("advocate", "skeptic"):
        name = f"{number}/{essay_set}/{role}"
        logprobs = -rng.exponential(1.0, size=int(rng.integers(60, 90))).astype(np.float32)
        calls.append(Call(id=name, stage="argument", agent=role, model="m", logprobs=logprobs))
        calls.append(Call(id=name + "/judge", stage="judge", agent=f"judge-{role}", parent=name, model="j"))
        found += [Label(name, k, v, source) for (source, k), v in labels(number, role, logprobs).items()]
    calls.append(Call(id=f"{number}/{essay_set}/score", stage="score", model="m"))
    final = str(gold) if score is None else score
    identity = f"essay-debate/paper/m/{essay_set}/{number}"
    return Run(identity, "essay-debate", "paper", item, tuple(calls), labels=tuple(found), final_answer=final)


RUNS = [run(number) for number in range(80)]


@pytest.fixture(scope="module")
def found() -> dict[tuple[str, str, str], Association]:
    return {(row.role, row.judge, row.target): row for row in feature_associations(RUNS, resamples=5)}


def test_equal_scores_agree_fully_and_sets_stand_apart() -> None:
    seven = [run(n) for n in range(20)]
    eight = [run(n, essay_set="set 8", score=str(3 - n % 4)) for n in range(20)]
    first, second = score_agreement(seven + eight, resamples=50)
    assert (first.essay_set, second.essay_set) == ("set 7", "set 8")
    assert first.kappa is not None
    assert second.kappa is not None
    assert (first.kappa.estimate, first.kappa.groups) == (1.0, 10)
    assert second.kappa.estimate == pytest.approx(-1.0)


def test_scores_that_cannot_be_read_are_counted_and_left_out() -> None:
    runs = [run(n, score="" if n < 5 else None) for n in range(20)]
    (row,) = score_agreement(runs, resamples=50)
    assert row.missing == 5
    assert row.kappa is not None
    assert (row.kappa.n, row.kappa.estimate) == (15, 1.0)
    (none,) = score_agreement([run(n, score="") for n in range(4)], resamples=50)
    assert (none.kappa, none.missing) == (None, 4)


def test_a_judge_that_was_asked_again_or_said_nothing_readable_is_counted() -> None:
    def labels(number: int, role: str, logprobs: np.ndarray) -> dict[tuple[str, str], float]:
        program = {("program", "critical"): 1.0, ("program", "check:evidence"): 1.0} if role == "skeptic" else {}
        if role == "advocate":
            return program
        return program | {(JUDGE, k): 2.0 for k in ("instruction", "justification", "evidence", "q")} | {
            (JUDGE, "critical"): 0.0
        }  # fmt: skip

    def asked_again(found: Run) -> Run:
        again = [
            dataclasses.replace(call, id=f"{call.id}2")
            for call in found.calls
            if call.stage == "judge" and call.parent is not None and call.parent.startswith("1/")
        ]
        return dataclasses.replace(found, calls=(*found.calls, *again))

    runs = [asked_again(run(n, labels=labels)) for n in range(10)]
    other = Run("x", "another", "v", Item("i", "q", gold=("1",)), (Call(id="c", stage="argument", model="m"),))
    silent, spoke = verdicts([*runs, other], resamples=20)
    assert (silent.role, silent.asked, silent.retried, silent.missing) == ("advocate", 10, 1, 10)
    assert (silent.top, silent.passed, silent.critical, silent.q) == ({}, {}, None, None)
    assert (spoke.role, spoke.asked, spoke.retried, spoke.missing) == ("skeptic", 10, 1, 0)
    assert (spoke.top["evidence"].estimate, spoke.passed["evidence"].estimate) == (0, 1)
    # Arguments that the program did not check have no row, and the next role has its own.
    (checked,) = checks(runs, resamples=20)
    assert (checked.role, checked.rates["critical"].estimate) == ("skeptic", 1)
    assert checked.rates["check:evidence"].estimate == 0  # one piece of evidence is not more than one
    (both,) = judge_agreement(runs, resamples=20)
    assert both.role == "skeptic"
    assert both.flags == {(False, False): 0, (False, True): 0, (True, False): 10, (True, True): 0}
    assert {row.role for row in feature_associations(runs, resamples=2)} == {"skeptic"}
    ungraded = [dataclasses.replace(found, item=dataclasses.replace(found.item, gold=())) for found in runs]
    assert score_agreement(ungraded) == ()
    (scored,) = score_agreement([*ungraded, run(10, score="0")], resamples=20)
    assert (scored.model, scored.variant, scored.missing) == ("m", "paper", 0)
    assert scored.exact is not None
    assert (scored.exact.estimate, scored.exact.n) == (0, 1)


def test_the_feature_that_the_judge_looks_at_is_found(found: Found) -> None:
    for role in ("advocate", "skeptic"):
        row = found[role, JUDGE, "justification"]
        assert {feature.feature for feature in row.best} == {"first3.range", "first3.std", "first3.var"}
        assert row.best[0].score.estimate > 0.9
        assert row.best[0].second > 0.7
        assert row.held_out > 0.8
        assert row.best[0].score.low <= row.best[0].score.estimate <= row.best[0].score.high
    flag = found["advocate", JUDGE, "critical"]  # low values go with flags
    best = next(feature for feature in flag.best if feature.feature == "first3.range")
    assert best.score.estimate == pytest.approx(0.0, abs=1e-9)
    assert best.second < 0
    assert flag.held_out > 0.9
    constant = found["advocate", JUDGE, "evidence"]
    assert (constant.best, constant.n) == ((), 80)


def test_the_best_of_many_features_on_noise_falls_back_where_it_was_not_chosen(
    found: dict[tuple[str, str, str], Association],
) -> None:
    for role in ("advocate", "skeptic"):
        row = found[role, "program", "check:evidence"]
        assert abs(row.best[0].score.estimate) > 0.15
        assert abs(row.held_out) < 0.3


def test_without_a_debate_there_is_nothing_to_report() -> None:
    with pytest.raises(RecordError, match="essay-debate"):
        score_agreement([])
