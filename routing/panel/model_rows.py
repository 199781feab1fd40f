"""The numbers that panels are judged by, for many questions at once. NumPy only; one question is a batch of one.

A panel is several answers to one question. Three tables are made of it, a linear model or trees read each:

- a row an answer: its own signals, whose they are, and on what dimension -> log-odds that the answer is right alone;
- a row a class of equal answers, and one for "none of these" -> P(right) of each; they sum to 1;
- a row a panel -> the expected gain of asking on.

Shapes: b panels of k answers; a panel with fewer answers is padded.
"""

import math
from bisect import bisect, bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metaprobe.probes.features import TERMS

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]

STATED, SCORE = "stated", "score"
ANSWER_SIGNALS = (*TERMS, STATED, SCORE)
"""Numbers that an answer may bring: terms of its log-probabilities, a stated confidence, a checkpoint's score."""
QUANTILE_COUNT = 33
"""Number of quantiles of a signal that are stored for each agent."""
UNREADABLE_CLASS = -1
"""Class number of an answer that was cut or cannot be read. Such an answer counts against every class, and forms no
class.
"""
FLOAT32_LOWEST = -3.0e38
"""Replaces minus infinity: the least float32, rounded."""
LEAST_WEIGHT = 0.01
"""Least weight of a vote. An answer that is more likely wrong than right can still break a tie."""
FURTHEST = 4.0
"""Largest log-odds for the weight of one answer; 4.0 is a probability of 0.98."""


@dataclass(frozen=True, slots=True, eq=False)
class AgentProfiles:
    """Describes the agents: how often each is right, and the scale of its signals."""

    names: tuple[str, ...]
    """Names of the A agents, in the order of the columns."""
    dimensions: tuple[str, ...]
    """Names of the D dimensions; empty if the questions have none."""
    rate: Floats
    """Log-odds of being right (A, D + 1) for each agent and dimension; the last column is over all dimensions."""
    signals: tuple[str, ...]
    """Names of the S signals of `ANSWER_SIGNALS` that the training data have."""
    levels: Floats
    """Rising quantiles (A + 1, S, QUANTILE_COUNT) of each agent's signals; the last row is over all agents. NaN if an
    agent never gave the signal.
    """
    leading: str = field(default="")
    """Signal whose weight may differ between agents and dimensions."""
    scales: tuple[tuple[list[float], ...], ...] = field(init=False)
    """The quantiles of `levels` as lists (A + 1, S), the last row for unknown agents. Empty if the agent never gave the
    signal: its number is then not read.
    """

    usual: list[list[float]] = field(init=False)
    """The rates as lists (D + 1, A + 1). The last entry is for an unknown agent, which counts as average."""

    def __post_init__(self) -> None:
        rates = np.append(self.rate, self.rate.mean(axis=0, keepdims=True), axis=0).T.tolist()
        object.__setattr__(self, "usual", rates)
        scales = [[each if math.isfinite(each[0]) else [] for each in agent] for agent in self.levels.tolist()]
        object.__setattr__(self, "scales", tuple(map(tuple, scales)))

    def agent(self, name: str) -> int:
        """Returns the column of an agent, A for one that is not known."""
        return self.names.index(name) if name in self.names else len(self.names)

    def dimension(self, name: str) -> int:
        """Returns the column of a dimension, D for one that is not known."""
        return self.dimensions.index(name) if name in self.dimensions else len(self.dimensions)

    def stated_levels(self, name: str) -> Floats | None:
        """Returns the rising quantiles of the confidences that the agent gave in training; None where it gave none."""
        if STATED not in self.signals:
            return None
        levels = self.levels[self.agent(name), self.signals.index(STATED)]
        return levels if np.isfinite(levels[0]) else None

    def scaled(self, signals: Sequence[float], agent: int) -> list[float]:
        """Returns the signals (S,) of an agent's answer as normal scores: how far up each is among the agent's own.

        0 where a signal is missing, or the agent never gave it in training.
        """
        return [_score(value, levels) for value, levels in zip(signals, self.scales[agent], strict=True)]


_RANKS = (np.arange(QUANTILE_COUNT) + 0.5) / QUANTILE_COUNT
NORMAL_SCORES = [NormalDist().inv_cdf(rank) for rank in _RANKS.tolist()]
"""Normal score of each of the QUANTILE_COUNT quantiles."""


