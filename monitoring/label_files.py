"""Labels out of files: JSON lines and CSV of one's own, and what other programs export."""

import csv
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from metaprobe.monitoring.label_values import label_value
from metaprobe.monitoring.log import FeedbackLabel
from metaprobe.monitoring.sheet_files import ANSWERED
from metaprobe.records.compressed import is_damage, opened
from metaprobe.records.errors import ImportFileError
from metaprobe.records.json_lines import iter_json_lines

Record = Mapping[str, Any]
LISTS = ("data", "traces", "assessments", "annotations", "scores", "feedback")
"""Keys under which a document holds its records."""
IDS = ("request_id", "metaprobe.request_id", "metaprobe_request_id", "metaprobe-request-id")
"""Under which an answer's id is looked for first, also in a record's metadata."""
SHEET = frozenset("request_id model tags question answer label".split())
"""Keys of a line that `metaprobe sample` wrote. Before it told `ANSWERED`, the time on it was the answer's."""
MILLISECONDS = 1e11
"""A time above that is in milliseconds."""


@dataclass(frozen=True, slots=True)
class Said:
    """One thing that a record says."""

    name: str
    """What was judged, such as `correctness`; empty where the program has one kind only."""
    request_id: str
    value: Any
    who: str
    time: object


@dataclass(frozen=True, slots=True)
class FeedbackFormat:
    """One format of labels."""

    name: str
    what: str
    read: Callable[[Record], Iterator[Said]]
    keys: tuple[frozenset[str], ...]
    """Keys of its records, any of these sets of them."""


def read_label_file(path: str | Path, form: str = "auto", *, name: str = "", id_key: str = "") -> list[FeedbackLabel]:
    """The labels in a file, in its order.

    `form`: one of `NAMES`, or `auto`, which goes by the first record's keys. `name`: what was judged, where the file
    holds labels of several kinds. `id_key`: where the answer's id stands, such as `observationId` or `metadata.id`.
    Raises `ImportFileError` naming the record for what is no label, and where `name` is needed.
    """
    path = Path(path)
    records = list(_records(path))
    if not records:
        raise ImportFileError(f"{path} holds no records; expected labels as {', '.join(NAMES)}")
    chosen = _format_of(path, form, records)
    said = [(number, one) for number, record in records for one in _read(path, number, chosen, record, id_key)]
    if not said and records[0][1].keys() >= SHEET:
        raise ImportFileError(f'{path} is a sheet without any label; put 1, 0 or "unsure" into `label`')
    names = sorted({one.name for _, one in said if one.name})
    if name and name not in names:
        raise ImportFileError(f"{path}: nothing is called {name!r}; there are {', '.join(names) or 'no names'}")
    if not name and len(names) > 1:
        raise ImportFileError(f"{path} judges {', '.join(names)}: choose one (--name)")
    return [_label(path, number, one) for number, one in said if not name or one.name == name]


def _read(path: Path, number: int, form: FeedbackFormat, record: Record, id_key: str) -> Iterator[Said]:
    try:
        for one in form.read(record):
            found = _at(record, id_key) if id_key else one.request_id
            chosen = "" if found is None else str(found)
            yield Said(one.name, chosen, one.value, one.who, one.time)
    except (TypeError, AttributeError, ValueError, LookupError) as error:
        raise ImportFileError(f"{path}, record {number}: it is no record of {form.what} ({error!r})") from error


def _label(path: Path, number: int, said: Said) -> FeedbackLabel:
    if not said.request_id:
        raise ImportFileError(
            f"{path}, record {number}: no id of an answer; expected one under {IDS[0]}, or say where it is (--id)"
        )
    try:
        return FeedbackLabel(said.request_id, label_value(said.value), said.who, _time(said.time))
    except ValueError as error:
        raise ImportFileError(f"{path}, record {number}: {error}") from error


def _records(path: Path) -> Iterator[tuple[int, Record]]:
    """(number from 1, record). A document's records, a CSV's rows, or lines; the file may be compressed."""
    text = _text(path)
    if text.strip() and not text.lstrip().startswith(("{", "[")):
        yield from _rows(path, text)
        return
    held = _document(text)
    if held is None:
        yield from iter_json_lines(path)
        return
    for key in LISTS:
        if isinstance(held, Mapping) and isinstance(held.get(key), list):
            held = held[key]
    for number, record in enumerate(held if isinstance(held, list) else [held], 1):
        if not isinstance(record, Mapping):
            raise ImportFileError(f"{path}, record {number}: came {type(record).__name__}; expected an object")
        yield number, record


