"""The numbers that a panel is judged by, for many questions at once. NumPy only.

A panel is several answers to one question. Three tables are made of it, a linear model or trees read each:

- a row an answer: its own signals, whose they are, and on what dimension -> log-odds that the answer is right alone;
- a row a class of equal answers, and one for "none of these" -> P(right) of each; they sum to 1;
- a row a panel -> the expected gain of asking on.

Shapes: b panels of k answers; a panel with fewer answers is padded.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metaprobe.probes.terms import TERMS

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]

STATED, SCORE = "stated", "score"
SIGNALS = (*TERMS, STATED, SCORE)
"""Numbers that an answer may bring: terms of its log-probabilities, a stated confidence, a checkpoint's score."""
LEVELS = 33
"""Quantiles of a signal that are kept of each agent."""
UNREADABLE = -1
"""Class of an answer that was cut or cannot be read. It counts against every class, and is none."""
LEAST = -3.0e38
"""Replaces minus infinity: the least float32, rounded."""
LEAST_WEIGHT = 0.01
"""Least weight of a vote: an answer that is more likely wrong than right still breaks a tie."""
FURTHEST = 4.0
"""Log-odds beyond which no answer's weight goes: 0.98."""


@dataclass(frozen=True, slots=True, eq=False)
class Agents:
    """Describes the agents: how often each is right, and the scale of its signals."""

    names: tuple[str, ...]
    """A of them, in the order of the columns."""
    dimensions: tuple[str, ...]
    """D of them; empty where the questions have none."""
    rate: Floats
    """(A, D + 1): log-odds of being right on each dimension, and in the last column over all."""
    signals: tuple[str, ...]
    """S of `SIGNALS`: those that the training data have."""
    levels: Floats
    """(A + 1, S, LEVELS): rising quantiles of each signal, in the last row those of all agents together; NaN where an
    agent never gave the signal."""
    leading: str = field(default="")
    """The signal whose weight may differ between agents and dimensions."""
    scales: tuple[tuple[tuple[Floats, Floats] | None, ...], ...] = field(init=False)
    """(A + 1, S): `scale_of` the quantiles, of an agent without them those of all; None where nobody has any."""

    def __post_init__(self) -> None:
        own = [[scale_of(levels) if math.isfinite(levels[0]) else None for levels in agent] for agent in self.levels]
        scales = tuple(tuple(one or all_ for one, all_ in zip(agent, own[-1], strict=True)) for agent in own)
        object.__setattr__(self, "scales", scales)

    def agent(self, name: str) -> int:
        """Returns the column of an agent, A for one that is not known."""
        return self.names.index(name) if name in self.names else len(self.names)

    def dimension(self, name: str) -> int:
        """Returns the column of a dimension, D for one that is not known."""
        return self.dimensions.index(name) if name in self.dimensions else len(self.dimensions)

    def scaled(self, signals: Floats, agent: Ints) -> Floats:
        """Returns the signals (..., S) of agents (...) as normal scores: how far up each is among the agent's own.

        0 where a signal is missing.
        """
        shape, S = signals.shape, len(self.signals)
        values, who = signals.reshape(agent.size, S), agent.ravel()
        scores = np.zeros(values.shape)
        columns = set(who.tolist())
        for column in columns:
            rows = slice(None) if len(columns) == 1 else np.flatnonzero(who == column)
            for s, scale in enumerate(self.scales[column]):
                if scale is not None:
                    scores[rows, s] = np.interp(values[rows, s], *scale)
        scores[np.isnan(values)] = 0.0
        return scores.reshape(shape)


_RANKS = (np.arange(LEVELS) + 0.5) / LEVELS


SCORES = np.array([NormalDist().inv_cdf(rank) for rank in _RANKS])
"""(LEVELS,): the normal score of each quantile."""
_SUMS = np.concatenate([[0.0], np.cumsum(SCORES)])


def scale_of(levels: Floats) -> tuple[Floats, Floats]:
    """Returns values and their normal scores, between which `np.interp` reads those of others, by rising levels.

    A value that several levels share has their mean score; just below and above it are those of the first and last.
    """
    values, first, count = np.unique(levels, return_index=True, return_counts=True)
    last, several = first + count - 1, count > 1
    mean = (_SUMS[last + 1] - _SUMS[first]) / count
    x = np.stack([np.nextafter(values, -np.inf), values, np.nextafter(values, np.inf)], axis=1)
    y = np.stack([SCORES[first], mean, SCORES[last]], axis=1)
    points = np.stack([several, np.ones(len(values), dtype=bool), several], axis=1)
    return np.maximum.accumulate(x[points]), y[points]


