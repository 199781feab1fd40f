"""Labelled panels as arrays: questions with several answers each, from run stores or from outcomes of agents."""

import hashlib
import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from metaprobe.checkpoints import Generator
from metaprobe.eval.answer_table import group_of
from metaprobe.eval.ope import CALIBRATED_GROUPS
from metaprobe.records.bad_lines import BadFile
from metaprobe.records.errors import InvalidResponse, RecordError
from metaprobe.records.outcomes import QuestionOutcomes, is_outcomes, only_agents, read_outcomes
from metaprobe.records.store import RunStore, fingerprint
from metaprobe.records.types import Call, Item, Run
from metaprobe.routing.panel.compared_answers import EXACT, PanelAnswer, comparable_form, signals_in
from metaprobe.routing.panel.model_rows import (
    ANSWER_SIGNALS,
    QUANTILE_COUNT,
    SCORE,
    STATED,
    UNREADABLE_CLASS,
    AgentProfiles,
    Answers,
    Floats,
    Ints,
    Mask,
    quantiles,
)
from metaprobe.routing.panel.sources import STATED_BY_MODEL, is_from, signal_kind
from metaprobe.routing.panel.stored_panels import answer_in_outcome, questions_in_file, read_of_run
from metaprobe.training.evidence import generator_of
from metaprobe.training.folds import join_groups
from metaprobe.training.panel.effects import fit_effects
from metaprobe.training.panel.same_answers import (
    ChosenReading,
    LabelledQuestion,
    choose_reading,
    classes_by,
    item_of,
    literal_form,
)

MAX_LEARNED_ANSWERS = 64
"""Most answers to one question that are learned from."""
RATE_PRIOR_ANSWERS = 5.0
"""Weight of an agent's rate over all dimensions against its rate on one dimension, in answers."""
MAX_SEVERAL_RIGHT_SHARE = 0.02
"""Largest share of questions with two different right answers for which the classes count as exclusive."""
MIN_SIGNAL_SHARE = 0.5
"""Least share of one agent's answers that must have a signal for the signal to be used."""
MIN_SIGNAL_ANSWERS = 20
"""Fewest answers of one agent that must have a signal for the signal to be used. From fewer answers, neither the scale
nor the weight of the signal can be learned.
"""


