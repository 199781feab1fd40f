"""Recorded OpenAI-format responses, one JSON object a line, as runs. Standard library and NumPy only.

    {"id", "group", "messages", "response": <chat completion with logprobs>, "labels": {"correct": 0|1, ...},
     "verbalized_confidence": 0..1 or null, "model", "task", "stage", "agent", "run_id", "sampling", "logprobs_mode"}

Only `response` is required; an answer without log-probabilities needs a `verbalized_confidence`.
"""

import gzip
import json
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from metaprobe.records.errors import ImportFileError, InvalidResponse, NoLogprobs, RecordError
from metaprobe.records.line_fields import (
    labels_of,
    messages_of,
    mode_of,
    name_value,
    notes_of,
    sampling_of,
    segments_of,
    statements_of,
    string,
)
from metaprobe.records.openai_format import ParsedResponse, ParsedText, parse_response, parse_text
from metaprobe.records.segments import spoken_text
from metaprobe.records.types import Call, Item, Run

if TYPE_CHECKING:
    from metaprobe.records.store import RunStore  # needs pyarrow, which reading and scoring lines do not

LOWEST = -9999.0
"""What OpenAI and vLLM write for a token that is not among the likeliest. No model says less of a token that it drew;
what is lower is a mask, as -1e9, -1e30 or the lowest float32."""

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
    "segments",
)


@dataclass(frozen=True, slots=True)
class ImportReport:
    """What became of the lines of an import file."""

    imported: int
    already_stored: int
    """Lines whose answer the store held before, so that importing again adds nothing twice."""
    skipped: tuple[str, ...]
    """What was wrong with each line that was passed over, naming file and line."""
    labelled: int = 0
    """Lines with at least one label, of those imported and those already stored."""
    groups: int = 0
    """Different groups among all these lines: as many as lines where none gives a group."""
    relabelled: int = 0
    """Lines already stored that said something else of their answer (labels, group, confidence, prompt, ...)."""
    notes: tuple[str, ...] = ()
    """What looks like a label or a prompt in the wrong place: each key once, naming the first line that has it."""
    without_logprobs: int = 0
    """Lines that came without log-probabilities, and are there for their stated confidence alone."""


def import_file(
    path: str | Path,
    store: "RunStore",
    *,
    on_error: Literal["stop", "skip"] = "stop",
    on_line: Callable[[], object] = lambda: None,
) -> ImportReport:
    """Adds the lines of a file to a store.

        >>> from metaprobe.records.store import RunStore
        >>> answer = {"message": {"content": "4"}, "logprobs": {"content": [{"token": "4", "logprob": -0.1}]}}
        >>> line = {"id": "q1", "labels": {"correct": 1}, "response": {"choices": [answer]}}
        >>> _ = Path("lines.jsonl").write_text(json.dumps(line))
        >>> import_file("lines.jsonl", RunStore("imported")).imported
        1

    With `stop` the first bad line raises `ImportFileError`; the lines before it are stored, and importing again after
    mending the line goes on from there. With `skip` bad lines are passed over and reported. Lines are known by their
    ids: what a line says of an answer that is stored already replaces what was said before, and keys that it leaves
    out stay as they are. An id that is stored with another answer or prompt makes a line bad, so two files whose lines
    have no ids need different names. `on_line` is called at every line that was read. Raises `RecordError` where the
    store's folder holds other files and no runs.
    """
    path = Path(path)
    _check_folder(store.path)
    with store.alone():  # what is stored is not stored again, nor told by another process meanwhile
        return _imported(path, store, on_error, on_line)


