"""Plays settings that choose whom to ask, on questions that every agent answered: whom they ask, at what cost."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metaprobe.records.errors import RecordError
from metaprobe.routing.panel.asking import Panel
from metaprobe.routing.panel.model_rows import (
    PANEL_STATE,
    UNREADABLE_CLASS,
    Answers,
    Floats,
    Ints,
    Mask,
    pick,
    state_rows,
)
from metaprobe.routing.panel.planner import (
    GAIN,
    GAIN_MARGIN,
    KEEPS_LAST,
    MOST_ASKED,
    PRICED,
    TABLE,
    AskPlan,
    AskSetting,
    QuestionProgress,
    ask_rows,
    chance_of,
    kept_by,
    next_agent,
    probability_of,
)
from metaprobe.routing.panel.priced_cascade import Surety
from metaprobe.training.panel.fitted_panel import FittedPanel, renumbered
from metaprobe.training.panel.labelled_panels import Panels

FEWEST_ASKED = 60
"""Fewest groups of questions, with all agents asked at a known price, for learning whom to ask."""
UNREADABLE_LOG_ODDS = -50.0
"""Log-odds of an answer that cannot be read."""


def by_agent(data: Panels, agents: Sequence[str] = (), *, fewest: int = FEWEST_ASKED) -> Panels:
    """Returns the questions of which every agent answered once at a known price, with agent j's answer at place j.

    `agents`: in this order, by default all in that of the data; answers of others are left out. A failed call without a
    price has the agent's mean. Raises `RecordError` where fewer than `fewest` groups are left, or an agent is missing.
    """
    names = tuple(agents) or data.agents
    if missing := sorted(set(names) - set(data.agents)):
        raise RecordError(f"no answer of {', '.join(missing)} came; the answers are of {', '.join(data.agents)}")
    # Find the questions that every agent answered once.
    n, A = len(data), len(names)
    column = np.array([names.index(name) if name in names else -1 for name in data.agents])
    place_of_agent = np.full((n, A), -1)
    once = np.ones(n, dtype=bool)
    for i in range(n):
        places = np.flatnonzero(data.present[i] & np.isfinite(data.score[i]) & (column[data.agent[i]] >= 0))
        place_of_agent[i, column[data.agent[i, places]]] = places
        once[i] = len(places) == A and bool((place_of_agent[i] >= 0).all())
    rows = np.flatnonzero(once)
    part, places_of_row = data.take(rows), place_of_agent[rows]

    def ordered(values: NDArray[Any]) -> NDArray[Any]:
        if values.ndim == 3:
            return np.take_along_axis(values, places_of_row[..., None], axis=1)
        return np.take_along_axis(values, places_of_row, axis=1)

    # A failed call without a price costs the agent's mean.
    cost, form = ordered(part.cost), ordered(part.answer_class)
    for j in range(A):
        has_cost = np.isfinite(cost[:, j])
        failed = ~has_cost & (form[:, j] == UNREADABLE_CLASS)
        if has_cost.any():
            cost[failed, j] = cost[has_cost, j].mean()
    priced = np.isfinite(cost).all(axis=1)
    ordered_panels = replace(
        part,
        agents=names,
        agent=np.repeat(np.arange(A)[None], len(rows), axis=0),
        answer_class=form,
        right=ordered(part.right),
        score=ordered(part.score),
        cost=cost,
        tokens=ordered(part.tokens),
        signals=ordered(part.signals),
        present=np.ones((len(rows), A), dtype=bool),
    ).take(np.flatnonzero(priced))
    groups = len(set(ordered_panels.groups))
    if groups < fewest:
        raise RecordError(
            f"{len(ordered_panels)} of {n} questions in {groups} groups have an answer with a cost of each of "
            f"{A} agents; expected at least {fewest} groups: give each agent its cost_usd (in a table a column "
            "NAME.cost_usd; where every answer costs as much, --cost-usd NAME=USD), or use `train panel`"
        )
    return ordered_panels


class JudgedSets:
    """Keeps what was judged of questions of which some agents were asked.

    Most settings ask the same agents of a question: each question is then judged once for each set of agents.
    """

    def __init__(self, questions: int) -> None:
        self.questions = questions
        self.set_numbers: dict[tuple[str, bytes], int] = {}
        """Number of each way and set of agents."""
        self.keys: Ints = np.zeros(0, dtype=np.int64)
        """Sorted: `questions` times the number of the set, plus the question's row."""
        self.agent: Ints = np.zeros(0, dtype=np.int64)
        """Whose answer is kept, for each key."""
        self.states: NDArray[np.float32] = np.zeros((0, len(PANEL_STATE)), dtype=np.float32)
        """State of the panel, for each key."""

    def judged(
        self, rows: Ints, asked: Mask, way: str, judge: Callable[[Ints, Mask], tuple[Ints, NDArray[np.float32]]]
    ) -> tuple[Ints, NDArray[np.float32]]:
        """Returns what `judge(rows, asked)` returns, and calls it only with pairs of row and set that are new.

        Args:
            rows: numbers of the questions, (b,).
            asked: the agents that were asked of each question, (b, A).
            way: the way by which `judge` picks an answer.
            judge: returns the agent whose answer is kept and the state of the panel.
        """
        sets, set_of_row = np.unique(np.packbits(asked, axis=1), axis=0, return_inverse=True)
        numbers = [self.set_numbers.setdefault((way, packed.tobytes()), len(self.set_numbers)) for packed in sets]
        number_of_row = np.array(numbers, dtype=np.int64)[set_of_row.ravel()]
        keys, first, key_of_row = np.unique(
            self.questions * number_of_row + rows, return_index=True, return_inverse=True
        )
        new = ~np.isin(keys, self.keys, assume_unique=True)
        if new.any():
            agent, states = judge(rows[first[new]], asked[first[new]])
            order = np.argsort(np.concatenate([self.keys, keys[new]]))
            self.keys = np.concatenate([self.keys, keys[new]])[order]
            self.agent = np.concatenate([self.agent, agent])[order]
            self.states = np.concatenate([self.states, states])[order]
        place_of_key: Ints = np.asarray(np.searchsorted(self.keys, keys), dtype=np.int64)
        place = place_of_key[key_of_row]
        return self.agent[place], self.states[place]


