"""How likely each agent succeeds on each dimension, and how sure that is: discounted Beta posteriors.

An agent's rate t has a Beta prior; its rate on a dimension is Beta(k t, k (1 - t)), with k the `concentration`. What a
dimension has seen moves the agent, and through it the agent's other dimensions. Exact inference has no closed form;
means and variances are matched instead, which gives

    n outcomes of a dimension count as n (k + 1) / (n + k) for the agent: never as more than k + 1, and
    an agent known as if from N outcomes is a prior of k N / (N + k + 1) for a dimension: never of more than k.

A dimension's own outcomes are left out of its prior, so that nothing counts twice.

The value is a fold over observations by time and id. It does not depend on the order in which they arrived, and one
that arrives twice counts once. Concurrent writers keep them with `metaprobe.routing.profile_store`.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Literal

import numpy as np

from metaprobe.records.errors import RecordError
from metaprobe.records.types import FloatArray
from metaprobe.routing.profiles import Observation, in_order

GRID = 2049
"""Points at which a density is integrated for its quantiles: at most 1e-4 off for parameters from 0.01 to 1e5."""


@dataclass(frozen=True, slots=True)
class Beta:
    """A Beta distribution, both parameters above 0."""

    alpha: float
    beta: float

    @property
    def mean(self) -> float:
        """In (0, 1)."""
        return self.alpha / (self.alpha + self.beta)

    @property
    def variance(self) -> float:
        """At most 1/4."""
        total = self.alpha + self.beta
        return self.alpha * self.beta / (total * total * (total + 1))

    def quantiles(self, levels: Sequence[float]) -> FloatArray:
        """The values below which these shares lie, by numerical integration (`GRID`).

        Over log-odds instead of rates: there the density of every Beta has one mode and no pole, and its normalising
        constant is the sum. So neither SciPy nor a gamma function is needed.
        """
        a, b = self.alpha, self.beta
        mode, width = math.log(a / b), math.sqrt(1 / a + 1 / b)
        # A bell near the mode, where the points stand close, and exponential further out: less than e^-20 is cut off.
        steps = np.linspace(-1.0, 1.0, GRID) ** 3
        x = mode + np.where(steps < 0, 6 * width + 20 / a, 6 * width + 20 / b) * steps
        density = np.exp(_log_density(x, a, b) - _log_density(np.array(mode), a, b))
        below = np.concatenate([[0.0], np.cumsum((density[1:] + density[:-1]) * np.diff(x))])
        return np.exp(-np.logaddexp(0.0, -np.interp(levels, below / below[-1], x)))


@dataclass(frozen=True, slots=True)
class Prior:
    """What is believed of an agent before anything was seen of it. Raises `RecordError` outside the stated ranges."""

    mean: float = 0.5
    """Success rate of an agent, in (0, 1)."""
    strength: float = 2.0
    """As if from so many outcomes, above 0. 2 about 0.5 is the uniform distribution."""
    concentration: float = 10.0
    """How close an agent's dimensions lie to its overall rate, as if each was known from so many outcomes; above 0."""
    floor: float = 0.01
    """No parameter of a dimension's prior is below it, however one-sided the agent's other dimensions are."""

    def __post_init__(self) -> None:
        if not 0 < self.mean < 1:
            raise RecordError(f"prior mean is {self.mean}; expected a number between 0 and 1, neither of them")
        for name in ("strength", "concentration", "floor"):
            if not 0 < getattr(self, name) < math.inf:
                raise RecordError(f"prior {name} is {getattr(self, name)}; expected a finite number above 0")


@dataclass(frozen=True, slots=True)
class Discount:
    """How fast evidence fades. Evidence only: what is left when all of it has faded is the prior."""

    half_life: float = 500.0
    """After so much an outcome counts half, above 0; infinite: nothing fades."""
    by: Literal["count", "time"] = "count"
    """`count`: for each later outcome of the same agent on any dimension, so an agent that rests is not forgotten.
    `time`: for each unit of the observations' time, so it is, and a Thompson draw will try it again."""

    def __post_init__(self) -> None:
        if not self.half_life > 0:
            raise RecordError(f"discount half-life is {self.half_life}; expected a number above 0, or infinity")
        if self.by not in ("count", "time"):
            raise RecordError(f"discount by {self.by!r}; expected 'count' or 'time'")

    def weight(self, age: float) -> float:
        """What an outcome of this age counts, in [0, 1]."""
        return float(2.0 ** (-age / self.half_life))


