"""Labelled panels as arrays: questions with several answers each, from run stores or from outcomes of agents."""

import hashlib
import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from metaprobe.checkpoints import Generator
from metaprobe.eval.ope import CALIBRATED_GROUPS
from metaprobe.eval.table import group_of
from metaprobe.records.bad_lines import reading
from metaprobe.records.errors import InvalidResponse, RecordError
from metaprobe.records.outcomes import QuestionOutcomes, is_outcomes, read_outcomes
from metaprobe.records.store import RunStore, fingerprint
from metaprobe.records.types import Call, Item, Run
from metaprobe.routing.panel_answers import EXACT, PanelAnswer, comparable_form, signals_in
from metaprobe.routing.panel_lines import answer_in_outcome, questions_in_file, read_of_run
from metaprobe.routing.panel_rows import (
    ANSWER_SIGNALS,
    QUANTILE_COUNT,
    SCORE,
    STATED,
    UNREADABLE_CLASS,
    Agents,
    Answers,
    Floats,
    Ints,
    Mask,
    quantiles,
)
from metaprobe.routing.panel_sources import STATED_BY_MODEL, is_from
from metaprobe.training.evidence import generator_of
from metaprobe.training.folds import join_groups
from metaprobe.training.panel_effects import fit_effects
from metaprobe.training.panel_same import (
    ChosenReading,
    LabelledQuestion,
    choose_reading,
    classes_by,
    item_of,
    literal_form,
)

MAX_LEARNED_ANSWERS = 64
"""Answers of one question that are learned from; further ones add nothing that a smaller draw does not show."""
RATE_PRIOR_ANSWERS = 5.0
"""Answers that an agent's rate over all dimensions weighs against its own on one."""
EXCLUSIVE = 0.02
"""Largest share of questions with two different right answers at which the classes count as exclusive."""
USUAL = 0.5
"""Share of answers from which on a signal is learned from."""


@dataclass(frozen=True, slots=True, eq=False)
class Panels:
    """n questions with at most K answers each."""

    ids: tuple[str, ...]
    groups: tuple[str, ...]
    """Names of the units that must stay in one split."""
    agents: tuple[str, ...]
    dimensions: tuple[str, ...]
    dimension: Ints
    """(n,): index into `dimensions`, D where it is not known."""
    agent: Ints
    """(n, K): index into `agents`."""
    form: Ints
    """(n, K): class of each answer, from 0; `UNREADABLE_CLASS` where it was cut or cannot be read."""
    right: Floats
    """(n, K): 0 or 1; NaN where no label is known."""
    signals: Floats
    """(n, K, len(SIGNALS)), NaN where missing."""
    present: Mask
    """(n, K)"""
    score: Floats
    """(n, K): how good each answer is, in [0, 1]; `right` says whether that is above a half."""
    cost: Floats
    """(n, K): US dollars of each answer, NaN where it is not known."""
    tokens: Floats
    """(n, K, 2): tokens of its prompt and of itself, NaN where they are not known."""
    questions: tuple[str, ...]
    """(n,): their texts."""
    same: str
    """When two answers are the same: a check of `Item`, or `OVERLAP`."""
    fingerprint: str
    generator: Generator | None = None
    note: str = ""
    """Says in words what was joined or left out; empty where nothing was."""
    score_by: str = ""
    """Question of a decision model whose number is each answer's score; empty for none."""
    tool_calls: bool = False
    """Whether answers that call tools are among them."""
    literal: Ints | None = None
    """(n, K): class of each answer letter for letter, which tells the labels' noise; None where that is not known."""
    sources: Mapping[str, str] = field(default_factory=dict)
    """Agent -> source of its confidences (`routing.panel_sources.SOURCES`); an agent whose source is not known is left
    out."""
    reading: ChosenReading | None = None
    """How `same` was chosen; None where it was given."""

    def __len__(self) -> int:
        return len(self.ids)

    def take(self, rows: Ints) -> "Panels":
        """Returns the questions of these rows."""
        arrays = ("dimension", "agent", "form", "right", "signals", "present", "score", "cost", "tokens")
        taken: dict[str, Any] = {name: getattr(self, name)[rows] for name in arrays}
        if self.literal is not None:
            taken["literal"] = self.literal[rows]
        for name in ("ids", "groups", "questions"):
            taken[name] = tuple(getattr(self, name)[row] for row in rows)
        return replace(self, **taken)

    @property
    def sampled(self) -> bool:
        """Whether all answers are of one agent, so that they are exchangeable."""
        return len(self.agents) == 1

    @property
    def exclusive(self) -> bool:
        """Whether at most one class of a question is right, with few exceptions."""
        right = right_classes(self.form, self.present, self.right)
        return bool((right.sum(axis=1) > 1).mean() <= EXCLUSIVE)

    def answers(self, agents: Agents, agent: Ints | None = None, dimension: Ints | None = None) -> Answers:
        """Returns the answers as the models read them, by what is known of the agents.

        `agent` (n, K), `dimension` (n,): columns of `agents`, by default those of these questions.
        """
        agent = self.agent if agent is None else agent
        signals = self.signals[..., [ANSWER_SIGNALS.index(name) for name in agents.signals]]
        rows = zip(signals.reshape(agent.size, len(agents.signals)).tolist(), agent.ravel().tolist(), strict=True)
        return Answers(
            form=self.form,
            agent=agent,
            dimension=self.dimension if dimension is None else dimension,
            scaled=np.array([agents.scaled(row, who) for row, who in rows]).reshape(signals.shape),
            present=self.present,
        )


