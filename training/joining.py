"""Joins import files, one for each agent, into the outcomes that a router learns from: all agents' answers by question.

Lines with one `id` are answers to one question. A question is kept if every agent answered it and every answer has the
label `correct`. The other questions are left out and counted.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from metaprobe.llms.pricing import Price
from metaprobe.probes.signal_source import SignalSource
from metaprobe.probes.signals import Signal, measure_signals
from metaprobe.records.bad_lines import BadFile, at_line
from metaprobe.records.correctness import final_answer
from metaprobe.records.errors import ImportFileError, InvalidResponse, RecordError, of_kind
from metaprobe.records.import_line import answer_records, run_of_line
from metaprobe.records.lines import hand_over
from metaprobe.records.outcomes import AgentOutcome, QuestionOutcomes
from metaprobe.records.response import answer_logprobs
from metaprobe.records.types import Run

CONFIDENCE_KEY = "confidence"
"""Kind of the statement, and name of the signal, that gives an answer's confidence."""
NOTED_LINES = 3
"""Most lines or questions of one kind that a note names."""


@dataclass(frozen=True, slots=True)
class _Answered:
    """One import line of an agent, with its question and answer as a run."""

    line: int
    run: Run
    cost_usd: float | None
    latency_ms: float | None
    untokened: bool = False
    """Whether the cost is unknown although the agent has a price, because the line has no token counts."""

    @property
    def correct(self) -> float | None:
        """Returns the label, or None where the line has none."""
        return self.run.label("correct", self.run.calls[0].id)

    @property
    def stated(self) -> float | None:
        """Returns the stated confidence, or None where the line states none."""
        return self.run.stated(CONFIDENCE_KEY, self.run.calls[0].id)


@dataclass(frozen=True, slots=True)
class JoinedOutcomes:
    """Result of joining files."""

    questions: list[QuestionOutcomes]
    """Questions that every agent answered with a label, in the order of the first file."""
    missing: dict[str, int] = field(default_factory=dict)
    """Maps an agent to the number of questions of other files that it did not answer."""
    unlabelled: dict[str, int] = field(default_factory=dict)
    """Maps an agent to the number of its answers, to questions that all files have, without the label `correct`."""
    differing: int = 0
    """Number of questions whose text differs between files. The text of the first file was taken."""
    untokened: dict[str, list[str]] = field(default_factory=dict)
    """Maps an agent to the lines (FILE:LINE) of its answers that have a price and no token counts."""
    regrouped: tuple[str, ...] = ()
    """Questions that were left out because the files put them into different groups, in words, each with its lines."""

    def accuracy(self, agent: str) -> float:
        """Returns the share of the questions that an agent answered right."""
        return sum(question.agents[agent].score or 0.0 for question in self.questions) / len(self.questions)

    @property
    def notes(self) -> list[str]:
        """Returns notes for the user about the joined outcomes, one sentence each."""
        notes = [f"questions left out because {agent} did not answer them: {n}" for agent, n in self.missing.items()]
        notes += [
            f'questions left out because the answer of {agent} has no "labels": {{"correct": 0 or 1}}: {n}'
            for agent, n in self.unlabelled.items()
        ]
        notes += [f"question left out: {why}" for why in self.regrouped[:NOTED_LINES]]
        if len(self.regrouped) > NOTED_LINES:
            notes.append(f"... and {len(self.regrouped) - NOTED_LINES} more questions in different groups")
        for agent in self.questions[0].agents:
            unpriced = sum(question.agents[agent].cost_usd is None for question in self.questions)
            lines = self.untokened.get(agent, [])
            if lines:
                notes.append(
                    f"the cost of {len(lines)} of {len(self.questions)} answers of {agent} is not known, for their "
                    "responses count no tokens "
                    f"({', '.join(lines[:NOTED_LINES])}{', ...' if len(lines) > NOTED_LINES else ''}): a "
                    'router needs "usage" with "prompt_tokens" and "completion_tokens", or "cost_usd" in the lines'
                )
            if unpriced > len(lines):
                unknown = f"{unpriced - len(lines)} of {len(self.questions)} answers of {agent}"
                notes.append(
                    f"the cost of {unknown} is not known, and a router needs it: "
                    'give the agent\'s price (--prices), or "cost_usd" in its lines'
                )
        if self.differing:
            notes.append(f"questions whose text differs between files (do the ids mean the same?): {self.differing}")
        return notes


