"""Reads and writes outcomes of asking agents: one question a line, with all agents asked. Standard library only.

Lines of JSON are the form below. A table (CSV, TSV, Parquet) has one row a question (`records.outcome_tables`).

 {"id", "group", "question", "dimension",
 "agents": {name: {"answer", "correct": 0|1 or "score": 0..1, "confidence", "cost_usd", "latency_ms",
                   "prompt_tokens", "completion_tokens", "confidence_source", "label_propensity"}
            or {"error", "cost_usd", "latency_ms"}},
 "chosen", "propensities": {name: 0..1}, "answered"}

Only `id` and `agents` are required. An agent that was asked and failed has an `error`, or a cost without answer, label
and confidence. Its score is 0, because the user gets nothing from it. A full outcome holds every agent. A logged
outcome holds the agents that were asked, the `chosen` action and the propensity of every legal action. Unknown keys are
ignored, because such files often have more.
"""

import gzip
import json
import math
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

from metaprobe.records.bad_lines import BadFile, at_line
from metaprobe.records.errors import ImportFileError, RecordError, of_kind
from metaprobe.records.lines import OnError, hand_over, is_csv, records_of
from metaprobe.records.outcome_tables import is_outcome_table, misspelt_fields, table_records

LONGEST_ERROR = 200
"""Most characters of an error that are kept: the error may hold a whole page."""
SMALLEST_PROPENSITY = 1e-6
"""Smallest probability of a label. A label below it would weigh more than a million others."""
MAX_WHOLE_NUMBER = 10**300
"""Largest whole number that is read."""
ANSWER_KEYS = frozenset({"answer", "correct", "score", "confidence"})
"""Keys of an agent that answered.

A call that cost money or time, and has none of these keys, gave no answer. The same holds for a blank answer without
confidence and with a score of at most 0. A missing answer beside a label is a text that was left out.
"""


@dataclass(frozen=True, slots=True)
class AgentOutcome:
    """The outcome of one agent on one question. An unknown field is None."""

    answer: str = ""
    score: float | None = None
    """Score in [0, 1]; 1 for a right answer."""
    confidence: float | None = None
    """Confidence on the agent's own scale (a probability, a log-probability, ...): higher means surer. Known after
    asking.

    May be -inf, the log-probability of an impossible event (in JSON -Infinity, as Python writes it).
    """
    cost_usd: float | None = None
    latency_ms: float | None = None
    confidence_source: str = ""
    """Source of the confidence: `stated`, `logprobs`, or the digest of a checkpoint.

    The digest follows `stated+` if both are joined. Empty if the line does not name a source.
    """
    error: str | None = None
    """Why the call failed; None if it did not. A failed call has the score 0 and no confidence."""
    prompt_tokens: float | None = None
    completion_tokens: float | None = None
    label_propensity: float | None = None
    """Probability in (0, 1] with which the answer was drawn for a label. The label weighs 1 / probability; None counts
    as 1."""


@dataclass(frozen=True, slots=True)
class QuestionOutcomes:
    """One question, with the outcome of each agent that was asked."""

    id: str
    group: str
    """Name of the group that stays in one split; the id if the line names no group."""
    question: str = ""
    dimension: str = ""
    agents: Mapping[str, AgentOutcome] = field(default_factory=dict)
    chosen: str | None = None
    """The action that was taken, for a logged outcome."""
    propensities: Mapping[str, float] = field(default_factory=dict)
    """Propensity of every legal action."""
    answered: float | None = None
    """Time when the answers ended, in seconds since 1970."""

    @staticmethod
    def write(path: str | Path, questions: "Iterable[QuestionOutcomes]") -> None:
        """Writes outcomes, one question a line; compressed if the name ends in `.gz`. Unknown fields are left out."""
        opened = gzip.open if str(path).endswith(".gz") else open
        with opened(path, "wt", encoding="utf-8") as file:
            for question in questions:
                file.write(json.dumps(question.line(), ensure_ascii=False) + "\n")

    def line(self) -> dict[str, Any]:
        """Returns the outcomes as an object of JSON, without fields that are not known. `outcome_of_line` reads it."""
        line: dict[str, Any] = {"id": self.id, "group": self.group}
        line |= {key: value for key in ("question", "dimension", "chosen") if (value := getattr(self, key))}
        line["agents"] = {
            name: {
                key: value_of_field
                for key in AgentOutcome.__slots__
                if (value_of_field := getattr(outcome, key)) not in (None, "")
            }
            for name, outcome in self.agents.items()
        }
        if self.propensities:
            line["propensities"] = dict(self.propensities)
        if self.answered is not None:
            line["answered"] = self.answered
        return line


