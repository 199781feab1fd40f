"""Recorded OpenAI-format responses, one JSON object a line, as runs. Standard library and NumPy only.

    {"id", "group", "messages", "response": <chat completion with logprobs>, "labels": {"correct": 0|1, ...},
     "verbalized_confidence": 0..1 or null, "model", "task", "stage", "agent", "run_id", "sampling", "logprobs_mode"}

Only `response` is required.
"""

import gzip
import json
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from metaprobe.records.errors import ImportFileError, InvalidResponse
from metaprobe.records.openai_format import content_text, parse_response
from metaprobe.records.types import Call, Item, Label, LogprobsMode, Message, Run, Sampling, Statement

if TYPE_CHECKING:
    from metaprobe.records.store import RunStore  # needs pyarrow, which reading and scoring lines do not

_HUGE = 1e300
_LABEL_BOUNDS = {"correct": (0.0, 1.0), "critical": (0.0, 1.0)}

MAX_LINE = 64 << 20
"""Bytes of one line; a response of 512 tokens with 15 alternatives each has 0.6 MB."""

OnError = Callable[[ImportFileError], None]

KEYS = (
    "id",
    "group",
    "run_id",
    "model",
    "task",
    "stage",
    "agent",
    "logprobs_mode",
    "messages",
    "response",
    "labels",
    "verbalized_confidence",
    "sampling",
)


@dataclass(frozen=True, slots=True)
class ImportReport:
    """What became of the lines of an import file."""

    imported: int
    already_stored: int
    """Lines whose run the store held before, so that importing again adds nothing twice."""
    skipped: tuple[str, ...]
    """What was wrong with each line that was passed over, naming file and line."""
    labelled: int = 0
    """Imported lines with at least one label."""
    groups: int = 0
    """Different groups among the imported lines: as many as lines where none gives a group."""


def import_file(path: str | Path, store: "RunStore", *, on_error: Literal["stop", "skip"] = "stop") -> ImportReport:
    """Adds the lines of a file to a store.

    With `stop` the first bad line raises `ImportFileError`; the lines before it are stored, and importing again after
    mending the line goes on from there. With `skip` bad lines are passed over and reported. Lines are known by their
    ids: two files whose lines have none need different names, or the second counts as already stored.
    """
    stored = store.run_ids()
    skipped: list[str] = []
    imported = already_stored = labelled = 0
    groups: set[tuple[str, str]] = set()
    with store.writer() as writer:
        for run in read_openai_lines(path, on_error=None if on_error == "stop" else lambda e: skipped.append(str(e))):
            if run.id in stored:
                already_stored += 1
            else:
                writer.add(run)
                imported += 1
                labelled += bool(run.labels)
                groups.add((run.item.task, run.item.group))
    return ImportReport(imported, already_stored, tuple(skipped), labelled, len(groups))


def read_openai_lines(path: str | Path, *, on_error: OnError | None = None) -> Iterator[Run]:
    """One run with one call for each line. A bad line raises `ImportFileError`, or goes to `on_error` if given.

    The run's id is the line's `id`, after `run_id` and a slash where that is given, so that two collections over the
    same questions can share a store; the call has the same id. A line without an id is called FILE-line-N, N counting
    every line of the file from 1.
    """
    path = Path(path)
    stem = path.name.removesuffix(".gz").removesuffix(".jsonl")
    lines: dict[str, int] = {}
    for number, record in iter_json_lines(path, on_error=on_error):
        try:
            run = run_of_line(record, f"{stem}-line-{number}")
            if run.id in lines:
                raise ImportFileError(
                    f"id {run.id!r} was already used on line {lines[run.id]}; expected every line to have its own:"
                    ' lines about one question share a "group", repeated collections differ in "run_id"'
                )
        except (ImportFileError, InvalidResponse) as problem:
            error = _at(path, number, str(problem))
            if on_error is None:
                raise error from problem
            on_error(error)
        else:
            lines[run.id] = number
            yield run


