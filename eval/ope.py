"""Off-policy estimates: the mean reward of another policy, from decisions that were logged with their propensities.

One decision a question; needs scipy (the extra `fit`). Letters: n questions, A actions; x a question, a the action
taken, r its reward. The logging policy took action b with probability p(b|x), the evaluated policy takes it with
q(b|x); m(x, b) is a fitted model of the reward.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import floor

import numpy as np
from numpy.typing import NDArray

from metaprobe.eval.metrics.bootstrap import Interval
from metaprobe.eval.metrics.ranked import Floats
from metaprobe.records.errors import RecordError
from metaprobe.records.extras import require

SUM_TOLERANCE = 1e-6
"""Largest distance of a sum of probabilities from 1. Sums in float32 over a few dozen actions stay within it."""

CALIBRATED_GROUPS = 100
"""Fewest effective groups for which an interval is reliable. From this number on, 95 % intervals covered the truth in
93 to 96 % of the logs of nine real models.
"""


class NoOverlap(RecordError):
    """The logged decisions cannot show the reward of the evaluated policy, because it takes actions that were never
    tried.
    """


@dataclass(frozen=True, slots=True, eq=False)
class Logged:
    """Single decisions, with the probability of every action when they were made."""

    action: NDArray[np.integer]
    """Column of the action that was taken, (n,)."""
    reward: Floats
    """Rewards (n,), for example score - price * cost_usd."""
    propensity: Floats
    """Probability p(b|x) of each action (n, A). Rows sum to 1, with 0 for actions that were not legal."""
    groups: Sequence[object] | NDArray[np.generic]
    """Group of each decision (n,)."""

    def __post_init__(self) -> None:
        n = len(self.groups)
        if self.action.shape != (n,) or self.reward.shape != (n,) or self.propensity.shape[:-1] != (n,) or not n:
            raise RecordError(
                f"actions {self.action.shape}, rewards {self.reward.shape}, propensities {self.propensity.shape} and "
                f"{n} groups do not belong together: expected (n,), (n,), (n, A) and n"
            )
        if not np.isfinite(self.reward).all():
            raise RecordError(f"{np.count_nonzero(~np.isfinite(self.reward))} of {n} rewards are not finite")
        _check_distributions("propensity", self.propensity, self.propensity.shape)
        if self.action.min() < 0 or self.action.max() >= self.propensity.shape[1]:
            raise RecordError(f"actions must be columns from 0 to {self.propensity.shape[1] - 1}")
        if (impossible := self.taken(self.propensity) <= 0).any():
            row = int(impossible.argmax())
            raise RecordError(f"question {row}: action {self.action[row]} was taken, but has propensity 0")

    def taken(self, values: Floats) -> Floats:
        """Returns the values (n,) of the actions that were taken, from values (n, A)."""
        values_of_actions: Floats = values[np.arange(len(self.action)), self.action]
        return values_of_actions


@dataclass(frozen=True, slots=True)
class PolicyValue:
    """The evaluated policy's mean reward."""

    value: Interval
    """Estimated value. Its interval is Student's t from the standard error, with the effective sample size for the
    degrees of freedom.
    """
    standard_error: float
    """Standard error of `value`, computed by leaving out one group at a time."""
    effective_sample_size: float
    """Kish's (sum w)^2 / sum w^2 over groups. That many groups would tell as much if the evaluated policy itself had
    decided. `reliable` says whether they suffice.
    """
    largest_weight: float
    """Largest importance weight of a decision."""
    mean_weight: Interval
    """Mean importance weight. If the interval does not hold 1, the propensities are wrong."""

    @property
    def reliable(self) -> bool:
        """Whether there are `CALIBRATED_GROUPS` effective groups: then 95 % intervals hold the truth in about 95 %."""
        return self.effective_sample_size >= CALIBRATED_GROUPS


def ips(logged: Logged, policy: Floats) -> PolicyValue:
    """Returns inverse propensity scoring: the mean of w r, w = q(a|x) / p(a|x). Unbiased. Horvitz and Thompson 1952.

    `policy` (n, A) is q(b|x). Raises `NoOverlap` if it takes actions of propensity 0.
    """
    weight = _importance_weights(logged, policy)
    return _policy_value(weight * logged.reward, np.ones_like(weight), weight, logged)


def snips(logged: Logged, policy: Floats) -> PolicyValue:
    """Returns the self-normalised estimate: sum of w r over sum of w.

    It lies within the range of the rewards, and its bias vanishes as 1 / n.
    Swaminathan and Joachims 2015 (The self-normalized estimator for counterfactual learning, NeurIPS).
    """
    weight = _importance_weights(logged, policy)
    return _policy_value(weight * logged.reward, weight, weight, logged)


def doubly_robust(logged: Logged, policy: Floats, predicted: Floats) -> PolicyValue:
    """Returns the mean of sum over b of q(b|x) m(x, b), plus w (r - m(x, a)). Dudik, Langford and Li 2011,
    arXiv:1103.4601.

    It is right if the propensities or the model are right. With true propensities it is unbiased for any `predicted`,
    and the interval is narrower the nearer m is to the rewards.

    Args:
        logged: the decisions.
        policy: q(b|x), (n, A).
        predicted: m(x, b), (n, A). It must not have seen the group that it predicts (fit it out of fold), or the
            interval is too narrow.
    """
    weight = _importance_weights(logged, policy)
    parts = _doubly_robust_parts(logged, policy, predicted, weight)
    return _policy_value(parts, np.ones_like(weight), weight, logged)


