"""When to stop asking one agent for further answers: simple ways and the learned one, on the same curves.

A setting is a way with its threshold, and what it was worth on groups left out: mean answers and accuracy. A plan takes
the best setting at a price, or mixes the two neighbouring settings of the upper hull that spend a number of answers.
"""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from numbers import Real

from metaprobe.records.errors import RecordError

FIXED, FIRST_TO, IN_A_ROW, CONSISTENT, SURE, GAIN = (
    "fixed number",
    "first to m",
    "m in a row",
    "adaptive consistency",
    "sure enough",
    "expected gain",
)
STOPS = (FIXED, FIRST_TO, IN_A_ROW, CONSISTENT, SURE, GAIN)
"""Ways to stop, the simplest first: after m answers; when m answers agree; when the last m do (Li et
al. 2024, arXiv:2401.10480, whose windows do not overlap); when the leading answer is the majority's
with this probability (Aggarwal et al. 2023, arXiv:2305.11860); when the kept answer is this likely right; when asking
on is expected to raise that by no more than this."""
NEAR = 0.005
"""By how much the default may lose against the best accuracy."""


@dataclass(frozen=True, slots=True)
class Seen:
    """Holds the values that the ways look at after some answers."""

    answers: int
    """How many came, those that cannot be read among them."""
    count: int
    """Answers of the largest class, and of the next."""
    second: int
    row: int
    """How many of the latest answers are the same; 0 where the last one cannot be read."""
    score: float
    """P(right) of the kept answer, 0 where none is kept."""
    gain: float
    """By how much asking on is expected to raise it."""


def majority_probability(count: int, second: int) -> float:
    """Returns P(the leading answer is drawn more often than the next), by a uniform prior; 0 without an answer.

    With Beta(count + 1, second + 1) it is P(at most `count` heads in count + second + 1 tosses of a fair coin).
    """
    tosses = count + second + 1
    return sum(math.comb(tosses, heads) for heads in range(count + 1)) / 2**tosses if count else 0.0


@dataclass(frozen=True, slots=True)
class Setting:
    """One way with its threshold, and what it gave on groups left out."""

    way: str
    threshold: float
    samples: float
    """Mean answers asked for."""
    accuracy: float
    """Accuracy of the kept answer."""

    def stops(self, seen: Seen) -> bool:
        """Returns whether it stops after what was seen."""
        if self.way == FIXED:
            return seen.answers >= self.threshold
        if self.way == FIRST_TO:
            return seen.count >= self.threshold
        if self.way == IN_A_ROW:
            return seen.row >= self.threshold
        if self.way == CONSISTENT:
            return majority_probability(seen.count, seen.second) >= self.threshold
        if self.way == SURE:
            return seen.score >= self.threshold
        return seen.gain <= self.threshold


@dataclass(frozen=True, slots=True)
class Plan:
    """When to stop: by one setting, or by one of two, which a draw chooses for each question."""

    first: Setting
    second: Setting
    share: float
    """Share of the questions that the first setting decides."""

    @property
    def samples(self) -> float:
        """Mean answers that it is expected to spend."""
        return self.share * self.first.samples + (1 - self.share) * self.second.samples

    @property
    def accuracy(self) -> float:
        """Accuracy that it is expected to reach."""
        return self.share * self.first.accuracy + (1 - self.share) * self.second.accuracy

    def setting(self, draw: float) -> Setting:
        """Returns the setting for one question; `draw` in [0, 1) follows from the request, so that a retry decides
        alike."""
        return self.first if draw < self.share else self.second


def plan_of(settings: Sequence[Setting], *, price: float | None = None, samples: float | None = None) -> Plan:
    """Returns the plan at a price of an answer, for a mean number of answers, or by default.

    `price`: how much accuracy one more answer must bring, at least 0. `samples`: at least 1; more than any setting
    spends is taken for the most accurate one. By default the cheapest point of the hull within `NEAR` of the best
    accuracy. Raises `RecordError` where both are given, or one is out of range.
    """
    given: tuple[tuple[str, object], ...] = (("price", price), ("samples", samples))
    for name, value in given:
        if value is not None and (isinstance(value, bool) or not isinstance(value, Real)):
            raise RecordError(f"{name} is {value!r}; expected a number")
    if price is not None and samples is not None:
        raise RecordError(f"price={price:g} and samples={samples:g} were given; give one of the two")
    hull = upper_hull(settings)
    if price is not None:
        if not 0 <= price < math.inf:
            raise RecordError(f"price is {price}; expected the accuracy that one more answer must bring, at least 0")
        best = max(hull, key=lambda one: one.accuracy - price * one.samples)
        return Plan(best, best, 1.0)
    if samples is not None:
        if not 1 <= samples < math.inf:
            raise RecordError(f"samples is {samples}; expected a mean number of answers of at least 1")
        return mixed_plan(hull, samples)
    best = next(one for one in hull if one.accuracy >= hull[-1].accuracy - NEAR)
    return Plan(best, best, 1.0)


def mixed_plan(settings: Sequence[Setting], samples: float) -> Plan:
    """Returns the plan of two neighbouring settings, that of fewest answers first, that asks for so many on average."""
    left, right, share = neighbours([one.samples for one in settings], float(samples))
    return Plan(settings[left], settings[right], share)


def neighbours(costs: Sequence[float], budget: float) -> tuple[int, int, float]:
    """Returns two neighbouring places of rising costs, and the share of the first at which both together spend the
    budget; the first or last place alone where none or all spend less."""
    for left, (low, high) in enumerate(pairwise(costs)):
        if low <= budget <= high and low < high:
            return left, left + 1, (high - budget) / (high - low)
    end = 0 if budget < costs[0] else len(costs) - 1
    return end, end, 1.0


def upper_hull(settings: Sequence[Setting]) -> list[Setting]:
    """Returns the settings on the upper concave hull of accuracy over answers, up to the most accurate.

    Of two that give the same the simpler way is kept.
    """
    order = sorted(settings, key=lambda one: (one.samples, -one.accuracy, STOPS.index(one.way)))
    hull: list[Setting] = []
    for one in order:
        if hull and one.accuracy <= max(kept.accuracy for kept in hull):
            continue
        while len(hull) > 1 and _turns_up(hull[-2], hull[-1], one):
            hull.pop()
        if hull and one.samples <= hull[-1].samples:
            hull.pop()
        hull.append(one)
    return hull


def _turns_up(first: Setting, second: Setting, third: Setting) -> bool:
    """Returns whether the second lies on or below the line from the first to the third."""
    left = (second.accuracy - first.accuracy) * (third.samples - first.samples)
    return left <= (third.accuracy - first.accuracy) * (second.samples - first.samples)


def draw_of(request: str) -> float:
    """Returns a number in [0, 1) that follows from a request's id, so that a retry decides alike."""
    return int.from_bytes(hashlib.sha256(request.encode(errors="replace")).digest()[:8]) / 2**64
