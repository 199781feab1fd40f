"""The numbers of the essay debate, on runs whose truth was planted."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from metaprobe.eval.metrics.discrimination import auroc
from metaprobe.eval.systems.essay_debate import (
    Association,
    FeatureScore,
    checks,
    feature_associations,
    judge_agreement,
    score_agreement,
    verdicts,
)
from metaprobe.probes.features import schema
from metaprobe.records.errors import RecordError
from metaprobe.records.types import Call, Item, Label, Run

JUDGE = "judge:j"
FIGURES = Path(__file__).parents[1] / "docs" / "paper_numbers" / "early_token_confidence.json"

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
    return {(row.role, row.judge, row.target): row for row in feature_associations(RUNS, resamples=20)}


Found = dict[tuple[str, str, str], Association]


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


def test_pass_rates_and_missing_judgements_are_those_that_were_planted() -> None:
    def labels(number: int, role: str, logprobs: np.ndarray) -> dict[tuple[str, str], float]:
        if role == "skeptic" and number < 10:
            return {("program", "critical"): 0.0}  # judged by the program alone: the model said nothing readable
        level = 3 if number % 2 else 1
        return {(JUDGE, k): float(level) for k in ("instruction", "justification", "evidence")} | {
            (JUDGE, "critical"): float(number % 4 == 0),
            (JUDGE, "q"): 3.0 * level,
            ("program", "critical"): 0.0,
        }

    advocate, skeptic = verdicts([run(n, labels=labels) for n in range(40)], resamples=50)
    assert (advocate.role, advocate.judge, advocate.asked, advocate.missing) == ("advocate", JUDGE, 40, 0)
    assert (skeptic.asked, skeptic.missing, skeptic.retried) == (40, 10, 0)
    assert advocate.top["instruction"].estimate == advocate.passed["instruction"].estimate == 0.5
    assert advocate.critical is not None
    assert advocate.critical.estimate == 0.25
    assert skeptic.q is not None
    assert skeptic.q.n == 30


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
    # What the program did not check has no row, and the next role has its own.
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


def test_a_checkpoint_in_the_judges_place_is_asked_once_and_predicts_nothing() -> None:
    def labels(number: int, role: str, logprobs: np.ndarray) -> dict[tuple[str, str], float]:
        names = ("instruction", "justification", "evidence", "q")
        return {("ab12", k): 3.0 - number % 2 for k in names} | {("ab12", "critical"): 0.0}

    def unjudged(found: Run) -> Run:
        return dataclasses.replace(found, calls=tuple(call for call in found.calls if call.stage != "judge"))

    runs = [unjudged(run(n, labels=labels)) for n in range(8)]
    for row in verdicts(runs, resamples=20):
        assert (row.judge, row.asked, row.retried, row.missing) == ("ab12", 8, 0, 0)
        assert (row.top["evidence"].estimate, row.passed["evidence"].estimate) == (0.5, 1)
    assert feature_associations(runs) == ()  # what it said follows from these very features


def test_a_program_that_flags_what_the_model_flags_has_kappa_one() -> None:
    def same(number: int, role: str, logprobs: np.ndarray) -> dict[tuple[str, str], float]:
        flag, level = float(number % 3 == 0), float(1 + number % 3)
        both = {(source, "critical"): flag for source in (JUDGE, "program")}
        return both | {(JUDGE, "q"): 5.0, (JUDGE, "evidence"): level, ("program", "check:evidence"): level}

    advocate, _ = judge_agreement([run(n, labels=same) for n in range(30)], resamples=50)
    assert advocate.flags == {(True, True): 10, (False, False): 20, (True, False): 0, (False, True): 0}
    assert advocate.critical.estimate == advocate.evidence.estimate == 1.0
    (other, _) = judge_agreement(RUNS, resamples=50)
    assert abs(other.critical.estimate) < 0.4
    assert sum(other.flags.values()) == 80


def test_what_the_program_found_is_given_as_shares() -> None:
    advocate, _ = checks(RUNS, resamples=50)
    rates = {name: rate.estimate for name, rate in advocate.rates.items()}
    assert rates["critical"] == 0.25
    assert rates["check:scored"] == 0.0
    assert rates["check:evidence"] == pytest.approx(2 / 3, abs=0.01)  # above 1


def planted(role: str) -> tuple[list[float], dict[str, list[float]]]:
    """The first three tokens' range of a role's arguments, and the judge's labels."""
    runs = sorted(RUNS, key=lambda run: run.id)
    calls = [call for run in runs for call in run.calls if (call.stage, call.agent) == ("argument", role)]
    labels = {(label.call_id, label.name): label.value for run in runs for label in run.labels if label.source == JUDGE}
    spread = [float(np.ptp(call.logprobs[:3])) for call in calls if call.logprobs is not None]
    return spread, {name: [labels[call.id, name] for call in calls] for name in ("q", "critical")}