def quantiles(values: Floats) -> Floats:
    """Returns `LEVELS` rising quantiles of values (n,); NaN of fewer than two finite ones."""
    known = values[np.isfinite(values)]
    return np.quantile(known, _RANKS) if len(known) > 1 else np.full(LEVELS, np.nan)


@dataclass(frozen=True, slots=True, eq=False)
class Answers:
    """b panels of k answers each, of one set of agents."""

    form: Ints
    """(b, k): class of the answer, from 0 in order of appearance; `UNREADABLE` where it is in none."""
    agent: Ints
    """(b, k): column of the agent, A where it is not known."""
    dimension: Ints
    """(b,): column of the dimension, D where it is not known."""
    scaled: Floats
    """(b, k, S): normal scores of the signals, 0 where missing."""
    present: Mask
    """(b, k): False where a panel has fewer answers than k."""

    def rows(self, rows: Ints) -> "Answers":
        """Returns the panels of these rows."""
        return Answers(self.form[rows], self.agent[rows], self.dimension[rows], self.scaled[rows], self.present[rows])

    def take(self, at: Ints) -> "Answers":
        """Returns the answers at places `at` (b, m) of each panel, with classes as they are."""
        rows = np.arange(len(at))[:, None]
        return Answers(
            self.form[rows, at], self.agent[rows, at], self.dimension, self.scaled[rows, at], self.present[rows, at]
        )


def answer_columns(agents: Agents) -> tuple[str, ...]:
    """Returns the names of the columns of `answer_rows`."""
    several = agents.names if len(agents.names) > 1 else ()
    named = [f"agent {name}" for name in several]
    lead = [f"{agents.leading} of {name}" for name in several] if agents.leading else []
    places = [(name, dimension) for name in agents.names for dimension in agents.dimensions]
    on = [f"agent {name} on {dimension}" for name, dimension in places]
    lead_on = [f"{agents.leading} of {name} on {dimension}" for name, dimension in places] if agents.leading else []
    return (*agents.signals, *named, *lead, *on, *lead_on)


def answer_rows(answers: Answers, agents: Agents) -> NDArray[np.float32]:
    """Returns one row for each answer, (b, k, P) in the order of `answer_columns`."""
    b, k = answers.form.shape
    A, D = len(agents.names), len(agents.dimensions)
    parts: list[NDArray[Any]] = [answers.scaled]
    who = answers.agent[..., None] == np.arange(A)  # nobody for an agent that is not known
    lead = answers.scaled[..., agents.signals.index(agents.leading), None] if agents.leading else None
    if A > 1:
        parts.append(who)
        if lead is not None:
            parts.append(who * lead)
    if D:
        place = who[..., :, None] & (answers.dimension[:, None, None, None] == np.arange(D))
        place = place.reshape(b, k, A * D)
        parts.append(place)
        if lead is not None:
            parts.append(place * lead)
    return np.concatenate(parts, axis=2, dtype=np.float32, casting="same_kind")


_VOTES = ("share", "lead", "log_count", "odds_best", "odds_lead", "weight", "weight_against", "odds_mean")
"""Columns of a class: its share of all answers, its lead over the next class, log of its count; its surest answer's
log-odds, their lead over the surest other answer; the summed weight of its answers and of all others; mean log-odds."""
_NONE = ("none", "log_answers", "unreadable", "entropy", "classes", "odds_best", "odds_mean")
"""Columns of the row for "none of these", 0 in all other rows."""


def class_columns(agents: Agents) -> tuple[str, ...]:
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
    """The classes of b panels, at most c each."""

    rows: NDArray[np.float32]
    """(b, c + 1, F): a row a class, in the order of their numbers, and last the row of "none of these"."""
    count: Floats
    """(b, c): answers of each class, 0 where a panel has fewer classes; c is at least 2."""
    weight: Floats
    """(b, c): summed weight of its answers."""
    best: Floats
    """(b, c): log-odds of its surest answer; -inf where there is no class."""
    entropy: Floats
    """(b,): of the shares of the classes, in nats."""
    unreadable: Floats
    """(b,): share of the answers that are in no class."""
    answers: Floats
    """(b,): at least 1."""

    @property
    def there(self) -> Mask:
        """(b, c): whether there is such a class."""
        return self.count > 0


