"""Labels out of files: JSON lines and CSV of one's own, and what other programs export."""

import json
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from metaprobe.monitoring.label_mapping import IDS, NAMES, PRESETS, LabelRecord, Preset, Record, read_judgements
from metaprobe.monitoring.label_meaning import Meaning, ValueMap, describe_kinds, read_meanings
from metaprobe.monitoring.log import FeedbackLabel
from metaprobe.monitoring.sampling import ANSWERED
from metaprobe.records.errors import ImportFileError, RecordError
from metaprobe.records.lines import is_damage, iter_csv, iter_json_lines, opened

MOST_BYTES = 256 << 20
"""Bytes of a file of labels, unpacked: the file is read as a whole."""
LISTS = ("data", "traces", "assessments", "annotations", "scores", "feedback")
"""Keys under which a document holds its records."""
MILLISECONDS = 1e11
"""A time above this number is in milliseconds."""


def read_label_file(
    path: str | Path,
    form: str = "auto",
    *,
    name: str = "",
    id_key: str = "",
    value_map: str | Mapping[str, str] = "",
    say: Callable[[str], object] | None = None,
) -> list[FeedbackLabel]:
    """Returns the labels in a file, in its order.

    `form`: one of `NAMES`, or `auto`, which goes by the records' keys. `name`: what was judged, where the file holds
    labels of several kinds. `id_key`: where the answer's id is, such as `observationId` or `metadata.id`.
    `value_map`: the meaning of values whose type does not say it, as `{"fine": "correct", "<3": "wrong"}` or
    `"fine=correct,<3=wrong"`. `say` is called with a line for each kind of value: what it was taken for,
    or why it was left out. Without `say`, a warning tells of kinds that were left out or turned.

    Raises `ImportFileError` naming the record for what is no label, where `name` is needed, where nothing in the file
    is a label, and for a value map that contradicts a record or itself, or that fits no value.
    """
    path = Path(path)
    records = list(_records(path))
    if not records:
        raise ImportFileError(f"{path} holds no records; expected labels as {', '.join(NAMES)}")
    preset = _preset_of(path, form, records)
    judged = [(number, one) for number, record in records for one in _read(path, number, preset, record, id_key)]
    if not judged and ANSWERED in records[0][1]:
        raise ImportFileError(f'{path} is a sheet without any label; put 1, 0 or "unsure" into `label`')
    names = sorted({one.name for _, one in judged if one.name})
    if name and name not in names:
        raise ImportFileError(f"{path}: nothing is called {name!r}; there are {', '.join(names) or 'no names'}")
    wanted = [(number, one) for number, one in judged if not name or one.name == name]
    meanings, notes = _meanings(path, preset.name, wanted, value_map)
    labelled = [(number, one) for (number, _), one in zip(wanted, meanings, strict=True) if one.label]
    if not labelled:
        raise ImportFileError(f"{path} holds no label: {'; '.join(line for line, _ in notes)}")
    if len(names := sorted({one.judgement.name for _, one in labelled})) > 1:
        raise ImportFileError(f"{path} judges {', '.join(names)}: choose one (--name)")
    for line, notable in notes:
        if say is not None:
            say(line)
        elif notable:
            warnings.warn(line, stacklevel=2)
    return [_label(path, number, one) for number, one in labelled]


def _meanings(
    path: Path, form: str, judged: Sequence[tuple[int, LabelRecord]], value_map: str | Mapping[str, str]
) -> tuple[list[Meaning], list[tuple[str, bool]]]:
    """Returns the meaning of each judgement, and a line for each kind of them with whether it should be heard."""
    try:
        given = ValueMap(value_map)
        meanings = read_meanings([one for _, one in judged], given)
    except RecordError as error:
        raise ImportFileError(f"{path}: {error}") from error
    except ValueError as error:
        place, why = error.args
        raise ImportFileError(
            f"{path}, record {judged[place][0]}: {why}; or say what it means with --value-map"
        ) from error
    notes = list(describe_kinds(form, meanings))
    if unmet := given.unmet():
        missing = f"no value fits {', '.join(unmet)} of the value map"
        if len(unmet) == len(given):
            values = "; ".join(line for line, _ in notes)
            raise ImportFileError(f"{path}: {missing}; expected values of the file ({values})")
        notes.append((missing, True))
    return meanings, notes


def _read(path: Path, number: int, preset: Preset, record: Record, id_key: str) -> Iterator[LabelRecord]:
    try:
        yield from read_judgements(preset, record, id_key)
    except (TypeError, AttributeError, ValueError, LookupError) as error:
        raise ImportFileError(f"{path}, record {number}: it is no record of {preset.what} ({error!r})") from error


def _label(path: Path, number: int, meaning: Meaning) -> FeedbackLabel:
    one = meaning.judgement
    if not one.request_id:
        raise ImportFileError(
            f"{path}, record {number}: no id of an answer; expected one under {IDS[0]}, or say where it is (--id)"
        )
    try:
        return FeedbackLabel(one.request_id, meaning.value, one.who, _time(one.time), one.source)
    except ValueError as error:
        raise ImportFileError(f"{path}, record {number}: {error}") from error


def _records(path: Path) -> Iterator[tuple[int, Record]]:
    """Yields (number from 1, record): a document's records, a CSV's rows, or lines; the file may be compressed."""
    text = _text(path)
    if text.strip() and not text.lstrip().startswith(("{", "[")):
        yield from iter_csv(path)
        return
    try:
        document: Any = json.loads(text)
    except (ValueError, RecursionError):
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
            data = file.read(MOST_BYTES + 1)
        if len(data) > MOST_BYTES:  # a few kilobytes may unpack to more than the memory
            raise ImportFileError(
                f"{path}: holds more than {MOST_BYTES >> 20} MiB; expected a file of labels: split it"
            )
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ImportFileError(
            f"{path}: byte {error.start + 1} (0x{error.object[error.start]:02x}) is not UTF-8; save it as UTF-8 (in a "
            "spreadsheet: CSV UTF-8), or convert it with iconv"
        ) from error
    except Exception as error:
        if not is_damage(error):
            raise
        raise ImportFileError(f"{path}: the compressed file is damaged or cut off ({error}); make it again") from error


def _preset_of(path: Path, form: str, records: Sequence[tuple[int, Record]]) -> Preset:
    if form != "auto":
        for preset in PRESETS:
            if preset.name == form:
                return preset
        raise ImportFileError(f"there is no format {form!r}; expected auto, {', '.join(NAMES)}")
    for _, record in records:
        for preset in PRESETS:
            if any(keys <= record.keys() for keys in preset.keys):
                return preset
    raise ImportFileError(
        f"{path}: its records have {', '.join(sorted(map(str, records[0][1]))[:8])}; expected request_id and label, or "
        f"an export of {', '.join(preset.what for preset in PRESETS[1:])}"
    )


def _time(given: object) -> float | None:
    """Returns seconds since 1970; None where nothing is given. A time without zone is taken as UTC."""
    if given in (None, ""):
        return None
    expected = "expected seconds since 1970, or 2026-11-23T12:00:00Z"
    seconds = given
    if isinstance(given, str):
        try:
            seconds = float(given)
        except ValueError:
            try:
                when = datetime.fromisoformat(given)
            except ValueError:
                raise ValueError(f"time {given[:40]!r}; {expected}") from None
            return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)):
        raise ValueError(f"time {given!r}; {expected}")
    try:
        return seconds / 1e3 if seconds > MILLISECONDS else float(seconds)
    except OverflowError:
        raise ValueError(f"time of {len(str(seconds))} digits; {expected}") from None
