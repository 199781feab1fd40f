"""Thresholds of the gate stop at most the promised rate of good answers, and its numbers are those worked by hand."""

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import made_up
from hypothesis import given
from hypothesis import strategies as st

from metaprobe.eval.gate_performance import (
    HeldOutLooks,
    first_below,
    gate_lines,
    gate_report,
)
from metaprobe.probes.features import COUNTS, features
from metaprobe.records.errors import RecordError
from metaprobe.training.calibrators import rising_calibrator
from metaprobe.training.evidence import load_evidence
from metaprobe.training.folds import final_roles
from metaprobe.training.gate_inputs import GateInputs
from metaprobe.training.recipes.gate import GATE_SCHEMA, fit_head, judge_gates, write_gate
from metaprobe.training.thresholds import (
    NO_LOOK,
    Surprise,
    conformal_threshold,
    groups_needed,
    joint_statistic,
    rate_at_most,
    score_thresholds,
)
from metaprobe.training.training_options import GateOptions
from metaprobe.training_cli import train_gate_command

pytestmark = pytest.mark.filterwarnings("ignore::metaprobe.checkpoints.UntrustedCheckpoint")


LOOKS = (3, 5, 10, 20)
ALPHAS = (0.05, 0.2)
Floats = np.ndarray[Any, np.dtype[np.float64]]


def good_scores(rng: np.random.Generator, n: int) -> Floats:
    """(n, looks): scores of good answers, each look on its own scale, related to the one before; NaN beyond the end."""
    walk = np.cumsum(rng.standard_normal((n, len(LOOKS))), axis=1)
    scores: Floats = walk**3 * np.array([1.0, 10.0, 0.1, 5.0]) + np.array([0.0, 3.0, -2.0, 100.0])
    lengths = rng.choice([2, 4, 8, 15, 40], size=n, p=[0.05, 0.15, 0.2, 0.2, 0.4])
    scores[lengths[:, None] < np.array(LOOKS)] = np.nan
    return scores


def simulated(alpha: float, *, calibration: int = 60, repeats: int = 200, new: int = 50) -> Floats:
    """Share of new good answers that are stopped at some look, in each repetition."""
    rng = np.random.default_rng(0)
    stopped = []
    for _ in range(repeats):
        reference, seen, unseen = (good_scores(rng, n) for n in (150, calibration, new))
        surprises = {k: Surprise.fit(column[np.isfinite(column)]) for k, column in zip(LOOKS, reference.T, strict=True)}
        of = [surprise.of(column) for surprise, column in zip(surprises.values(), seen.T, strict=True)]
        found = score_thresholds(surprises, joint_statistic(of), [alpha])[alpha]
        stopped.append(np.mean((unseen < np.array([found[k] for k in LOOKS])).any(axis=1)))
    return np.array(stopped)


@pytest.mark.parametrize("alpha", ALPHAS)
def test_of_good_answers_at_most_alpha_are_stopped_at_any_look_and_hardly_fewer(alpha: float) -> None:
    n, repeats, new = 60, 200, 50
    stopped = simulated(alpha)
    exact = math.floor(alpha * (n + 1)) / (n + 1)  # what the conformal quantile gives where nothing is tied
    # A repetition's rate is beta distributed with this mean; counting `new` answers adds the binomial's variance.
    error = math.sqrt(exact * (1 - exact) * (1 / (n + 2) + 1 / new) / repeats)
    assert exact <= alpha
    assert abs(stopped.mean() - exact) < 4 * error


def test_the_conformal_threshold_is_the_known_order_statistic() -> None:
    values = np.arange(1.0, 20.0)  # 19
    assert conformal_threshold(values, 0.05) == 19
    assert conformal_threshold(values, 0.1) == 18
    assert conformal_threshold(values[:9], 0.3) == 7  # 0.3 x 10 is three answers, whatever its float says
    assert [groups_needed(alpha) for alpha in (0.01, 0.02, 0.05, 0.1, 0.3)] == [99, 49, 19, 9, 3]


def test_a_rate_that_the_groups_do_not_allow_is_refused_with_the_number_that_would() -> None:
    with pytest.raises(RecordError, match=r"at least 99 groups, there are 98.*at least 0\.01"):
        conformal_threshold(np.arange(98.0), 0.01)
    conformal_threshold(np.arange(99.0), 0.01)
    with pytest.raises(RecordError, match="between 0 and 1"):
        conformal_threshold(np.arange(98.0), 0.0)