@dataclass(frozen=True, slots=True, eq=False)
class View:
    """Everything that models know about m questions and their agents' answers.

    The models have not seen the groups of these questions.
    """

    model: FittedPanel | Panel
    gain: Callable[[NDArray[np.float32]], Floats] | None
    """Function from rows (n, len(ASK_STATE)) to expected gains (n,)."""
    answers: Answers
    odds: Floats
    """Log-odds that each agent's answer is right (m, A)."""
    rate_here: Floats
    """Log-odds of each agent on the question's dimension (m, A)."""
    chance: Floats
    """P(right) of each agent (m, A) before any agent is asked, from the question's dimension and words."""
    price: Floats
    """Expected price of each agent (m, A), in US dollars for 1,000 answers."""
    score: Floats
    """Score of each agent's answer (m, A), in [0, 1]."""
    cost: Floats
    """Price paid for each agent's answer (m, A), in US dollars for 1,000 such answers."""
    judged_sets: JudgedSets
    """Results that `judged` returned before. A copy with another gain or surety shares them."""
    sure: Surety | None = None
    """How far one answer changes the expected P(right) of the others; None if no priced cascade is played."""

    @classmethod
    def of(cls, model: FittedPanel | Panel, data: Panels, answers: Answers, odds: Floats, **learned: Any) -> "View":
        """Returns the view of questions with these answers, whose log-odds are `odds`.

        `learned`: `gain`, `shift` of P(right) by the words, and by dimension (A, D + 1) `rate` and `price`.
        """
        rate = learned.pop("rate")[:, answers.dimension].T
        return cls(
            model=model,
            answers=answers,
            odds=np.where(answers.answer_class >= 0, odds, UNREADABLE_LOG_ODDS),
            rate_here=rate,
            chance=chance_of(rate, learned.pop("shift")),
            price=learned.pop("price")[:, answers.dimension].T,
            score=data.score,
            cost=1000 * data.cost,
            judged_sets=JudgedSets(len(answers.answer_class)),
            **learned,
        )

    def progress(self, rows: Ints, asked: Mask) -> Iterator[QuestionProgress]:
        """Yields the state of each question `rows` (b,), if the agents in `asked` (b, A) were asked."""
        answered = asked & (self.answers.answer_class[rows] >= 0)
        numbers = [values[rows].tolist() for values in (self.odds, self.rate_here, self.chance, self.price)]
        forms = self.answers.answer_class[rows].tolist()
        for was_asked, was_answered, form, odds, rate, chance, price in zip(
            asked.tolist(), answered.tolist(), forms, *numbers, strict=True
        ):
            left = [agent for agent, asked_before in enumerate(was_asked) if not asked_before]
            yield QuestionProgress(was_asked, was_answered, left, odds, rate, chance, price, form, self.sure)

    def judged(self, rows: Ints, asked: Mask, way: str) -> tuple[Ints, NDArray[np.float32]]:
        """Returns the agent whose answer is kept (b,), -1 if none is, and the state of the panel (b, len(PANEL_STATE)),
        for questions `rows` (b,) if exactly the agents in `asked` (b, A) were asked.
        """
        return self.judged_sets.judged(rows, asked, way, partial(self._judge, way))

    def _judge(self, way: str, rows: Ints, asked: Mask) -> tuple[Ints, NDArray[np.float32]]:
        part = self.answers.rows(rows)
        form = np.where(asked, part.answer_class, UNREADABLE_CLASS)
        answers = renumbered(Answers(form, part.agent, part.dimension, part.scaled, asked))
        odds = self.odds[rows]
        classes, p = self.model.classes_of(answers, odds)
        kept = pick(way, classes, p)
        member = (answers.answer_class == kept[:, None]) & asked & (kept[:, None] >= 0)
        agent = np.where(member, odds, -np.inf).argmax(axis=1)
        return np.where(kept >= 0, agent, -1), state_rows(classes, p, kept)

    def rows(self, states: NDArray[np.float32], rows: Ints, asked: Mask) -> NDArray[np.float32]:
        """Returns the rows from which the gain of asking each agent is predicted, (b, A, len(ASK_STATE))."""
        return ask_rows(states, self.chance[rows], ~asked, self.rate_here[rows])

    def kept_score(self, rows: Ints, agent: Ints) -> Floats:
        """Returns the scores (b,) of the kept answers; 0 where none is kept."""
        return np.where(agent >= 0, self.score[rows, np.maximum(agent, 0)], 0.0)


