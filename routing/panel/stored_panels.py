"""Panels of a file of lines or of a run store: which answers belong to one question, and a line out for each."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from metaprobe.probes.decision_predictor import decision_signals
from metaprobe.records.bad_lines import BadFile, at_line
from metaprobe.records.errors import ImportFileError, InvalidResponse, RecordError, name_value
from metaprobe.records.extras import require
from metaprobe.records.import_line import (
    answer_id_of,
    answer_records,
    decisions_of,
    question_id_of,
    spelled_out,
    with_labels,
)
from metaprobe.records.lines import OnError
from metaprobe.records.outcomes import AgentOutcome, QuestionOutcomes, outcome_of_line, outcome_records
from metaprobe.records.types import Call, DecisionAnswer, Run
from metaprobe.routing.panel.asking import Panel
from metaprobe.routing.panel.compared_answers import (
    MOST_TOGETHER,
    PanelAnswer,
    PanelVerdict,
    answer_of,
    responses_in,
    untold,
)
from metaprobe.routing.panel.sources import STATED_BY_MODEL

PanelLine = dict[str, Any]


def panel_lines(panel: Panel, path: Path, *, stage: str | None = None) -> Iterator[dict[str, Any]]:
    """Yields an object for each question: id, kept, answer, score, none, answers, reason.

    `kept` is the id of the answer to keep: of the call in a run store, or of the line in a file (with `#2` behind it
    for the third choice of a line). A line that cannot be read counts as an answer that cannot be read.
    """
    by = panel.score_by
    questions = questions_in_store(path, stage, by) if path.is_dir() else questions_in_file(path, by)
    for name, question in questions.items():
        if len(question.answers) > MOST_TOGETHER:
            reason = (
                f"{len(question.answers)} answers to one question, and at most {MOST_TOGETHER} are judged together: "
            )
            none = PanelVerdict(
                (), 1.0, None, None, {}, panel.checkpoint.digest, reason + "does each line name its question?"
            )
            yield _verdict_line(name, question.names, none)
            continue
        verdict = panel.judge(
            question.answers,
            dimension=question.dimension,
            question=question.question,
            choices=question.choices,
            agents=question.agents,
        )
        yield _verdict_line(name, question.names, verdict)


Named = tuple[str, PanelAnswer | InvalidResponse]
"""Id of an answer, and the answer; an error in its place if it cannot be read."""


@dataclass(slots=True)
class AskedQuestion:
    """One question, and the answers to it."""

    question: str = ""
    choices: tuple[str, ...] = ()
    dimension: str = ""
    group: str = ""
    """Name of the unit that must stay in one split; empty where the line names no unit."""
    answers: list[PanelAnswer | InvalidResponse] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    """Id of each answer."""
    labels: list[float | None] = field(default_factory=list)
    """Whether each is right, 0 or 1; None where that is not known."""

    @property
    def agents(self) -> list[str]:
        """The agent of each answer; an empty name if the line does not name the agent."""
        return ["" if isinstance(answer, InvalidResponse) else answer.agent for answer in self.answers]

    def add(self, answers: Iterable[Named], label: float | None) -> None:
        """Adds the answers of one line. A label belongs to a line's single answer. If the line has several answers, it
        is not known which one was labelled.
        """
        answers = list(answers)
        label = label if len(answers) == 1 else None
        for name, answer in answers:
            self.names.append(name)
            self.answers.append(answer)
            self.labels.append(label)


def questions_in_file(path: Path, score_by: str = "", bad: BadFile | None = None) -> dict[str, AskedQuestion]:
    """Returns name -> question, in the order of the lines. Raises `ImportFileError` for a file of no lines.

    Args:
        path: a file of JSON lines, CSV or Parquet.
        score_by: the question of a decision model whose number is an answer's score (`scored_by`).
        bad: takes lines that cannot be read. Without it each of them counts as an answer that cannot be read, as an
            answer to its question that failed.
    """
    found: dict[str, AskedQuestion] = {}
    broken: list[ImportFileError] = []
    leave_out = broken.append if bad is None else bad.leave_out
    for number, record in answer_records(path, on_error=leave_out):
        name, identity = _line_name(record, "id") or f"line-{number}", answer_id_of(record, number)
        try:
            name = question_id_of(record, name)
            answers = answers_of_line(line := spelled_out(record), identity, score_by)
            label = None if bad is None else _label(line)
            unread = [answer for _, answer in answers if isinstance(answer, InvalidResponse)]
            if bad is not None and unread and len(unread) == len(answers):
                raise unread[0]
        except (ImportFileError, InvalidResponse) as problem:
            error = at_line(path, number, problem, record)
            error.__cause__ = problem
            if bad is not None:
                bad.leave_out(error)
                continue
            line, answers, label = record, [(identity, InvalidResponse(str(error)))], None
        messages = line.get("messages")
        question_text = Panel.question_in(messages) if isinstance(messages, list) else ""
        about = AskedQuestion(
            question_text, dimension=_line_name(record, "dimension"), group=_line_name(record, "group")
        )
        found.setdefault(name, about).add(answers, label)
        if bad is not None:
            bad.sound += 1
    for error in broken:
        name = f"line-{error.line}"
        found.setdefault(name, AskedQuestion()).add([(name, InvalidResponse(str(error)))], None)
    if not found and (bad is None or not bad.bad):
        raise ImportFileError(f"{path} holds no line; expected one JSON object a line")
    return found


def scored_by(question: str, answer: PanelAnswer, decided: Sequence[DecisionAnswer]) -> PanelAnswer:
    """Returns the answer with a decision model's number as its score. If the number is missing, a note says so."""
    signals = decision_signals(decided)
    value = signals.value(question)
    if value is not None:
        return replace(answer, score=value, score_source=question)
    why = f" ({signals.reasons[question]})" if question in signals.reasons else ""
    lacking = f"no number of the decision {question!r}{why}"
    return replace(answer, note="; ".join(filter(None, (answer.note, lacking))))


