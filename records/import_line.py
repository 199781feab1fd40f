"""Checks an import line and makes a run of it. Every file is converted to import lines; so are rows of CSV.

 {"id", "group", "messages", "response": <chat completion with logprobs>, "labels": {"correct": 0|1, ...},
 "verbalized_confidence": 0..1 or null, "model", "task", "stage", "agent", "run_id", "sampling", "logprobs_mode",
 "question_id", "decisions": <a Decision of openai-python, or a list of them>}

`correct` may also be a key of the line itself. Only `response` is required. An answer without log-probabilities needs a
`verbalized_confidence`, or `decisions` about it. `question` may replace the messages. `answer`, with the lists
`logprobs` and `tokens` beside it, may replace the response (`spelled_out`).
"""

import json
import re
from collections.abc import Iterator, Mapping, Set
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from shlex import quote
from typing import Any, get_args

from metaprobe.records.bad_lines import RawLine, at_line
from metaprobe.records.decision_questions import DecisionQuestion
from metaprobe.records.errors import ImportFileError, InvalidResponse, NoLogprobs, name_value
from metaprobe.records.lines import OnBytes, OnError, hand_over, is_csv, iter_csv, records_of
from metaprobe.records.native_formats import as_completion, is_native, is_ollama_chunk
from metaprobe.records.openai_format import content_text
from metaprobe.records.parse import from_json, parse_response, parse_text
from metaprobe.records.response import ParsedResponse, ParsedText
from metaprobe.records.segments import check_segments, spoken_text
from metaprobe.records.short_line import FIELDS_BESIDE_TEXT, FINISH_REASON, completion_of
from metaprobe.records.types import (
    IMPORTED_SYSTEM,
    Call,
    DecisionAnswer,
    Item,
    Label,
    LogprobsMode,
    Message,
    Run,
    Sampling,
    Segment,
    Statement,
)

LABEL_VALUES: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(("correct", "critical"), (0, 1)),
    **dict.fromkeys(("instruction", "justification", "evidence"), (1, 2, 3)),
}
"""Maps a label name to its allowed values. No training accepts another value, so none is stored."""
LABEL_BOUNDS = dict.fromkeys(("q", "quality"), (0.0, 9.0))

_UNBOUNDED = 1e300
_OUR_KEYS = {
    **dict.fromkeys(
        (*(LABEL_VALUES.keys() - {"correct"}), "quality", "is_correct", "lables"), ("labels", '{"correct": 1}')
    ),
    **dict.fromkeys(("prompt", "input", "query"), ("question", '"..."')),
    "confidence": ("verbalized_confidence", "0.8"),
}
"""Maps a key that other programs use to our key for the same thing, with an example."""


def string(record: dict[str, Any], key: str, *, number: bool = False) -> str:
    """Returns the text under a key of a line; empty if it is missing. With `number`, a whole number counts as text."""
    value = record.get(key)
    if value is None:
        return ""
    if number and isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str):
        raise ImportFileError(f'"{key}" is {name_value(value)}; expected a string')
    return value


def _checked_number(value: object, name: str, low: float = -_UNBOUNDED, high: float = _UNBOUNDED) -> float:
    """Returns a finite number in [low, high]. True and False become 1 and 0, because labels are often written so.

    Args:
        value: the value of the line.
        name: its name in errors.
        low: smallest allowed number.
        high: largest allowed number.
    """
    if not isinstance(value, (int, float)) or not low <= value <= high:  # a NaN fails the comparison
        bounds = "a finite number" if high == _UNBOUNDED else f"a number from {low:g} to {high:g}"
        raise ImportFileError(f"{name} is {name_value(value)}; expected {bounds}")
    return float(value)