LATEST_TIME = 1e11
"""Latest time in seconds since 1970 that a line may hold. A larger number is in milliseconds, and refused."""
OUTCOME_LINES = 9
"""Number of first lines that show whether the lines of a file are outcomes: one of them may be bad."""


def is_outcomes(path: Path) -> bool:
    """Returns whether a file holds outcomes: it is a table of outcomes, or most of its first readable lines are."""
    if is_outcome_table(path):
        return True
    if is_csv(path):
        return False
    lines = [record for _, record in islice(records_of(path, on_error=lambda error: None), OUTCOME_LINES)]
    return 2 * sum("agents" in line and "response" not in line for line in lines) > len(lines)


def read_outcomes(
    path: str | Path, *, agents: Sequence[str] = (), strict: bool | None = None
) -> list[QuestionOutcomes]:
    """Returns the question of every line or row. Bad ones are left out; a warning counts them by reason.

    Args:
        path: JSON lines, or a table: CSV (.csv, .tsv) or Parquet. Lines and CSV may be compressed (.gz).
        agents: agents whose columns are read, for a table; by default those with a column NAME.correct or
            NAME.score. Lines name their agents themselves.
        strict: whether the first bad line raises `ImportFileError` with file, line and field; by default as the
            running command has set it, else False.

    Raises `ImportFileError` if more than half of the lines are bad, and for a table without the agents' columns.
    """
    with BadFile.reading(path, strict=strict) as bad:
        questions = outcomes_of_file(path, bad, agents)
    if not questions:
        raise ImportFileError(f"{path} holds no outcome; expected one JSON object a line, or a table with a row each")
    return questions


