"""Off-policy estimates against sums done by hand, and against truths: planted ones, and those of nine real models."""

import gzip
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import t

from metaprobe.eval.metrics.ranked import Floats
from metaprobe.eval.ope import Logged, NoOverlap, PolicyValue, doubly_robust, doubly_robust_gain, ips, snips
from metaprobe.records.errors import RecordError

DATA = Path(__file__).parents[2] / "shared" / "data" / "router_cascade9" / "data.jsonl.gz"

# Three questions, two actions; weights of the policy below: 0.8 / 0.5, 0.5 / 0.25, 0.
HAND = Logged(
    action=np.array([0, 1, 1]),
    reward=np.array([1.0, 0.0, 1.0]),
    propensity=np.array([[0.5, 0.5], [0.75, 0.25], [0.5, 0.5]]),
    groups=["x", "y", "z"],
)
POLICY = np.array([[0.8, 0.2], [0.5, 0.5], [1.0, 0.0]])
MODEL = np.array([[0.6, 0.4], [0.8, 0.2], [0.7, 0.9]])


STREAM = 0x0BE
"""Keeps these draws apart from those of whoever made the data with the same seed: equal seeds give equal numbers."""


@dataclass(frozen=True, slots=True)
class Verified:
    """One estimator over many logs of the same questions."""

    bias: float
    """Mean estimate minus the truth."""
    bias_error: float
    """Standard error of that mean: a bias within two of it is none that these logs can show."""
    deviation: float
    """Standard deviation of the estimates."""
    coverage: float
    """Share of the intervals that hold the truth; its own standard error at 0.95 is 0.22 / sqrt(logs)."""
    width: float
    """Mean width of the intervals."""
    effective_sample_size: float
    """Mean."""


def drawn(
    reward: Floats, propensity: Floats, groups: Sequence[object] | NDArray[np.generic], *, seed: int = 0
) -> Logged:
    """One log: for each question an action drawn by its propensity (n, A), and its reward out of the full (n, A)."""
    chance = np.random.default_rng([seed, STREAM]).random(len(reward))
    # A sum that rounds to just below 1 must not lead beyond the last action that can be taken.
    last = propensity.shape[1] - 1 - (propensity[:, ::-1] > 0).argmax(axis=1)
    action = np.minimum((chance[:, None] >= np.cumsum(propensity, axis=1)).sum(axis=1), last)
    return Logged(action, reward[np.arange(len(reward)), action], propensity, groups)


def verified(
    reward: Floats,
    propensity: Floats,
    policy: Floats,
    predicted: Floats,
    groups: Sequence[object] | NDArray[np.generic],
    *,
    logs: int = 500,
    sampled: int | None = None,
    seed: int = 0,
) -> tuple[float, dict[str, Verified]]:
    """The true mean reward of `policy` (n, A), and how IPS, SNIPS and the doubly robust estimate do on it.

    For every log `sampled` groups are drawn with replacement (by default as many as there are) and then the actions:
    the questions at hand stand for the population, and the intervals must cover chance in both.
    """
    member = np.unique(np.asarray(groups), return_inverse=True)[1]
    order, size = np.argsort(member, kind="stable"), np.bincount(member)  # (n,), (G,)
    start = np.cumsum(size) - size
    truth = float((policy * reward).sum(axis=1).mean())
    rng = np.random.default_rng([seed, STREAM, STREAM])
    estimates: dict[str, list[PolicyValue]] = {"ips": [], "snips": [], "doubly robust": []}
    for log in range(logs):
        chosen = rng.integers(len(size), size=sampled or len(size))
        sizes = size[chosen]
        again = np.repeat(np.arange(len(chosen)), sizes)  # a group drawn twice is two groups
        rows = order[start[chosen][again] + np.arange(len(again)) - (np.cumsum(sizes) - sizes)[again]]
        logged = drawn(reward[rows], propensity[rows], again, seed=seed * logs + log)
        q, m = policy[rows], predicted[rows]
        estimates["ips"].append(ips(logged, q))
        estimates["snips"].append(snips(logged, q))
        estimates["doubly robust"].append(doubly_robust(logged, q, m))
    return truth, {name: _summary(found, truth) for name, found in estimates.items()}


def _summary(found: Sequence[PolicyValue], truth: float) -> Verified:
    def each(of: Callable[[PolicyValue], float]) -> Floats:
        return np.array([of(estimate) for estimate in found])

    value = each(lambda e: e.value.estimate)
    deviation = float(value.std(ddof=1))
    return Verified(
        bias=float(value.mean()) - truth,
        bias_error=deviation / len(found) ** 0.5,
        deviation=deviation,
        coverage=float(each(lambda e: e.value.low <= truth <= e.value.high).mean()),
        width=float(each(lambda e: e.value.high - e.value.low).mean()),
        effective_sample_size=float(each(lambda e: e.effective_sample_size).mean()),
    )