def right_classes(form: Ints, present: Mask, right: Floats) -> Floats:
    """Returns for each class (n, c) whether it is right: the majority of its labelled answers. 0 without any."""
    c = max(int(form.max(initial=UNREADABLE_CLASS)) + 1, 1)
    member = (form[:, None, :] == np.arange(c)[:, None]) & (present & np.isfinite(right))[:, None, :]
    sums = (member * np.nan_to_num(right)[:, None, :]).sum(axis=2)
    return np.asarray((sums > member.sum(axis=2) / 2).astype(np.float64))


def agents_in(data: Panels) -> Agents:
    """Returns what these questions show of the agents: rates on each dimension, and the scale of every signal."""
    A, D, known = len(data.agents), len(data.dimensions), data.present & np.isfinite(data.score)
    usual = [
        name
        for s, name in enumerate(ANSWER_SIGNALS)
        if np.isfinite(data.signals[..., s][data.present & (data.form >= 0)]).mean() >= USUAL
    ]
    dimension = np.broadcast_to(data.dimension[:, None], known.shape)[known]
    effects = fit_effects(data.agent[known], dimension, data.score[known], (A, D))
    rate = 1 / (1 + np.exp(-effects.intercept))
    rate = np.clip(rate, 0.02, 0.98)
    levels = np.full((A + 1, len(usual), QUANTILE_COUNT), np.nan)
    for s, name in enumerate(usual):
        values = data.signals[..., ANSWER_SIGNALS.index(name)]
        for a in range(A):
            levels[a, s] = quantiles(values[data.present & (data.agent == a)])
        levels[A, s] = quantiles(values[data.present])
    leading = next((name for name in (STATED, "mean") if name in usual), "")
    return Agents(data.agents, data.dimensions, np.log(rate / (1 - rate)), tuple(usual), levels, leading)