def _imported(
    path: Path, store: "RunStore", on_error: Literal["stop", "skip"], on_line: Callable[[], object]
) -> ImportReport:
    from metaprobe.records.relabel import relabel  # needs pyarrow

    stored = store.run_ids()
    skipped: list[str] = []
    notes: dict[str, str] = {}
    again: list[Line] = []
    imported = labelled = bare = 0
    groups: set[tuple[str, str]] = set()
    try:
        with store.writer() as writer:
            for line in _lines(path, on_error=None if on_error == "stop" else lambda e: skipped.append(str(e))):
                on_line()
                if line.run.id in stored:
                    again.append(line.without_answer())
                else:
                    writer.add(line.run)
                    imported += 1
                labelled += bool(line.run.labels)
                bare += line.run.calls[0].logprobs is None
                groups.add((line.run.item.task, line.run.item.group))
                for key, note in notes_of(line.record):
                    notes.setdefault(key, str(_at(path, line.number, note)))
    finally:
        relabelled, others = relabel(store, again)
    errors = [
        _at(
            path,
            line.number,
            f"id {line.run.id!r} is stored with another answer or prompt (as of {len(others)} lines); expected an id to"
            ' stand for one answer: repeated collections differ in "run_id", or go into another store',
        )
        for line in others
    ]
    if errors and on_error == "stop":
        raise errors[0]
    return ImportReport(
        imported,
        len(again) - len(others),
        (*skipped, *map(str, errors)),
        labelled,
        len(groups),
        relabelled,
        tuple(notes.values()),
        bare,
    )


def _check_folder(folder: Path) -> None:
    """Raises `RecordError` for a folder that holds other files and no runs; hidden ones do not count."""
    names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    others = [name for name in names if not name.startswith(".")]
    if others and not any(name.startswith("runs-") and name.endswith(".parquet") for name in others):
        raise RecordError(
            f"{folder} is no run store: it holds {', '.join(others[:3])}{', ...' if len(others) > 3 else ''}; expected"
            f" a run store, an empty folder, or a new one, such as {folder / 'runs'}"
        )


def read_openai_lines(path: str | Path, *, on_error: OnError | None = None) -> Iterator[Run]:
    """One run with one call for each line. A bad line raises `ImportFileError`, or goes to `on_error` if given.

    The run's id is the line's `id`, after `run_id` and a slash where that is given, so that two collections over the
    same questions can share a store; the call has the same id. A line without an id is called FILE-line-N, N counting
    every line of the file from 1.
    """
    return (line.run for line in _lines(Path(path), on_error=on_error))


@dataclass(frozen=True, slots=True)
class Line:
    """A line that was read, with its number."""

    number: int
    record: dict[str, Any]
    run: Run

    def without_answer(self) -> "Line":
        """The same without what takes room: thousands of lines are held until they are compared with the store."""
        # Of an answer without log-probabilities the text is all that it can be known again by.
        texts = [call.text if call.logprobs is None else "" for call in self.run.calls]
        calls = tuple(
            replace(call, text=text, tokens=(), top_logprobs=None)
            for call, text in zip(self.run.calls, texts, strict=True)
        )
        record = {key: value for key, value in self.record.items() if key in KEYS and key != "response"}
        return replace(self, record=record, run=replace(self.run, calls=calls, final_answer=""))


def _lines(path: Path, *, on_error: OnError | None) -> Iterator[Line]:
    stem = path.name.removesuffix(".gz").removesuffix(".jsonl")
    lines: dict[str, int] = {}
    for number, record in iter_json_lines(path, on_error=on_error):
        try:
            run = run_of_line(record, f"{stem}-line-{number}")
            _check_lowest(run)
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
            yield Line(number, record, run)


def _check_lowest(run: Run) -> None:
    """A scored answer may hold such a number; fits on a few of them would learn nothing else."""
    logprobs = run.calls[0].logprobs
    if logprobs is not None and logprobs.min() < LOWEST:
        token = int(logprobs.argmin())
        raise ImportFileError(
            f"the log-probability of token {token} (of {logprobs.size}) is {logprobs[token]:g}; expected at least"
            f" {LOWEST:g}: what is lower stands for minus infinity, a token that the sampler ruled out, so ask the"
            " server for raw log-probabilities (before temperature, top-k and top-p), or leave this line out"
        )