def doubly_robust_gain(logged: Logged, policy: Floats, running: Floats, predicted: Floats) -> Interval:
    """Returns the mean reward of `policy` minus that of `running`, paired question by question.

    Raises `NoOverlap` if either policy takes actions of propensity 0.

    Args:
        logged: the decisions.
        policy: q(b|x), (n, A).
        running: the same for the running policy.
        predicted: as in `doubly_robust`.
    """
    member = _group_indices(logged)
    weights = [_importance_weights(logged, target) for target in (policy, running)]
    new, old = (_doubly_robust_parts(logged, q, predicted, w) for q, w in zip((policy, running), weights, strict=True))
    size = min(_effective_size(weight, member) for weight in weights)
    return _interval(new - old, np.ones_like(new), size, member)[0]


def _importance_weights(logged: Logged, policy: Floats) -> Floats:
    """Returns w = q(a|x) / p(a|x), (n,). Raises `NoOverlap` if the policy takes actions of propensity 0."""
    _check_distributions("policy", policy, logged.propensity.shape)
    outside = (policy > 0) & (logged.propensity <= 0)
    unsupported: NDArray[np.bool_] = np.any(outside, axis=1)
    if unsupported.any():
        certain_count = np.count_nonzero(logged.propensity[unsupported].max(axis=1) >= 1)
        row, action = np.argwhere(outside)[0]
        raise NoOverlap(
            f"on {np.count_nonzero(unsupported)} of {len(unsupported)} questions the policy takes actions of "
            "propensity 0 (first: "
            f"question {row}, action {action}, with probability {policy[row, action]:g}); on {certain_count} of them "
            "one "
            "action had propensity 1. Log with exploration: every legal action needs a propensity above 0 and below 1"
        )
    weight: Floats = logged.taken(policy) / logged.taken(logged.propensity)
    if not weight.any():
        raise NoOverlap(
            f"none of the {len(weight)} logged actions is one the policy would take: nothing to estimate from"
        )
    return weight


def _doubly_robust_parts(logged: Logged, policy: Floats, predicted: Floats, weight: Floats) -> Floats:
    """Returns each question's part (n,) of the doubly robust estimate, before the mean."""
    if predicted.shape != policy.shape:
        raise RecordError(f"predicted has shape {predicted.shape}; expected a reward for each of {policy.shape}")
    if not np.isfinite(predicted[policy > 0]).all() or not np.isfinite(logged.taken(predicted)).all():
        raise RecordError("predicted must be finite for every action that was taken, or that the policy takes")
    predicted_value: Floats = np.where(policy > 0, policy * predicted, 0.0).sum(axis=1)
    return predicted_value + weight * (logged.reward - logged.taken(predicted))


def _policy_value(above: Floats, below: Floats, weight: Floats, logged: Logged) -> PolicyValue:
    """Returns the estimate sum above / sum below with its interval.

    Args:
        above: summands (n,) of the numerator.
        below: summands (n,) of the denominator.
        weight: importance weights (n,).
        logged: the decisions.
    """
    member = _group_indices(logged)
    size = _effective_size(weight, member)
    value, error = _interval(above, below, size, member)
    return PolicyValue(
        value=value,
        standard_error=error,
        effective_sample_size=size,
        largest_weight=float(weight.max()),
        mean_weight=_interval(weight, np.ones_like(weight), size, member)[0],
    )


def _group_indices(logged: Logged) -> NDArray[np.intp]:
    """Returns the index of each question's group, (n,)."""
    return np.unique(np.asarray(logged.groups), return_inverse=True)[1]


def _effective_size(weight: Floats, member: NDArray[np.intp]) -> float:
    """Returns the effective number of groups, from the importance weights (n,)."""
    sums = np.bincount(member, weight)
    return float(sums.sum() ** 2 / (sums @ sums))


def _interval(above: Floats, below: Floats, size: float, member: NDArray[np.intp]) -> tuple[Interval, float]:
    """Returns the 95 % interval of sum above / sum below, and its standard error.

    The error is by the jackknife over G groups: error^2 = (G - 1) / G sum over groups of (value without the group -
    value)^2. For a mean over groups of even size that is the cluster-robust variance (Liang and Zeger 1986); for a
    ratio it includes how a heavy group changes the denominator. The half width is Student's t with `size` - 1 degrees
    of freedom, rounded down, because groups without weight say nothing about the spread.

    Args:
        above: summands (n,) of the numerator.
        below: summands (n,) of the denominator.
        size: effective number of groups.
        member: the index of each question's group (n,).
    """
    value = float(above.sum() / below.sum())
    group_residual, rest_below = np.bincount(member, above - value * below), below.sum() - np.bincount(member, below)
    group_count = len(group_residual)
    if group_count < 2 or size <= 1 + SUM_TOLERANCE or not (rest_below > 0).all():
        raise NoOverlap(f"all the weight is in one of {group_count} groups: no interval can be given")
    error = float(np.sqrt((group_count - 1) / group_count * np.square(group_residual / rest_below).sum()))
    half_width = float(require("scipy.stats", "fit").t.ppf(0.975, max(1, floor(size + SUM_TOLERANCE) - 1))) * error
    return Interval(value, value - half_width, value + half_width, len(member), group_count), error


def _check_distributions(name: str, values: Floats, shape: tuple[int, ...]) -> None:
    """Raises `RecordError` unless each row of `values` is a probability distribution and the shape is `shape`."""
    if values.ndim != 2 or values.shape != shape:
        raise RecordError(f"{name} has shape {values.shape}; expected {shape if len(shape) == 2 else '(n, A)'}")
    wrong = ~(
        np.isfinite(values).all(axis=1) & (values >= 0).all(axis=1) & (np.abs(values.sum(axis=1) - 1) <= SUM_TOLERANCE)
    )
    if wrong.any():
        row = int(wrong.argmax())
        raise RecordError(
            f"{name} of question {row} is {values[row].tolist()}; expected probabilities that add up to 1 "
            f"({np.count_nonzero(wrong)} such questions)"
        )