def test_the_feature_that_the_judge_looks_at_is_found(found: Found) -> None:
    for role in ("advocate", "skeptic"):
        row = found[role, JUDGE, "justification"]
        assert {feature.feature for feature in row.best} == {"first3.range", "first3.std", "first3.var"}
        assert row.best[0].score.estimate > 0.9
        assert row.best[0].second > 0.7
        assert row.held_out > 0.8
        assert row.best[0].score.low <= row.best[0].score.estimate <= row.best[0].score.high


def test_a_flag_that_goes_with_low_values_has_an_auroc_below_one_half_and_counts_as_strong(found: Found) -> None:
    row = found["advocate", JUDGE, "critical"]
    best = next(feature for feature in row.best if feature.feature == "first3.range")
    assert best.score.estimate == pytest.approx(0.0, abs=1e-9)
    assert best.second < 0
    assert row.held_out > 0.9


def test_a_target_that_does_not_vary_has_no_best_feature(found: Found) -> None:
    row = found["advocate", JUDGE, "evidence"]
    assert (row.best, row.n) == ((), 80)
    assert np.isnan(row.held_out)


def test_the_best_of_many_features_on_noise_falls_back_where_it_was_not_chosen(found: Found) -> None:
    for role in ("advocate", "skeptic"):
        row = found[role, "program", "check:evidence"]
        assert abs(row.best[0].score.estimate) > 0.15
        assert abs(row.held_out) < 0.3


def all_features(runs: list[Run], target: str, *, min_share: float = 0.5) -> dict[str, FeatureScore]:
    """Every ranked feature of the advocate's arguments."""
    only = [
        dataclasses.replace(
            run,
            calls=tuple(call for call in run.calls if call.agent == "advocate"),
            labels=tuple(label for label in run.labels if (label.source, label.name) == (JUDGE, target)),
        )
        for run in runs
    ]
    (row,) = feature_associations(only, top=len(schema("full").names), min_share=min_share, resamples=2)
    return {feature.feature: feature for feature in row.best}


def test_rho_tau_and_auroc_are_those_of_scipy_and_of_the_metrics() -> None:
    spread, labels = planted("advocate")
    q, flag = (all_features(RUNS, target)["first3.range"] for target in ("q", "critical"))
    assert q.score.estimate == pytest.approx(stats.spearmanr(spread, labels["q"]).statistic)
    assert q.second == pytest.approx(stats.kendalltau(spread, labels["q"]).statistic)
    assert flag.score.estimate == pytest.approx(auroc(labels["critical"], spread))
    assert flag.second == pytest.approx(stats.pointbiserialr(labels["critical"], spread).statistic)


def test_a_feature_that_some_arguments_are_too_short_for_is_scored_on_the_others() -> None:
    runs = []
    for number, whole in enumerate(RUNS[:40]):
        short = [
            dataclasses.replace(call, logprobs=call.logprobs[:30])
            if call.logprobs is not None and number % 4 == 0
            else call
            for call in whole.calls
        ]
        runs.append(dataclasses.replace(whole, calls=tuple(short)))
    found = all_features(runs, "q")
    assert (found["first50.mean"].n, found["first20.mean"].n) == (30, 40)
    assert "first50.mean" not in all_features(runs, "q", min_share=0.8)


def test_without_a_debate_there_is_nothing_to_report() -> None:
    with pytest.raises(RecordError, match="essay-debate"):
        score_agreement([])


def test_the_papers_figures_name_features_that_exist_and_best_first() -> None:
    figures = json.loads(FIGURES.read_text(encoding="utf-8"))
    rows = figures["tables 3 and 4"]["rows"]
    assert len(rows) == 2 * 2 * 5 * 3
    columns = figures["tables 3 and 4"]["columns"]
    table = [dict(zip(columns, row, strict=True)) for row in rows]
    assert {row["feature"] for row in table} <= set(schema("full").names)
    for essay_set in (7, 8):
        for role in ("advocate", "skeptic"):
            for target in ("q", "instruction", "justification", "evidence", "critical"):
                cell = [r for r in table if (r["set"], r["role"], r["target"]) == (essay_set, role, target)]
                strength = [r["auroc"] if target == "critical" else r["spearman"] for r in cell]
                assert len(cell) == 3
                assert strength == sorted(strength, reverse=True)