def test_ips_snips_and_doubly_robust_of_three_decisions_are_the_sums_worked_out_by_hand():
    assert ips(HAND, POLICY).value.estimate == pytest.approx(1.6 / 3)
    assert snips(HAND, POLICY).value.estimate == pytest.approx(1.6 / 3.6)
    # 0.56 + 1.6 (1 - 0.6), 0.5 + 2 (0 - 0.2), 0.7 + 0 (1 - 0.9)
    parts = np.array([1.2, 0.1, 0.7])
    found = doubly_robust(HAND, POLICY, MODEL)
    assert found.value.estimate == pytest.approx(parts.mean())
    assert found.standard_error == pytest.approx(parts.std(ddof=1) / 3**0.5)
    assert found.effective_sample_size == pytest.approx(3.6**2 / (1.6**2 + 4))  # 1.98: at least one degree of freedom
    half = t.ppf(0.975, 1) * found.standard_error
    assert found.value.high - found.value.estimate == pytest.approx(half)
    assert found.largest_weight == 2
    assert found.mean_weight.estimate == pytest.approx(1.2)


def test_the_standard_error_of_snips_is_that_of_leaving_out_one_group_at_a_time():
    values = []
    for left_out in range(3):
        rest = np.arange(3) != left_out
        part = Logged(HAND.action[rest], HAND.reward[rest], HAND.propensity[rest], np.arange(2))
        weight = part.taken(POLICY[rest]) / part.taken(part.propensity)
        values.append(weight @ part.reward / weight.sum())
    whole = snips(HAND, POLICY)
    spread = np.square(np.array(values) - whole.value.estimate).sum()
    assert whole.standard_error == pytest.approx((2 / 3 * spread) ** 0.5)


def test_a_group_of_copies_counts_as_one_question():
    three = doubly_robust(HAND, POLICY, MODEL)
    many = np.repeat(np.arange(3), 5)
    copied = Logged(HAND.action[many], HAND.reward[many], HAND.propensity[many], many)
    grouped = doubly_robust(copied, POLICY[many], MODEL[many])
    assert grouped.value.low == pytest.approx(three.value.low)
    assert (grouped.value.n, grouped.value.groups) == (15, 3)
    assert grouped.effective_sample_size == pytest.approx(three.effective_sample_size)
    alone = Logged(copied.action, copied.reward, copied.propensity, np.arange(15))
    assert doubly_robust(alone, POLICY[many], MODEL[many]).standard_error < grouped.standard_error


def test_evaluating_the_logging_policy_itself_gives_the_mean_reward():
    found = ips(HAND, HAND.propensity)
    assert found.value.estimate == pytest.approx(HAND.reward.mean())
    assert snips(HAND, HAND.propensity).value.estimate == pytest.approx(HAND.reward.mean())
    assert found.effective_sample_size == pytest.approx(3)


def test_what_was_never_tried_is_refused():
    certain = Logged(np.array([0, 0]), np.ones(2), np.array([[1.0, 0.0], [0.5, 0.5]]), ["x", "y"])
    even = np.full((2, 2), 0.5)
    for estimate in (ips, snips):
        with pytest.raises(NoOverlap, match=r"on 1 of 2 questions .*question 0, action 1.*on 1 of them one action"):
            estimate(certain, even)
    with pytest.raises(NoOverlap):
        doubly_robust(certain, even, even)
    with pytest.raises(NoOverlap):
        doubly_robust_gain(certain, np.array([[1.0, 0.0], [0.5, 0.5]]), even, even)
    assert ips(certain, np.array([[1.0, 0.0], [0.5, 0.5]])).value.estimate == 1  # there it says nothing new
    with pytest.raises(NoOverlap, match="none of the 2 logged actions"):
        ips(Logged(np.array([0, 0]), np.ones(2), even, ["x", "y"]), np.array([[0.0, 1.0], [0.0, 1.0]]))


@pytest.mark.parametrize(
    "place",
    [
        (1, 0),  # not taken, but of the policy's
        (2, 1),  # taken, though the policy would not
    ],
)
def test_a_prediction_that_is_needed_and_missing_is_refused(place: tuple[int, int]) -> None:
    missing = MODEL.copy()
    missing[place] = np.nan
    with pytest.raises(RecordError, match="must be finite for every action that was taken, or that the policy takes"):
        doubly_robust(HAND, POLICY, missing)


def test_a_prediction_that_nothing_needs_may_be_missing() -> None:
    log = Logged(np.array([0, 1, 0]), HAND.reward, HAND.propensity, HAND.groups)
    missing = MODEL.copy()
    missing[2, 1] = np.nan  # neither taken nor of the policy's
    assert doubly_robust(log, POLICY, missing).value == doubly_robust(log, POLICY, MODEL).value


