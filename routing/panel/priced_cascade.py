"""The priced cascade: asks a cheap agent first, and on while the expected gain is worth the next agent's price.

Before an answer, an agent's P(right) is known by its rate on the dimension, and by how far its signals usually move the
log-odds. After an answer, its log-odds also tell how hard the question is: a share of the surprise carries over to the
agents that are left. Two numbers describe that, `Surety.spread` and `Surety.carry`, so that few labels fit them; the
price is the only setting.

NumPy only. Shapes: b questions, A agents. Prices are US dollars for 1,000 answers.
"""

from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]

NORMAL_LEVELS = np.array([NormalDist().inv_cdf((level + 0.5) / 9) for level in range(9)])
"""Nine normal scores that stand for the possible log-odds of an answer that has not come yet."""
ROWS_AT_ONCE = 1024
"""Number of questions that are computed together. Each takes A x 9 x A numbers."""
MOST_PRICED = 3
"""Most readable answers that a priced cascade asks for, for one question."""
FURTHEST_ODDS = 6.0
"""Log-odds of answers are clipped to [-FURTHEST_ODDS, FURTHEST_ODDS]."""
NEVER = -np.inf


@dataclass(frozen=True, slots=True, eq=False)
class Surety:
    """How far one agent's answer changes the expected P(right) of the other agents' answers."""

    spread: Floats
    """Standard deviation (A,) of the log-odds of an agent's answers around the agent's rate."""
    carry: float
    """Share of one answer's deviation from its agent's rate, in log-odds, that is expected in other agents' answers to
    the question.
    """
    slack: float
    """Least gain in P(right), less the price, for which another agent is asked. It is larger the fewer labels there
    were.
    """

    def centred(self, rate: Floats) -> Floats:
        """Returns the log-odds (b, A) around which answers lie, whose mean probability is that of the rate (b, A)."""
        centre: Floats = rate * np.sqrt(1 + np.pi * self.spread**2 / 8)
        return centre

    def first(self, rate: Floats, cost: Floats, left: Mask) -> Floats:
        """Returns what asking each agent first is worth, (b, A): P(right) less the cost, with one look ahead.

        `rate` (b, A): log-odds on the dimension; `cost` (b, A): what a price is worth in P(right); `left` (b, A): who
        can be asked.
        """
        moved, others = (
            self.spread[:, None] * NORMAL_LEVELS,
            ~np.eye(len(self.spread), dtype=bool)[:, None, :],
        )  # (A, 9)
        worth = np.zeros(rate.shape)
        for start in range(0, len(rate), ROWS_AT_ONCE):
            rows = slice(start, start + ROWS_AT_ONCE)
            centre = self.centred(rate[rows])
            now = _probability(centre[:, :, None] + moved)
            # (b, A, 9, A): P(right) of each other agent after an answer of the agent asked first.
            carried = _probability(centre[:, None, None] + self.carry * moved[:, :, None])
            after = np.where(left[rows, None, None] & others, carried - cost[rows, None, None] - self.slack, NEVER)
            worth[rows] = np.maximum(now, after.max(axis=3)).mean(axis=2)
        return np.where(left, worth - cost, NEVER)

    def following(self, rate: Floats, cost: Floats, left: Mask, odds: Floats, answered: Mask) -> Floats:
        """Returns what asking one agent more is worth where answers came, (b, A); `NEVER` for an agent not `left`.

        The worth is the P(right) that the agent's answer is expected to have, less its `cost`, less `slack`, less the
        P(right) of the best answer so far. `odds` (b, A): log-odds of the answers that came, where `answered` (b, A).
        """
        centre = self.centred(rate)
        odds = np.clip(odds, -FURTHEST_ODDS, FURTHEST_ODDS)
        count = np.maximum(answered.sum(axis=1), 1)
        surprise = np.where(answered, odds - centre, 0.0).sum(axis=1) / count
        p_kept = _probability(np.where(answered, odds, -FURTHEST_ODDS).max(axis=1))
        value = _probability(centre + self.carry * surprise[:, None]) - cost - self.slack - p_kept[:, None]
        return np.where(left, value, NEVER)

    def worth(
        self, price: float, rate: Floats, dollars: Floats, left: Mask, odds: Floats, answered: Mask
    ) -> tuple[Floats, Ints]:
        """Returns what asking each agent is worth, (b, A), and who is asked next, (b,): -1 where asking stops.

        `price`: accuracy that a US dollar for 1,000 questions must bring; `dollars` (b, A): the agents' prices.
        """
        cost = price * np.where(left, dollars, 0.0)
        none = ~answered.any(axis=1)
        value = np.full(rate.shape, NEVER)
        if none.any():
            value[none] = self.first(rate[none], cost[none], left[none])
        if not none.all():
            some = ~none
            value[some] = self.following(rate[some], cost[some], left[some], odds[some], answered[some])
        best = value.argmax(axis=1)
        goes_on = left.any(axis=1) & (none | (value.max(axis=1) > 0)) & (answered.sum(axis=1) < MOST_PRICED)
        return value, np.where(goes_on, best, -1)


def _probability(odds: Floats) -> Floats:
    p: Floats = 1 / (1 + np.exp(-odds))
    return p