def outcome_records(
    path: Path, *, agents: Sequence[str] = (), on_error: OnError | None = None, asked_later: bool = False
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields (number from 1, line of outcomes) for each line of JSON, or row of a table.

    Args:
        path: the file.
        agents: agents whose columns are read, for a table, as for `read_outcomes`.
        on_error: gets the error about each bad line; by default it is raised.
        asked_later: for a table: whether agents without columns count as not asked yet; by default they are an error.
    """
    if is_csv(path) or is_outcome_table(path):
        return table_records(path, agents, on_error, asked_later=asked_later)
    return records_of(path, on_error=on_error)


def only_agents(questions: Sequence[QuestionOutcomes], names: Sequence[str]) -> list[QuestionOutcomes]:
    """Returns the questions with the outcomes of these agents alone; without names, with all. Raises `RecordError` for
    a name that no question has."""
    if not names:
        return list(questions)
    known_agents = {name for question in questions for name in question.agents}
    if unknown_agents := sorted(set(names) - known_agents):
        raise RecordError(
            f"no agent is called {', '.join(unknown_agents)}; expected some of {', '.join(sorted(known_agents))}"
        )
    return [
        replace(question_outcomes, agents={n: outcome for n, outcome in question_outcomes.agents.items() if n in names})
        for question_outcomes in questions
    ]


def with_costs(questions: Sequence[QuestionOutcomes], written: Sequence[str]) -> list[QuestionOutcomes]:
    """Returns the questions, where an agent's outcomes without `cost_usd` have the given cost.

    `written`: texts NAME=USD. Raises `RecordError` for a text that names no agent of the questions or no cost.
    """
    known_agents = sorted({name for question in questions for name in question.agents})
    costs: dict[str, float] = {}
    for text in written:
        name, _, dollars = text.rpartition("=")
        try:
            costs[name] = float(dollars)
        except ValueError:
            costs[name] = math.nan
        if name not in known_agents or not 0 <= costs[name] < math.inf:
            raise RecordError(
                f"the cost of an answer is {text!r}; expected NAME=USD, with a number of at least 0 and NAME one of "
                f"{', '.join(known_agents)}"
            )
    return [
        replace(
            question,
            agents={
                name: replace(outcome, cost_usd=costs.get(name)) if outcome.cost_usd is None else outcome
                for name, outcome in question.agents.items()
            },
        )
        for question in questions
    ]


def outcomes_of_file(path: str | Path, bad: BadFile, agents: Sequence[str] = ()) -> list[QuestionOutcomes]:
    """Returns every readable line or row. Bad ones go to `bad`, which counts both. `agents`: as for `read_outcomes`.

    A warning names the keys of agents that are not read and resemble a key that the agent lacks.
    """
    questions: list[QuestionOutcomes] = []
    line_of_id: dict[str, int] = {}
    misspelt: Counter[tuple[str, str]] = Counter()
    for line, record in outcome_records(Path(path), agents=agents, on_error=bad.leave_out):
        try:
            question = outcome_of_line(record)
            if question.id in line_of_id:
                message = (
                    f"id {question.id!r} stands in line {line_of_id[question.id]} too; expected one line a question"
                )
                raise of_kind(message, "an id that another line has")
        except ImportFileError as error:
            hand_over(at_line(path, line, error, record), bad.leave_out, error)
            continue
        line_of_id[question.id] = line
        questions.append(question)
        bad.sound += 1
        misspelt.update(pair for outcome in record["agents"].values() for pair in misspelt_fields(outcome).items())
    if misspelt:
        keys = ", ".join(f'"{key}" of {count} outcomes' for (key, _), count in misspelt.items())
        expected = ", ".join(f'"{meant}"' for _, meant in misspelt)
        warnings.warn(f"{path}: keys are not read: {keys}; expected {expected}: rename them", stacklevel=2)
    return questions


def outcome_of_line(record: Mapping[str, Any]) -> QuestionOutcomes:
    """Returns the question of one line. Raises `ImportFileError` that names the field."""
    agents = record.get("agents")
    if not isinstance(agents, dict):
        raise ImportFileError(f'"agents" is {_short_json(agents)}; expected an object, agent to outcome')
    identity = _optional_text(record, "id")
    if not identity:
        raise ImportFileError('"id" is missing or empty; expected a string that no other line has')
    propensities = record.get("propensities") or {}
    if not isinstance(propensities, dict):
        raise ImportFileError(
            f'"propensities" is {_short_json(propensities)}; expected an object, action to probability'
        )
    return QuestionOutcomes(
        id=identity,
        group=_optional_text(record, "group") or identity,
        question=_optional_text(record, "question"),
        dimension=_optional_text(record, "dimension"),
        agents={name: _agent(name, outcome) for name, outcome in agents.items()},
        chosen=_optional_text(record, "chosen") or None,
        propensities={a: _required_number(propensities, a, "propensities.", low=0, high=1) for a in propensities},
        answered=_optional_number(record, "answered", "", low=0, high=LATEST_TIME),
    )


def _agent(name: str, outcome: Any) -> AgentOutcome:
    """Returns one agent's outcome. A call that failed scores 0, and its answer and confidence are dropped."""
    where = f"agents.{name}."
    if not isinstance(outcome, dict):
        raise ImportFileError(f'"{where[:-1]}" is {_short_json(outcome)}; expected an object')
    if "score" in outcome and "correct" in outcome and outcome["score"] != outcome["correct"]:
        raise ImportFileError(f'"{where}score" and "{where}correct" differ; give one of them')
    read_outcome = AgentOutcome(
        answer=_optional_text(outcome, "answer", where),
        score=_optional_number(outcome, "score" if "score" in outcome else "correct", where, low=0, high=1),
        confidence=_optional_number(outcome, "confidence", where, low=-math.inf, high=math.inf),
        cost_usd=_optional_number(outcome, "cost_usd", where, low=0, high=math.inf),
        latency_ms=_optional_number(outcome, "latency_ms", where, low=0, high=math.inf),
        confidence_source=_optional_text(outcome, "confidence_source", where),
        prompt_tokens=_optional_number(outcome, "prompt_tokens", where, low=0, high=math.inf),
        completion_tokens=_optional_number(outcome, "completion_tokens", where, low=0, high=math.inf),
        label_propensity=_optional_number(outcome, "label_propensity", where, low=SMALLEST_PROPENSITY, high=1),
    )
    error = _call_error(outcome, read_outcome, where)
    if error is None:
        return read_outcome
    return replace(read_outcome, answer="", score=0.0, confidence=None, confidence_source="", error=error)


def _call_error(outcome: Mapping[str, Any], outcome_read: AgentOutcome, where: str) -> str | None:
    """Returns why the call failed; None if it did not. Raises `ImportFileError` for an error beside a right answer.

    Args:
        outcome: fields of the agent.
        outcome_read: the outcome as read so far.
        where: prefix of field names in errors.
    """
    error = outcome.get("error")
    if error in (None, False, "", {}):
        answer_keys = ANSWER_KEYS & outcome.keys()
        is_blank = not outcome_read.answer.strip() and outcome_read.confidence is None and not outcome_read.score
        has_cost = outcome_read.cost_usd is not None or outcome_read.latency_ms is not None
        return "no answer" if is_blank and ("answer" in answer_keys or (has_cost and not answer_keys)) else None
    if isinstance(error, dict):
        error = error.get("message") or json.dumps(error, default=str)
    if error is not True and not isinstance(error, str):
        raise ImportFileError(f'"{where}error" is {_short_json(error)}; expected why the call failed, as a string')
    if outcome_read.score:
        raise ImportFileError(
            f'"{where}error" stands beside a score of {outcome_read.score:g}; a failed call gave nothing that '
            "could be right: remove the error where there was an answer, and the score where there was none"
        )
    return "no reason was given" if error is True else " ".join(error.split())[:LONGEST_ERROR]


def _optional_text(record: Mapping[str, Any], key: str, where: str = "") -> str:
    value = record.get(key)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise ImportFileError(f'"{where}{key}" is {_short_json(value)}; expected a string')
    return value


def _optional_number(record: Mapping[str, Any], key: str, where: str, *, low: float, high: float) -> float | None:
    """Returns the number under a key, as `_required_number` does; None if it is missing."""
    return None if record.get(key) is None else _required_number(record, key, where, low=low, high=high)


def _required_number(record: Mapping[str, Any], key: str, where: str, *, low: float, high: float) -> float:
    """Returns the number under a key. Raises `ImportFileError` unless it is finite and in [low, high].

    Args:
        record: the line, or a part of it.
        key: the key.
        where: prefix of the key in errors.
        low: smallest allowed number; -inf allows -inf too.
        high: largest allowed number; with inf any finite number is allowed.
    """
    value = record[key]
    if isinstance(value, bool) and key == "correct":
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:  # NaN is unequal to itself
        raise ImportFileError(f'"{where}{key}" is {_short_json(value)}; expected a number')
    if isinstance(value, int) and abs(value) > MAX_WHOLE_NUMBER:  # JSON has whole numbers that no float holds
        raise ImportFileError(f'"{where}{key}" is {_short_json(value)}; expected a number of at most 300 digits')
    if not low <= value <= high or value == math.inf:
        expected = f"from {low:g} to {high:g}" if high < math.inf else f"of at least {low:g}, and finite"
        raise ImportFileError(f'"{where}{key}" is {value:g}; expected a number {expected}')
    return float(value)


def _short_json(value: object) -> str:
    text = json.dumps(value, default=str)
    return "missing" if value is None else text if len(text) <= 60 else text[:57] + "..."
