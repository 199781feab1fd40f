"""Reads labels from files: your own JSON lines and CSV, and exports of other programs.

Each judgement in a file means right, wrong, unsure, or nothing, with the reason (`Meaning`). `label_mapping.py` says
which fields hold the judgement in each product. Start at `read_label_file`.
"""

import json
import operator
import re
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from metaprobe.api import (
    BadFile,
    IdFault,
    ImportFileError,
    LabelWords,
    RecordError,
    iter_csv,
    iter_json_lines,
    read_whole,
)
from metaprobe.production.monitoring.label_draw import ANSWERED_AT_KEY
from metaprobe.production.monitoring.label_mapping import (
    ID_KEYS,
    NUMBER_TYPE,
    OWN_NAME,
    PLAIN_TYPE,
    PRESET_NAMES,
    PRESETS,
    SCORE_TYPE,
    WORD_TYPE,
    YES_NO_TYPE,
    LabelRecord,
    Preset,
    Record,
    read_judgements,
)
from metaprobe.production.monitoring.label_words import (
    LABEL_SOURCES,
    NO_WORDS,
    RIGHT_WORDS,
    UNSURE_WORDS,
    WRONG_WORDS,
    YES_WORDS,
    label_value,
)
from metaprobe.production.monitoring.log import FeedbackLabel