def panels_at(path: Path, *, stage: str | None = None, same: str | None = None, score_by: str = "") -> Panels:
    """Returns the panels of a run store, a file of outcomes, or a file of OpenAI-format lines.

    `stage`: of a run store, the calls that are answers. `same`: of lines and outcomes, when two answers are the same;
    by default it is chosen (`panel_same.choose_reading`). `score_by`: of a store and of lines, the question of a
    decision model whose number is an answer's score. Raises `RecordError` for an option that the data do not take, and
    where no answer has that number.
    """
    if path.is_dir() and same is not None:
        raise RecordError(f"same is {same!r}: the items of a run store say how they are checked; leave it out")
    if not path.is_dir() and stage is not None:
        raise RecordError(f"stage is {stage!r}: a file has no stages; leave it out, or give a run store")
    if path.is_dir():
        panels = panels_of_runs(RunStore(path), stage=stage, score_by=score_by)
    elif is_outcomes(path):
        panels = panels_of_outcomes(read_outcomes(path), same=same)
    else:
        panels = panels_of_lines(path, same, score_by)
    if score_by and not np.isfinite(panels.signals[..., ANSWER_SIGNALS.index(SCORE)]).any():
        raise RecordError(f"score_by is {score_by!r}, and no answer of {path} has this number: `metaprobe judge` asks")
    return replace(panels, score_by=score_by)


def panels_of_runs(runs: Iterable[Run], *, stage: str | None = None, score_by: str = "") -> Panels:
    """Returns the panels of runs: for each item the answers of all its runs, in their order.

    `stage`: of the calls that are answers; by default the one stage that has labels `correct`. Raises `RecordError`
    where several stages have such labels and none is named, or no item has two labelled answers.
    """
    runs = list(runs)
    by_item: dict[tuple[str, str], tuple[Item, list[tuple[Run, Call]]]] = {}
    stages: dict[str, int] = {}
    for run in runs:
        for call in run.calls:
            if run.label("correct", call.id) is None or (stage is not None and call.stage != stage):
                continue
            stages[call.stage] = stages.get(call.stage, 0) + 1
            by_item.setdefault((run.item.task, run.item.id), (run.item, []))[1].append((run, call))
    if len(stages) > 1:
        raise RecordError(
            f"answers of the stages {', '.join(sorted(stages))} are labelled: name the one whose answers are samples "
            "(`--sampled STAGE`)"
        )
    panels = [(item, calls) for item, calls in by_item.values() if len(calls) > 1]
    if not panels:
        raise RecordError(
            f"{len(by_item)} items have a labelled answer and none has two; a panel is several answers to one question"
        )
    checks = {item.check for item, _ in panels}
    if len(checks) > 1:
        raise RecordError(
            f"the items are checked in {len(checks)} ways ({', '.join(sorted(checks))}), and a panel compares answers "
            "in one: give stores of one kind of question"
        )
    groups, note = join_groups([group_of(item) for item, _ in panels], [item.question for item, _ in panels])
    calls = [call for _, many in panels for _, call in many]
    rows = []
    for (item, many), group in zip(panels, groups.tolist(), strict=True):
        answers = []
        for run, call in many[:MAX_LEARNED_ANSWERS]:
            tokens = call.usage.prompt_tokens or None, call.usage.completion_tokens
            label, read = run.label("correct", call.id), read_of_run(run, call, score_by)
            answers.append(_answer(item, item.check, read, label, call.cost_usd, tokens))
        rows.append(_Row(f"{item.task}/{item.id}".strip("/"), group, item.dimension, item.question, answers))
    [same] = checks
    note = "; ".join(filter(None, [note, _cut_short(sum(len(many) > MAX_LEARNED_ANSWERS for _, many in panels))]))
    return _arrays(rows, same, fingerprint(runs), generator=generator_of(calls), note=note)