@dataclass(frozen=True, slots=True, eq=False)
class Panels:
    """n questions with at most K answers each."""

    ids: tuple[str, ...]
    groups: tuple[str, ...]
    """Names of the units that must stay in one split."""
    agents: tuple[str, ...]
    dimensions: tuple[str, ...]
    dimension: Ints
    """Dimension of each question (n,) as an index into `dimensions`; D if it is not known."""
    agent: Ints
    """Agent of each answer (n, K) as an index into `agents`."""
    answer_class: Ints
    """Class of each answer (n, K), from 0; `UNREADABLE_CLASS` if the answer was cut or cannot be read."""
    right: Floats
    """Whether each answer is right (n, K), 0 or 1; NaN if no label is known."""
    signals: Floats
    """Signals of each answer (n, K, len(SIGNALS)); NaN for a missing signal."""
    present: Mask
    """Whether each answer exists (n, K)."""
    score: Floats
    """Score of each answer (n, K), in [0, 1]; `right` says whether it is above a half."""
    cost: Floats
    """Cost of each answer (n, K) in US dollars; NaN if it is not known."""
    tokens: Floats
    """Tokens of each answer's prompt and of the answer (n, K, 2); NaN if they are not known."""
    questions: tuple[str, ...]
    """Text of each question (n,)."""
    same: str
    """Rule by which two answers are the same: a check of `Item`, or `OVERLAP`."""
    fingerprint: str
    generator: Generator | None = None
    note: str = ""
    """Says in words what was joined or left out; empty for nothing."""
    score_by: str = ""
    """Question of a decision model whose number is each answer's score; empty for none."""
    tool_calls: bool = False
    """Whether answers that call tools are among them."""
    literal: Ints | None = None
    """Class of each answer (n, K) if answers are compared letter for letter. Equal texts with different labels show the
    labels' noise. None if the texts are not known.
    """
    sources: Mapping[str, str] = field(default_factory=dict)
    """Maps an agent to the source of its confidences (`routing.panel.sources.SOURCES`). Agents with an unknown source
    are left out.
    """
    reading: ChosenReading | None = None
    """How `same` was chosen; None if the caller gave it."""

    def __len__(self) -> int:
        return len(self.ids)

    def take(self, rows: Ints) -> "Panels":
        """Returns the questions of these rows."""
        arrays = ("dimension", "agent", "answer_class", "right", "signals", "present", "score", "cost", "tokens")
        fields_taken: dict[str, Any] = {name: getattr(self, name)[rows] for name in arrays}
        if self.literal is not None:
            fields_taken["literal"] = self.literal[rows]
        for name in ("ids", "groups", "questions"):
            fields_taken[name] = tuple(getattr(self, name)[row] for row in rows)
        return replace(self, **fields_taken)

    @property
    def sampled(self) -> bool:
        """Whether all answers are of one agent, so that they are exchangeable."""
        return len(self.agents) == 1

    @property
    def exclusive(self) -> bool:
        """Whether at most one class of a question is right, with few exceptions."""
        right = right_classes(self.answer_class, self.present, self.right)
        return bool((right.sum(axis=1) > 1).mean() <= MAX_SEVERAL_RIGHT_SHARE)

    def answers(self, profiles: AgentProfiles, agent: Ints | None = None, dimension: Ints | None = None) -> Answers:
        """Returns the answers in the form that the models read, scaled by the agents' quantiles.

        Args:
            profiles: rates and quantiles of the agents.
            agent: column in `profiles` of each answer's agent (n, K); by default the agent's index in these panels.
            dimension: index in `profiles` of each question's dimension (n,); by default its index in these panels.
        """
        agent = self.agent if agent is None else agent
        signals = self.signals[..., [ANSWER_SIGNALS.index(name) for name in profiles.signals]]
        rows = zip(signals.reshape(agent.size, len(profiles.signals)).tolist(), agent.ravel().tolist(), strict=True)
        return Answers(
            answer_class=self.answer_class,
            agent=agent,
            dimension=self.dimension if dimension is None else dimension,
            scaled=np.array([profiles.scaled(row, agent_index) for row, agent_index in rows]).reshape(signals.shape),
            present=self.present,
        )


def right_classes(answer_class: Ints, present: Mask, right: Floats) -> Floats:
    """Returns for each class (n, c) whether it is right, 1 or 0, by the majority of its labelled answers.

    A class without labelled answers is 0.

    Args:
        answer_class: class of each answer (n, K).
        present: whether each answer exists (n, K).
        right: whether each answer is right (n, K); NaN for no label.
    """
    c = max(int(answer_class.max(initial=UNREADABLE_CLASS)) + 1, 1)
    member = (answer_class[:, None, :] == np.arange(c)[:, None]) & (present & np.isfinite(right))[:, None, :]
    sums = (member * np.nan_to_num(right)[:, None, :]).sum(axis=2)
    return np.asarray((sums > member.sum(axis=2) / 2).astype(np.float64))


def agents_in(data: Panels) -> AgentProfiles:
    """Returns the profiles of the agents: their rates on each dimension, and the quantiles of every signal."""
    A, D, has_score = len(data.agents), len(data.dimensions), data.present & np.isfinite(data.score)
    signal_names = [
        name
        for name, share in zip(ANSWER_SIGNALS, _signal_shares(data).max(axis=0), strict=True)
        if share >= MIN_SIGNAL_SHARE
    ]
    dimension = np.broadcast_to(data.dimension[:, None], has_score.shape)[has_score]
    effects = fit_effects(data.agent[has_score], dimension, data.score[has_score], (A, D))
    rate = 1 / (1 + np.exp(-effects.intercept))
    rate = np.clip(rate, 0.02, 0.98)
    levels = np.full((A + 1, len(signal_names), QUANTILE_COUNT), np.nan)
    for s, name in enumerate(signal_names):
        values = data.signals[..., ANSWER_SIGNALS.index(name)]
        for a in range(A):
            levels[a, s] = quantiles(values[data.present & (data.agent == a)])
        levels[A, s] = quantiles(values[data.present])
    leading = next((name for name in (STATED, "mean") if name in signal_names), "")
    return AgentProfiles(data.agents, data.dimensions, np.log(rate / (1 - rate)), tuple(signal_names), levels, leading)