MEANINGS: Mapping[str, float | None] = {"correct": 1.0, "wrong": 0.0, "unsure": None}
EXPECTED_VALUE_MAP = (
    "expected VALUE=correct, VALUE=wrong or VALUE=unsure, joined by commas; for numbers also >=4=correct or <3=wrong"
)
_RULE_SEPARATOR = re.compile(r"(?<==correct),|(?<==wrong),|(?<==unsure),")
_LIMIT = re.compile(r"(>=|<=|>|<)\s*(-?\d+(?:\.\d+)?)")
_OPERATOR_OF_SIGN = {">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt}

VALUE_MAP_HINT = "say what they mean with --value-map"
WORDS_SHOWN = 4
"""Most words of a kind that a message shows."""


class ValueMap:
    """Values with the meanings that a user gives them. It records which of the values occurred."""

    def __init__(self, user_rules: str | Mapping[str, str] = "") -> None:
        """`user_rules` is the text of the command line, or maps values to `correct`, `wrong` or `unsure`.

        Raises `RecordError` for another meaning, and for a value with two meanings.
        """
        pairs: list[tuple[object, object]] = []
        if isinstance(user_rules, Mapping):
            pairs += user_rules.items()
        else:
            parts = (part.rpartition("=") for part in _RULE_SEPARATOR.split(user_rules.strip()) if part.strip())
            pairs += [(value, meaning) for value, _, meaning in parts]
        rules: dict[str, tuple[str, str]] = {}
        for value, meaning in pairs:
            key, meaning_name = str(value).strip(), str(meaning).strip().casefold()
            if not key or meaning_name not in MEANINGS:
                raise RecordError(f"value map: {f'{value}={meaning}'[:60]!r}; {EXPECTED_VALUE_MAP}")
            _, before = rules.setdefault(key.casefold(), (key, meaning_name))
            if before != meaning_name:
                raise RecordError(f"value map: {key[:40]!r} is both {before} and {meaning_name}; expected one meaning")
        self._rules = list(rules.values())
        self._rules_met: set[tuple[str, str]] = set()

    def __len__(self) -> int:
        return len(self._rules)

    def meaning(self, *values: object) -> str:
        """Returns the meaning of the values of one record; empty if the map does not hold them.

        Raises `RecordError` if the map gives them two meanings.
        """
        rules_met = {rule for value in values for rule in self._rules if _fits(rule[0], value)}
        if len(meanings := sorted({meaning for _, meaning in rules_met})) > 1:
            rules_text = " and ".join(sorted(map("=".join, rules_met)))
            raise RecordError(
                f"value map: {rules_text} both fit {str(values[0])[:40]!r}; expected one meaning of a value"
            )
        self._rules_met |= rules_met
        return meanings[0] if meanings else ""

    def unmet(self) -> list[str]:
        """Returns the values that no record had, in the user's spelling."""
        return ["=".join(rule) for rule in self._rules if rule not in self._rules_met]


def _fits(expected: str, value: object) -> bool:
    """Returns whether a value equals the user's value, or lies within the user's limit."""
    number = _float_or_none(value)
    if (limit := _LIMIT.fullmatch(expected)) is not None:
        return number is not None and bool(_OPERATOR_OF_SIGN[limit[1]](number, float(limit[2])))
    is_equal = number is not None and number == _float_or_none(expected)
    return is_equal or ("" if value is None else str(value)).strip().casefold() == expected.casefold()


@dataclass(frozen=True, slots=True)
class Meaning:
    """A judgement with its meaning."""

    judgement: LabelRecord
    note: str
    """How it is read, or why it is left out."""
    is_label: bool = True
    """Whether the judgement counts as a label."""
    value: float | None = None
    """1 right, 0 wrong, None unsure; also None if it is no label."""
    is_notable: bool = True
    """Whether users should be told about it without asking."""


def read_meanings(
    numbered_judgements: Sequence[tuple[int, LabelRecord]], value_map: ValueMap, leave_out: Callable[[int, str], object]
) -> list[tuple[int, Meaning]]:
    """Returns the meaning of each judgement, with the number of its record, in order.

    A judgement is left out if another possible label, from a source that is not weaker, overrides it. Labels of parts
    are left out if several parts of one trace were judged, because it is unknown which part is the answer. Raises
    `RecordError` for a value map that contradicts itself or a record.

    Args:
        numbered_judgements: judgements with the numbers of their records.
        value_map: meanings that the user gave.
        leave_out: called with the number of a record, and the reason, if its value is invalid in its format.
    """
    by_id = {record.own_id: record for _, record in numbered_judgements if record.own_id}
    overridden = {
        record.overrides
        for _, record in numbered_judgements
        if record.overrides in by_id
        and not record.why_not
        and _source_rank(record) <= _source_rank(by_id[record.overrides])
    }
    names_beyond_share = {
        record.name for _, record in numbered_judgements if record.type == SCORE_TYPE and not _is_share(record.value)
    }
    meanings: list[tuple[int, Meaning]] = []
    parts_judged: dict[tuple[str, str], set[str]] = defaultdict(set)
    for number, record in numbered_judgements:
        try:
            is_overridden = record.own_id in overridden
            meaning = (
                _left_out(record, "another record overrides it")
                if is_overridden
                else _meaning(record, value_map, names_beyond_share)
            )
        except RecordError:
            raise
        except ValueError as error:
            leave_out(number, f"{error}; or say what it means with --value-map")
            continue
        meanings.append((number, meaning))
        if meaning.is_label:
            parts_judged[record.name, record.request_id].add(record.part)
    for index, (number, meaning) in enumerate(meanings):
        record = meaning.judgement
        if meaning.is_label and record.part and len(parts_judged[record.name, record.request_id]) > 1:
            reason = "several parts of its trace were judged; say whose id the answer has (--id)"
            meanings[index] = number, _left_out(record, reason)
    return meanings


def describe_kinds(form: str, meanings: Sequence[Meaning]) -> Iterator[tuple[str, bool]]:
    """Yields a line for each kind of value, and whether users should be told about it without asking."""
    kinds: dict[tuple[str, str, str], list[Meaning]] = defaultdict(list)
    for meaning in meanings:
        kinds[meaning.judgement.kind, meaning.judgement.name, meaning.note].append(meaning)
    for (kind, name, note), meanings_of_kind in kinds.items():
        values = _describe_values([meaning.judgement for meaning in meanings_of_kind]) if VALUE_MAP_HINT in note else ""
        name_text = f' "{name[:60]}"' if name else ""
        plural = "s" if kind == "label" and len(meanings_of_kind) > 1 else ""
        yield (
            f"{form}: {len(meanings_of_kind)} {kind}{plural}{name_text}{values}: {note}",
            meanings_of_kind[0].is_notable,
        )


def _meaning(judgement: LabelRecord, value_map: ValueMap, names_beyond_share: set[str]) -> Meaning:
    if judgement.why_not:
        return _left_out(judgement, judgement.why_not)
    if judgement.name.casefold().split(".")[0] == OWN_NAME:
        return _left_out(judgement, "a verdict of metaprobe itself is no label")
    if judgement.value in (None, "") and judgement.type != PLAIN_TYPE:
        return _left_out(judgement, "it has no value")
    if user_meaning := value_map.meaning(judgement.value, *filter(None, [judgement.word])):
        _check_map(judgement, user_meaning)
        return Meaning(judgement, "read by the value map", value=MEANINGS[user_meaning])
    if judgement.type == PLAIN_TYPE:
        return Meaning(judgement, "1 is right", value=label_value(judgement.value), is_notable=False)
    direction = judgement.direction or LabelWords(judgement.name).direction
    number = _share(judgement)
    if judgement.type == SCORE_TYPE and (reason := _contradiction(judgement, number, direction)):
        return _left_out(judgement, reason)
    if (word_value := _word_value(judgement)) is not None:
        return Meaning(judgement, "read by the words for right and wrong", value=word_value, is_notable=False)
    if any(text in UNSURE_WORDS for text in _words(judgement)):
        return Meaning(judgement, "unsure", value=None, is_notable=False)
    return _by_direction(judgement, number, direction, names_beyond_share)


def _contradiction(judgement: LabelRecord, number: float | None, direction: str) -> str:
    """Returns why the word beside a score contradicts the score; empty if it does not, or if there is no word.

    Args:
        judgement: the judgement.
        number: its score.
        direction: its direction.
    """
    word = judgement.word.strip().casefold()
    if not word or word in UNSURE_WORDS:
        return ""
    word_value, word_is_high = _word_value(judgement), _float_or_none(word)
    word_is_good = LabelWords(word).meaning if word_value is None else word_value
    if word in YES_WORDS or word in NO_WORDS:
        word_is_high = float(word in YES_WORDS)
    elif word_is_high is not None:
        word_is_high = word_is_high if word_is_high == number else 1.0 - (number or 0.0)
    elif word_is_good is None:
        if judgement.direction in (LabelWords.maximize, LabelWords.minimize) and not LabelWords(word).tells_state:
            return ""  # the record itself says how its score is read
        if LabelWords(word).tells_part and number is not None and 0 < number < 1:
            return ""
        return f"the meaning of the word {word[:30]!r} beside its score is not known; {VALUE_MAP_HINT}"
    elif number is None or direction not in (LabelWords.maximize, LabelWords.minimize):
        return ""
    else:
        word_is_high = word_is_good if direction == LabelWords.maximize else 1.0 - word_is_good
    if number is not None and ((number > 0.5) != (word_is_high > 0.5) or number == 0.5 != word_is_high):
        return f"its word {word[:30]!r} and its score {number:g} contradict each other"
    return ""


def _by_direction(
    judgement: LabelRecord, number: float | None, direction: str, names_beyond_share: set[str]
) -> Meaning:
    """Returns the meaning of a value that states an amount, but not whether a high amount is good.

    Args:
        judgement: the judgement.
        number: its value.
        direction: its direction.
        names_beyond_share: names of scores with values outside [0, 1].
    """
    if judgement.type == NUMBER_TYPE:
        return _left_out(judgement, f"the range of these numbers is not stated; {VALUE_MAP_HINT}, such as >=4=correct")
    if judgement.type == SCORE_TYPE and judgement.name in names_beyond_share:
        return _left_out(
            judgement, f"not all of these scores lie between 0 and 1; {VALUE_MAP_HINT}, such as >=4=correct"
        )
    if number is None or judgement.type not in (YES_NO_TYPE, WORD_TYPE, SCORE_TYPE):
        return _left_out(judgement, f"these values are not known; {VALUE_MAP_HINT}")
    if direction not in (LabelWords.maximize, LabelWords.minimize):
        reason = f"of direction {direction!r}" if direction else "nothing says whether 1 is right or wrong"
        return _left_out(judgement, f"{reason}; {VALUE_MAP_HINT}, such as 1=correct,0=wrong")
    if judgement.direction and LabelWords(judgement.name).direction not in ("", direction):
        return _left_out(judgement, f"their name and their direction, {direction}, contradict each other")
    source_of_direction = "as their direction says" if judgement.direction else "by the name"
    if direction == LabelWords.maximize:
        return Meaning(judgement, f"1 is right, {source_of_direction}", value=number, is_notable=False)
    return Meaning(judgement, f"turned: 1 is wrong, {source_of_direction} (minimize)", value=1 - number)


def _check_map(judgement: LabelRecord, user_meaning: str) -> None:
    """Raises `RecordError` if the user's meaning contradicts the record."""
    word_value, number = _word_value(judgement), _share(judgement)
    stated_value = word_value
    if (
        stated_value is None
        and number in (0.0, 1.0)
        and judgement.direction in (LabelWords.maximize, LabelWords.minimize)
    ):
        stated_value = number if judgement.direction == LabelWords.maximize else 1.0 - number
    if stated_value is not None and MEANINGS[user_meaning] == 1 - stated_value:
        reason = f"the direction {judgement.direction}" if word_value is None else "its own word"
        raise RecordError(
            f"the value map calls {str(judgement.word or judgement.value)[:40]!r} of {judgement.name!r} {user_meaning},"
            f" and {reason} says the opposite; expected a map for values that nothing else explains"
        )


def _word_value(judgement: LabelRecord) -> float | None:
    """Returns 1 or 0 if the value, or the word beside it, means right or wrong; else None."""
    for text in _words(judgement):
        if text in RIGHT_WORDS or text in WRONG_WORDS:
            return float(text in RIGHT_WORDS)
    return None


def _share(judgement: LabelRecord) -> float | None:
    """Returns the value in [0, 1], where a yes is 1; None for anything else."""
    if judgement.type == SCORE_TYPE:
        return _float_or_none(judgement.value) if _is_share(judgement.value) else None
    if judgement.type == YES_NO_TYPE and (number := _float_or_none(judgement.value)) in (0.0, 1.0):
        return number
    for text in _texts(judgement):
        if judgement.type in (YES_NO_TYPE, WORD_TYPE) and (text in YES_WORDS or text in NO_WORDS):
            return float(text in YES_WORDS)
    return None


def _words(judgement: LabelRecord) -> list[str]:
    """Returns the words of a value that is a word, or a score with a word."""
    return _texts(judgement) if judgement.type in (WORD_TYPE, SCORE_TYPE) else []


def _texts(judgement: LabelRecord) -> list[str]:
    return [
        text.strip().casefold() for text in (judgement.word, judgement.value) if isinstance(text, str) and text.strip()
    ]


def _float_or_none(value: object) -> float | None:
    try:
        return float(value) if isinstance(value, (bool, int, float, str)) else None
    except (ValueError, OverflowError):
        return None


def _is_share(value: object) -> bool:
    number = _float_or_none(value)
    return number is not None and 0 <= number <= 1


def _left_out(judgement: LabelRecord, reason: str) -> Meaning:
    return Meaning(judgement, f"left out, {reason}", is_label=False)


def _source_rank(judgement: LabelRecord) -> int:
    """Returns 0 for a person, and more for weaker sources. A user's own record without a source counts as a
    person's.
    """
    return LABEL_SOURCES.index(judgement.source) if judgement.source else 0


def _describe_values(judgements: Sequence[LabelRecord]) -> str:
    """Returns the values of a kind for a message: a range of numbers, or the first few words."""
    numbers = [number for judgement in judgements if (number := _float_or_none(judgement.value)) is not None]
    if len(numbers) == len(judgements):
        low, high = min(numbers), max(numbers)
        return f" {low:g}..{high:g}" if low < high else f", all {low:g}"
    words = list(
        dict.fromkeys(str(judgement.value)[:30] for judgement in judgements if judgement.value not in (None, ""))
    )
    ellipsis = ", ..." if len(words) > WORDS_SHOWN else ""
    return f" ({', '.join(words[:WORDS_SHOWN])}{ellipsis})" if words else ""


MAX_FILE_BYTES = 256 << 20
"""Most bytes of a file of labels, unpacked: the file is read as a whole."""
RECORD_LIST_KEYS = ("data", "traces", "assessments", "annotations", "scores", "feedback")
"""Keys under which a document may hold its records."""
MIN_MILLISECONDS = 1e11
"""A larger time is in milliseconds."""
EARLIEST_LABEL, LATEST_LABEL = 946_684_800.0, 4_102_444_800.0
"""Seconds since 1970 at the beginning of 2000 and of 2100. No label of a language model's answer lies outside.

Other numbers are in another unit, or days since 1900, as in spreadsheets.
"""
_SHEET_DAYS = 20_000.0, 80_000.0
"""Days since 1900 in 1954 and in 2119. A time between them is a spreadsheet's date."""
_SHEET_EPOCH = datetime(1899, 12, 30, tzinfo=UTC)
"""Day 0 of spreadsheets, for dates after February 1900."""


def read_label_file(
    path: str | Path,
    form: str = "auto",
    *,
    name: str = "",
    id_key: str = "",
    value_map: str | Mapping[str, str] = "",
    say: Callable[[str], object] | None = None,
    strict: bool | None = None,
) -> list[FeedbackLabel]:
    """Returns the labels in a file, in order. Bad records are left out; a warning counts them by reason.

    Raises `ImportFileError` if more than half of the records are bad, if `name` is needed, or if the file holds no
    label. Raises it too for a value map that contradicts a record or itself, or that fits no value. A record whose id a
    spreadsheet has rounded is left out; other ids that were probably changed are reported.

    Args:
        path: the file.
        form: one of `PRESET_NAMES`, or `auto`, which recognises the format by the records' keys.
        name: which kind of judgement to read, if the file holds several.
        id_key: where the answer's id is, such as `observationId` or `metadata.id`.
        value_map: meanings of values whose type does not show them, as `{"fine": "correct", "<3": "wrong"}` or
            `"fine=correct,<3=wrong"`.
        say: called with a line for each kind of value: its meaning, or why it was left out. Without it, a warning
            reports kinds that were left out or reversed.
        strict: whether the first bad record raises; by default as the running command has set it, else False.
    """
    path = Path(path)
    with BadFile.reading(path, strict=strict, unit="records") as bad:
        return _read_labels(path, _BadRecords(bad), form, name=name, id_key=id_key, value_map=value_map, say=say)


def _read_labels(
    path: Path,
    bad: "_BadRecords",
    form: str,
    *,
    name: str,
    id_key: str,
    value_map: str | Mapping[str, str],
    say: Callable[[str], object] | None,
) -> list[FeedbackLabel]:
    """Returns the labels in a file, as `read_label_file` does. Records without a valid judgement go to `bad`.

    Args:
        path: the file.
        bad: counts bad records.
        form: name of the format, or `auto`.
        name: which kind of judgement to read.
        id_key: where the answer's id is.
        value_map: meanings that the user gave.
        say: called with a line for each kind of value.
    """
    # Read the records, and the judgements in them.
    records = list(_records(path, bad))
    bad.start(records)
    if not records:
        bad.check()
        raise ImportFileError(f"{path} holds no records; expected labels as {', '.join(PRESET_NAMES)}")
    preset = _preset_of(path, form, records)
    numbered_judgements: list[tuple[int, LabelRecord]] = []
    for number, record in records:
        try:
            numbered_judgements += [
                (number, record_judgement) for record_judgement in read_judgements(preset, record, id_key)
            ]
        except (TypeError, AttributeError, ValueError, LookupError) as error:
            bad.leave_out(number, f"it is no record of {preset.what} ({error!r})")
    bad.check()
    if not numbered_judgements and ANSWERED_AT_KEY in records[0][1]:
        raise ImportFileError(f'{path} is a sheet without any label; put 1, 0 or "unsure" into `label`')
    # Choose the judgements of this name.
    names = sorted({record_judgement.name for _, record_judgement in numbered_judgements if record_judgement.name})
    if name and name not in names:
        raise ImportFileError(f"{path}: nothing is called {name!r}; there are {', '.join(names) or 'no names'}")
    chosen_judgements = [
        (number, record_judgement)
        for number, record_judgement in numbered_judgements
        if not name or record_judgement.name == name
    ]
    # Read what they mean.
    try:
        user_map = ValueMap(value_map)
        numbered_meanings = read_meanings(chosen_judgements, user_map, bad.leave_out)
        bad.check()
        meanings = [meaning for _, meaning in numbered_meanings]
    except ImportFileError:
        raise
    except RecordError as error:
        raise ImportFileError(f"{path}: {error}") from error
    # Describe the judgements, and refuse a value map of which nothing fits.
    notes = list(describe_kinds(preset.name, meanings))
    if unmet := user_map.unmet():
        unmet_text = f"no value fits {', '.join(unmet)} of the value map"
        if len(unmet) == len(user_map):
            values = "; ".join(line for line, _ in notes)
            raise ImportFileError(f"{path}: {unmet_text}; expected values of the file ({values})")
        notes.append((unmet_text, True))
    # Keep the judgements that mean right or wrong and whose ids are whole.
    labelled = [(number, meaning) for number, meaning in numbered_meanings if meaning.is_label]
    if not labelled:
        raise ImportFileError(f"{path} holds no label: {'; '.join(line for line, _ in notes)}")
    if len(names := sorted({meaning.judgement.name for _, meaning in labelled})) > 1:
        raise ImportFileError(f"{path} judges {', '.join(names)}: choose one (--name)")
    rounded = [
        (number, meaning) for number, meaning in labelled if IdFault.of(meaning.judgement.request_id) == IdFault.ROUNDED
    ]
    for number, meaning_of_rounded in rounded:
        bad.leave_out(number, f"the id {meaning_of_rounded.judgement.request_id!r} is {IdFault.ROUNDED}")
    bad.check()
    labelled = [pair for pair in labelled if pair not in rounded]
    # Report, and make the labels.
    ids = [meaning.judgement.request_id for _, meaning in labelled]
    notes += [(f"{preset.name}: taken as they stand, {fault}", True) for fault in IdFault.list_all(ids)]
    for line, is_notable in notes:
        if say is not None:
            say(line)
        elif is_notable:
            warnings.warn(line, stacklevel=2)
    labels = []
    for number, meaning in labelled:
        try:
            labels.append(_label(meaning))
        except ValueError as error:
            bad.leave_out(number, str(error))
    return labels


class _BadRecords:
    """Counts the bad records of a file of labels, each once, even if it holds several judgements."""

    def __init__(self, bad: BadFile) -> None:
        self.bad = bad
        self._records: dict[int, Record] = {}

    def start(self, records: Sequence[tuple[int, Record]]) -> None:
        """Takes in the readable records. They count as sound until one is left out."""
        self._records = dict(records)
        self.bad.sound = len(records)

    def leave_out(self, number: int, reason: str) -> None:
        """Counts a record as bad. Raises `ImportFileError` if the first bad record stops the reading."""
        if number in self._records:
            self.bad.leave_out_record(number, reason, self._records.pop(number))
            self.bad.sound -= 1

    def check(self) -> None:
        """Raises `ImportFileError` if more than half of the records are bad."""
        self.bad.check()


def _label(meaning: Meaning) -> FeedbackLabel:
    """Returns the label of a judgement. Raises `ValueError` if it names no answer, or if its time is invalid."""
    record = meaning.judgement
    if not record.request_id:
        raise ValueError(f"no id of an answer; expected one under {ID_KEYS[0]}, or say where it is (--id)")
    return FeedbackLabel(record.request_id, meaning.value, record.who, _time(record.time), record.source)


_NOT_UTF8 = re.compile("[\udc80-\udcff]")
"""Matches a byte that is not UTF-8, as `surrogateescape` decodes it."""


def _records(path: Path, bad: _BadRecords) -> Iterator[tuple[int, Record]]:
    """Yields (number from 1, record): a document's records, a CSV's rows, or lines. The file may be compressed."""
    data = read_whole(path, MAX_FILE_BYTES, "a file of labels: split it")
    # A line or row with bytes that are no text is a bad line; a document with such bytes is not taken at all.
    text = data.decode("utf-8-sig", "surrogateescape")
    not_utf8 = None if text.isascii() else _NOT_UTF8.search(text)
    del data  # else a large file would be in memory twice while its text is read
    if text.strip() and not _is_json(text):
        yield from iter_csv(path, on_error=bad.bad.leave_out)
        return
    try:
        document: Any = json.loads(text)
    except (ValueError, RecursionError):
        yield from iter_json_lines(path, on_error=bad.bad.leave_out)
        return
    if not_utf8:
        raise ImportFileError(
            f"{path}: byte 0x{not_utf8[0].encode(errors='surrogateescape').hex()} is not UTF-8; save it as UTF-8, or"
            " convert it with iconv"
        )
    for key in RECORD_LIST_KEYS:
        if isinstance(document, Mapping) and isinstance(document.get(key), list):
            document = document[key]
    for number, record in enumerate(document if isinstance(document, list) else [document], 1):
        if isinstance(record, Mapping):
            yield number, record
            continue
        bad.bad.leave_out_record(number, f"came {type(record).__name__}; expected an object")


def _is_json(text: str) -> bool:
    """Returns whether a text begins as JSON; if its first line is bad, whether the second line is an object."""
    first, _, later_text = text.lstrip().partition("\n")
    if first.startswith(("{", "[")):
        return True
    try:
        return isinstance(json.loads(later_text.lstrip().partition("\n")[0]), dict)
    except (ValueError, RecursionError):
        return False


def _preset_of(path: Path, form: str, records: Sequence[tuple[int, Record]]) -> Preset:
    if form != "auto":
        for preset in PRESETS:
            if preset.name == form:
                return preset
        raise ImportFileError(f"there is no format {form!r}; expected auto, {', '.join(PRESET_NAMES)}")
    for _, record in records:
        for preset in PRESETS:
            if any(keys <= record.keys() for keys in preset.keys):
                return preset
    raise ImportFileError(
        f"{path}: its records have {', '.join(sorted(map(str, records[0][1]))[:8])}; expected request_id and label, or "
        f"an export of {', '.join(preset.what for preset in PRESETS[1:])}"
    )


def _time(value: object) -> float | None:
    """Returns seconds since 1970; None if no time is given. A time without zone is read as UTC.

    Raises `ValueError` for anything but a time, and for a time before 2000 or after 2099: a spreadsheet's date is days
    since 1900, which read as seconds would be in 1970.
    """
    if value is None or (isinstance(value, str) and not value.strip()):
        return None
    expected = "expected seconds since 1970, or 2026-11-23T12:00:00Z"
    seconds: object = value
    if isinstance(value, str):
        try:
            seconds = float(value)
        except ValueError:
            try:
                when = datetime.fromisoformat(value.strip())
            except ValueError:
                raise ValueError(f"time {value[:40]!r}; {expected}") from None
            seconds = (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)):
        raise ValueError(f"time {value!r}; {expected}")
    try:
        timestamp = seconds / 1e3 if seconds > MIN_MILLISECONDS else float(seconds)
    except OverflowError:
        raise ValueError(f"time of {len(str(seconds))} digits; {expected}") from None
    if EARLIEST_LABEL <= timestamp < LATEST_LABEL:
        return timestamp
    reason = "which lies before 2000 or after 2099"
    if _SHEET_DAYS[0] <= timestamp <= _SHEET_DAYS[1]:
        day = (_SHEET_EPOCH + timedelta(days=timestamp)).strftime("%Y-%m-%dT%H:%M:%SZ")
        reason = f"which looks like a spreadsheet's date ({day}, if it counts days since 1900): write it out"
    raise ValueError(f"time {value!r}, {reason}; {expected}")