def panels_of_outcomes(
    questions: Sequence[QuestionOutcomes], *, same: str | None = EXACT, logged: bool = False
) -> Panels:
    """Returns the panels of outcomes of agents. `same`: when two answers are the same; None to choose it.

    An agent that failed is present and unreadable. Of `logged` decisions each question has one answer; else those are
    refused with a `RecordError`.
    """
    if not logged and any(question.propensities for question in questions):
        raise RecordError("some of the outcomes are logged single decisions; give these alone, or full outcomes alone")
    chosen = choose_reading([_labelled(question) for question in questions]) if same is None else None
    same = chosen.same if chosen is not None else same or EXACT
    rows = []
    for question in questions:
        item, answers = item_of(question.question, same), []
        for name, one in sorted(question.agents.items()):
            if one.score is not None:
                told, tokens = answer_in_outcome(name, one), (one.prompt_tokens, one.completion_tokens)
                answers.append(_answer(item, same, told, one.score, one.cost_usd, tokens))
        if len(answers) > 1 - logged:
            rows.append(_Row(question.id, question.group, question.dimension, question.question, answers))
    if any(answer.agent == "" for row in rows for answer in row.answers):
        raise RecordError('an agent has the empty name ""; expected a name for each')
    if any(len(row.answers) > MAX_LEARNED_ANSWERS for row in rows):
        raise RecordError(f"a question has more than {MAX_LEARNED_ANSWERS} agents; a panel learns from at most so many")
    if not rows:
        raise RecordError(f"none of {len(questions)} questions has two scored answers; a panel is several answers")
    lines = "\n".join(sorted(f"{row.identity}\t{[(a.agent, a.right) for a in row.answers]}" for row in rows))
    data = _arrays(rows, same, hashlib.sha256(lines.encode()).hexdigest())
    return replace(data, reading=chosen, sources=sources_of(questions, data.agents))


def _labelled(question: QuestionOutcomes) -> LabelledQuestion:
    """Returns the answers of a question that have a text and a score."""
    known = [(n, one) for n, one in sorted(question.agents.items()) if one.score is not None and one.answer]
    answers = [answer_in_outcome(name, one) for name, one in known]
    return LabelledQuestion(question.question, question.group, answers, [one.score for _, one in known])


def sources_of(questions: Sequence[QuestionOutcomes], agents: Sequence[str]) -> dict[str, str]:
    """Agent -> where its confidences are from, as the outcomes say; an agent of which none says so is left out.

    Raises `RecordError` where an agent's are from several: they are several numbers, and one calibration fits one.
    What joins the stated number with a checkpoint's may also hold either alone, where the other was not there.
    """
    sources = {}
    for name in agents:
        outcomes = [q.agents[name] for q in questions if name in q.agents]
        named = {one.confidence_source for one in outcomes if one.confidence is not None}
        whole = max(named, key=len, default="")
        usual = {""} if is_from(whole, "") else set()  # a line that names no source is taken for a stated one
        if strangers := named - {whole, *whole.split("+", 1)} - usual:
            raise RecordError(
                f"confidences of {name} are from {whole!r} and from {sorted(strangers)}: a panel learns from one "
                "source; give the outcomes of one, or leave the confidences of the others out"
            )
        if whole:
            sources[name] = whole
    return sources


@dataclass(frozen=True, slots=True, eq=False)
class _Answer:
    agent: str
    form: Hashable | None
    """The answer in a form in which equal answers are equal; None where the answer cannot be read."""
    score: float | None
    """How good it is, in [0, 1]; None where that is not known."""
    signals: Sequence[float]
    cost: float | None
    """US dollars; None where that is not known."""
    tokens: tuple[float | None, float | None]
    """Number of tokens of the prompt and of the answer; None where they are not known."""
    calls: bool = False
    """Whether it is a tool call."""
    literal: Hashable | None = None
    """The answer letter for letter; None where it cannot be read."""
    states: bool = False
    """Whether the agent itself stated a confidence."""

    @property
    def right(self) -> float | None:
        """Whether its score is above a half, 0 or 1."""
        return None if self.score is None else float(self.score > 0.5)


@dataclass(frozen=True, slots=True, eq=False)
class _Row:
    identity: str
    group: str
    dimension: str
    question: str
    answers: list[_Answer]