def _score(value: float, levels: list[float]) -> float:
    """Returns the normal score of a value among rising levels, between two of them in proportion.

    A value that equals several levels gets their mean score. Values just below and just above it get the scores of the
    first and the last of these levels.
    """
    if not levels or value != value:
        return 0.0
    first = bisect_left(levels, value)
    if first < QUANTILE_COUNT and levels[first] == value:
        shared = NORMAL_SCORES[first : bisect(levels, value)]
        return sum(shared) / len(shared)
    if not 0 < first < QUANTILE_COUNT:
        return NORMAL_SCORES[min(first, QUANTILE_COUNT - 1)]
    part = (value - levels[first - 1]) / (levels[first] - levels[first - 1])
    return NORMAL_SCORES[first - 1] + part * (NORMAL_SCORES[first] - NORMAL_SCORES[first - 1])


def quantiles(values: Floats) -> Floats:
    """Returns `QUANTILE_COUNT` rising quantiles of values (n,); NaN of fewer than two finite ones."""
    finite = values[np.isfinite(values)]
    return np.quantile(finite, _RANKS) if len(finite) > 1 else np.full(QUANTILE_COUNT, np.nan)


@dataclass(frozen=True, slots=True, eq=False)
class Answers:
    """b panels of k answers each, of one set of agents."""

    answer_class: Ints
    """Class of each answer (b, k), from 0 in order of appearance; `UNREADABLE_CLASS` for an answer in no class."""
    agent: Ints
    """Column of each answer's agent (b, k); A if the agent is not known."""
    dimension: Ints
    """Column of each question's dimension (b,); D if the dimension is not known."""
    scaled: Floats
    """Normal scores of the signals (b, k, S); 0 for a missing signal."""
    present: Mask
    """Which answers exist (b, k): False if a panel has fewer than k answers."""

    def rows(self, rows: Ints) -> "Answers":
        """Returns the panels of these rows."""
        return Answers(
            self.answer_class[rows], self.agent[rows], self.dimension[rows], self.scaled[rows], self.present[rows]
        )

    def take(self, columns: Ints) -> "Answers":
        """Returns the answers at places `columns` (b, m) of each panel, with classes as they are."""
        rows = np.arange(len(columns))[:, None]
        return Answers(
            self.answer_class[rows, columns],
            self.agent[rows, columns],
            self.dimension,
            self.scaled[rows, columns],
            self.present[rows, columns],
        )


def answer_columns(agents: AgentProfiles) -> tuple[str, ...]:
    """Returns the names of the columns of `answer_rows`."""
    several = agents.names if len(agents.names) > 1 else ()
    agent_columns = [f"agent {name}" for name in several]
    lead = [f"{agents.leading} of {name}" for name in several] if agents.leading else []
    places = [(name, dimension) for name in agents.names for dimension in agents.dimensions]
    on = [f"agent {name} on {dimension}" for name, dimension in places]
    lead_on = [f"{agents.leading} of {name} on {dimension}" for name, dimension in places] if agents.leading else []
    return (*agents.signals, *agent_columns, *lead, *on, *lead_on)


def answer_rows(answers: Answers, agents: AgentProfiles) -> NDArray[np.float32]:
    """Returns one row for each answer, (b, k, P) in the order of `answer_columns`."""
    b, k = answers.answer_class.shape
    A, D = len(agents.names), len(agents.dimensions)
    is_agent = answers.agent[..., None] == np.arange(A)  # nobody for an agent that is not known
    here = is_agent[..., :, None] & (answers.dimension[:, None, None, None] == np.arange(D))
    lead = answers.scaled[..., agents.signals.index(agents.leading), None] if agents.leading else None
    parts: list[NDArray[Any]] = [answers.scaled]
    for place in (is_agent[..., : A if A > 1 else 0], here.reshape(b, k, A * D)):
        parts += [place] if lead is None else [place, place * lead]
    return np.concatenate(parts, axis=2, dtype=np.float32, casting="same_kind")


_VOTES = ("share", "lead", "log_count", "odds_best", "odds_lead", "weight", "weight_against", "odds_mean")
"""Columns of a class: its share of all answers, its lead over the next class, log of its count; its surest answer's
log-odds, their lead over the surest other answer; the summed weight of its answers and of all others; mean log-odds."""
_NONE = ("none", "log_answers", "unreadable", "entropy", "classes", "odds_best", "odds_mean")
"""Columns of the row for "none of these", 0 in all other rows."""