def class_rows(answers: Answers, odds: Floats, agents: Agents, *, exclusive: bool = True) -> Classes:
    """Returns the classes of panels whose answers have log-odds (b, k) of being right.

    The panel's own columns stand in the row of none where classes are `exclusive`, for their probabilities sum to 1
    with it; else in the row of every class.
    """
    form, present = answers.form, answers.present
    b, c = len(form), max(int(form.max(initial=UNREADABLE)) + 1, 2)
    A, S, V = len(agents.names), len(agents.signals), len(_VOTES)
    several = A if A > 1 else 0
    signal, vote, vote_odds = slice(3, 3 + S), slice(3 + S, 3 + S + several), slice(3 + S + several, None)
    member = form[:, None, :] == np.arange(c)[:, None]  # (b, c, k)
    odds = np.minimum(np.maximum(odds, -FURTHEST), FURTHEST)
    table = np.ones((*form.shape, 3 + S + 2 * several))  # a row an answer: what is summed over a class
    table[..., 1], table[..., 2] = np.maximum(odds, LEAST_WEIGHT), odds
    table[..., signal] = answers.scaled
    if several:
        table[..., vote] = answers.agent[..., None] == np.arange(A)
        table[..., vote_odds] = table[..., vote] * odds[..., None]
    if not present.all():
        member &= present[:, None, :]
        table *= present[..., None]
    sums = np.matmul(member.astype(np.float64), table)  # (b, c, ...): over the answers of each class,
    readable, everything = sums.sum(axis=1), table.sum(axis=1)  # (b, ...): over those in any class, and over all
    count, weight, n = sums[..., 0], sums[..., 1], np.maximum(everything[:, 0], 1.0)
    there, at_least_one, share = count > 0, np.maximum(count, 1.0), count / n[:, None]
    best = np.where(member, odds[:, None, :], -np.inf).max(axis=2)  # (b, c)
    votes = (
        share,
        share - largest_other(share),
        np.log(at_least_one),
        best,
        best - np.maximum(largest_other(best), -FURTHEST),
        weight,
        readable[:, 1, None] - weight,
        sums[..., 2] / at_least_one,
    )
    mean, panel_mean = sums[..., signal] / at_least_one[..., None], everything[:, signal] / n[:, None]
    entropy = -(share * np.log(np.where(there, share, 1.0))).sum(axis=1)
    unreadable, some = 1.0 - readable[:, 0] / n, readable[:, 0] > 0
    none = (
        np.ones(b),
        np.log(n),
        unreadable,
        entropy,
        there.sum(axis=1),
        np.maximum(best.max(axis=1), -FURTHEST),
        np.where(some, readable[:, 2] / np.maximum(readable[:, 0], 1.0), -FURTHEST),
    )
    own = V + 2 * S + 2 * several
    rows = np.zeros((b, c + 1, own + len(none) + S), dtype=np.float32)
    for place, column in enumerate(votes):
        rows[:, :c, place] = column
    rows[:, :c, V : V + S] = mean
    rows[:, :c, V + S : V + 2 * S] = mean - panel_mean[:, None, :]
    if several:
        each = np.maximum(everything[:, vote], 1.0)[:, None, :]
        rows[:, :c, V + 2 * S : own - A] = sums[..., vote] / each
        rows[:, :c, own - A : own] = sums[..., vote_odds] / each
    panel = rows[:, c:, own:] if exclusive else rows[:, :c, own:]
    for place, number in enumerate(none):
        panel[..., place] = number[:, None]
    panel[..., len(none) :] = panel_mean[:, None, :]
    rows[:, :c][~there] = 0.0
    return Classes(rows, count, weight, best, entropy, unreadable, n)


def largest_other(values: Floats) -> Floats:
    """Returns for each of several columns (b, c) the largest value of the others."""
    if values.shape[1] == 2:
        return values[:, ::-1]
    ordered = np.sort(values, axis=1)
    return np.where(values == ordered[:, -1:], ordered[:, -2:-1], ordered[:, -1:])