def join_outcomes(
    paths: Sequence[str | Path],
    *,
    signals: SignalSource | None = None,
    prices: Mapping[str, Price] | None = None,
) -> JoinedOutcomes:
    """Returns the outcomes of the agents whose answers these import files hold, one agent in each file.

    The name of an agent is the lines' `agent`, else the name of its file. The answer is the text after "Answer:" or a
    similar mark, else the last line. The confidence is the number that `signals` gives. Without `signals` it is the
    stated confidence, if any line of the agent states one; else the mean log-probability.

    Bad lines are left out, counted by reason and named (`records.bad_lines`). A line is bad if it cannot be read, has
    no id, is of another agent than the file, or repeats an id. A question that the files put into different groups is
    left out too.

    Raises `ImportFileError` if more than half of a file's lines are bad. Raises `RecordError` for a single file, for
    two files of one agent, and if no question is left.

    Args:
        paths: the import files.
        signals: gives the confidence of an answer.
        prices: maps an agent or a model to its price; a line's own `cost_usd` takes precedence.
    """
    # Each agent's lines by question id.
    if len(paths) < 2:
        raise RecordError(f"{len(paths)} file came; expected two or more, one an agent")
    by_agent: dict[str, dict[str, _Answered]] = {}
    path_of_agent: dict[str, Path] = {}
    for path in map(Path, paths):
        agent, lines = _read_agent_file(path, prices or {})
        if agent in by_agent:
            raise RecordError(
                f'{path} is a second file of agent {agent!r}: put its lines into one file, or give them another "agent"'
            )
        by_agent[agent], path_of_agent[agent] = lines, path
    # The questions that every agent answered with a label, in one group.
    all_ids = dict.fromkeys(question_id for lines in by_agent.values() for question_id in lines)
    missing = {agent: sum(question_id not in lines for question_id in all_ids) for agent, lines in by_agent.items()}
    common_ids = [question_id for question_id in all_ids if all(question_id in lines for lines in by_agent.values())]
    unlabelled = {
        agent: sum(lines[question_id].correct is None for question_id in common_ids)
        for agent, lines in by_agent.items()
    }
    joined_ids = [
        question_id
        for question_id in common_ids
        if all(lines[question_id].correct is not None for lines in by_agent.values())
    ]
    regrouped = {
        question_id: why for question_id in joined_ids if (why := _groups_differ(question_id, by_agent, path_of_agent))
    }
    joined_ids = [question_id for question_id in joined_ids if question_id not in regrouped]
    if not joined_ids:
        raise RecordError(
            f"no question is left of {len(all_ids)}: {len(common_ids)} have an answer of every agent "
            f'({", ".join(by_agent)}), and none of these a label "correct" of all; expected lines with the same "id"'
            + "".join(f"; {why}" for why in list(regrouped.values())[:1])
        )
    # Their outcomes, and counts of what was left out.
    states_confidence = {
        agent: any(answered.stated is not None for answered in lines.values()) for agent, lines in by_agent.items()
    }
    questions = [
        _question(
            {agent: lines[question_id] for agent, lines in by_agent.items()},
            question_id,
            signals or SignalSource(),
            states_confidence,
        )
        for question_id in joined_ids
    ]
    texts_of_question = [
        {lines[question_id].run.item.question for lines in by_agent.values()} for question_id in joined_ids
    ]
    return JoinedOutcomes(
        questions,
        {agent: n for agent, n in missing.items() if n},
        {agent: n for agent, n in unlabelled.items() if n},
        sum(len(answered) > 1 for answered in texts_of_question),
        {
            agent: untokened_lines
            for agent, lines in by_agent.items()
            if (
                untokened_lines := [
                    f"{path_of_agent[agent]}:{lines[question_id].line}"
                    for question_id in joined_ids
                    if lines[question_id].untokened
                ]
            )
        },
        tuple(regrouped.values()),
    )


def _groups_differ(
    question_id: str, by_agent: Mapping[str, Mapping[str, _Answered]], path_of_agent: Mapping[str, Path]
) -> str:
    """Returns an error text if the files put one question into different groups; else an empty text."""
    # Without a group the importer takes the id.
    groups = {agent: lines[question_id].run.item.group for agent, lines in by_agent.items()}
    stated = {group for group in groups.values() if group != question_id}
    if len(stated) < 2:
        return ""
    lines_text = ", ".join(f"{path_of_agent[agent]}:{by_agent[agent][question_id].line}" for agent in by_agent)
    return f"question {question_id!r} is in the groups {', '.join(sorted(stated))}; expected one group ({lines_text})"