def _text(path: Path) -> str:
    try:
        with opened(path) as file:
            return file.read().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ImportFileError(
            f"{path}: byte {error.start + 1} (0x{error.object[error.start]:02x}) is not UTF-8; save it as UTF-8 (in a "
            "spreadsheet: CSV UTF-8), or convert it with iconv"
        ) from error
    except Exception as error:
        if not is_damage(error):
            raise
        raise ImportFileError(f"{path}: the compressed file is damaged or cut off ({error}); make it again") from error


def _rows(path: Path, text: str) -> Iterator[tuple[int, Record]]:
    """Rows of CSV, with commas or tabs. A row with fewer cells than the head was cut off."""
    try:
        reader = csv.DictReader(io.StringIO(text, newline=""), delimiter=_delimiter(text), strict=True)
        cells = len(reader.fieldnames or ())
        if cells < 2:
            raise ImportFileError(
                f"{path}: it is neither JSON nor a table with a head, whose cells commas or tabs part; expected labels "
                f"as {', '.join(NAMES)}"
            )
        for number, row in enumerate(reader, 1):
            more = row.pop(None, ())  # under which the reader puts what the head has no name for
            there = cells + len(more) - sum(value is None for value in row.values())
            if there < cells or any(more):
                raise ImportFileError(
                    f"{path}, record {number}: it has {there} cells, and the head has {cells}; expected as many: was "
                    "the file cut off? A cell may be empty"
                )
            yield number, row
    except csv.Error as error:
        what = f"{path}: it cannot be read as CSV ({error}); was it cut off, or a quote left open?"
        raise ImportFileError(what) from error


def _delimiter(text: str) -> str:
    """Tabs where they part the head and commas do not: names of columns hold neither, but for one in quotes."""
    head = next(csv.reader(io.StringIO(text, newline="")), [])
    return "\t" if len(head) < 2 and "\t" in "".join(head) else ","