def _answer(
    item: Item,
    same: str,
    answer: PanelAnswer,
    score: float | None,
    cost: float | None = None,
    tokens: tuple[float | None, float | None] = (None, None),
) -> _Answer:
    """Returns an answer with its score. One that did not end by itself cannot be read."""
    form, _ = comparable_form(answer, item, same)
    literal = None if form is None else literal_form(answer)
    signals, states = signals_in(answer, ANSWER_SIGNALS), answer.stated_source == STATED_BY_MODEL
    return _Answer(answer.agent, form, score, signals, cost, tokens, bool(answer.calls), literal, states)


def panels_of_lines(path: Path, same: str | None, score_by: str = "") -> Panels:
    """Returns the panels of OpenAI-format lines with labels: answers of one `question_id`, by default of one group.

    `same`: when two answers are the same; None to choose it. Bad lines are left out, counted by reason and named, as
    the running command says (`records.bad_lines`). Raises `RecordError` where no question has two labelled answers, and
    `ImportFileError` where more than half of the lines are bad.
    """
    labelled, left_out, unreadable = {}, 0, ""
    with reading(path) as bad_lines:
        questions = questions_in_file(path, score_by, bad_lines)
    for name, question in questions.items():
        bad = [str(answer) for answer in question.answers if isinstance(answer, InvalidResponse)]
        unreadable = unreadable or next(iter(bad), "")
        known = [
            (answer, label)
            for answer, label in zip(question.answers, question.labels, strict=True)
            if label is not None and not isinstance(answer, InvalidResponse)
        ]
        left_out += len(question.answers) - len(known)
        if len(known) > 1:
            labelled[name] = question, known
    if not labelled:
        why = f". The first answer that cannot be read: {unreadable}" if unreadable else ""
        raise RecordError(
            f"no question of {path} has two labelled answers that can be read; expected lines that share a question_id,"
            f' each with "labels": {{"correct": 0 or 1}}{why}'
        )
    groups, note = join_groups(
        [question.group or name for name, (question, _) in labelled.items()],
        [question.question for question, _ in labelled.values()],
    )
    asked = [
        LabelledQuestion(question.question, group, *zip(*known[:MAX_LEARNED_ANSWERS], strict=True))
        for (question, known), group in zip(labelled.values(), groups.tolist(), strict=True)
    ]
    chosen = choose_reading(asked) if same is None else None
    same = chosen.same if chosen is not None else same or EXACT
    rows = []
    for (name, (question, _)), one in zip(labelled.items(), asked, strict=True):
        item = item_of(question.question, same)
        answers = [_answer(item, same, *pair) for pair in zip(one.answers, one.labels, strict=True)]
        rows.append(_Row(name, one.group, question.dimension, question.question, answers))
    lines = "\n".join(sorted(f"{row.identity}\t{[(a.form, a.right) for a in row.answers]}" for row in rows))
    unread = f"{left_out} answers that have no label of their own or cannot be read were left out" if left_out else ""
    many = sum(len(known) > MAX_LEARNED_ANSWERS for _, known in labelled.values())
    note = "; ".join(filter(None, [note, _cut_short(many), unread]))
    data = _arrays(rows, same, hashlib.sha256(lines.encode(errors="replace")).hexdigest(), note=note)
    return replace(data, reading=chosen)


def _cut_short(questions: int) -> str:
    """Returns how many questions had more answers than are learned from; empty for none."""
    return f"of {questions} questions the first {MAX_LEARNED_ANSWERS} answers were taken" if questions else ""


