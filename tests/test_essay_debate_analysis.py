"""The numbers of the essay debate, on runs whose truth was planted."""

from collections.abc import Callable

import numpy as np
import pytest

from metaprobe.records.errors import RecordError
from metaprobe.records.types import Call, Item, Label, Run
from research.papers.debates import Association, feature_associations, verdicts

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


def run(number: int, *, essay_set: str = "set 7", labels: LabelsOf = given) -> Run:
    rng = np.random.default_rng(number)
    item = Item(id=f"e{number // 2}/{number % 2}", question="", group=f"e{number // 2}", dimension=essay_set)
    calls, found = [], []
    for role in ("advocate", "skeptic"):
        name = f"{number}/{essay_set}/{role}"
        logprobs = -rng.exponential(1.0, size=int(rng.integers(60, 90))).astype(np.float32)
        calls.append(Call(id=name, stage="argument", agent=role, model="m", logprobs=logprobs))
        calls.append(Call(id=name + "/judge", stage="judge", agent=f"judge-{role}", parent=name, model="j"))
        found += [Label(name, k, v, source) for (source, k), v in labels(number, role, logprobs).items()]
    identity = f"essay-debate/paper/m/{essay_set}/{number}"
    return Run(identity, "essay-debate", "paper", item, tuple(calls), labels=tuple(found))


RUNS = [run(number) for number in range(80)]


@pytest.fixture(scope="module")
def found() -> dict[tuple[str, str, str], Association]:
    return {(row.role, row.judge, row.target): row for row in feature_associations(RUNS, resamples=5)}


def test_verdicts_are_of_judges_that_said_something_readable_and_sets_stand_apart() -> None:
    def labels(number: int, role: str, logprobs: np.ndarray) -> dict[tuple[str, str], float]:
        if role == "advocate":
            return {}
        return {(JUDGE, k): 2.0 for k in ("instruction", "justification", "evidence", "q")} | {(JUDGE, "critical"): 0.0}

    runs = [run(n, essay_set=name, labels=labels) for n in range(10) for name in ("set 7", "set 8")]
    other = Run("x", "another", "v", Item("i", "q", gold=("1",)), (Call(id="c", stage="argument", model="m"),))
    seven, eight = verdicts([*runs, other], resamples=20)
    assert (seven.essay_set, eight.essay_set, seven.role, seven.judge) == ("set 7", "set 8", "skeptic", JUDGE)
    assert (seven.top["evidence"].estimate, seven.passed["evidence"].estimate) == (0, 1)
    assert (seven.top["evidence"].n, seven.top["evidence"].groups) == (10, 5)
    assert {row.role for row in feature_associations(runs, resamples=2)} == {"skeptic"}


def test_the_feature_that_the_judge_looks_at_is_found(found: Found) -> None:
    for role in ("advocate", "skeptic"):
        row = found[role, JUDGE, "justification"]
        assert row.feature in {"first3.range", "first3.std", "first3.var"}
        assert row.score is not None
        assert row.score.estimate > 0.9
        assert row.held_out > 0.8
        assert row.score.low <= row.score.estimate <= row.score.high
    flag = found["advocate", JUDGE, "critical"]  # low values go with flags
    assert flag.feature in {"first3.range", "first3.std", "first3.var"}
    assert flag.score is not None
    assert flag.score.estimate == pytest.approx(0.0, abs=0.01)
    assert flag.held_out > 0.9
    constant = found["advocate", JUDGE, "evidence"]
    assert (constant.feature, constant.score, constant.n) == ("", None, 80)


def test_the_best_of_many_features_on_noise_falls_back_where_it_was_not_chosen(
    found: dict[tuple[str, str, str], Association],
) -> None:
    for role in ("advocate", "skeptic"):
        row = found[role, "program", "check:evidence"]
        assert row.score is not None
        assert abs(row.score.estimate) > 0.15
        assert abs(row.held_out) < 0.3


def test_without_a_debate_there_is_nothing_to_report() -> None:
    with pytest.raises(RecordError, match="essay-debate"):
        verdicts([])