def _document(text: str) -> Any:
    """The JSON document that a text is; None where it is lines."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _format_of(path: Path, form: str, records: Sequence[tuple[int, Record]]) -> FeedbackFormat:
    if form != "auto":
        for known in FORMATS:
            if known.name == form:
                return known
        raise ImportFileError(f"there is no format {form!r}; expected auto, {', '.join(NAMES)}")
    keys = set(records[0][1])
    for known in FORMATS:
        if any(wanted <= keys for wanted in known.keys):
            return known
    raise ImportFileError(
        f"{path}: its records have {', '.join(sorted(map(str, keys))[:8])}; expected request_id and label, or an export"
        f" of {', '.join(known.what for known in FORMATS[1:])}"
    )


def _lines(record: Record) -> Iterator[Said]:
    value = next((record[key] for key in ("label", "value", "correct") if key in record), ...)
    if value is ...:
        raise KeyError("label")
    who = record.get("who") or record.get("source") or ""
    when = record.get("time") or record.get("when")
    old_sheet = ANSWERED not in record and record.keys() >= SHEET
    if value in (None, "") and (old_sheet or ANSWERED in record):
        return  # nobody has looked at this answer yet, which is not to be unsure of it
    if old_sheet:  # its time is the answer's
        when = record.get("when")
    yield Said("", _id_of(record, "id"), value, str(who), when)


def _mlflow(record: Record) -> Iterator[Said]:
    info = record.get("info") or record
    trace = info.get("client_request_id") or info.get("trace_id") or info.get("request_id")
    for one in [record] if "assessment_name" in record else _list(info.get("assessments")):
        feedback = one.get("feedback")
        if feedback is None or one.get("valid") is False:  # an expectation, or one that was replaced
            continue
        source = one.get("source") or {}
        who = str(source.get("source_id") or source.get("source_type") or "")
        request_id = _id_of({**one, "metadata": {**_held(info.get("tags")), **_held(one.get("metadata"))}}, "")
        when = one.get("last_update_time") or one.get("create_time")
        yield Said(str(one.get("assessment_name")), request_id or str(trace or ""), feedback.get("value"), who, when)


def _langfuse(record: Record) -> Iterator[Said]:
    value = record.get("value")
    if record.get("dataType") == "CATEGORICAL":
        value = record.get("stringValue")
    who = record.get("authorUserId") or record.get("source") or ""
    when = record.get("updatedAt") or record.get("timestamp")
    yield Said(str(record.get("name")), _id_of(record, "traceId"), value, str(who), when)


def _phoenix(record: Record) -> Iterator[Said]:
    result = record.get("result") or {"score": record.get("result.score"), "label": record.get("result.label")}
    value = result.get("score")
    if value in (None, ""):
        value = result.get("label")
    who = record.get("user_id") or record.get("identifier") or record.get("annotator_kind") or ""
    name = record.get("name") or record.get("annotation_name") or ""
    when = record.get("updated_at") or record.get("created_at")
    at = "span_id" if record.get("span_id") else "context.span_id"
    yield Said(str(name), _id_of(record, at), value, str(who), when)


def _openai_evals(record: Record) -> Iterator[Said]:
    item = _held(record.get("datasource_item"))
    request_id = _id_of({**item, "metadata": item.get("item")}, "id")
    for result in _list(record.get("results")):
        yield Said(str(result.get("name")), request_id, result["passed"], "openai-evals", record.get("created_at"))


FORMATS = (
    FeedbackFormat(
        "lines",
        "labels",
        _lines,
        tuple(frozenset({at, said}) for at in ("request_id", "id") for said in ("label", "correct")),
    ),
    FeedbackFormat(
        "mlflow",
        "MLflow assessments",
        _mlflow,
        (frozenset({"info"}), frozenset({"assessment_name"}), frozenset({"trace_id", "assessments"})),
    ),
    FeedbackFormat("langfuse", "Langfuse scores", _langfuse, (frozenset({"traceId", "name", "value"}),)),
    FeedbackFormat(
        "phoenix",
        "Phoenix annotations",
        _phoenix,
        (frozenset({"span_id", "annotator_kind"}), frozenset({"annotator_kind", "result.label"})),
    ),
    FeedbackFormat("openai-evals", "OpenAI evals", _openai_evals, (frozenset({"datasource_item", "results"}),)),
)
"""The first whose keys a record has reads the file."""
NAMES = tuple(form.name for form in FORMATS)


def _id_of(record: Record, usual: str) -> str:
    """The answer's id: what its caller wrote there as such, else the program's own under `usual`."""
    metadata = _held(record.get("metadata"))
    for key in IDS:
        for found in (record.get(key), metadata.get(key)):
            if found not in (None, ""):
                return str(found)
    found = record.get(usual)
    return "" if found is None else str(found)


def _at(record: Record, path: str) -> Any:
    """What stands under keys that dots join; None where nothing does."""
    if path in record:
        return record[path]
    held: Any = record
    for key in path.split("."):
        held = _held(held).get(key)
    return held


def _held(value: object) -> Record:
    """A mapping, also one that a table holds as JSON text."""
    if isinstance(value, str) and value.lstrip().startswith("{"):
        try:
            value = json.loads(value)
        except ValueError:
            return {}
    return value if isinstance(value, Mapping) else {}


def _list(value: object) -> Sequence[Record]:
    if isinstance(value, str):
        value = json.loads(value)
    return value if isinstance(value, list) else ()


def _time(said: object) -> float | None:
    """Seconds since 1970; None where nothing is said. A time without zone is taken as UTC."""
    if said in (None, ""):
        return None
    expected = "expected seconds since 1970, or 2026-11-23T12:00:00Z"
    seconds = said
    if isinstance(said, str):
        try:
            seconds = float(said)
        except ValueError:
            try:
                when = datetime.fromisoformat(said)
            except ValueError:
                raise ValueError(f"time {said[:40]!r}; {expected}") from None
            return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)):
        raise ValueError(f"time {said!r}; {expected}")
    try:
        return seconds / 1e3 if seconds > MILLISECONDS else float(seconds)
    except OverflowError:
        raise ValueError(f"time of {len(str(seconds))} digits; {expected}") from None