def class_columns(agents: AgentProfiles) -> tuple[str, ...]:
    """Returns the names of the columns of `class_rows`."""
    several = agents.names if len(agents.names) > 1 else ()
    return (
        *_VOTES,
        *(f"mean {name}" for name in agents.signals),
        *(f"mean {name} beside the panel's" for name in agents.signals),
        *(f"vote of {name}" for name in several),
        *(f"odds of {name}" for name in several),
        *(f"panel {name}" for name in _NONE),
        *(f"panel mean {name}" for name in agents.signals),
    )


@dataclass(frozen=True, slots=True, eq=False)
class Classes:
    """The classes of b panels, at most c each; c is at least 2."""

    rows: NDArray[np.float32]
    """Columns of each class (b, c + 1, F), in the order of the classes' numbers. The last row is for "none of these".
    """
    count: Floats
    """Number of answers in each class (b, c); 0 if a panel has fewer classes."""
    weight: Floats
    """Summed weight of the answers in each class (b, c)."""
    best: Floats
    """Log-odds of each class's surest answer (b, c); -inf if there is no such class."""
    rate: Floats
    """Log-odds, for each class (b, c), that the best of its agents is right on the dimension; -inf if there is no such
    class.
    """
    entropy: Floats
    """Entropy of the classes' shares (b,), in nats."""
    unreadable: Floats
    """Share of the answers that are in no class (b,)."""
    answers: Floats
    """Number of answers of each panel (b,), at least 1."""

    @property
    def there(self) -> Mask:
        """(b, c): whether there is such a class."""
        return self.count > 0


def class_rows(answers: Answers, odds: Floats, agents: AgentProfiles, *, exclusive: bool = True) -> Classes:
    """Returns the classes of panels whose answers have log-odds (b, k) of being right.

    If classes are `exclusive`, the panel's own columns are in the row of "none of these", because its probability and
    those of the classes sum to 1. Otherwise they are in the row of every class.
    """
    answer_class, present = answers.answer_class, answers.present
    b, c = len(answer_class), max(int(answer_class.max(initial=UNREADABLE_CLASS)) + 1, 2)
    A, S = len(agents.names), len(agents.signals)
    several = A if A > 1 else 0
    signal, vote, vote_odds = slice(3, 3 + S), slice(3 + S, 3 + S + several), slice(3 + S + several, None)
    # One row for each answer: the numbers that are summed over the answers of a class.
    odds = np.minimum(np.maximum(odds, -FURTHEST), FURTHEST)
    own = np.stack([np.ones(answer_class.shape), np.maximum(odds, LEAST_WEIGHT), odds], axis=2)
    is_agent = answers.agent[..., None] == np.arange(several)
    addends = np.concatenate([own, answers.scaled, is_agent, is_agent * odds[..., None]], axis=2) * present[..., None]
    # Sums over the answers of each class (b, c, ...), over those in any class, and over all (b, ...).
    is_member = (answer_class[:, None, :] == np.arange(c)[:, None]) & present[:, None, :]  # (b, c, k)
    sums = np.matmul(is_member.astype(np.float64), addends)
    of_readable, of_all = sums.sum(axis=1), addends.sum(axis=1)
    count, weight, n, readable = sums[..., 0], sums[..., 1], np.maximum(of_all[:, 0], 1.0), of_readable[:, 0]
    exists, at_least_one, share = count > 0, np.maximum(count, 1.0), count / n[:, None]
    # The largest numbers of each class.
    usual_rates = np.array(agents.usual)[answers.dimension[:, None], answers.agent]
    best, rate = (np.where(is_member, values[:, None], -np.inf).max(axis=2) for values in (odds, usual_rates))
    votes = (
        share,
        share - largest_other(count) / n[:, None],
        np.log(at_least_one),
        best,
        best - np.maximum(largest_other(best), -FURTHEST),
        weight,
        of_readable[:, 1, None] - weight,
        sums[..., 2] / at_least_one,
    )
    # The panel's own columns.
    entropy = -(share * np.log(np.where(exists, share, 1.0))).sum(axis=1)
    unreadable = 1.0 - readable / n
    none = (
        np.ones(b),
        np.log(n),
        unreadable,
        entropy,
        exists.sum(axis=1),
        np.maximum(best.max(axis=1), -FURTHEST),
        of_readable[:, 2] / np.maximum(readable, 1.0) - FURTHEST * (readable == 0),
    )
    # Put the columns of classes and those of the panel into rows.
    mean, panel_mean = sums[..., signal] / at_least_one[..., None], of_all[:, signal] / n[:, None]
    answers_of_agent = np.maximum(of_all[:, vote], 1.0)[:, None]
    by_agent = sums[..., vote] / answers_of_agent, sums[..., vote_odds] / answers_of_agent
    class_part = np.concatenate([np.stack(votes, axis=2), mean, mean - panel_mean[:, None], *by_agent], axis=2)
    panel_part = np.column_stack([*none, panel_mean])[:, None]
    width = class_part.shape[2]
    rows = np.zeros((b, c + 1, width + panel_part.shape[2]), dtype=np.float32)
    rows[:, :c, :width] = np.where(exists[..., None], class_part, 0.0)
    rows[:, c if exclusive else slice(c), width:] = panel_part[:, 0] if exclusive else panel_part * exists[..., None]
    return Classes(rows, count, weight, best, rate, entropy, unreadable, n)