def with_labels(record: dict[str, Any]) -> dict[str, Any]:
    """Returns the line with `correct` moved into its labels, if it is a key of the line itself.

    Raises `ImportFileError` if the labels have another value of `correct`.
    """
    if "correct" not in record:
        return record
    value, labels = record["correct"], record.get("labels")
    if labels is not None and not isinstance(labels, dict):
        return record  # `labels_of` refuses it
    own_labels = {} if labels is None else labels
    if own_labels.get("correct", value) != value:
        raise ImportFileError(
            f'"correct" is {name_value(value)}, and "labels" has {name_value(own_labels["correct"])}; expected the same'
            " in both, or one of the two"
        )
    other_keys = {key: value_of_key for key, value_of_key in record.items() if key != "correct"}
    return {**other_keys, "labels": {**own_labels, "correct": value}}


def labels_of(labels: object, call_id: str) -> tuple[Label, ...]:
    """Returns the labels of a line. A label with the value null is unknown, and is left out."""
    if labels is None:
        return ()
    if not isinstance(labels, dict):
        raise ImportFileError(f'"labels" is {name_value(labels)}; expected an object such as {{"correct": 1}}')
    known_labels = {name: value for name, value in labels.items() if value is not None}
    for name, value in known_labels.items():
        allowed = LABEL_VALUES.get(name)
        if allowed and value not in allowed:
            raise ImportFileError(f"label {name!r} is {name_value(value)}; expected {' or '.join(map(str, allowed))}")
        known_labels[name] = _checked_number(
            value, f"label {name!r}", *LABEL_BOUNDS.get(name, (-_UNBOUNDED, _UNBOUNDED))
        )
    return tuple(Label(call_id, name, value, IMPORTED_SYSTEM) for name, value in known_labels.items())