PRIOR, DISCOUNT = Prior(), Discount()
"""Defaults."""


@dataclass(frozen=True, slots=True)
class Posterior:
    """A success rate: what was believed before, and beside it what was seen."""

    prior: Beta
    successes: float = 0.0
    """Discounted sum of scores."""
    failures: float = 0.0
    """Discounted sum of 1 - score."""

    @property
    def belief(self) -> Beta:
        """Prior and evidence together."""
        return Beta(self.prior.alpha + self.successes, self.prior.beta + self.failures)

    @property
    def mean(self) -> float:
        """In (0, 1), between the prior mean and the success rate that was seen."""
        return self.belief.mean

    @property
    def variance(self) -> float:
        """Of the rate, not of the next outcome."""
        return self.belief.variance

    @property
    def effective_count(self) -> float:
        """Discounted number of outcomes; the prior is not among them."""
        return self.successes + self.failures

    def interval(self, level: float = 0.9) -> tuple[float, float]:
        """Central credible interval.

        Too wide for a discounted agent that did not change: fading evidence counts less than it would tell.
        """
        low, high = self.belief.quantiles([(1 - level) / 2, (1 + level) / 2])
        return float(low), float(high)

    def draw(self, rng: np.random.Generator) -> float:
        """One rate from the posterior."""
        belief = self.belief
        return float(rng.beta(belief.alpha, belief.beta))


class Posteriors:
    """Of every agent on every dimension, as known at a moment."""

    def __init__(
        self,
        past: Iterable[Observation] = (),
        *,
        prior: Prior = PRIOR,
        discount: Discount = DISCOUNT,
        now: float | None = None,
    ) -> None:
        """`now`: nothing later is looked at, and age is counted from here; by default that of the latest outcome."""
        self.prior = prior
        self.discount = discount
        known = [one for one in in_order(past) if now is None or one.time <= now]
        self.now = known[-1].time if now is None and known else now
        """None where nothing was seen and no moment was given."""
        self._seen: dict[str, dict[str, _Faded]] = defaultdict(lambda: defaultdict(_Faded))
        self._counts: dict[str, int] = defaultdict(int)
        self._known: dict[str, tuple[Posterior, dict[str, Posterior]]] = {}
        for observation in known:
            self._learn(observation)

    def __repr__(self) -> str:
        return f"Posteriors({sum(self._counts.values())} outcomes of {len(self._counts)} agents)"

    @property
    def agents(self) -> tuple[str, ...]:
        """Of whom something was seen, by name."""
        return tuple(sorted(self._counts))

    def of(self, agent: str, dimension: str) -> Posterior:
        """An agent's rate on a dimension; on a new one, what its other dimensions tell."""
        whole, dimensions = self._of_agent(agent)
        found = dimensions.get(dimension)
        return self._dimension(whole, _Faded()) if found is None else found

    def overall(self, agent: str) -> Posterior:
        """An agent's rate over dimensions, each weighing by what it tells of the others, not by its traffic."""
        return self._of_agent(agent)[0]

    def rate_of(self, agent: str, dimension: str) -> float:
        """The posterior mean: what `Profiles.rate_of` gives, by another estimate."""
        return self.of(agent, dimension).mean

    def draw(self, agents: Iterable[str], dimension: str, rng: np.random.Generator) -> dict[str, float]:
        """One rate an agent from its posterior: who has the highest is asked, by Thompson's rule."""
        return {agent: self.of(agent, dimension).draw(rng) for agent in agents}

    def _learn(self, observation: Observation) -> None:
        agent = observation.agent
        self._known.pop(agent, None)
        self._counts[agent] += 1
        clock = self._counts[agent] if self.discount.by == "count" else observation.time
        self._seen[agent][observation.dimension].add(observation.correct, clock, self.discount)

    def _of_agent(self, agent: str) -> tuple[Posterior, dict[str, Posterior]]:
        known = self._known.get(agent)
        if known is None:
            known = self._known[agent] = self._derived(agent)
        return known

    def _derived(self, agent: str) -> tuple[Posterior, dict[str, Posterior]]:
        prior = self.prior
        top = Beta(prior.strength * prior.mean, prior.strength * (1 - prior.mean))
        if agent not in self._seen:
            return Posterior(top), {}
        clock = self._counts[agent] if self.discount.by == "count" else self.now
        assert clock is not None  # something was seen
        seen = {name: faded.at(clock, self.discount) for name, faded in self._seen[agent].items()}
        told = {name: evidence.told(prior.concentration) for name, evidence in seen.items()}
        successes = math.fsum(message.successes for message in told.values())
        failures = math.fsum(message.failures for message in told.values())
        dimensions = {}
        for name, own in told.items():
            # max: a difference of rounded sums may come out a little below 0.
            others = Posterior(top, max(successes - own.successes, 0.0), max(failures - own.failures, 0.0))
            dimensions[name] = self._dimension(others, seen[name])
        return Posterior(top, successes, failures), dimensions

    def _dimension(self, agent: Posterior, seen: "_Faded") -> Posterior:
        belief, k, floor = agent.belief, self.prior.concentration, self.prior.floor
        share = k / (belief.alpha + belief.beta + k + 1)
        prior = Beta(max(share * belief.alpha, floor), max(share * belief.beta, floor))
        return Posterior(prior, seen.successes, seen.failures)


