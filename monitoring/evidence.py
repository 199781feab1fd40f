"""Evidence that something has changed, which may be looked at after every answer.

Somebody begins with 1 and bets, before each value is seen, that values will be other than before. Where nothing has
changed no way of betting makes a gain in expectation, so the probability that 1 ever becomes 1 / alpha is at most alpha
(Ville), however long the stream is and however often one looks. That is an e-process; no p-value, which is valid at one
moment that was fixed beforehand.

When the change comes is not known, so the money is not bet at once. At every moment a part of it is put on every kind
of bet, less and less, and what is not yet bet is kept as cash: of the first 1 after t values 1 / log2(t + 2) is left,
so that a change after a million answers still finds a twentieth of it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import log, log2

STRENGTHS = (0.3, 0.6, 0.85)
"""Exponents of the bets on ranks: the density of a rank r is taken to be strength * r ** (strength - 1)."""
BINS = 10
PRIOR = 3.0
MEMORY = 300.0
"""Of the bet on any shape: bins of the rank, values that each bin begins with, and values that it remembers."""
KINDS = ("lower", "higher", "more extreme")
RANK_BETS = (*(kind for kind in KINDS for _ in STRENGTHS), "closer to the middle", "otherwise distributed")
"""What each bet on ranks says of the values since the change."""
CLOSEST = 1e-9
"""To 0 and 1, that a rank may come."""
LEAST = -1e9
"""Logarithm of nothing, as JSON can hold it."""

STAKES = (0.1, 0.3, 0.8)
"""Shares of the money that the bets on labels risk."""
LABEL_BETS = tuple(
    kind
    for kind in ("too high", "too low", "too far from the middle", "too near the middle")
    for _ in STAKES  # each kind of error of the scores, bet on carefully and boldly
)


@dataclass(slots=True)
class Wealth:
    """What the bets of one stream have become, all beginnings together."""

    money: list[float]
    """In bets that have begun, a number a bet."""
    best: list[float]
    """Logarithm of what came of each bet's best single beginning."""
    began: list[int]
    """The step of that beginning."""
    steps: int = 0

    @classmethod
    def of(cls, bets: int) -> "Wealth":
        return cls([0.0] * bets, [LEAST] * bets, [0] * bets)

    @property
    def evidence(self) -> float:
        """How many times the first 1 there is now."""
        return sum(self.money) + _cash(self.steps)

    @property
    def winner(self) -> int:
        """The bet that says best what has changed."""
        return self.best.index(max(self.best))

    def add(self, factors: Sequence[float]) -> None:
        """Multiplies each bet by its factor: at least 0, of mean at most 1 where nothing has changed."""
        begun = (_cash(self.steps) - _cash(self.steps + 1)) / len(self.money)
        least = log(begun)
        for bet, factor in enumerate(factors):
            self.money[bet] = (self.money[bet] + begun) * factor
            if self.best[bet] < least:
                self.best[bet], self.began[bet] = least, self.steps
            self.best[bet] += log(factor) if factor > 0 else LEAST
        self.steps += 1


def _cash(steps: int) -> float:
    return 1 / log2(steps + 2)


@dataclass(slots=True)
class RankBets:
    """Bets on ranks, which are uniform in [0, 1] and independent where values are exchangeable."""

    seen: list[float] = field(default_factory=lambda: [0.0] * BINS)
    """How often each tenth came of late."""

    def factors(self, rank: float) -> list[float]:
        """Returns what each bet of `RANK_BETS` is multiplied by, and only then learns from the rank."""
        r = min(max(rank, CLOSEST), 1 - CLOSEST)
        low = [s * r ** (s - 1) for s in STRENGTHS]
        high = [s * (1 - r) ** (s - 1) for s in STRENGTHS]
        both = [(a + b) / 2 for a, b in zip(low, high, strict=True)]
        place = min(int(r * BINS), BINS - 1)
        shape = BINS * (self.seen[place] + PRIOR) / (sum(self.seen) + BINS * PRIOR)
        self.seen = [count * (1 - 1 / MEMORY) for count in self.seen]
        self.seen[place] += 1
        return [*low, *high, *both, 6 * r * (1 - r), shape]


def label_factors(score: float, label: float, tolerance: float) -> list[float]:
    """Returns what each bet of `LABEL_BETS` is multiplied by, at a label of 0 or 1.

    Of mean at most 1 where P(label = 1) is within `tolerance` of the score, whatever else the answer is and whoever
    chose it: nothing is assumed of the order of answers, nor of how they were drawn for labels, as long as the label
    itself played no part.
    """
    missed = label - score
    outwards = missed if score > 0.5 else -missed
    gains = [(gain - tolerance) / (1 + tolerance) for gain in (-missed, missed, -outwards, outwards)]
    return [1 + stake * gain for gain in gains for stake in STAKES]