STATE = ("kept", "second", "none", "log_answers", "share", "lead", "entropy", "classes", "unreadable", "count", "ahead")
"""Columns of a panel's state, by which it is decided whether to ask on: P(right) of the class that is kept, of the next
and of none; the kept class's share and lead over the next class, both also as counts of answers."""


def state_rows(classes: Classes, probability: Floats, kept: Ints) -> NDArray[np.float32]:
    """Returns the state of each panel, (b, len(STATE)).

    `probability` (b, c + 1): of each class and of none; `kept` (b,): the class that is kept, -1 for none.
    """
    b, c = classes.count.shape
    held = (np.arange(c) == kept[:, None])[:, None]  # (b, 1, c)
    both = np.stack([probability[:, :c], classes.count], axis=1)  # (b, 2, c)
    own, others = (both * held).sum(axis=2), np.where(held, 0.0, both).max(axis=2)
    count, ahead = own[:, 1], own[:, 1] - others[:, 1]
    columns = (
        own[:, 0],
        others[:, 0],
        probability[:, c],
        np.log(classes.answers),
        count / classes.answers,
        ahead / classes.answers,
        classes.entropy,
        classes.there.sum(axis=1),
        classes.unreadable,
        count,
        ahead,
    )
    rows = np.empty((b, len(STATE)), dtype=np.float32)
    for place, column in enumerate(columns):
        rows[:, place] = column
    return rows


EMPTY_STATE = np.array([[float(name in ("none", "unreadable")) for name in STATE]], dtype=np.float32)
"""(1, len(STATE)): the state of a panel that nobody was asked for."""


SINGLE, MAJORITY, WEIGHTED, SUREST, JOINT = (
    "best single",
    "majority",
    "weighted vote",
    "surest answer",
    "joint",
)
PICKS = (SINGLE, MAJORITY, WEIGHTED, SUREST, JOINT)
"""Ways to choose the class that is kept, the simplest first."""


def pick(way: str, answers: Answers, classes: Classes, probability: Floats, agents: Agents) -> Ints:
    """Returns the class (b,) that one of `PICKS` keeps, -1 where no answer can be read.

    `probability` (b, c + 1) is read by the joint way only. Among classes that are equal by the way's own number the one
    with the surest answer is kept.
    """
    if way == SINGLE:
        rate = np.append(agents.rate, agents.rate.mean(axis=0, keepdims=True), axis=0)  # an unknown agent is average
        known = rate[answers.agent, answers.dimension[:, None]]
        c = classes.count.shape[1]
        member = (answers.form[:, None, :] == np.arange(c)[:, None]) & answers.present[:, None, :]
        merit = np.where(member, known[:, None, :], -np.inf).max(axis=2)
    elif way == MAJORITY:
        merit = classes.count
    elif way == WEIGHTED:
        merit = classes.weight
    elif way == SUREST:
        merit = classes.best
    else:
        merit = probability[:, :-1]
    merit = merit + 1e-6 * classes.best  # -inf where there is no class
    return np.where(classes.there.any(axis=1), merit.argmax(axis=1), -1)


def softmax_rows(scores: Floats, there: Mask) -> Floats:
    """Returns the probabilities (b, c + 1) of scores (b, c + 1): those of classes that are there, and of none."""
    legal = np.concatenate([there, np.ones((len(there), 1), dtype=bool)], axis=1)
    raised = np.where(legal, scores, -np.inf)
    raised = np.exp(raised - raised.max(axis=1, keepdims=True))
    return np.asarray(raised / raised.sum(axis=1, keepdims=True))


def signals_of(
    numbers: Sequence[float] | None, stated: float | None, score: float | None, names: Sequence[str]
) -> list[float]:
    """Returns the signals (S,) of one answer in the order of `names`, NaN where one is missing.

    `numbers`: the terms of its log-probabilities; None where it has none. Minus infinity, the logarithm of what cannot
    be, is the least float32; infinity says nothing.
    """
    values: dict[str, float | None] = {} if numbers is None else dict(zip(TERMS, numbers, strict=True))
    values[STATED], values[SCORE] = stated, score
    return [math.nan if (value := values.get(name)) is None else _bounded(value) for name in names]


def _bounded(value: float) -> float:
    """Returns a number between those that float32 holds; NaN for infinity, which says nothing."""
    if LEAST <= value <= -LEAST:
        return float(value)
    return math.nan if value != value or value == math.inf else math.copysign(LEAST, value)