def prequential(
    past: Iterable[Observation],
    *,
    prior: Prior = PRIOR,
    discount: Discount = DISCOUNT,
) -> Iterator[tuple[Observation, Posterior]]:
    """Each outcome in order, with its agent's posterior from all that was strictly earlier: what a forecast may use.

    One pass. Of outcomes at one time (the agents asked about one item) none sees another. Dawid 1984.
    """
    posteriors = Posteriors(prior=prior, discount=discount)
    for time, group in groupby(in_order(past), key=lambda observation: observation.time):
        observations = list(group)
        posteriors.now = time
        yield from [(one, posteriors.of(one.agent, one.dimension)) for one in observations]
        for one in observations:
            posteriors._learn(one)


def fitted_discount(
    past: Iterable[Observation],
    *,
    prior: Prior = PRIOR,
    by: Literal["count", "time"] = "count",
    half_lives: Sequence[float] = (math.inf, 1000.0, 500.0, 200.0, 100.0, 50.0, 25.0, 12.0),
) -> Discount:
    """The one that would have foretold the past best: the lowest prequential log loss, the first of equals."""
    known = in_order(past)

    def loss(discount: Discount) -> float:
        forecasts = ((one.correct, belief.mean) for one, belief in prequential(known, prior=prior, discount=discount))
        return -math.fsum(score * math.log(p) + (1 - score) * math.log1p(-p) for score, p in forecasts)

    return min((Discount(half_life, by) for half_life in half_lives), key=loss)


@dataclass(slots=True)
class _Faded:
    """Evidence as it weighed at its clock; brought forward only when it is looked at."""

    successes: float = 0.0
    failures: float = 0.0
    clock: float = field(default=0.0, compare=False)

    def add(self, correct: float, clock: float, discount: Discount) -> None:
        now = self.at(clock, discount)
        self.successes, self.failures, self.clock = now.successes + correct, now.failures + 1 - correct, clock

    def at(self, clock: float, discount: Discount) -> "_Faded":
        weight = discount.weight(clock - self.clock) if self.successes or self.failures else 0.0
        return _Faded(self.successes * weight, self.failures * weight, clock)

    def told(self, concentration: float) -> "_Faded":
        """What this dimension's evidence tells of the agent, as so many outcomes of the agent itself."""
        n = self.successes + self.failures
        weight = min((concentration + 1) / (n + concentration), 1.0)
        return _Faded(self.successes * weight, self.failures * weight, self.clock)


def _log_density(log_odds: FloatArray, alpha: float, beta: float) -> FloatArray:
    return -alpha * np.logaddexp(0.0, -log_odds) - beta * np.logaddexp(0.0, log_odds)