def _read_agent_file(path: Path, prices: Mapping[str, Price]) -> tuple[str, dict[str, _Answered]]:
    """Returns the agent of a file, and its lines by id.

    The agent is the one that most lines name. If at least half of the lines name no agent, it is the file's name.
    """
    file_name = path.name.removesuffix(".gz").rpartition(".")[0] or path.name
    with BadFile.reading(path) as bad:
        readable_lines = list(_readable(path, bad))
        lines_by_agent = Counter(run.calls[0].agent for _, run, _, _ in readable_lines if run.calls[0].agent)
        if 2 * lines_by_agent.total() <= len(readable_lines):
            lines_by_agent = Counter({file_name: len(readable_lines) or 1})
        [(agent, line_count)] = lines_by_agent.most_common(1)
        if 2 * line_count <= lines_by_agent.total():
            raise ImportFileError(
                f"{path} holds answers of {', '.join(lines_by_agent)}; expected a file for each agent"
            )
        answers: dict[str, _Answered] = {}
        for number, run, record, own_values in readable_lines:
            if run.calls[0].agent not in ("", agent):
                fault = f'"agent" is {run.calls[0].agent!r}, in a file of {agent!r}; expected a file for each agent'
                bad.leave_out(at_line(path, number, of_kind(fault, "an answer of another agent"), record))
                continue
            if run.item.id in answers:
                fault = (
                    f"id {run.item.id!r} stands on line {answers[run.item.id].line} too; expected one answer a question"
                )
                bad.leave_out(at_line(path, number, of_kind(fault, "an id that another line has"), record))
                continue
            (call,) = run.calls
            price, cost = prices.get(agent) or Price.of_model(call.model, "", prices), own_values["cost_usd"]
            untokened = cost is None and price is not None and not call.usage.prompt_tokens
            if cost is None and price is not None and not untokened:
                cost = price.cost_usd(call.usage)
            answers[run.item.id] = _Answered(number, run, cost, own_values["latency_ms"], untokened)
        bad.sound = len(answers)
    if not answers:
        raise ImportFileError(f"{path} holds no lines; expected one answer a line, as `metaprobe import` takes them")
    return agent, answers


def _readable(path: Path, bad: BadFile) -> Iterator[tuple[int, Run, dict[str, Any], dict[str, float | None]]]:
    """Yields the line number, run, record and own measures of each line that can be read."""
    for number, record in answer_records(path, on_error=bad.leave_out):
        try:
            run = run_of_line(record, "")
            if not run.item.id:
                raise ImportFileError('"id" is missing; expected the id that the question has in the other files')
            measures = {key: _measure(record, key) for key in ("cost_usd", "latency_ms")}
        except (ImportFileError, InvalidResponse) as error:
            hand_over(at_line(path, number, error, record), bad.leave_out, error)
            continue
        yield number, run, record, measures


def _measure(record: Mapping[str, Any], key: str) -> float | None:
    """Returns a number of at least 0 that a line may carry."""
    value = record.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
        raise ImportFileError(f'"{key}" is {value!r}; expected a number of at least 0')
    return float(value)


def _question(
    lines: Mapping[str, _Answered], question_id: str, signals: SignalSource, stated: Mapping[str, bool]
) -> QuestionOutcomes:
    """Returns one question with all agents."""
    items = [answered.run.item for answered in lines.values()]
    groups = {item.group for item in items if item.group != question_id}
    return QuestionOutcomes(
        question_id,
        next(iter(groups), question_id),
        next((item.question for item in items if item.question), ""),
        next((item.task for item in items if item.task), ""),
        {agent: _outcome(answered, agent, signals, stated[agent]) for agent, answered in lines.items()},
    )


def _outcome(answered: _Answered, agent: str, signals: SignalSource, stated: bool) -> AgentOutcome:
    """Returns an agent's outcome. `stated`: whether the confidence is the stated one, if `signals` gives none."""
    (call,) = answered.run.calls
    signal: Signal | None
    if stated or signals.replacement(CONFIDENCE_KEY, agent) is not None:
        signal = signals.signal(CONFIDENCE_KEY, agent=agent, stated=answered.stated, call=call)
    else:
        signal = measure_signals(answer_logprobs(call)).get("mean_logprob")
    return AgentOutcome(
        final_answer(answered.run.item, call.text),
        answered.correct,
        None if signal is None else signal.value,
        answered.cost_usd,
        answered.latency_ms,
        "" if signal is None else signal.source,
        prompt_tokens=call.usage.prompt_tokens or None,
        completion_tokens=call.usage.completion_tokens if call.usage.prompt_tokens else None,
    )