def iter_json_lines(path: str | Path, *, on_error: OnError | None = None) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line number from 1, object) for each line of a .jsonl or .jsonl.gz file; blank lines are passed over.

    A bad line raises `ImportFileError`, or is handed to `on_error` and passed over.
    """
    path = Path(path)
    for number, raw in _raw_lines(path):
        try:
            record = _object(raw)
        except ImportFileError as problem:
            error = _at(path, number, str(problem))
            if on_error is None:
                raise error from problem
            on_error(error)
        else:
            yield number, record


def _raw_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Lines as bytes, so that what is not UTF-8 can be named with its line. A file that breaks off always raises."""
    number = 0
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            for number, raw in enumerate(iter(lambda: file.readline(MAX_LINE + 1), b""), 1):
                if len(raw) > MAX_LINE:  # a few kilobytes of gzip can unpack to a line that fills the memory
                    raise _at(path, number, f"the line is longer than {MAX_LINE} bytes; expected one response a line")
                # Some editors put a mark in front.
                line = raw.removeprefix(b"\xef\xbb\xbf") if number == 1 else raw
                if line.strip():
                    yield number, line.rstrip(b"\r\n")
    except FileNotFoundError as error:
        raise ImportFileError(f"{path}: there is no such file; expected JSON lines (.jsonl or .jsonl.gz)") from error
    except IsADirectoryError as error:
        raise ImportFileError(f"{path} is a folder; expected a file of JSON lines (.jsonl or .jsonl.gz)") from error
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise _at(
            path, number + 1, f"the gzip file is damaged or cut off here ({error}); copy or make it again"
        ) from error


def _object(raw: bytes) -> dict[str, Any]:
    try:
        record = json.loads(raw.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise ImportFileError(
            f"byte {error.start + 1} (0x{raw[error.start]:02x}) is not UTF-8; convert the file, for instance with iconv"
        ) from error
    except (ValueError, RecursionError) as error:
        # Its own message would speak of "line 1" of this line.
        what = f"{error.msg}, column {error.colno}" if isinstance(error, json.JSONDecodeError) else error
        raise ImportFileError(
            f"not JSON: {what} (the line is {len(raw)} bytes long); expected one whole JSON object a line:"
            " if it was cut off, write it again or remove it"
        ) from error
    if not isinstance(record, dict):
        raise ImportFileError(f"came {_named(record)}; expected one JSON object a line")
    return record


def run_of_line(record: dict[str, Any], default_id: str) -> Run:
    """The run that one line tells of. A bare completion or response, or a line of Batch output, will do as well.

    Raises `ImportFileError` or `InvalidResponse` without file and line, which only the caller knows.
    """
    if "response" not in record and ("choices" in record or record.get("object") == "response"):
        record = {"id": record.get("id"), "response": record}
    batch = record.get("response")
    if isinstance(batch, dict) and isinstance(batch.get("body"), dict):
        # A line of OpenAI's Batch output: the completion is the body, and `custom_id` is the user's own id.
        record = {**record, "id": record.get("custom_id", record.get("id")), "response": batch["body"]}
    for key in sorted(record.keys() - set(KEYS)):
        # A misspelt key would lose its data without a word; other keys are the user's own and are left alone.
        if near := get_close_matches(key, KEYS, 1, cutoff=0.85):
            raise ImportFileError(f"unknown key {key!r}; did you mean {near[0]!r}? rename it, or remove it")
    if record.get("response") is None:
        raise ImportFileError(
            f'"response" is missing (the keys are {sorted(record)}); expected a chat completion with log-probabilities'
        )
    response = parse_response(record["response"])
    line_id, run_id, id = _ids(record, default_id)
    messages = _messages(record.get("messages"))
    sampling = _sampling(record.get("sampling"))
    if response.temperature is not None and not record.get("sampling"):
        sampling = replace(sampling, temperature=response.temperature)
    labels = _labels(record.get("labels"), id)
    return Run(
        id=id,
        system="import",
        variant=run_id,
        item=Item(
            id=line_id,
            question=next((message.content for message in reversed(messages) if message.role == "user"), ""),
            group=_text(record, "group", number=True) or line_id,
            task=_text(record, "task"),
        ),
        calls=(
            Call(
                id=id,
                stage=_text(record, "stage"),
                agent=_text(record, "agent"),
                model=_text(record, "model") or response.model,
                messages=messages,
                text=response.text,
                tokens=response.tokens,
                logprobs=response.logprobs,
                top_logprobs=response.top_logprobs,
                sampling=sampling,
                logprobs_mode=_mode(record.get("logprobs_mode"), response.logprobs_mode),
                finish_reason=response.finish_reason,
                usage=response.usage,
            ),
        ),
        statements=_statements(record, id),
        labels=labels,
        final_answer=response.text,
        outcome=next((label.value for label in labels if label.name == "correct"), None),
    )


def id_of_line(record: dict[str, Any], default_id: str) -> str:
    """The id that the run of this line has, or would have if the line were right."""
    try:
        return _ids(record, default_id)[2]
    except ImportFileError:
        return default_id


def _ids(record: dict[str, Any], default_id: str) -> tuple[str, str, str]:
    """(the line's id, its run_id, both together)."""
    line_id = _text(record, "id", number=True) or default_id
    run_id = _text(record, "run_id", number=True)
    return line_id, run_id, f"{run_id}/{line_id}" if run_id else line_id


def _text(record: dict[str, Any], key: str, *, number: bool = False) -> str:
    value = record.get(key)
    if value is None:
        return ""
    if number and isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str):
        raise ImportFileError(f'"{key}" is {_named(value)}; expected a string')
    return value