def test_logs_that_contradict_themselves_are_refused():
    even = np.full((2, 2), 0.5)
    with pytest.raises(RecordError, match="question 1: action 1 was taken, but has propensity 0"):
        Logged(np.array([0, 1]), np.ones(2), np.array([[0.5, 0.5], [1.0, 0.0]]), ["x", "y"])
    with pytest.raises(RecordError, match=r"propensity of question 0 .*add up to 1"):
        Logged(np.array([0, 1]), np.ones(2), even / 2, ["x", "y"])
    with pytest.raises(RecordError, match="1 of 2 rewards"):
        Logged(np.array([0, 1]), np.array([1.0, np.nan]), even, ["x", "y"])
    with pytest.raises(RecordError, match=r"actions \(3,\), rewards \(2,\).*3 groups do not belong together"):
        Logged(np.zeros(3, dtype=int), np.ones(2), np.full((3, 2), 0.5), range(3))
    with pytest.raises(RecordError, match="0 groups do not belong together"):
        Logged(np.zeros(0, dtype=int), np.ones(0), np.full((0, 2), 0.5), [])
    with pytest.raises(RecordError, match="columns from 0 to 1"):
        Logged(np.array([0, 2]), np.ones(2), even, ["x", "y"])
    for groups in (["x", "x"], ["x", "y"]):  # the second: all the weight is in x
        with pytest.raises(NoOverlap, match="all the weight is in one"):
            ips(Logged(np.array([0, 1]), np.ones(2), even, groups), np.array([[1.0, 0.0], [1.0, 0.0]]))
    with pytest.raises(RecordError, match="policy has shape"):
        ips(HAND, even)
    with pytest.raises(RecordError, match=r"predicted has shape \(3,\); expected a reward for each of \(3, 2\)"):
        doubly_robust(HAND, POLICY, HAND.reward)


@given(st.integers(0, 10_000))
def test_doubly_robust_is_the_models_sum_where_the_model_is_exact_and_ips_where_it_is_zero(seed):
    rng = np.random.default_rng(seed)
    propensity, policy = rng.dirichlet(np.ones(3), 12), rng.dirichlet(np.ones(3), 12)
    reward = rng.random((12, 3))
    logged = drawn(reward, propensity, np.arange(12), seed=seed)
    truth = (policy * reward).sum(axis=1).mean()
    assert doubly_robust(logged, policy, reward).value.estimate == pytest.approx(truth)
    zero = np.zeros((12, 3))
    assert doubly_robust(logged, policy, zero).value.estimate == pytest.approx(ips(logged, policy).value.estimate)
    low, high = logged.reward.min(), logged.reward.max()
    assert low - 1e-12 <= snips(logged, policy).value.estimate <= high + 1e-12


def test_a_log_is_drawn_at_its_propensities_and_never_takes_what_has_none():
    propensity = np.tile([0.0, 0.2, 0.8, 0.0], (20_000, 1))
    logged = drawn(np.ones((20_000, 4)), propensity, np.arange(20_000))
    assert set(logged.action.tolist()) == {1, 2}
    assert (logged.action == 1).mean() == pytest.approx(0.2, abs=0.01)


def test_the_gain_is_the_difference_of_the_two_estimates_and_narrower_than_they_are():
    reward, propensity, policy, _, groups = planted(n_groups=400)
    running = np.eye(4)[np.zeros(len(reward), dtype=int)] * 0.5 + policy * 0.5
    logged = drawn(reward, propensity, groups)
    model = np.full(reward.shape, 0.5)
    new, old = doubly_robust(logged, policy, model), doubly_robust(logged, running, model)
    gain = doubly_robust_gain(logged, policy, running, model)
    assert gain.estimate == pytest.approx(new.value.estimate - old.value.estimate)
    assert gain.high - gain.low < new.value.high - new.value.low


# Known truths. 400 logs: the share of intervals that hold the truth has a standard error of 0.011 around 0.95; three of
# these are allowed on either side.

LOGS, SLACK = 400, 0.033