@dataclass(frozen=True, slots=True, eq=False)
class Played:
    """Holds the result of one setting on m questions."""

    score: Floats
    """Score of the kept answer (m,)."""
    cost: Floats
    """Spending on each question (m,), in US dollars for 1,000 such questions."""
    asked: Mask
    """Whether each agent was asked (m, A)."""
    kept: Ints
    """Agent whose answer is kept (m,); -1 if no answer is kept."""
    order: Ints
    """Agents in the order in which they were asked (m, A); -1 after the last one."""


def play_setting(view: View, setting: AskSetting, way: str) -> Played:
    """Plays a setting to its end on the questions of a view."""
    m, A = view.score.shape
    asked, order = np.zeros((m, A), dtype=bool), np.full((m, A), -1)
    active = np.arange(m)
    for step in range(A):
        if setting.way in KEEPS_LAST:
            states = view.progress(active, asked[active])
            chosen = np.array([next_agent(setting, state) for state in states])
        elif setting.way == PRICED:
            chosen = _priced_next(view, setting, active, asked[active])
        else:
            chosen = _worthiest_next(view, setting, active, asked[active], way)
        active, chosen = active[chosen >= 0], chosen[chosen >= 0]
        if not len(active):
            break
        asked[active, chosen] = True
        order[active, step] = chosen
    answered = asked & (view.answers.answer_class >= 0)
    kept = np.array([kept_by(setting, *state) for state in zip(answered.tolist(), view.odds.tolist(), strict=True)])
    judged = np.flatnonzero(kept < 0)
    if len(judged):
        kept[judged] = view.judged(judged, asked[judged], way)[0]
    return Played(view.kept_score(np.arange(m), kept), (view.cost * asked).sum(axis=1), asked, kept, order)


def _worthiest_next(view: View, setting: AskSetting, rows: Ints, asked: Mask, way: str) -> Ints:
    """Returns the next agent (b,), like `next_agent`, of a way that asks the agent of highest value; -1 to stop."""
    left, rate = ~asked, view.rate_here[rows]
    done = (asked & (view.answers.answer_class[rows] >= 0)).any(axis=1)
    merit = probability_of(rate) if setting.way == TABLE else view.chance[rows]
    if setting.way == GAIN:
        assert view.gain is not None
        _, states = view.judged(rows, asked, way)
        X = view.rows(states, rows, asked)
        merit = view.gain(X.reshape(-1, X.shape[2])).reshape(X.shape[:2])
    legal = left & np.isin(np.arange(asked.shape[1]), setting.agents)
    value = np.where(legal, merit - setting.price * view.price[rows], -np.inf)
    best, worth = value.argmax(axis=1), value.max(axis=1)
    goes_on = ~done & legal.any(axis=1)
    if setting.way == GAIN:
        goes_on |= done & (worth > GAIN_MARGIN) & (asked.sum(axis=1) < MOST_ASKED)
    likeliest = np.where(left, rate, -np.inf).argmax(axis=1)
    return np.where(goes_on, best, np.where(~done & left.any(axis=1), likeliest, -1))


def _priced_next(view: View, setting: AskSetting, rows: Ints, asked: Mask) -> Ints:
    """Returns the agent that a priced cascade asks next on each question (b,); -1 if it stops."""
    assert view.sure is not None
    legal = np.isin(np.arange(asked.shape[1]), setting.agents)
    answered = asked & (view.answers.answer_class[rows] >= 0)
    states = (view.rate_here[rows], view.price[rows], ~asked & legal, view.odds[rows], answered)
    return view.sure.worth(setting.price, *states)[1]


@dataclass(frozen=True, slots=True, eq=False)
class Expected:
    """Expected result on each question (m,), if a draw decides between two settings."""

    score: Floats
    cost: Floats
    """Expected spending in US dollars for 1,000 questions."""
    asked: Floats
    """Expected number of agents that are asked."""


def expected_of(first: Played, second: Played, share: float) -> Expected:
    """Returns the mixed result of two settings, if the first decides the fraction `share` of the questions."""
    return Expected(
        share * first.score + (1 - share) * second.score,
        share * first.cost + (1 - share) * second.cost,
        share * first.asked.sum(axis=1) + (1 - share) * second.asked.sum(axis=1),
    )


def expected_at(view: View, plan: AskPlan, way: str) -> Expected:
    """Returns a plan's expected result on the questions of a view. `way`: one of `PICKS`, which keeps an answer."""
    first, second = (play_setting(view, setting, way) for setting in (plan.first, plan.second))
    return expected_of(first, second, plan.share)