def _number(value: object, name: str, low: float = -_HUGE, high: float = _HUGE) -> float:
    """A finite number in [low, high]. True and False are 1 and 0, as labels are often written so."""
    if not isinstance(value, (int, float)) or not low <= value <= high:  # a NaN fails the comparison
        bounds = "a finite number" if high == _HUGE else f"a number from {low:g} to {high:g}"
        raise ImportFileError(f"{name} is {_named(value)}; expected {bounds}")
    return float(value)


def _labels(labels: object, call_id: str) -> tuple[Label, ...]:
    """A label of null says that nobody knows, and is left out."""
    if labels is None:
        return ()
    if not isinstance(labels, dict):
        raise ImportFileError(f'"labels" is {_named(labels)}; expected an object such as {{"correct": 1}}')
    return tuple(
        Label(call_id, name, _number(value, f"label {name!r}", *_LABEL_BOUNDS.get(name, (-_HUGE, _HUGE))), "import")
        for name, value in labels.items()
        if value is not None
    )


def _statements(record: dict[str, Any], call_id: str) -> tuple[Statement, ...]:
    """A confidence of null says that the model was asked and stated nothing; without the key it was not asked."""
    if "verbalized_confidence" not in record:
        return ()
    value = record["verbalized_confidence"]
    stated = None if value is None else _number(value, '"verbalized_confidence"', 0.0, 1.0)
    return (Statement(call_id, "confidence", stated),)


def _messages(messages: object) -> tuple[Message, ...]:
    if messages is None:
        return ()
    if not isinstance(messages, list) or not all(
        isinstance(m, dict) and isinstance(m.get("role"), str) for m in messages
    ):
        raise ImportFileError(f'"messages" is {_named(messages)}; expected a list of {{"role", "content"}}')
    return tuple(Message(message["role"], content_text(message.get("content"))) for message in messages)


def _sampling(sampling: object) -> Sampling:
    if sampling is None:
        return Sampling()
    if not isinstance(sampling, dict):
        raise ImportFileError(
            f'"sampling" is {_named(sampling)}; expected {{"temperature", "top_p", "seed", "max_tokens"}}'
        )
    given: dict[str, Any] = {}
    for key, bounds in {"temperature": (0.0, 100.0), "top_p": (0.0, 1.0)}.items():
        if sampling.get(key) is not None:
            given[key] = _number(sampling[key], f"sampling {key!r}", *bounds)
    for key in ("seed", "max_tokens"):
        value = sampling.get(key)
        if value is not None:
            if not isinstance(value, int) or not -(2**63) <= value < 2**63:
                raise ImportFileError(f"sampling {key!r} is {_named(value)}; expected a whole number of 64 bits")
            given[key] = value
    return Sampling(**given)


def _mode(mode: object, unstated: LogprobsMode) -> LogprobsMode:
    if mode is None:
        return unstated
    for known in get_args(LogprobsMode):
        if mode == known:
            return known  # type: ignore[no-any-return]
    raise ImportFileError(f'"logprobs_mode" is {_named(mode)}; expected one of {", ".join(get_args(LogprobsMode))}')


def _named(value: object) -> str:
    """A value as it stands in the file, short, with what it is."""
    text = json.dumps(value, ensure_ascii=False)
    return f"{text if len(text) <= 60 else text[:57] + '...'} ({type(value).__name__})"


def _at(path: Path, number: int, what: str) -> ImportFileError:
    error = ImportFileError(f"{path}:{number}: {what}")
    error.line = number
    return error