def _signal_shares(data: Panels) -> Floats:
    """Returns the share of each agent's answers that have each signal, (A, len(ANSWER_SIGNALS)), among readable
    answers; 0 if fewer than `MIN_SIGNAL_ANSWERS` have it.
    """
    readable = data.present & (data.answer_class >= 0)
    shares_of_agents = []
    for agent in range(len(data.agents)):
        is_finite = np.isfinite(data.signals[readable & (data.agent == agent)])
        counts = is_finite.sum(axis=0)
        shares_of_agents.append(np.where(counts >= MIN_SIGNAL_ANSWERS, counts / max(len(is_finite), 1), 0.0))
    return np.array(shares_of_agents)


def signals_left_out(data: Panels) -> dict[str, float]:
    """Maps each kind of signal that is not used to the share of all answers that have the signal.

    A kind is not used if some answers have the signal, but no agent reaches `MIN_SIGNAL_SHARE` and
    `MIN_SIGNAL_ANSWERS`.
    """
    readable, most_of_agent = data.present & (data.answer_class >= 0), _signal_shares(data).max(axis=0)
    shares = np.isfinite(data.signals[readable]).mean(axis=0) if readable.any() else np.zeros(len(ANSWER_SIGNALS))
    learned_kinds = {
        signal_kind(name)
        for name, most_share in zip(ANSWER_SIGNALS, most_of_agent, strict=True)
        if most_share >= MIN_SIGNAL_SHARE
    }
    left_out: dict[str, float] = {}
    for name, share in zip(ANSWER_SIGNALS, shares.tolist(), strict=True):
        if share > 0 and (kind := signal_kind(name)) not in learned_kinds:
            left_out[kind] = max(left_out.get(kind, 0.0), share)
    return left_out