def answers_of_line(record: Mapping[str, Any], identity: str, score_by: str = "") -> list[Named]:
    """Returns the answers of a line: one answer, or the answers of every choice of its response. Decisions in a line
    are about its answer, so there must be only one.
    """
    response = record.get("response", record)
    if response is None:
        return [(identity, InvalidResponse('"response" is null; expected an answer'))]
    stated = record.get("verbalized_confidence")
    if stated is not None and (isinstance(stated, bool) or not isinstance(stated, int | float)):
        return [(identity, InvalidResponse(f'"verbalized_confidence" is {name_value(stated)}; expected a number'))]
    answers: list[Named] = []
    for place, each in enumerate(responses_in(response)):
        name = f"{identity}#{place}" if place else identity
        try:
            read_answer = answer_of(each)
        except InvalidResponse as error:
            answers.append((name, error))
        else:
            agent, source = (
                _line_name(record, "agent") or _line_name(record, "model") or read_answer.agent,
                STATED_BY_MODEL if stated is not None else "",
            )
            answers.append((name, replace(read_answer, agent=agent, stated=stated, stated_source=source)))
    if not score_by:
        return answers
    decided = decisions_of(dict(record), identity) if len(answers) == 1 else ()
    return [
        (n, each if isinstance(each, InvalidResponse) else scored_by(score_by, each, decided)) for n, each in answers
    ]


def _line_name(record: Mapping[str, Any], key: str) -> str:
    """Returns a name of the line, which may be a number, 0 too; empty where there is none."""
    value = record.get(key)
    return "" if value is None or isinstance(value, bool | list | dict) else str(value)


def _label(record: Mapping[str, Any]) -> float | None:
    """Returns the label `correct` of a line, None where it has none. Raises `ImportFileError` for another value."""
    value = with_labels(dict(record)).get("labels") or {}
    right = value.get("correct") if isinstance(value, dict) else value
    if right is not None and right not in (0, 1):
        raise ImportFileError(f'label "correct" is {name_value(right)}; expected 0 or 1')
    return None if right is None else float(right)


def questions_in_store(path: Path, stage: str | None = None, score_by: str = "") -> dict[str, AskedQuestion]:
    """Returns name -> question of the items of a run store, with the answers of all their runs in stored order.

    `stage`: of the calls that are answers; by default every stage that is labelled or, where none is, all.
    """
    runs = list(require("metaprobe.records.store", "fit").RunStore(path).runs(hidden=False))
    labelled = {call.stage for run in runs for call in run.calls if run.label("correct", call.id) is not None}
    found: dict[str, AskedQuestion] = {}
    for run in runs:
        item = run.item
        for call in run.calls:
            if stage == call.stage or (stage is None and (not labelled or call.stage in labelled)):
                name = f"{item.task}/{item.id}".strip("/")
                question = found.setdefault(name, AskedQuestion(item.question, item.choices, item.dimension))
                question.add([(call.id, read_of_run(run, call, score_by))], run.label("correct", call.id))
    return found


def read_of_run(run: Run, call: Call, score_by: str = "") -> PanelAnswer:
    """Returns the answer of a call of a run, with what was stated and, with `score_by`, decided of it."""
    stated = run.stated("confidence", call.id)
    source = "" if stated is None else STATED_BY_MODEL
    answer = replace(PanelAnswer.of_call(run.item, call), stated=stated, stated_source=source)
    return scored_by(score_by, answer, run.decisions_about(call.id)) if score_by else answer