def iter_json_lines(path: str | Path, *, on_error: OnError | None = None) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line number from 1, object) for each line of a .jsonl or .jsonl.gz file; blank lines are passed over.

    A bad line raises `ImportFileError`, or is handed to `on_error` and passed over. A file that is one JSON document,
    spread over its lines, always raises.
    """
    path = Path(path)
    first = True
    for number, raw in _raw_lines(path):
        if first and (opening := raw.strip()) in (b"[", b"{", b"[{"):
            raise ImportFileError(
                f"{path} is one JSON document spread over many lines; expected one object a line:"
                f" jq -c '{'.' if opening == b'{' else '.[]'}' {path.name} > lines.jsonl"
            )
        first = False
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
        raise ImportFileError(f"came {name_value(record)}; expected one JSON object a line")
    return record


def run_of_line(record: dict[str, Any], default_id: str) -> Run:
    """The run that one line tells of. A bare completion or response, or a line of Batch output, will do as well.

    Raises `ImportFileError` or `InvalidResponse` without file and line, which only the caller knows.
    """
    if "response" not in record and ("choices" in record or record.get("object") == "response"):
        record = {**{key: value for key, value in record.items() if key != "model"}, "response": record}
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
    response = _answer(record)
    line_id, run_id, id = _ids(record, default_id)
    messages = messages_of(record.get("messages"))
    sampling = sampling_of(record.get("sampling"))
    measured: dict[str, Any] = {}
    if isinstance(response, ParsedResponse):
        measured = {name: getattr(response, name) for name in ("tokens", "logprobs", "top_logprobs", "segments")}
        measured |= segments_of(record, len(response.logprobs))
        if response.temperature is not None and not record.get("sampling"):
            sampling = replace(sampling, temperature=response.temperature)
    labels = labels_of(record.get("labels"), id)
    return Run(
        id=id,
        system="import",
        variant=run_id,
        item=Item(
            id=line_id,
            question=next((message.content for message in reversed(messages) if message.role == "user"), ""),
            group=string(record, "group", number=True) or line_id,
            task=string(record, "task"),
        ),
        calls=(
            Call(
                id=id,
                stage=string(record, "stage"),
                agent=string(record, "agent"),
                model=string(record, "model") or response.model,
                messages=messages,
                text=response.text,
                sampling=sampling,
                logprobs_mode=mode_of(record.get("logprobs_mode"), getattr(response, "logprobs_mode", "unknown")),
                finish_reason=response.finish_reason,
                usage=response.usage,
                **measured,
            ),
        ),
        statements=statements_of(record, id),
        labels=labels,
        final_answer=spoken_text(response.text),
        outcome=next((label.value for label in labels if label.name == "correct"), None),
    )


def _answer(record: dict[str, Any]) -> ParsedResponse | ParsedText:
    """What the line's response says; without log-probabilities only where the line has a stated confidence."""
    try:
        return parse_response(record["response"])
    except NoLogprobs as error:
        if record.get("verbalized_confidence") is None:
            raise NoLogprobs(
                f'{error}. With a "verbalized_confidence" the line is taken as it is, for that confidence alone'
            ) from error
        return parse_text(record["response"])


def id_of_line(record: dict[str, Any], default_id: str) -> str:
    """The id that the run of this line has, or would have if the line were right."""
    try:
        return _ids(record, default_id)[2]
    except ImportFileError:
        return default_id


def _ids(record: dict[str, Any], default_id: str) -> tuple[str, str, str]:
    """(the line's id, its run_id, both together)."""
    line_id = string(record, "id", number=True) or default_id
    run_id = string(record, "run_id", number=True)
    return line_id, run_id, f"{run_id}/{line_id}" if run_id else line_id


def _at(path: Path, number: int, what: str) -> ImportFileError:
    error = ImportFileError(f"{path}:{number}: {what}")
    error.line = number
    return error