def panels_at(
    path: Path,
    *,
    stage: str | None = None,
    same: str | None = None,
    score_by: str = "",
    columns: Sequence[str] = (),
    only: Sequence[str] = (),
) -> Panels:
    """Returns the panels of a run store, a file or table of outcomes, or a file of OpenAI-format lines.

    Args:
        path: the store or file.
        stage: stage of the calls that are answers, for a run store.
        same: of lines and outcomes, when two answers are the same; by default it is chosen
            (`same_answers.choose_reading`).
        score_by: of a store and of lines, the question of a decision model whose number is an answer's score.
        columns: agents whose columns are read, for a table of outcomes.
        only: agents that are read, for outcomes; by default all.

    Raises `RecordError` for an option that the data do not take, and where no answer has the number of `score_by`.
    """
    if path.is_dir() and same is not None:
        raise RecordError(f"same is {same!r}: the items of a run store say how they are checked; leave it out")
    if not path.is_dir() and stage is not None:
        raise RecordError(f"stage is {stage!r}: a file has no stages; leave it out, or give a run store")
    if path.is_dir() and only:
        raise RecordError(f"agent is {', '.join(only)}: a run store is no file of outcomes; leave it out")
    if path.is_dir():
        panels = panels_of_runs(RunStore(path), stage=stage, score_by=score_by)
    elif is_outcomes(path):
        panels = panels_of_outcomes(only_agents(read_outcomes(path, agents=only or columns), only), same=same)
    elif only:
        raise RecordError(f"agent is {', '.join(only)}, and {path} holds no outcomes; expected one line a question")
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
    answers_of_stage: dict[str, int] = {}
    for run in runs:
        for call in run.calls:
            if run.label("correct", call.id) is None or (stage is not None and call.stage != stage):
                continue
            answers_of_stage[call.stage] = answers_of_stage.get(call.stage, 0) + 1
            by_item.setdefault((run.item.task, run.item.id), (run.item, []))[1].append((run, call))
    if len(answers_of_stage) > 1:
        raise RecordError(
            f"answers of the stages {', '.join(sorted(answers_of_stage))} are labelled: name the one whose answers are "
            "samples (`--sampled STAGE`)"
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
    calls = [call for _, item_calls in panels for _, call in item_calls]
    rows = []
    for (item, item_calls), group in zip(panels, groups.tolist(), strict=True):
        answers = []
        for run, call in item_calls[:MAX_LEARNED_ANSWERS]:
            tokens = call.usage.prompt_tokens or None, call.usage.completion_tokens
            label, read_answer = run.label("correct", call.id), read_of_run(run, call, score_by)
            answers.append(_labelled_answer(item, item.check, read_answer, label, call.cost_usd, tokens))
        rows.append(_LabelledPanel(f"{item.task}/{item.id}".strip("/"), group, item.dimension, item.question, answers))
    [same] = checks
    note = "; ".join(
        filter(None, [note, _note_on_capped(sum(len(item_calls) > MAX_LEARNED_ANSWERS for _, item_calls in panels))])
    )
    return _panels_as_arrays(rows, same, fingerprint(runs), generator=generator_of(calls), note=note)


def panels_of_outcomes(
    questions: Sequence[QuestionOutcomes], *, same: str | None = EXACT, logged: bool = False
) -> Panels:
    """Returns the panels of outcomes of agents. The answer of an agent that failed is present and unreadable.

    With `logged`, questions may have one answer. Without `logged`, questions with fewer than two answers are left out,
    and logged decisions are refused with a `RecordError`.

    Args:
        questions: the outcomes by question.
        same: the check by which two answers are the same; None to choose it from the answers.
        logged: whether the outcomes are logged decisions, each of which asked one agent.
    """
    if not logged and any(question.propensities for question in questions):
        raise RecordError("some of the outcomes are logged single decisions; give these alone, or full outcomes alone")
    reading = choose_reading([_labelled(question) for question in questions]) if same is None else None
    same = reading.same if reading is not None else same or EXACT
    rows = []
    for question in questions:
        item, answers = item_of(question.question, same), []
        for name, outcome in sorted(question.agents.items()):
            if outcome.score is not None:
                answer_of_agent, tokens = (
                    answer_in_outcome(name, outcome),
                    (outcome.prompt_tokens, outcome.completion_tokens),
                )
                answers.append(_labelled_answer(item, same, answer_of_agent, outcome.score, outcome.cost_usd, tokens))
        if len(answers) > 1 - logged:
            rows.append(_LabelledPanel(question.id, question.group, question.dimension, question.question, answers))
    if any(answer.agent == "" for row in rows for answer in row.answers):
        raise RecordError('an agent has the empty name ""; expected a name for each')
    if any(len(row.answers) > MAX_LEARNED_ANSWERS for row in rows):
        raise RecordError(f"a question has more than {MAX_LEARNED_ANSWERS} agents; a panel learns from at most so many")
    if not rows:
        raise RecordError(f"none of {len(questions)} questions has two scored answers; a panel is several answers")
    lines = "\n".join(sorted(f"{row.identity}\t{[(a.agent, a.right) for a in row.answers]}" for row in rows))
    data = _panels_as_arrays(rows, same, hashlib.sha256(lines.encode()).hexdigest())
    return replace(data, reading=reading, sources=sources_of(questions, data.agents))


def _labelled(question: QuestionOutcomes) -> LabelledQuestion:
    """Returns the answers of a question that have a text and a score."""
    labelled = [
        (n, outcome) for n, outcome in sorted(question.agents.items()) if outcome.score is not None and outcome.answer
    ]
    answers = [answer_in_outcome(name, outcome) for name, outcome in labelled]
    return LabelledQuestion(question.question, question.group, answers, [outcome.score for _, outcome in labelled])


def sources_of(questions: Sequence[QuestionOutcomes], agents: Sequence[str]) -> dict[str, str]:
    """Maps an agent to the source of its confidences, as the outcomes name it. Agents whose outcomes name no source are
    left out.

    Raises `RecordError` if the confidences of one agent have several sources: one calibration cannot fit several kinds
    of number. A joined source, `stated+CHECKPOINT`, may appear beside either of its two parts, because the other part
    may be missing for some answers.
    """
    sources = {}
    for name in agents:
        outcomes = [q.agents[name] for q in questions if name in q.agents]
        sources_found = {outcome.confidence_source for outcome in outcomes if outcome.confidence is not None}
        joined_source = max(sources_found, key=len, default="")
        # A line that names no source is taken for a stated one.
        assumed_sources = {""} if is_from(joined_source, "") else set()
        if sources_beside := sources_found - {joined_source, *joined_source.split("+", 1)} - assumed_sources:
            raise RecordError(
                f"confidences of {name} are from {joined_source!r} and from {sorted(sources_beside)}: a panel learns "
                "from one source; give the outcomes of one, or leave the confidences of the others out"
            )
        if joined_source:
            sources[name] = joined_source
    return sources


@dataclass(frozen=True, slots=True, eq=False)
class _Answer:
    agent: str
    form: Hashable | None
    """Form of the answer in which equal answers are equal; None if the answer cannot be read."""
    score: float | None
    """Score of the answer, in [0, 1]; None if it is not known."""
    signals: Sequence[float]
    cost: float | None
    """Cost of the answer in US dollars; None if it is not known."""
    tokens: tuple[float | None, float | None]
    """Number of tokens of the prompt and of the answer; None where they are not known."""
    is_tool_call: bool = False
    """Whether the answer is a tool call."""
    literal: Hashable | None = None
    """The answer letter for letter; None if it cannot be read."""
    states_confidence: bool = False
    """Whether the agent itself stated a confidence."""

    @property
    def right(self) -> float | None:
        """Whether the score of the answer is above a half, 0 or 1; None if the score is not known."""
        return None if self.score is None else float(self.score > 0.5)


@dataclass(frozen=True, slots=True, eq=False)
class _LabelledPanel:
    identity: str
    group: str
    dimension: str
    question: str
    answers: list[_Answer]


def _labelled_answer(
    item: Item,
    same: str,
    answer: PanelAnswer,
    score: float | None,
    cost: float | None = None,
    tokens: tuple[float | None, float | None] = (None, None),
) -> _Answer:
    """Returns an answer with its score.

    An answer that did not end by itself has no form.

    Args:
        item: the question, by whose check answers are read.
        same: rule by which two answers are the same.
        answer: the answer.
        score: score of the answer in [0, 1]; None if it is not known.
        cost: cost of the answer in US dollars; None if it is not known.
        tokens: number of tokens of the prompt and of the answer; None where they are not known.
    """
    form, _ = comparable_form(answer, item, same)
    literal = None if form is None else literal_form(answer)
    signals, states_confidence = signals_in(answer, ANSWER_SIGNALS), answer.stated_source == STATED_BY_MODEL
    return _Answer(answer.agent, form, score, signals, cost, tokens, bool(answer.calls), literal, states_confidence)


def panels_of_lines(path: Path, same: str | None, score_by: str = "") -> Panels:
    """Returns the panels of OpenAI-format lines with labels: answers of one `question_id`, by default of one group.

    `same`: when two answers are the same; None to choose it. Bad lines are left out, counted by reason and named, as
    the running command says (`records.bad_lines`). Raises `RecordError` where no question has two labelled answers, and
    `ImportFileError` where more than half of the lines are bad.
    """
    labelled, left_out, unreadable = {}, 0, ""
    with BadFile.reading(path) as bad_lines:
        questions = questions_in_file(path, score_by, bad_lines)
    for name, question in questions.items():
        unreadable_answers = [str(answer) for answer in question.answers if isinstance(answer, InvalidResponse)]
        unreadable = unreadable or next(iter(unreadable_answers), "")
        labelled_answers = [
            (answer, label)
            for answer, label in zip(question.answers, question.labels, strict=True)
            if label is not None and not isinstance(answer, InvalidResponse)
        ]
        left_out += len(question.answers) - len(labelled_answers)
        if len(labelled_answers) > 1:
            labelled[name] = question, labelled_answers
    if not labelled:
        first_unreadable = f". The first answer that cannot be read: {unreadable}" if unreadable else ""
        raise RecordError(
            f"no question of {path} has two labelled answers that can be read; expected lines that share a question_id,"
            f' each with "labels": {{"correct": 0 or 1}}{first_unreadable}'
        )
    groups, note = join_groups(
        [question.group or name for name, (question, _) in labelled.items()],
        [question.question for question, _ in labelled.values()],
    )
    labelled_questions = [
        LabelledQuestion(question.question, group, *zip(*labelled_answers[:MAX_LEARNED_ANSWERS], strict=True))
        for (question, labelled_answers), group in zip(labelled.values(), groups.tolist(), strict=True)
    ]
    reading = choose_reading(labelled_questions) if same is None else None
    same = reading.same if reading is not None else same or EXACT
    rows = []
    for (name, (question, _)), labelled_question in zip(labelled.items(), labelled_questions, strict=True):
        item = item_of(question.question, same)
        answers = [
            _labelled_answer(item, same, *pair)
            for pair in zip(labelled_question.answers, labelled_question.labels, strict=True)
        ]
        rows.append(_LabelledPanel(name, labelled_question.group, question.dimension, question.question, answers))
    lines = "\n".join(sorted(f"{row.identity}\t{[(a.form, a.right) for a in row.answers]}" for row in rows))
    left_out_note = (
        f"{left_out} answers that have no label of their own or cannot be read were left out" if left_out else ""
    )
    capped_count = sum(len(labelled_answers) > MAX_LEARNED_ANSWERS for _, labelled_answers in labelled.values())
    note = "; ".join(filter(None, [note, _note_on_capped(capped_count), left_out_note]))
    data = _panels_as_arrays(rows, same, hashlib.sha256(lines.encode(errors="replace")).hexdigest(), note=note)
    return replace(data, reading=reading)


def _note_on_capped(questions: int) -> str:
    """Returns a sentence on how many questions had more answers than are learned from; empty if no question had."""
    return f"of {questions} questions the first {MAX_LEARNED_ANSWERS} answers were taken" if questions else ""


def _panels_as_arrays(
    rows: Sequence[_LabelledPanel],
    same: str,
    fingerprint: str,
    *,
    generator: Generator | None = None,
    note: str = "",
) -> Panels:
    """Returns the panels as arrays.

    Raises `RecordError` if no answer can be read, and if all labels are equal.

    Args:
        rows: the panels, one a question.
        same: rule by which two answers are the same.
        fingerprint: digest of the data.
        generator: model of the answers; None if it is not known.
        note: what was joined or left out, in words.
    """
    K = max(len(row.answers) for row in rows)
    agents = tuple(sorted({answer.agent for row in rows for answer in row.answers}))
    dimensions = tuple(sorted({row.dimension for row in rows} - {""}))
    n = len(rows)
    has_stated_confidence = any(answer.states_confidence for row in rows for answer in row.answers)
    # Fill the arrays, one question a row.
    answer_class, agent = np.full((n, K), UNREADABLE_CLASS), np.zeros((n, K), dtype=np.int64)
    literal = np.full((n, K), UNREADABLE_CLASS)
    score, cost, tokens = np.full((n, K), np.nan), np.full((n, K), np.nan), np.full((n, K, 2), np.nan)
    signals = np.full((n, K, len(ANSWER_SIGNALS)), np.nan)
    present = np.zeros((n, K), dtype=bool)
    for i, row in enumerate(rows):
        k = len(row.answers)
        answer_class[i, :k] = classes_by(same, [answer.form for answer in row.answers])
        literal[i, :k] = classes_by(EXACT, [answer.literal for answer in row.answers])
        agent[i, :k] = [agents.index(answer.agent) for answer in row.answers]
        score[i, :k] = [answer.score for answer in row.answers]  # None is NaN
        cost[i, :k] = [answer.cost for answer in row.answers]
        tokens[i, :k] = [answer.tokens for answer in row.answers]
        signals[i, :k] = [answer.signals for answer in row.answers]
        present[i, :k] = True
    # Check that there is something to learn from.
    right = np.where(np.isnan(score), np.nan, score > 0.5)
    if (answer_class < 0)[present].all():
        raise RecordError("no answer ended by itself and can be read; a panel compares answers with each other")
    if len(set(right[np.isfinite(right)].tolist())) == 1:
        raise RecordError(f"every answer is {'right' if np.nanmax(right) else 'wrong'}; a panel learns from both kinds")
    dimension_indices = [dimensions.index(row.dimension) if row.dimension else len(dimensions) for row in rows]
    return Panels(
        ids=tuple(row.identity for row in rows),
        groups=tuple(row.group for row in rows),
        agents=agents,
        dimensions=dimensions,
        dimension=np.array(dimension_indices, dtype=np.int64),
        agent=agent,
        answer_class=answer_class,
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
        tool_calls=any(answer.is_tool_call for row in rows for answer in row.answers),
        literal=literal,
        sources=dict.fromkeys(agents if has_stated_confidence else (), STATED_BY_MODEL),
    )


# Decisions that another policy took and logged. Each question has the outcome of one agent, and the probability with
# which that agent was chosen. Each agent's score is estimated doubly robustly: the estimate is the agent's rate on the
# dimension. For the chosen agent, the difference between its score and that rate, divided by the probability, is added.
# The mean of the estimates over any questions is unbiased if the probabilities are correct.


@dataclass(frozen=True, slots=True, eq=False)
class LoggedPanels:
    """n logged decisions among A agents."""

    single: Panels
    """Panels with the one logged answer of each question."""
    action: Ints
    """Agent that was chosen for each question (n,)."""
    score: Floats
    """Score of the chosen agent's answer (n,)."""
    cost: Floats
    """Cost of the chosen agent's answer (n,) in US dollars."""
    propensity: Floats
    """Probability with which each agent was chosen (n, A)."""

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

    def shrunk_mean(self, values: Floats) -> Floats:
        """Returns the weighted mean (n, A) of values (n,) for each agent on each question's dimension.

        The mean is shrunk towards the agent's overall mean, which counts as `RATE_PRIOR_ANSWERS` answers of average
        weight.
        """
        weight, dimension = self.weight, self.single.dimension
        overall = (weight * values[:, None]).sum(axis=0) / weight.sum(axis=0)
        prior = RATE_PRIOR_ANSWERS * weight.sum(axis=0) / (weight > 0).sum(axis=0)
        means = np.zeros(weight.shape)
        for dimension_index in np.unique(dimension):
            in_dimension = dimension == dimension_index
            weighted_sum = (weight[in_dimension] * values[in_dimension, None]).sum(axis=0) + prior * overall
            means[in_dimension] = weighted_sum / (weight[in_dimension].sum(axis=0) + prior)
        return means

    def with_every_agent(self) -> Panels:
        """Returns the questions with an answer of every agent: its estimated score and price, in the agents' order.

        Each answer is a class of its own. `right` is known for the chosen agent alone.
        """
        n, A = self.propensity.shape
        mean_score = self.shrunk_mean(self.score)
        chosen = np.arange(A) == self.action[:, None]
        right = np.where(chosen, (self.score > 0.5)[:, None], np.nan)
        signals = np.full((n, A, self.single.signals.shape[2]), np.nan)
        signals[np.arange(n), self.action] = self.single.signals[:, 0]
        return replace(
            self.single,
            agent=np.repeat(np.arange(A)[None], n, axis=0),
            answer_class=np.repeat(np.arange(A)[None], n, axis=0),
            right=right,
            signals=signals,
            present=np.ones((n, A), dtype=bool),
            score=mean_score + self.weight * (self.score[:, None] - mean_score),
            cost=self.shrunk_mean(self.cost),
            tokens=np.full((n, A, 2), np.nan),
        )

    @property
    def audit(self) -> tuple[str, bool, str]:
        """Whether the least tried agent was tried often enough."""
        size = self.effective
        least = int(size.argmin())
        count = int((self.action == least).sum())
        detail = (
            f"{self.single.agents[least]}: {size[least]:.0f} effective of {count} decisions; expected "
            f"{CALIBRATED_GROUPS}"
        )
        return "every agent was tried often enough", bool(size[least] >= CALIBRATED_GROUPS), detail


def logged_panels(questions: Sequence[QuestionOutcomes]) -> LoggedPanels:
    """Returns logged decisions as panels of one answer.

    Raises `RecordError` if a decision lacks the chosen agent, the propensities, the score or the cost, and if some
    agent was never chosen.
    """
    if not_logged := [q.id for q in questions if not q.propensities]:
        raise RecordError(
            f"{len(not_logged)} of {len(questions)} questions have no propensities (first: {not_logged[0]}); give "
            "logged decisions alone, or full outcomes alone"
        )
    questions = [q for q in questions if any(agent_outcome.score is not None for agent_outcome in q.agents.values())]
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
    panel_ids = set(single.ids)
    questions = [q for q in questions if q.id in panel_ids]
    if missing := sorted({name for q in questions for name, p in q.propensities.items() if p > 0} - set(single.agents)):
        raise RecordError(f"{', '.join(missing)} could be chosen and never was; leave it out of the propensities")
    return LoggedPanels(
        single=single,
        action=single.agent[:, 0],
        score=single.score[:, 0],
        cost=single.cost[:, 0],
        propensity=np.array([[q.propensities.get(name, 0.0) for name in single.agents] for q in questions]),
    )
