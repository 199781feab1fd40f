"""Labels out of files: JSON lines and CSV of one's own, and what other programs export."""

import csv
import io
import json
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from metaprobe.monitoring.label_formats import FORMATS, IDS, NAMES, SHEET, FeedbackFormat, Record, Said, held
from metaprobe.monitoring.label_meaning import Meaning, ValueMap, describe_kinds, read_meanings
from metaprobe.monitoring.log import FeedbackLabel
from metaprobe.records.errors import ImportFileError, RecordError
from metaprobe.records.lines import is_damage, iter_json_lines, opened

MOST_BYTES = 256 << 20
"""Of a file of labels, unpacked: it is read as a whole."""
LISTS = ("data", "traces", "assessments", "annotations", "scores", "feedback")
"""Keys under which a document holds its records."""
MILLISECONDS = 1e11
"""A time above that is in milliseconds."""


def read_label_file(
    path: str | Path,
    form: str = "auto",
    *,
    name: str = "",
    id_key: str = "",
    value_map: str | Mapping[str, str] = "",
    say: Callable[[str], object] | None = None,
) -> list[FeedbackLabel]:
    """The labels in a file, in its order.

    `form`: one of `NAMES`, or `auto`, which goes by the records' keys. `name`: what was judged, where the file holds
    labels of several kinds. `id_key`: where the answer's id stands, such as `observationId` or `metadata.id`.
    `value_map`: what values mean that say it neither by themselves nor by their type, as `{"fine": "correct", "<3":
    "wrong"}` or `"fine=correct,<3=wrong"`. `say` is called with a line for each kind of value: what it was taken for,
    or why it was left out. Without `say`, kinds that were left out or turned are said as warnings.

    Raises `ImportFileError` naming the record for what is no label, where `name` is needed, where nothing in the file
    is a label, and for a value map that contradicts a record or itself, or that fits no value.
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
    wanted = [(number, one) for number, one in said if not name or one.name == name]
    found, notes = _meanings(path, chosen.name, wanted, value_map)
    told = [line for line, notable in notes if notable or say is not None]
    labelled = [(number, one) for (number, _), one in zip(wanted, found, strict=True) if one.label]
    if not labelled:
        raise ImportFileError(f"{path} holds no label: {'; '.join(line for line, _ in notes)}")
    if len(names := sorted({one.said.name for _, one in labelled})) > 1:
        raise ImportFileError(f"{path} judges {', '.join(names)}: choose one (--name)")
    for line in told:
        warnings.warn(line, stacklevel=2) if say is None else say(line)
    return [_label(path, number, one) for number, one in labelled]


def _meanings(
    path: Path, form: str, said: Sequence[tuple[int, Said]], value_map: str | Mapping[str, str]
) -> tuple[list[Meaning], list[tuple[str, bool]]]:
    """What each thing means, and a line for each kind of them with whether it should be heard."""
    try:
        given = ValueMap(value_map)
        found = read_meanings([one for _, one in said], given)
    except RecordError as error:
        raise ImportFileError(f"{path}: {error}") from error
    except ValueError as error:
        place, why = error.args
        raise ImportFileError(
            f"{path}, record {said[place][0]}: {why}; or say what it means with --value-map"
        ) from error
    notes = list(describe_kinds(form, found))
    if unmet := given.unmet():
        missing = f"no value fits {', '.join(unmet)} of the value map"
        if len(unmet) == len(given):
            values = "; ".join(line for line, _ in notes)
            raise ImportFileError(f"{path}: {missing}; expected values of the file ({values})")
        notes.append((missing, True))
    return found, notes


def _read(path: Path, number: int, form: FeedbackFormat, record: Record, id_key: str) -> Iterator[Said]:
    try:
        for one in form.read(record):
            found = _at(record, id_key) if id_key else one.request_id
            yield replace(one, request_id="" if found is None else str(found))
    except (TypeError, AttributeError, ValueError, LookupError) as error:
        raise ImportFileError(f"{path}, record {number}: it is no record of {form.what} ({error!r})") from error


def _label(path: Path, number: int, meaning: Meaning) -> FeedbackLabel:
    said = meaning.said
    if not said.request_id:
        raise ImportFileError(
            f"{path}, record {number}: no id of an answer; expected one under {IDS[0]}, or say where it is (--id)"
        )
    try:
        return FeedbackLabel(said.request_id, meaning.value, said.who, _time(said.time), said.source)
    except ValueError as error:
        raise ImportFileError(f"{path}, record {number}: {error}") from error


def _records(path: Path) -> Iterator[tuple[int, Record]]:
    """(number from 1, record). A document's records, a CSV's rows, or lines; the file may be compressed."""
    text = _text(path)
    if text.strip() and not text.lstrip().startswith(("{", "[")):
        yield from _rows(path, text)
        return
    document = _document(text)
    if document is None:
        yield from iter_json_lines(path)
        return
    for key in LISTS:
        if isinstance(document, Mapping) and isinstance(document.get(key), list):
            document = document[key]
    for number, record in enumerate(document if isinstance(document, list) else [document], 1):
        if not isinstance(record, Mapping):
            raise ImportFileError(f"{path}, record {number}: came {type(record).__name__}; expected an object")
        yield number, record


def _text(path: Path) -> str:
    try:
        with opened(path) as file:
            held = file.read(MOST_BYTES + 1)
        if len(held) > MOST_BYTES:  # a few kilobytes may unpack to more than the memory
            raise ImportFileError(
                f"{path}: holds more than {MOST_BYTES >> 20} MiB; expected a file of labels: split it"
            )
        return held.decode("utf-8-sig")
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
    for _, record in records:
        for known in FORMATS:
            if any(wanted <= record.keys() for wanted in known.keys):
                return known
    raise ImportFileError(
        f"{path}: its records have {', '.join(sorted(map(str, keys))[:8])}; expected request_id and label, or an export"
        f" of {', '.join(known.what for known in FORMATS[1:])}"
    )


def _at(record: Record, path: str) -> Any:
    """What stands under keys that dots join; None where nothing does."""
    if path in record:
        return record[path]
    found: Any = record
    for key in path.split("."):
        found = held(found).get(key)
    return found


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