def notes_of(record: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yields (key, what to do about it) for each key of a line that seems to belong in another place."""
    # A bare response has keys of its own, among them a prompt.
    keys_of_response = set() if "response" in record else {"prompt", "input"}
    for key in record.keys() & _OUR_KEYS.keys() - keys_of_response:
        our_key, example = _OUR_KEYS[key]
        if record.get(our_key) is None and not (our_key == "question" and record.get("messages")):
            yield key, f'"{key}" is not read; if it was meant for "{our_key}", write "{our_key}": {example}'
    for name in record.get("labels") or ():
        if name not in LABEL_VALUES and (close_names := get_close_matches(name.lower(), LABEL_VALUES, 1, cutoff=0.9)):
            yield f"label {name}", f"label {name!r} is stored under that name; did you mean {close_names[0]!r}?"


def statements_of(record: dict[str, Any], response: object, call_id: str) -> tuple[Statement, ...]:
    """Returns the confidence that a line states, and the numbers under `metaprobe_signals` of its response.

    The line's confidence replaces the response's. With null the model was asked but stated none; without the key it was
    not asked.

    Args:
        record: the line.
        response: its response.
        call_id: id of the call.
    """
    stated_by_line: dict[str, float | None] = {}
    if "verbalized_confidence" in record:
        value = record["verbalized_confidence"]
        stated_by_line["confidence"] = (
            None if value is None else _checked_number(value, '"verbalized_confidence"', 0.0, 1.0)
        )
    stated_by_response = response.stated if isinstance(response, ParsedResponse) else {}
    value_of_kind = stated_by_line | {
        name: stated_by_response[name] for name in sorted(stated_by_response.keys() - stated_by_line.keys())
    }
    return tuple(Statement(call_id, name, number) for name, number in value_of_kind.items())


def messages_of(messages: object) -> tuple[Message, ...]:
    """Returns the messages of a line; empty if it has none."""
    if messages is None:
        return ()
    if not isinstance(messages, list) or not all(
        isinstance(message, dict) and isinstance(message.get("role"), str) for message in messages
    ):
        raise ImportFileError(f'"messages" is {name_value(messages)}; expected a list of {{"role", "content"}}')
    return tuple(Message(message["role"], content_text(message.get("content"))) for message in messages)


def sampling_of(sampling: object) -> Sampling:
    """Returns how the tokens of a line's answer were drawn, as far as the line states it."""
    if sampling is None:
        return Sampling()
    if not isinstance(sampling, dict):
        raise ImportFileError(
            f'"sampling" is {name_value(sampling)}; expected {{"temperature", "top_p", "seed", "max_tokens"}}'
        )
    fields_given: dict[str, Any] = {}
    for key, bounds in {"temperature": (0.0, 100.0), "top_p": (0.0, 1.0)}.items():
        if sampling.get(key) is not None:
            fields_given[key] = _checked_number(sampling[key], f"sampling {key!r}", *bounds)
    for key in ("seed", "max_tokens"):
        value = sampling.get(key)
        if value is not None:
            if not isinstance(value, int) or not -(2**63) <= value < 2**63:
                raise ImportFileError(f"sampling {key!r} is {name_value(value)}; expected a whole number of 64 bits")
            fields_given[key] = value
    return Sampling(**fields_given)


def segments_of(record: dict[str, Any], tokens: int) -> dict[str, tuple[Segment, ...]]:
    """Returns {"segments": ...} if a line states segments of its answer's tokens; else an empty dictionary."""
    value = record.get("segments")
    if value is None:
        return {}
    segment_list = value if isinstance(value, list) else [value]
    names = ("kind", "start", "end")
    if not all(
        isinstance(segment, dict)
        and segment.keys() >= set(names)
        and type(segment["start"]) is type(segment["end"]) is int
        for segment in segment_list
    ):
        raise ImportFileError(
            f'"segments" is {name_value(value)}; expected a list of {{"kind", "start", "end"}}, the last two in tokens'
        )
    return {
        "segments": check_segments([Segment(*(segment[name] for name in names)) for segment in segment_list], tokens)
    }


def decisions_of(record: dict[str, Any], call_id: str) -> tuple[DecisionAnswer, ...]:
    """Returns the answers of the line's decisions. One judge may answer each question once."""
    value = record.get("decisions")
    decisions = () if value is None else value if isinstance(value, list) else [value]
    try:
        answers = tuple(answer for decision in decisions for answer in DecisionQuestion.read_answers(decision, call_id))
    except InvalidResponse as error:
        raise ImportFileError(f'"decisions": {error}') from error
    sources_and_questions = [(answer.source, answer.question) for answer in answers]
    if twice := next((pair for pair in sources_and_questions if sources_and_questions.count(pair) > 1), None):
        raise ImportFileError(
            f'"decisions": {twice[0] or "one judge"} answered {twice[1]!r} twice; expected one answer'
        )
    return answers


QUESTION_KEY = "question_id"
"""Key of a line that names its question. Without it the `group` names the question; without both each line is its own
question.
"""
_KEYS = """id group run_id model task stage agent logprobs_mode messages response labels verbalized_confidence sampling
    segments decisions"""
KEYS = (QUESTION_KEY, *_KEYS.split())
"""Keys that a line may have."""
LABEL_KEY = "correct"
"""Label that a line may have as a key of its own."""


def run_of_line(record: dict[str, Any], default_id: str, *, plain: bool = False) -> Run:
    """Returns the run of one line: an import line, a bare completion or response, or a line of Batch output.

    Raises `ImportFileError` or `InvalidResponse` without file and line, which only the caller knows.

    Args:
        record: the line.
        default_id: id of the run if the line has none.
        plain: whether a response without log-probabilities is allowed; its run has text and labels, and no numbers.
    """
    # The parts of the line.
    record = with_labels(_with_response(record))
    response = _parse_line_response(record, plain=plain)
    line_id, run_id, call_id = _ids(record, default_id)
    messages = messages_of(record.get("messages"))
    sampling = sampling_of(record.get("sampling"))
    measured_fields: dict[str, Any] = {}
    note = ""
    # Measurements of a response with log-probabilities or hidden states.
    if isinstance(response, ParsedResponse):
        note = "; ".join(filter(None, (response.note, response.top_fault)))
        field_names = ("tokens", "logprobs", "top_logprobs", "segments", "hidden")
        measured_fields = {name: getattr(response, name) for name in field_names}
        measured_fields |= segments_of(record, len(response.logprobs))
        if not len(response.logprobs):  # it came with hidden states alone
            measured_fields |= {"logprobs": None, "tokens": ()}
        model = string(record, "model") or response.model
        if response.hidden is not None and response.hidden.model == model:
            measured_fields["hidden"] = replace(response.hidden, model="")
        if response.temperature is not None and not record.get("sampling"):
            sampling = replace(sampling, temperature=response.temperature)
    # The mode of the log-probabilities: the line's, else the response's.
    mode: Any = record.get("logprobs_mode")
    mode = getattr(response, "logprobs_mode", "unknown") if mode is None else mode
    if mode not in get_args(LogprobsMode):
        modes = ", ".join(get_args(LogprobsMode))
        raise ImportFileError(f'"logprobs_mode" is {name_value(mode)}; expected one of {modes}')
    labels = labels_of(record.get("labels"), call_id)
    return Run(
        id=call_id,
        system=IMPORTED_SYSTEM,
        variant=run_id,
        item=Item(
            id=string(record, QUESTION_KEY, number=True) or line_id,
            question=next((message.content for message in reversed(messages) if message.role == "user"), ""),
            group=string(record, "group", number=True) or question_id_of(record, line_id),
            task=string(record, "task"),
        ),
        calls=(
            Call(
                id=call_id,
                stage=string(record, "stage"),
                agent=string(record, "agent"),
                model=string(record, "model") or response.model,
                messages=messages,
                text=response.text,
                sampling=sampling,
                logprobs_mode=mode,
                finish_reason=response.finish_reason,
                usage=response.usage,
                note=note,
                **measured_fields,
            ),
        ),
        statements=statements_of(record, response, call_id),
        labels=labels,
        decision_answers=decisions_of(record, call_id),
        final_answer=spoken_text(response.text),
        outcome=next((label.value for label in labels if label.name == "correct"), None),
    )


def _with_response(record: dict[str, Any]) -> dict[str, Any]:
    """Returns the line with its answer under `response`, whatever its original form."""
    if is_ollama_chunk(record) or ("response" not in record and is_native(record)):
        keys_of_line = {
            key: record[key] for key in (*KEYS, "correct") if key in record and key not in ("model", "response")
        }
        record = {**keys_of_line, "response": record}
    if "response" not in record and ("choices" in record or record.get("object") == "response"):
        record = {**{key: value for key, value in record.items() if key != "model"}, "response": record}
    if "response" not in record and isinstance(record.get("answers"), list):  # a bare Decision, of whatever text
        keys_of_line = {key: value for key, value in record.items() if key not in ("answers", "model", "usage")}
        record = {**keys_of_line, "decisions": {"answers": record["answers"], "model": record.get("model")}}
    if isinstance(record.get("agents"), dict) and "response" not in record:
        raise ImportFileError(
            'the line is an outcome of "agents", and no answer; expected answer lines: `metaprobe train router` reads'
            " outcomes as they are"
        )
    # A short line has one more key whose loss nothing else would show: how the answer ended.
    known_keys = KEYS if "response" in record else (*KEYS, FINISH_REASON)
    lacks_numbers = "response" not in record and record.get("logprobs") is None
    record = spelled_out(record)
    batch = record.get("response")
    if isinstance(batch, dict) and isinstance(batch.get("body"), dict):
        # A line of OpenAI's Batch output: the completion is the body, and `custom_id` is the user's own id.
        record = {**record, "id": record.get("custom_id", record.get("id")), "response": batch["body"]}
    for key in sorted(record.keys() - set(KEYS)):
        # A misspelt key would lose its data without a word; other keys are the user's own and are left alone.
        own_label = LABEL_KEY in key  # such as `incorrect`
        if close_keys := get_close_matches(key, known_keys if own_label else (*known_keys, LABEL_KEY), 1, cutoff=0.83):
            raise ImportFileError(f"unknown key {key!r}; did you mean {close_keys[0]!r}? rename it, or remove it")
        if lacks_numbers and "logprob" in key.lower() and isinstance(record[key], list):
            raise ImportFileError(f"unknown key {key!r}; a list of log-probabilities is called 'logprobs': rename it")
    if record.get("response") is None and not record.get("decisions"):
        if labels_alone(record.keys()):
            raise ImportFileError(f"the line {LABELS_ALONE.format(file='FILE')}")
        raise ImportFileError(
            f'"response" is missing (the keys are {sorted(record)}); expected a chat completion with log-probabilities'
        )
    return record


def spelled_out(record: dict[str, Any]) -> dict[str, Any]:
    """Returns the line with `messages` in place of `question`, and `response` in place of `answer`.

    The keys `logprobs`, `tokens` and `finish_reason` become parts of the response. A line that has messages, or a
    response, keeps its own. Raises `ImportFileError` if the question is no text, or the log-probabilities are no list.
    """
    if record.get("messages") is None and record.get("question") is not None:
        messages = [{"role": "user", "content": string(record, "question")}]
        record = {**{key: value for key, value in record.items() if key != "question"}, "messages": messages}
    if "response" not in record and isinstance(record.get("answer"), str):
        completion = completion_of(record["answer"], record)
        other_keys = {key: value for key, value in record.items() if key not in ("answer", *FIELDS_BESIDE_TEXT)}
        record = {**other_keys, "response": completion}
    return record


def _parse_line_response(record: dict[str, Any], *, plain: bool) -> ParsedResponse | ParsedText:
    """Returns the line's parsed response. It must have log-probabilities, unless `plain` or the line states a
    confidence.
    """
    if record.get("response") is None:  # decisions about a text that was not kept
        return ParsedText("")
    try:
        return parse_response(record["response"])
    except NoLogprobs as error:
        if record.get("verbalized_confidence") is None and not record.get("decisions") and not plain:
            hint = NoLogprobs(
                f'{error}. With a "verbalized_confidence" or "decisions" the line is taken as it is, for these alone;'
                " with --plain, for another model to read (metaprobe extract --logprobs MODEL)"
            )
            hint.placeholders = error.placeholders
            raise hint from error
        return text_of_line(record)


def text_of_line(record: dict[str, Any]) -> ParsedText:
    """Returns the text of a line's response, without its log-probabilities. Raises `InvalidResponse` if there is no
    answer.
    """
    response = _with_response(record).get("response")
    if response is None:  # decisions about a text that was not kept
        return ParsedText("")
    if isinstance(response, (str, bytes)):
        response = from_json(response)
    return parse_text(as_completion(response) if isinstance(response, Mapping) else response)


def without_token_logprobs(response: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a response as a chat completion without log-probabilities."""
    completion = as_completion(response)
    return {**completion, "choices": [{**choice, "logprobs": None} for choice in completion["choices"]]}


def id_of_line(record: dict[str, Any], default_id: str) -> str:
    """Returns the id of a line's run, even if the rest of the line is wrong."""
    try:
        return _ids(record, default_id)[2]
    except ImportFileError:
        return default_id


OTHER_IDS = ("custom_id", "request_id", "trace_id", "response_id")
"""Keys that name the answer in logs of other programs. They are read if the line has no `id`. If the line has none of
them, the response's own id is the name.
"""


def answer_id_of(record: dict[str, Any], number: int) -> str:
    """Returns the name under which an answer's verdict is written out, even if the rest of the line is wrong.

    It is the line's `id`; else the first of `OTHER_IDS`; else the id of its response, or of the response that the line
    is; else `line-N`. A `run_id` stands before it. A number is taken as text.
    """
    response = record.get("response")
    body = response.get("body", response) if isinstance(response, dict) else {}
    candidates = [record.get(key) for key in OTHER_IDS] + [body.get("id") if isinstance(body, dict) else None]
    texts = [str(name).strip() for name in candidates if isinstance(name, str | int) and not isinstance(name, bool)]
    return id_of_line(record, next(filter(None, texts), f"line-{number}"))


def _ids(record: dict[str, Any], default_id: str) -> tuple[str, str, str]:
    """Returns (id of the line, its run_id, both joined). In Batch output the user's own id is `custom_id`."""
    response = record.get("response")
    # A request that failed has no response. A line with its answer under "answer" is no line of Batch output.
    has_failed = response is None and "answer" not in record
    is_batch_line = isinstance(response.get("body"), dict) if isinstance(response, dict) else has_failed
    id_key = "custom_id" if isinstance(record.get("custom_id"), str) and is_batch_line else "id"
    line_id = string(record, id_key, number=True) or default_id
    run_id = string(record, "run_id", number=True)
    return line_id, run_id, f"{run_id}/{line_id}" if run_id else line_id


def question_id_of(record: dict[str, Any], line_id: str) -> str:
    """Returns the id of a line's question. Answers to one question are samples, of which a panel keeps one."""
    return string(record, QUESTION_KEY, number=True) or string(record, "group", number=True) or line_id


_JSON_COLUMNS = ("messages", "labels", "sampling", "segments")
_LABEL_PREFIX = "labels."
_COLUMNS_NOT_COPIED = ("question", "answer", *FIELDS_BESIDE_TEXT)
_TRUTH = {"1": 1, "1.0": 1, "true": 1, "0": 0, "0.0": 0, "false": 0}

# Columns of a table of MLflow's: of runs, of traces, and of an evaluation.
_MLFLOW_RUNS = frozenset(("Run ID", "Start Time"))
_MLFLOW_TRACES = frozenset(
    "trace trace_metadata request_metadata spans execution_duration execution_time_ms assessments".split()
)
_MLFLOW_SCORE = re.compile(r"/v\d+/(?:score|justification)\Z|/(?:value|rationale)\Z")
MLFLOW = (
    "the CSV is an export of MLflow, whose cells hold no log-probabilities of tokens; expected columns `response` and"
    ' `logprobs`, or answer lines: write what each model span returned (mlflow.search_traces(return_type="list"), then'
    ' the outputs of its spans) as {"response": ...}; as JSON, MLflow\'s assessments are read by `metaprobe feedback`'
)


LABELS_ALONE = (
    'holds a label by id, and no answer; expected the label in the line of its answer, as "correct" beside "response"'
    " (docs/start.md joins them by id). Labels of a score log go into it as they are:"
    " metaprobe feedback {file} --log LOG"
)
_ID_KEYS = frozenset(("id", "request_id"))
_LABEL_KEYS = frozenset(("correct", "label", "labels"))
_KEYS_BESIDE_LABELS = frozenset("group question_id run_id task model stage agent who source time".split())


def labels_alone(names: Set[str]) -> bool:
    """Returns whether these column names or keys belong to labels with ids, without answers."""
    labels = {name for name in names if name in _LABEL_KEYS or name.startswith(_LABEL_PREFIX)}
    return bool(labels and names & _ID_KEYS) and names <= labels | _ID_KEYS | _KEYS_BESIDE_LABELS


def answer_records(
    path: Path, *, on_error: OnError | None = None, on_bytes: OnBytes | None = None
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields (number from 1, answer line) for each line of JSON, row of CSV or row of Parquet; arguments as
    `records_of`."""
    return (_csv_lines if is_csv(path) else records_of)(path, on_error=on_error, on_bytes=on_bytes)


def _csv_lines(
    path: Path, *, on_error: OnError | None = None, on_bytes: OnBytes | None = None
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields (line number, answer line) for each row of a CSV file.

    If there is a column `logprobs`, `response` is the text of the answer. `logprobs` is a JSON list of numbers, with
    `tokens` as a JSON list of strings beside it, or a list of {token, logprob, top_logprobs}. Without that column,
    `response` is a whole response as JSON, or a text without log-probabilities. `answer`, in its place, is always a
    text. `question` is the user's message, `correct` is 1, 0, true or false, and `labels.NAME` is a label of that name.
    `messages`, `labels`, `sampling` and `segments` are JSON; other columns are taken unchanged. A bad row raises
    `ImportFileError`, or is passed to `on_error`.

    Args:
        path: the file.
        on_error: called with the error about each bad row; by default the error is raised.
        on_bytes: called with the number of bytes read so far.
    """
    for number, row in iter_csv(path, on_error=on_error, on_bytes=on_bytes):
        names = row.keys()
        has_traces = bool(names & {"trace_id", "request_id"}) and bool(names & _MLFLOW_TRACES)
        if names >= _MLFLOW_RUNS or has_traces or any(map(_MLFLOW_SCORE.search, names)):
            raise ImportFileError(f"{path}: {MLFLOW}")
        if labels_alone(row.keys()):
            raise ImportFileError(f"{path}: the table {LABELS_ALONE.format(file=quote(str(path)))}")
        if not row.keys() & {"response", "answer"}:
            raise ImportFileError(
                f"{path}: the columns are {', '.join(row)[:200]}; expected `response` or `answer`, the answer's text,"
                " and beside it `logprobs` as a JSON list: rename the column. A table with a column of scores a model"
                " holds outcomes (metaprobe train router, panel or success)"
            )
        try:
            line = _record_of_row(row)
        except ImportFileError as error:
            hand_over(at_line(path, number, error, row), on_error, error)
        else:
            yield number, RawLine(line, row.raw, row.head) if isinstance(row, RawLine) else line


def _record_of_row(cells: Mapping[str, str]) -> dict[str, Any]:
    """Returns a row of a table as the object that a line of JSON would hold.

    Columns `label.NAME` become its labels, and the question and answer become messages and a response.
    """
    row = {name: cell for name, cell in cells.items() if cell.strip()}
    line: dict[str, Any] = {
        name: cell for name, cell in row.items() if name not in _COLUMNS_NOT_COPIED and name[:7] != _LABEL_PREFIX
    }
    for name in _JSON_COLUMNS:
        if name in row:
            line[name] = _cell_json(name, row[name])
    labels = {
        name.removeprefix(_LABEL_PREFIX): _cell_number(name, cell)
        for name, cell in row.items()
        if name.startswith(_LABEL_PREFIX)
    }
    if labels:
        stated_labels = line.get("labels", {})
        if not isinstance(stated_labels, dict) or stated_labels.keys() & labels.keys():
            raise ImportFileError(
                f'"labels" is {name_value(stated_labels)}; expected an object without {", ".join(labels)}'
            )
        line["labels"] = stated_labels | labels
    if "correct" in row:
        if (value := _TRUTH.get(row["correct"].strip().lower())) is None:
            raise ImportFileError(f'"correct" is {name_value(row["correct"])}; expected 1, 0, true or false')
        line["correct"] = value
    if "verbalized_confidence" in row:
        line["verbalized_confidence"] = _cell_number("verbalized_confidence", row["verbalized_confidence"])
    if "question" in row:
        if "messages" in row:
            raise ImportFileError('the row has "question" and "messages"; expected one of the two')
        line["messages"] = [{"role": "user", "content": row["question"]}]
    if "response" in row:
        if "logprobs" not in cells and row["response"].lstrip().startswith("{"):
            line["response"] = _cell_json("response", row["response"])
        else:
            line["response"] = completion_of(row["response"], row | _lists(row))
    elif "answer" in row:
        line["response"] = completion_of(row["answer"], row | _lists(row))
    return line


def _lists(row: Mapping[str, str]) -> dict[str, Any]:
    return {name: _cell_json(name, row[name]) for name in ("logprobs", "tokens") if name in row}


def _cell_json(name: str, cell: str) -> Any:
    try:
        return json.loads(cell)
    except (ValueError, RecursionError) as error:
        raise ImportFileError(f'the cell under "{name}" is no JSON ({error}); expected JSON') from error


def _cell_number(name: str, cell: str) -> float:
    try:
        return float(cell)
    except ValueError as error:
        raise ImportFileError(f'"{name}" is {name_value(cell)}; expected a number') from error