def _arrays(
    rows: Sequence[_Row],
    same: str,
    fingerprint: str,
    *,
    classes: Callable[[Sequence[Hashable | None]], list[int]] | None = None,
    generator: Generator | None = None,
    note: str = "",
) -> Panels:
    classes = classes or partial(classes_by, same)
    K = max(len(row.answers) for row in rows)
    agents = tuple(sorted({answer.agent for row in rows for answer in row.answers}))
    dimensions = tuple(sorted({row.dimension for row in rows} - {""}))
    n = len(rows)
    states = any(answer.states for row in rows for answer in row.answers)
    form, agent = np.full((n, K), UNREADABLE_CLASS), np.zeros((n, K), dtype=np.int64)
    literal = np.full((n, K), UNREADABLE_CLASS)
    score, cost, tokens = np.full((n, K), np.nan), np.full((n, K), np.nan), np.full((n, K, 2), np.nan)
    signals = np.full((n, K, len(ANSWER_SIGNALS)), np.nan)
    present = np.zeros((n, K), dtype=bool)
    for i, row in enumerate(rows):
        k = len(row.answers)
        form[i, :k] = classes([answer.form for answer in row.answers])
        literal[i, :k] = classes_by(EXACT, [answer.literal for answer in row.answers])
        agent[i, :k] = [agents.index(answer.agent) for answer in row.answers]
        score[i, :k] = [answer.score for answer in row.answers]  # None is NaN
        cost[i, :k] = [answer.cost for answer in row.answers]
        tokens[i, :k] = [answer.tokens for answer in row.answers]
        signals[i, :k] = [answer.signals for answer in row.answers]
        present[i, :k] = True
    right = np.where(np.isnan(score), np.nan, score > 0.5)
    if (form < 0)[present].all():
        raise RecordError("no answer ended by itself and can be read; a panel compares answers with each other")
    if len(set(right[np.isfinite(right)].tolist())) == 1:
        raise RecordError(f"every answer is {'right' if np.nanmax(right) else 'wrong'}; a panel learns from both kinds")
    where = [dimensions.index(row.dimension) if row.dimension else len(dimensions) for row in rows]
    return Panels(
        ids=tuple(row.identity for row in rows),
        groups=tuple(row.group for row in rows),
        agents=agents,
        dimensions=dimensions,
        dimension=np.array(where, dtype=np.int64),
        agent=agent,
        form=form,
        right=right,
        signals=signals,
        present=present,
        score=score,
        cost=cost,
        tokens=tokens,
        questions=tuple(row.question for row in rows),
        same=same,
        fingerprint=fingerprint,
        generator=generator,
        note=note,
        tool_calls=any(answer.calls for row in rows for answer in row.answers),
        literal=literal,
        sources=dict.fromkeys(agents if states else (), STATED_BY_MODEL),
    )


# Decisions that another policy took and logged: of each question one agent's outcome is known, with the probability
# that it had of being chosen. Each agent's score is then estimated doubly robustly: its rate on the dimension, and for
# the agent that was chosen also how far its score lay from that, divided by the probability. The mean of these over any
# questions is right where the probabilities are.