def test_what_one_gate_keeps_scatters_less_with_more_groups() -> None:
    assert rate_at_most(0.2, 9) > rate_at_most(0.2, 99) > 0.2
    assert rate_at_most(0.2, 9) == pytest.approx(0.3684, abs=1e-3)  # beta(2, 8) at 0.9, from a table
    rates = simulated(0.2, calibration=19, new=1000, repeats=150)
    assert abs(np.mean(rates <= rate_at_most(0.2, 19)) - 0.9) < 0.1


finite = st.floats(-50, 50, allow_subnormal=False)


@given(reference=st.lists(finite, min_size=1, max_size=30), scores=st.lists(finite, min_size=2, max_size=10))
def test_surprise_never_rises_with_the_score_and_its_threshold_stops_no_less_surprising_one(
    reference: list[float], scores: list[float]
) -> None:
    surprise = Surprise.fit(np.array(reference))
    ordered = np.sort(np.array(scores))
    nats = surprise.of(ordered)
    assert (np.diff(nats) <= 1e-12).all()
    for threshold in nats.tolist():
        below = ordered < surprise.score_at(threshold) - 1e-9 * max(1.0, float(np.abs(ordered).max()))
        assert (nats[below] >= threshold - 1e-9).all()


@pytest.mark.parametrize("scores", [[], [0.5, np.nan], [np.inf]])
def test_a_look_without_finite_scores_of_good_answers_is_refused(scores: list[float]) -> None:
    with pytest.raises(RecordError, match=rf"finite scores of good answers, got {len(scores)}: add runs"):
        Surprise.fit(np.array(scores))


def test_an_answer_without_a_look_is_never_stopped_and_counts() -> None:
    looks = [np.array([1.0, np.nan, np.nan]), np.array([0.5, 2.0, np.nan])]
    np.testing.assert_array_equal(joint_statistic(looks), [1.0, 2.0, NO_LOOK])
    assert Surprise.fit(np.array([0.0, 1.0])).score_at(NO_LOOK) == math.inf


def test_scores_that_go_the_wrong_way_fire_nowhere() -> None:
    rng = np.random.default_rng(0)
    y = np.arange(80) % 2
    calibrator = rising_calibrator(rng.normal(size=80) - 3 * y, y, [f"g{i}" for i in range(80)])
    p = calibrator.probability(np.linspace(-9, 9, 50))
    assert (np.diff(p) >= 0).all()
    assert np.ptp(p) < 1e-5
    assert p[0] == pytest.approx(0.5)  # the share of good answers


@pytest.mark.parametrize(("told_by", "reached"), [(np.mean, "mean"), (np.max, "min")])
def test_a_look_judges_by_the_free_number_that_tells(told_by: Any, reached: str) -> None:
    rng, made = np.random.default_rng(0), made_up(400).table
    surprise = rng.exponential(np.exp(0.5 * rng.normal(size=(400, 1))), size=(400, 12))
    told = np.log(told_by(surprise[:, :10], axis=1))
    y = (rng.uniform(size=400) < 1 / (1 + np.exp(3 * (told - told.mean())))).astype(np.int64)
    logprobs = np.empty(400, dtype=object)
    logprobs[:] = list(-surprise.astype(np.float32))
    table = dataclasses.replace(made, logprobs=logprobs, tokens=np.full(400, 12), y=y, groups=made.call_ids)
    inputs = GateInputs(features(GATE_SCHEMA, list(logprobs)))
    head = fit_head(inputs, table, final_roles(table.groups.tolist(), y), 10)
    assert head.scorer.reached == reached


def known_answers() -> HeldOutLooks:
    """Four answers of 10 tokens, two to each of two questions; the bad ones alone are stopped, after 3 tokens."""
    table = made_up(20).table.rows(np.arange(4))
    logprobs = np.empty(4, dtype=object)
    logprobs[:] = [np.full(10, -1.0, np.float32)] * 4
    table = dataclasses.replace(
        table,
        items=np.array(["a", "a", "b", "b"]),
        groups=np.array(["a", "a", "b", "b"]),
        y=np.array([1, 0, 0, 1]),
        tokens=np.full(4, 10),
        logprobs=logprobs,
    )
    p = np.array([[0.9], [0.1], [0.2], [0.8]])
    return HeldOutLooks(table, (3,), p, p[:, 0], {0.1: first_below(p, np.array([0.5]), (3,))}, np.zeros(4, int))