def _verdict_line(question: str, names: list[str], verdict: PanelVerdict) -> dict[str, Any]:
    kept_class = next((panel_class for panel_class in verdict.classes if verdict.kept in panel_class.members), None)
    return {
        "id": question,
        "kept": None if verdict.kept is None else names[verdict.kept],
        "answer": None if kept_class is None else kept_class.answer,
        "score": verdict.score,
        "none": verdict.none,
        "answers": len(names),
        "reason": verdict.reason,
    }


KNOWN = ("id", "question", "dimension", "agents", "candidates", "group", "chosen", "propensities")
"""Keys of a line that asks whom to ask next; the last three stand in outcomes and are passed over."""


def step_lines(
    panel: Panel,
    path: Path,
    *,
    budget: float | None = None,
    price: float | None = None,
    on_bad: OnError = lambda error: None,
) -> Iterator[PanelLine]:
    """Yields one decision for each line: line, id, action, agent, expected, reason.

    A line is one of an outcomes file, with the agents asked so far under `agents`; `candidates` names those that may be
    asked, by default every agent of the panel. Scores and costs on it are not looked at. The action is `ask`, `keep`,
    or `none` where nobody can be asked and no answer can be kept. A line that cannot be read has null for all but its
    reason, and `on_bad` is called with the error.
    """
    panel.ask_plan(budget=budget, price=price)  # what is wrong with these is told before any line
    broken: list[ImportFileError] = []

    def leave_out(error: ImportFileError) -> None:
        on_bad(error)
        broken.append(error)

    for number, record in outcome_records(path, agents=panel.agents.names, on_error=leave_out, asked_later=True):
        yield from _unreadable(broken)
        identity = record.get("id") if isinstance(record.get("id"), str) else None
        try:
            question, prices = _known_in(panel, record, number)
            answers = [answer_in_outcome(name, outcome) for name, outcome in question.agents.items()]
            step = panel.next(
                question.question,
                question.dimension,
                answers,
                price=price,
                prices=prices,
                request_id=question.id,
                budget=budget,
            )
        except RecordError as error:
            on_bad(at_line(path, number, error, record))
            yield _undecided(number, identity, error)
            continue
        kept_agent = None if step.keep is None else answers[step.keep].agent
        action = "ask" if step.agent else "none" if kept_agent is None else "keep"
        decided = {
            "action": action,
            "agent": step.agent or kept_agent,
            "expected": step.expected,
            "reason": step.reason,
        }
        yield {"line": number, "id": question.id, **decided}
    yield from _unreadable(broken)


def answer_in_outcome(agent: str, outcome: AgentOutcome) -> PanelAnswer:
    """Returns an agent's answer in a recorded outcome, without its score; `cut` if the agent failed."""
    if outcome.error is not None:
        return PanelAnswer("", agent, cut=True, note=f"failed ({outcome.error})")
    source = outcome.confidence_source
    return PanelAnswer(outcome.answer or untold(agent), agent, stated=outcome.confidence, stated_source=source)


def _known_in(panel: Panel, record: PanelLine, number: int) -> tuple[QuestionOutcomes, dict[str, float] | None]:
    """Returns the question of a line, and infinite prices of agents that may not be asked; None if all may be.

    Raises `ImportFileError`, which names the field, for an invalid line.
    """
    for key in sorted(record.keys() - set(KNOWN)):
        # A misspelt key would lose what it says without a word; other keys are the user's own.
        if close_keys := get_close_matches(key, KNOWN, 1, cutoff=0.8):
            raise ImportFileError(f"unknown key {key!r}; did you mean {close_keys[0]!r}? rename it, or remove it")
    if record and not record.keys() & set(KNOWN):
        raise ImportFileError(f"the keys are {sorted(record)}; expected some of {', '.join(KNOWN)}")
    agents = {} if record.get("agents") is None else record["agents"]
    question = outcome_of_line({**record, "id": record.get("id") or f"line-{number}", "agents": agents})
    candidates = record.get("candidates")
    if candidates is None:
        return question, None
    if not (isinstance(candidates, list) and all(isinstance(candidate, str) for candidate in candidates)):
        raise ImportFileError('"candidates" is not a list of names; expected the agents that may be asked')
    if not set(candidates) & set(panel.agents.names):
        names = ", ".join(panel.agents.names)
        raise ImportFileError(f"nothing is known of the candidates {', '.join(candidates)}; the panel knows {names}")
    return question, {name: math.inf for name in panel.agents.names if name not in candidates}


def _unreadable(broken: list[ImportFileError]) -> Iterator[PanelLine]:
    while broken:
        error = broken.pop(0)
        yield _undecided(error.line, None, error)


def _undecided(line: int | None, identity: str | None, error: Exception) -> PanelLine:
    return {"line": line, "id": identity, "action": None, "agent": None, "expected": None, "reason": str(error)}