@dataclass(frozen=True, slots=True, eq=False)
class LoggedPanels:
    """n logged decisions among A agents."""

    single: Panels
    """Panels that hold the one logged answer of each question."""
    action: Ints
    """(n,): the agent that was chosen."""
    score: Floats
    """(n,): of its answer."""
    cost: Floats
    """(n,): US dollars."""
    propensity: Floats
    """(n, A)"""

    @property
    def weight(self) -> Floats:
        """(n, A): 1 / propensity of the chosen agent, 0 of the others."""
        chosen = np.arange(self.propensity.shape[1]) == self.action[:, None]
        return np.asarray(np.divide(chosen, self.propensity, out=np.zeros(self.propensity.shape), where=chosen))

    @property
    def effective(self) -> Floats:
        """(A,): effective number of decisions for each agent (Kish)."""
        weight = self.weight
        return np.asarray(weight.sum(axis=0) ** 2 / (weight**2).sum(axis=0))

    def usual(self, values: Floats) -> Floats:
        """Returns the weighted mean (n, A) of values (n,) for each agent on each question's dimension.

        As if `RATE_PRIOR_ANSWERS` more answers of the usual weight had the agent's overall mean.
        """
        weight, dimension = self.weight, self.single.dimension
        overall = (weight * values[:, None]).sum(axis=0) / weight.sum(axis=0)
        prior = RATE_PRIOR_ANSWERS * weight.sum(axis=0) / (weight > 0).sum(axis=0)
        found = np.zeros(weight.shape)
        for place in np.unique(dimension):
            here = dimension == place
            above = (weight[here] * values[here, None]).sum(axis=0) + prior * overall
            found[here] = above / (weight[here].sum(axis=0) + prior)
        return found

    def laid_out(self) -> Panels:
        """Returns the questions with an estimated score and price of every agent, in the order of the agents.

        Each answer is a class of its own; what is known of being right is that of the chosen one.
        """
        n, A = self.propensity.shape
        usual = self.usual(self.score)
        chosen = np.arange(A) == self.action[:, None]
        right = np.where(chosen, (self.score > 0.5)[:, None], np.nan)
        signals = np.full((n, A, self.single.signals.shape[2]), np.nan)
        signals[np.arange(n), self.action] = self.single.signals[:, 0]
        return replace(
            self.single,
            agent=np.repeat(np.arange(A)[None], n, axis=0),
            form=np.repeat(np.arange(A)[None], n, axis=0),
            right=right,
            signals=signals,
            present=np.ones((n, A), dtype=bool),
            score=usual + self.weight * (self.score[:, None] - usual),
            cost=self.usual(self.cost),
            tokens=np.full((n, A, 2), np.nan),
        )

    @property
    def audit(self) -> tuple[str, bool, str]:
        """Whether the least tried agent was tried often enough."""
        size = self.effective
        least = int(size.argmin())
        count = int((self.action == least).sum())
        told = (
            f"{self.single.agents[least]}: {size[least]:.0f} effective of {count} decisions; expected "
            f"{CALIBRATED_GROUPS}"
        )
        return "every agent was tried often enough", bool(size[least] >= CALIBRATED_GROUPS), told


def logged_panels(questions: Sequence[QuestionOutcomes]) -> LoggedPanels:
    """Returns logged decisions as panels of one answer.

    Raises `RecordError` where a decision does not say what was chosen, with which propensity, and what came of it, or
    where it has no cost; and for agents that were never chosen.
    """
    if untold := [q.id for q in questions if not q.propensities]:
        raise RecordError(
            f"{len(untold)} of {len(questions)} questions have no propensities (first: {untold[0]}); give logged "
            "decisions alone, or full outcomes alone"
        )
    questions = [q for q in questions if any(one.score is not None for one in q.agents.values())]
    for question in questions:
        scored = [name for name, outcome in question.agents.items() if outcome.score is not None]
        chosen, propensities = question.chosen or "", question.propensities
        if scored != [chosen]:
            raise RecordError(
                f"question {question.id} is a logged decision, with chosen = {question.chosen!r}, and has scored "
                f"outcomes of {', '.join(scored)}; expected one, of the chosen agent. Leave propensities out where all "
                "were asked"
            )
        if not propensities.get(chosen, 0.0) > 0 or not math.isclose(sum(propensities.values()), 1, abs_tol=1e-3):
            raise RecordError(
                f"question {question.id} has propensities {dict(propensities)}; expected those of every agent that "
                f"could be chosen, 1 in all, and above 0 for {chosen!r}, which was"
            )
        if question.agents[chosen].cost_usd is None:
            raise RecordError(f"question {question.id}: {chosen} has no cost_usd; give one, 0 where it costs nothing")
    single = panels_of_outcomes(questions, logged=True)
    kept = set(single.ids)
    questions = [q for q in questions if q.id in kept]
    if missing := sorted({name for q in questions for name, p in q.propensities.items() if p > 0} - set(single.agents)):
        raise RecordError(f"{', '.join(missing)} could be chosen and never was; leave it out of the propensities")
    return LoggedPanels(
        single=single,
        action=single.agent[:, 0],
        score=single.score[:, 0],
        cost=single.cost[:, 0],
        propensity=np.array([[q.propensities.get(name, 0.0) for name in single.agents] for q in questions]),
    )