def test_what_is_promised_for_all_tasks_is_said_of_each() -> None:
    """The gate stops 20 % of 200 good answers: 6 % of one task, and 64 % of the other."""
    table = made_up(300).table.rows(np.arange(230))
    gsm = np.arange(230) % 4 == 0
    tasks = np.where(np.arange(230) < 200, np.where(gsm, "gsm8k", "facts"), "rare")
    y = np.where(tasks == "rare", np.arange(230) % 3 == 0, 1).astype(np.int64)
    table = dataclasses.replace(table, y=y, tasks=tasks, groups=table.call_ids)
    stopped = np.where(gsm, np.arange(230) % 80 < 44, np.arange(230) % 20 == 1) & (tasks != "rare")
    p = np.linspace(0.1, 0.9, 230)
    held_out = HeldOutLooks(table, (3,), p[:, None], p, {0.2: np.where(stopped, 3, 0)}, np.zeros(230, int))
    [rate] = gate_report(held_out, resamples=50).rates
    assert rate.false_alarms.estimate < 0.22
    assert rate.worst_task == "gsm8k"
    assert rate.by_task["gsm8k"].estimate == pytest.approx(stopped[(tasks == "gsm8k")].mean())
    assert rate.by_task["gsm8k"].estimate > 0.6
    assert set(rate.by_task) == {"gsm8k", "facts"}, "ten good answers tell no rate"
    lines = gate_lines(gate_report(held_out, resamples=50))
    assert "What begins after token 3 is not seen." in lines
    [line] = [line for line in lines if line.startswith("promised")]
    assert "of good ones of gsm8k" in line
    alone = dataclasses.replace(held_out, table=dataclasses.replace(table, tasks=np.full(230, "one")))
    assert gate_report(alone, resamples=50).rates[0].by_task == {}


def test_a_gate_that_lowers_quality_saves_nothing_at_equal_quality() -> None:
    held_out = known_answers()
    worse = dataclasses.replace(held_out, fired={0.1: np.array([3, 0, 0, 3])})
    [rate] = gate_report(worse, resamples=20).rates
    assert rate.uses[0].accuracy.estimate == 0.0
    assert math.isnan(rate.uses[0].saved_full.estimate)


@pytest.mark.slow
def test_held_out_false_alarms_on_recorded_answers_keep_the_promise() -> None:
    store = Path(__file__).parent.parent / "recorded" / "metacog-every-agent"
    evidence = load_evidence([store], stage="answer", agent="alpha", hidden=False)
    X = features(GATE_SCHEMA, list(evidence.table.logprobs))
    held_out, _ = judge_gates(evidence, GateInputs(X), alphas=(0.1, 0.3), folds=3)
    for rate in gate_report(held_out, resamples=200).rates:
        # 3 sets of thresholds, each from some 37 groups, judged on 137 groups in all.
        error = math.sqrt(rate.alpha * (1 - rate.alpha) * (1 / (3 * 37) + 1 / rate.false_alarms.n))
        assert rate.false_alarms.estimate < rate.alpha + 3 * error
        assert rate.bad_stopped.estimate > rate.false_alarms.estimate
    assert set(held_out.fired) == {0.1, 0.3}


def test_too_few_answers_are_told_once_with_how_many_it_takes(tmp_path: Path) -> None:
    evidence = made_up(64, signal=2.5, seed=1)
    with pytest.raises(RecordError) as refused:
        write_gate(evidence, GateOptions(out=tmp_path / "gate"))
    groups = len(np.unique(evidence.table.groups))
    assert str(refused.value) == (
        f"21 good and 43 bad answers, to questions of {groups} groups, have 3 tokens or more; a gate needs at least 32 "
        "good and 32 bad ones, spread evenly over the groups: label more answers"
    )


def test_help_and_page_name_the_looks_and_that_the_rest_is_not_seen() -> None:
    looks = f"{', '.join(map(str, COUNTS[:-1]))} and {COUNTS[-1]} tokens"
    page = (Path(__file__).parent.parent / "docs" / "streams.md").read_text(encoding="utf-8")
    for text in (train_gate_command.help, page):
        assert looks in " ".join(text.split())
        assert "Failures that begin later are not seen." in " ".join(text.split())