def planted(n_groups, *, largest=1, seed=0):
    """Rewards of 4 actions, each with a known P(success) that falls with the difficulty; a group shares its outcome."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, largest + 1, n_groups)
    groups = np.repeat(np.arange(n_groups), sizes)
    hard = rng.random((n_groups, 1))
    chance = np.clip(np.array([0.9, 0.8, 0.6, 0.3]) - hard * np.array([0.6, 0.3, 0.2, 0.0]), 0, 1)
    reward = (rng.random((n_groups, 4)) < chance).astype(float)[groups]
    favourite = np.where(hard > 0.5, 3, 0).ravel()[groups]
    propensity = 0.6 * np.eye(4)[favourite] + 0.1
    policy = np.where(hard[groups] > 0.3, [[0.0, 0.9, 0.1, 0.0]], [[1.0, 0.0, 0.0, 0.0]])
    return reward, propensity, policy, chance[groups], groups


def test_with_a_wrong_model_and_true_propensities_dr_intervals_hold_the_truth_at_their_rate():
    reward, propensity, policy, _, groups = planted(n_groups=250)
    wrong = np.tile([0.1, 0.2, 0.9, 0.9], (len(reward), 1))
    _, found = verified(reward, propensity, policy, wrong, groups, logs=LOGS)
    for estimator in ("doubly robust", "ips", "snips"):
        assert abs(found[estimator].coverage - 0.95) < SLACK, estimator
        assert abs(found[estimator].bias) < 3 * found[estimator].bias_error, estimator


def test_with_a_good_model_the_doubly_robust_estimate_varies_less_than_ips():
    reward, propensity, policy, chance, groups = planted(n_groups=250)
    _, found = verified(reward, propensity, policy, chance, groups, logs=LOGS)
    assert found["doubly robust"].deviation < 0.8 * found["ips"].deviation
    assert found["doubly robust"].width < 0.8 * found["ips"].width
    assert abs(found["doubly robust"].coverage - 0.95) < SLACK


def test_questions_that_share_a_group_are_covered_only_where_the_groups_are_told():
    reward, propensity, policy, _, groups = planted(n_groups=120, largest=9)
    model = np.full(reward.shape, 0.5)
    _, told = verified(reward, propensity, policy, model, groups, logs=LOGS)
    assert abs(told["doubly robust"].coverage - 0.95) < SLACK
    rng = np.random.default_rng(1)
    held = 0
    truth = (policy * reward).sum(axis=1).mean()
    members = [np.flatnonzero(groups == group) for group in range(120)]
    for log in range(200):
        rows = np.concatenate([members[group] for group in rng.integers(120, size=120)])
        untold = drawn(reward[rows], propensity[rows], np.arange(len(rows)), seed=log)
        value = doubly_robust(untold, policy[rows], model[rows]).value
        held += value.low <= truth <= value.high
    assert held / 200 < 0.9


def test_false_propensities_show_in_the_mean_weight():
    reward, propensity, policy, _, groups = planted(n_groups=2000)
    logged = drawn(reward, propensity, groups)
    true = ips(logged, policy).mean_weight
    assert true.low < 1 < true.high
    even = Logged(logged.action, logged.reward, np.full(propensity.shape, 0.25), groups)
    false = ips(even, policy).mean_weight
    assert not false.low < 1 < false.high


@pytest.fixture(scope="module")
def cascade9():
    """Rewards of nine models, and for each question: its data set's best model, and every model's mean there."""
    if not DATA.exists():
        pytest.skip("the shared data are not here")
    with gzip.open(DATA, "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    agents = list(rows[0]["models"])
    reward = np.array([[float(row["models"][agent]["correct"]) for agent in agents] for row in rows])
    domain = np.unique([row["dataset"] for row in rows], return_inverse=True)[1]
    means = np.array([reward[domain == d].mean(axis=0) for d in range(domain.max() + 1)])
    greedy = np.eye(len(agents))[np.full(len(rows), agents.index("llama3.1-70b"))]
    return reward, means[domain], np.eye(len(agents))[means.argmax(axis=1)[domain]], greedy


def test_on_nine_real_models_the_estimates_agree_with_the_full_matrix(cascade9):
    """An epsilon-greedy log around one model; evaluated: the best model of each data set. The truth is the matrix's."""
    reward, model, policy, greedy = cascade9
    n, A = reward.shape
    truth, found = verified(reward, 0.4 * greedy + 0.6 / A, policy, model, np.arange(n), logs=300, sampled=1500)
    assert truth == pytest.approx(reward[policy == 1].mean())
    for name, estimator in found.items():
        assert estimator.effective_sample_size > 100
        assert abs(estimator.bias) < 3.5 * estimator.bias_error, name
        assert abs(estimator.coverage - 0.95) < 0.045, name  # 300 logs: 3.5 standard errors of 0.0126
    assert found["doubly robust"].deviation < 0.6 * found["ips"].deviation


def test_few_effective_questions_do_not_cover_and_are_not_called_reliable(cascade9):
    reward, model, policy, greedy = cascade9
    n, A = reward.shape
    propensity = 0.7 * greedy + 0.3 / A
    _, found = verified(reward, propensity, policy, model, np.arange(n), logs=200, sampled=300)
    assert found["snips"].coverage < 0.9
    assert not snips(drawn(reward[:300], propensity[:300], np.arange(300)), policy[:300]).reliable
    assert snips(drawn(reward, propensity, np.arange(n)), policy).reliable