def largest_other(values: Floats) -> Floats:
    """Returns, for each column of `values` (b, c), the largest value among the other columns, (b, c)."""
    ordered = np.sort(values, axis=1)
    return np.where(values == ordered[:, -1:], ordered[:, -2:-1], ordered[:, -1:])


PANEL_STATE = (
    "kept",
    "second",
    "none",
    "log_answers",
    "share",
    "lead",
    "entropy",
    "classes",
    "unreadable",
    "count",
    "ahead",
)
"""Columns of a panel's state, by which it is decided whether to ask on: P(right) of the class that is kept, of the next
and of none; the kept class's share and lead over the next class, both also as counts of answers."""


def state_rows(classes: Classes, probability: Floats, kept_class: Ints) -> NDArray[np.float32]:
    """Returns the state of each panel, (b, len(PANEL_STATE)).

    `probability` (b, c + 1): of each class and of none; `kept_class` (b,): the class that is kept, -1 for none.
    """
    c, n = classes.count.shape[1], classes.answers
    is_kept = (np.arange(c) == kept_class[:, None])[:, None]  # (b, 1, c)
    both = np.stack([probability[:, :c], classes.count], axis=1)  # (b, 2, c)
    of_kept, of_next = (both * is_kept).sum(axis=2), np.where(is_kept, 0.0, both).max(axis=2)
    count, ahead = of_kept[:, 1], of_kept[:, 1] - of_next[:, 1]
    columns = (
        of_kept[:, 0],
        of_next[:, 0],
        probability[:, c],
        np.log(n),
        count / n,
        ahead / n,
        classes.entropy,
        classes.there.sum(axis=1),
        classes.unreadable,
        count,
        ahead,
    )
    return np.stack(columns, axis=1).astype(np.float32)


EMPTY_STATE = np.array([[name in ("none", "unreadable") for name in PANEL_STATE]], dtype=np.float32)
"""State (1, len(PANEL_STATE)) of a panel before any agent is asked."""


PICKS = "best single", "majority", "weighted vote", "surest answer", "joint"
"""Ways to choose the class to keep, the simplest first."""
SINGLE, MAJORITY, WEIGHTED, SUREST, JOINT = PICKS


def pick(way: str, classes: Classes, probability: Floats) -> Ints:
    """Returns the class (b,) that one of `PICKS` keeps, -1 where no answer can be read.

    `probability` (b, c + 1) is read by the joint way only. If classes are equal by the way's own number, the class with
    the surest answer is kept.
    """
    merit_of_way = {SINGLE: classes.rate, MAJORITY: classes.count, WEIGHTED: classes.weight, SUREST: classes.best}
    merit = merit_of_way.get(way, probability[:, :-1]) + 1e-6 * classes.best  # -inf where there is no class
    return np.where(classes.there.any(axis=1), merit.argmax(axis=1), -1)


def answer_signals(
    numbers: Sequence[float] | None, stated: float | None, score: float | None, names: Sequence[str]
) -> list[float]:
    """Returns the signals (S,) of one answer in the order of `names`, NaN where one is missing.

    `numbers`: the terms of its log-probabilities; None where it has none. Minus infinity, the logarithm of probability
    0, becomes the least float32. Plus infinity counts as missing.
    """
    values: dict[str, float | None] = {} if numbers is None else dict(zip(TERMS, numbers, strict=True))
    values[STATED], values[SCORE] = stated, score
    row = []
    for name in names:
        value = values.get(name)
        if value is None or value != value or value == math.inf:
            row.append(math.nan)
        else:  # between the numbers that float32 holds
            row.append(
                float(value) if FLOAT32_LOWEST <= value <= -FLOAT32_LOWEST else math.copysign(FLOAT32_LOWEST, value)
            )
    return row
