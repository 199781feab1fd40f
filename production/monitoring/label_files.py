"""Labels out of files: JSON lines and CSV of one's own, and what other programs export.

Each judgement of a file means right, wrong, unsure, or nothing, and it is said why (`Meaning`). Which fields hold it in
each product is in `label_mapping.py`. Reading begins at `read_label_file`.
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
    list_faults,
    read_whole,
    reading,
)
from metaprobe.production.monitoring.label_mapping import (
    IDS,
    NUMBER,
    OURS,
    PLAIN,
    PRESET_NAMES,
    PRESETS,
    SCORE,
    WORD,
    YES_NO,
    LabelRecord,
    Preset,
    Record,
    read_judgements,
)
from metaprobe.production.monitoring.labels import (
    LABEL_SOURCES,
    NO_WORDS,
    RIGHT_WORDS,
    UNSURE_WORDS,
    WRONG_WORDS,
    YES_WORDS,
    label_value,
)
from metaprobe.production.monitoring.log import FeedbackLabel
from metaprobe.production.monitoring.sampling import ANSWERED_AT_KEY

MEANINGS: Mapping[str, float | None] = {"correct": 1.0, "wrong": 0.0, "unsure": None}
EXPECTED_VALUE_MAP = (
    "expected VALUE=correct, VALUE=wrong or VALUE=unsure, joined by commas; for numbers also >=4=correct or <3=wrong"
)
_BETWEEN = re.compile(r"(?<==correct),|(?<==wrong),|(?<==unsure),")
_LIMIT = re.compile(r"(>=|<=|>|<)\s*(-?\d+(?:\.\d+)?)")
_COMPARED = {">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt}

VALUE_MAP_HINT = "say what they mean with --value-map"
WORDS_SHOWN = 4
"""How many words of a kind a message shows."""


class ValueMap:
    """Values and what a user says that they mean. It remembers which of the values were met."""

    def __init__(self, given: str | Mapping[str, str] = "") -> None:
        """`given`: text as on the command line, or value -> `correct`, `wrong` or `unsure`.

        Raises `RecordError` for another meaning, and for a value with two meanings.
        """
        pairs: list[tuple[object, object]] = []
        if isinstance(given, Mapping):
            pairs += given.items()
        else:
            parts = (part.rpartition("=") for part in _BETWEEN.split(given.strip()) if part.strip())
            pairs += [(value, meaning) for value, _, meaning in parts]
        rules: dict[str, tuple[str, str]] = {}
        for value, meaning in pairs:
            key, named = str(value).strip(), str(meaning).strip().casefold()
            if not key or named not in MEANINGS:
                raise RecordError(f"value map: {f'{value}={meaning}'[:60]!r}; {EXPECTED_VALUE_MAP}")
            _, before = rules.setdefault(key.casefold(), (key, named))
            if before != named:
                raise RecordError(f"value map: {key[:40]!r} is both {before} and {named}; expected one meaning")
        self._rules = list(rules.values())
        self._met: set[tuple[str, str]] = set()

    def __len__(self) -> int:
        return len(self._rules)

    def meaning(self, *values: object) -> str:
        """Returns what these values of one record mean, or nothing where the map does not hold them.

        Raises `RecordError` where the map gives them two meanings.
        """
        met = {rule for value in values for rule in self._rules if _fits(rule[0], value)}
        if len(meanings := sorted({meaning for _, meaning in met})) > 1:
            both = " and ".join(sorted(map("=".join, met)))
            raise RecordError(f"value map: {both} both fit {str(values[0])[:40]!r}; expected one meaning of a value")
        self._met |= met
        return meanings[0] if meanings else ""

    def unmet(self) -> list[str]:
        """Returns the values that no record had, as the user wrote them."""
        return ["=".join(rule) for rule in self._rules if rule not in self._met]


def _fits(wanted: str, value: object) -> bool:
    """Returns whether a value is the one that the user wrote, or lies beyond the limit that the user wrote."""
    number = _number(value)
    if (limit := _LIMIT.fullmatch(wanted)) is not None:
        return number is not None and bool(_COMPARED[limit[1]](number, float(limit[2])))
    same = number is not None and number == _number(wanted)
    return same or ("" if value is None else str(value)).strip().casefold() == wanted.casefold()


@dataclass(frozen=True, slots=True)
class Meaning:
    """A judgement, and what it is taken for."""

    judgement: LabelRecord
    note: str
    """How it is read, or why it is left out."""
    label: bool = True
    """Whether it is a label."""
    value: float | None = None
    """1 right, 0 wrong, None unsure; None where it is no label."""
    notable: bool = True
    """Whether somebody who did not ask should hear of it."""


def read_meanings(
    judged: Sequence[tuple[int, LabelRecord]], value_map: ValueMap, leave_out: Callable[[int, str], object]
) -> list[tuple[int, Meaning]]:
    """Returns what each judgement means, with the number of its record, in their order.

    A judgement is left out where a record that may be a label, of no weaker source, overrides it. Labels of parts are
    left out where several parts of one trace were judged: nothing says which part is the answer. A value that its own
    format does not allow goes to `leave_out`, with the number of its record and why. Raises `RecordError` for a value
    map that contradicts itself or a record.
    """
    by_id = {one.own_id: one for _, one in judged if one.own_id}
    overridden = {
        one.overrides
        for _, one in judged
        if one.overrides in by_id and not one.why_not and _rank(one) <= _rank(by_id[one.overrides])
    }
    wide = {one.name for _, one in judged if one.type == SCORE and not _is_share(one.value)}
    meanings: list[tuple[int, Meaning]] = []
    parts: dict[tuple[str, str], set[str]] = defaultdict(set)
    for number, one in judged:
        try:
            over = one.own_id in overridden
            meant = _left(one, "another record overrides it") if over else _meaning(one, value_map, wide)
        except RecordError:
            raise
        except ValueError as error:
            leave_out(number, f"{error}; or say what it means with --value-map")
            continue
        meanings.append((number, meant))
        if meant.label:
            parts[one.name, one.request_id].add(one.part)
    for place, (number, meant) in enumerate(meanings):
        one = meant.judgement
        if meant.label and one.part and len(parts[one.name, one.request_id]) > 1:
            why = "several parts of its trace were judged; say whose id the answer has (--id)"
            meanings[place] = number, _left(one, why)
    return meanings


def describe_kinds(form: str, meanings: Sequence[Meaning]) -> Iterator[tuple[str, bool]]:
    """Yields a line for each kind of value, and whether somebody who did not ask should hear of it."""
    kinds: dict[tuple[str, str, str], list[Meaning]] = defaultdict(list)
    for one in meanings:
        kinds[one.judgement.kind, one.judgement.name, one.note].append(one)
    for (kind, name, note), ones in kinds.items():
        values = _values([one.judgement for one in ones]) if VALUE_MAP_HINT in note else ""
        called = f' "{name[:60]}"' if name else ""
        plural = "s" if kind == "label" and len(ones) > 1 else ""
        yield f"{form}: {len(ones)} {kind}{plural}{called}{values}: {note}", ones[0].notable


def _meaning(one: LabelRecord, value_map: ValueMap, wide: set[str]) -> Meaning:
    if one.why_not:
        return _left(one, one.why_not)
    if one.name.casefold().split(".")[0] == OURS:
        return _left(one, "a verdict of metaprobe itself is no label")
    if one.value in (None, "") and one.type != PLAIN:
        return _left(one, "it has no value")
    if mapped := value_map.meaning(one.value, *filter(None, [one.word])):
        _check_map(one, mapped)
        return Meaning(one, "read by the value map", value=MEANINGS[mapped])
    if one.type == PLAIN:
        return Meaning(one, "1 is right", value=label_value(one.value), notable=False)
    stated = one.direction or LabelWords(one.name).direction
    number = _share(one)
    if one.type == SCORE and (why := _why_apart(one, number, stated)):
        return _left(one, why)
    if (word := _fixed(one)) is not None:
        return Meaning(one, "read by the words for right and wrong", value=word, notable=False)
    if any(text in UNSURE_WORDS for text in _words(one)):
        return Meaning(one, "unsure", value=None, notable=False)
    return _by_direction(one, number, stated, wide)


def _why_apart(one: LabelRecord, number: float | None, stated: str) -> str:
    """Returns why the word beside a score contradicts the score; empty where it does not, and where there is none."""
    word = one.word.strip().casefold()
    if not word or word in UNSURE_WORDS:
        return ""
    fixed, high = _fixed(one), _number(word)
    good = LabelWords(word).meaning if fixed is None else fixed
    if word in YES_WORDS or word in NO_WORDS:
        high = float(word in YES_WORDS)
    elif high is not None:
        high = high if high == number else 1.0 - (number or 0.0)
    elif good is None:
        if one.direction in (LabelWords.maximize, LabelWords.minimize) and not LabelWords(word).tells_state:
            return ""  # the record itself says how its score is read
        if LabelWords(word).tells_part and number is not None and 0 < number < 1:
            return ""
        return f"the meaning of the word {word[:30]!r} beside its score is not known; {VALUE_MAP_HINT}"
    elif number is None or stated not in (LabelWords.maximize, LabelWords.minimize):
        return ""
    else:
        high = good if stated == LabelWords.maximize else 1.0 - good
    if number is not None and ((number > 0.5) != (high > 0.5) or number == 0.5 != high):
        return f"its word {word[:30]!r} and its score {number:g} contradict each other"
    return ""


def _by_direction(one: LabelRecord, number: float | None, direction: str, wide: set[str]) -> Meaning:
    """Returns the meaning of a value that says how much, and not whether that is good."""
    if one.type == NUMBER:
        return _left(one, f"the range of these numbers is not stated; {VALUE_MAP_HINT}, such as >=4=correct")
    if one.type == SCORE and one.name in wide:
        return _left(one, f"not all of these scores lie between 0 and 1; {VALUE_MAP_HINT}, such as >=4=correct")
    if number is None or one.type not in (YES_NO, WORD, SCORE):
        return _left(one, f"these values are not known; {VALUE_MAP_HINT}")
    if direction not in (LabelWords.maximize, LabelWords.minimize):
        why = f"of direction {direction!r}" if direction else "nothing says whether 1 is right or wrong"
        return _left(one, f"{why}; {VALUE_MAP_HINT}, such as 1=correct,0=wrong")
    if one.direction and LabelWords(one.name).direction not in ("", direction):
        return _left(one, f"their name and their direction, {direction}, contradict each other")
    by = "as their direction says" if one.direction else "by the name"
    if direction == LabelWords.maximize:
        return Meaning(one, f"1 is right, {by}", value=number, notable=False)
    return Meaning(one, f"turned: 1 is wrong, {by} (minimize)", value=1 - number)


def _check_map(one: LabelRecord, mapped: str) -> None:
    """Raises `RecordError` where the user says the opposite of what the record itself states."""
    word, number = _fixed(one), _share(one)
    stated = word
    if stated is None and number in (0.0, 1.0) and one.direction in (LabelWords.maximize, LabelWords.minimize):
        stated = number if one.direction == LabelWords.maximize else 1.0 - number
    if stated is not None and MEANINGS[mapped] == 1 - stated:
        why = f"the direction {one.direction}" if word is None else "its own word"
        raise RecordError(
            f"the value map calls {str(one.word or one.value)[:40]!r} of {one.name!r} {mapped}, and {why} says the "
            "opposite; expected a map for values that nothing else explains"
        )


def _fixed(one: LabelRecord) -> float | None:
    """Returns 1 or 0 where the value or the word beside it is a word for right or for wrong, else None."""
    for text in _words(one):
        if text in RIGHT_WORDS or text in WRONG_WORDS:
            return float(text in RIGHT_WORDS)
    return None


def _share(one: LabelRecord) -> float | None:
    """Returns the value in [0, 1], where a yes is 1; None for anything else."""
    if one.type == SCORE:
        return _number(one.value) if _is_share(one.value) else None
    if one.type == YES_NO and (number := _number(one.value)) in (0.0, 1.0):
        return number
    for text in _texts(one):
        if one.type in (YES_NO, WORD) and (text in YES_WORDS or text in NO_WORDS):
            return float(text in YES_WORDS)
    return None


def _words(one: LabelRecord) -> list[str]:
    """Returns the words of a value whose type is a word, or a score with a word beside it."""
    return _texts(one) if one.type in (WORD, SCORE) else []


def _texts(one: LabelRecord) -> list[str]:
    return [text.strip().casefold() for text in (one.word, one.value) if isinstance(text, str) and text.strip()]


def _number(value: object) -> float | None:
    try:
        return float(value) if isinstance(value, (bool, int, float, str)) else None
    except (ValueError, OverflowError):
        return None


def _is_share(value: object) -> bool:
    number = _number(value)
    return number is not None and 0 <= number <= 1


def _left(one: LabelRecord, why: str) -> Meaning:
    return Meaning(one, f"left out, {why}", label=False)


def _rank(one: LabelRecord) -> int:
    """Returns 0 for a person, more for weaker sources; a user's own record that does not say counts as a person's."""
    return LABEL_SOURCES.index(one.source) if one.source else 0


def _values(judgements: Sequence[LabelRecord]) -> str:
    """Returns the values of a kind for a message: a range of numbers, or the first few words."""
    numbers = [number for one in judgements if (number := _number(one.value)) is not None]
    if len(numbers) == len(judgements):
        low, high = min(numbers), max(numbers)
        return f" {low:g}..{high:g}" if low < high else f", all {low:g}"
    words = list(dict.fromkeys(str(one.value)[:30] for one in judgements if one.value not in (None, "")))
    more = ", ..." if len(words) > WORDS_SHOWN else ""
    return f" ({', '.join(words[:WORDS_SHOWN])}{more})" if words else ""


MAX_FILE_BYTES = 256 << 20
"""Bytes of a file of labels, unpacked: the file is read as a whole."""
LISTS = ("data", "traces", "assessments", "annotations", "scores", "feedback")
"""Keys under which a document holds its records."""
MILLISECONDS = 1e11
"""A time above this number is in milliseconds."""
EARLIEST, LATEST = 946_684_800.0, 4_102_444_800.0
"""Seconds since 1970 at the beginning of 2000 and of 2100. No label of a language model's answer is older or that new:
other numbers are in another unit, or days since 1900, in which spreadsheets count."""
_SHEET_DAYS = 20_000.0, 80_000.0
"""Days since 1900 in 1954 and in 2119: a time between them is a spreadsheet's date."""
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
    """Returns the labels in a file, in its order. A bad record is left out; a warning counts these by reason.

    `form`: one of `PRESET_NAMES`, or `auto`, which goes by the records' keys. `name`: what was judged, where the file
    holds labels of several kinds. `id_key`: where the answer's id is, such as `observationId` or `metadata.id`.
    `value_map`: the meaning of values whose type does not say it, as `{"fine": "correct", "<3": "wrong"}` or
    `"fine=correct,<3=wrong"`. `say` is called with a line for each kind of value: what it was taken for,
    or why it was left out. Without `say`, a warning tells of kinds that were left out or turned. `strict`: whether the
    first bad record raises; by default what the running command says, else False.

    Raises `ImportFileError` where more than half of the records are bad, where `name` is needed, where nothing in the
    file is a label, and for a value map that contradicts a record or itself, or that fits no value. A record whose id a
    spreadsheet has rounded is left out; other ids that a spreadsheet or a copy has probably changed are said.
    """
    path = Path(path)
    with reading(path, strict=strict, unit="records") as bad:
        return _labels(path, _BadRecords(bad), form, name=name, id_key=id_key, value_map=value_map, say=say)


def _labels(
    path: Path,
    bad: "_BadRecords",
    form: str,
    *,
    name: str,
    id_key: str,
    value_map: str | Mapping[str, str],
    say: Callable[[str], object] | None,
) -> list[FeedbackLabel]:
    """Returns the labels in a file, as `read_label_file` does; records that hold none in their format go to `bad`."""
    records = list(_records(path, bad))
    bad.start(records)
    if not records:
        bad.check()
        raise ImportFileError(f"{path} holds no records; expected labels as {', '.join(PRESET_NAMES)}")
    preset = _preset_of(path, form, records)
    judged: list[tuple[int, LabelRecord]] = []
    for number, record in records:
        try:
            judged += [(number, one) for one in read_judgements(preset, record, id_key)]
        except (TypeError, AttributeError, ValueError, LookupError) as error:
            bad.leave_out(number, f"it is no record of {preset.what} ({error!r})")
    bad.check()
    if not judged and ANSWERED_AT_KEY in records[0][1]:
        raise ImportFileError(f'{path} is a sheet without any label; put 1, 0 or "unsure" into `label`')
    names = sorted({one.name for _, one in judged if one.name})
    if name and name not in names:
        raise ImportFileError(f"{path}: nothing is called {name!r}; there are {', '.join(names) or 'no names'}")
    wanted = [(number, one) for number, one in judged if not name or one.name == name]
    try:
        meant = ValueMap(value_map)
        read = read_meanings(wanted, meant, bad.leave_out)
        bad.check()
        meanings = [meaning for _, meaning in read]
    except ImportFileError:
        raise
    except RecordError as error:
        raise ImportFileError(f"{path}: {error}") from error
    notes = list(describe_kinds(preset.name, meanings))
    if unmet := meant.unmet():
        missing = f"no value fits {', '.join(unmet)} of the value map"
        if len(unmet) == len(meant):
            values = "; ".join(line for line, _ in notes)
            raise ImportFileError(f"{path}: {missing}; expected values of the file ({values})")
        notes.append((missing, True))
    labelled = [(number, one) for number, one in read if one.label]
    if not labelled:
        raise ImportFileError(f"{path} holds no label: {'; '.join(line for line, _ in notes)}")
    if len(names := sorted({one.judgement.name for _, one in labelled})) > 1:
        raise ImportFileError(f"{path} judges {', '.join(names)}: choose one (--name)")
    rounded = [(number, one) for number, one in labelled if IdFault.of(one.judgement.request_id) == IdFault.ROUNDED]
    for number, one in rounded:
        bad.leave_out(number, f"the id {one.judgement.request_id!r} is {IdFault.ROUNDED}")
    bad.check()
    labelled = [pair for pair in labelled if pair not in rounded]
    ids = [one.judgement.request_id for _, one in labelled]
    notes += [(f"{preset.name}: taken as they stand, {fault}", True) for fault in list_faults(ids)]
    for line, notable in notes:
        if say is not None:
            say(line)
        elif notable:
            warnings.warn(line, stacklevel=2)
    labels = []
    for number, meaning in labelled:
        try:
            labels.append(_label(meaning))
        except ValueError as error:
            bad.leave_out(number, str(error))
    return labels


class _BadRecords:
    """The bad records of a file of labels; each is counted once, whatever number of judgements it holds."""

    def __init__(self, bad: BadFile) -> None:
        self.bad = bad
        self._records: dict[int, Record] = {}

    def start(self, records: Sequence[tuple[int, Record]]) -> None:
        """Takes the records that could be read; they count as sound until one is left out."""
        self._records = dict(records)
        self.bad.sound = len(records)

    def leave_out(self, number: int, what: str) -> None:
        """Counts a record as bad. Raises `ImportFileError` where the first bad record stops."""
        if number in self._records:
            self.bad.leave_out_record(number, what, self._records.pop(number))
            self.bad.sound -= 1

    def check(self) -> None:
        """Raises `ImportFileError` where more than half of the records are bad."""
        self.bad.check()


def _label(meaning: Meaning) -> FeedbackLabel:
    """Returns the label of a judgement. Raises `ValueError` where no answer is named, or the time is none."""
    one = meaning.judgement
    if not one.request_id:
        raise ValueError(f"no id of an answer; expected one under {IDS[0]}, or say where it is (--id)")
    return FeedbackLabel(one.request_id, meaning.value, one.who, _time(one.time), one.source)


_NO_TEXT = re.compile("[\udc80-\udcff]")
"""Matches a byte that is not UTF-8, as `surrogateescape` decodes it."""


def _records(path: Path, bad: _BadRecords) -> Iterator[tuple[int, Record]]:
    """Yields (number from 1, record): a document's records, a CSV's rows, or lines; the file may be compressed."""
    data = read_whole(path, MAX_FILE_BYTES, "a file of labels: split it")
    # A line or row with bytes that are no text is a bad line; a document with such bytes is not taken at all.
    text = data.decode("utf-8-sig", "surrogateescape")
    no_text = None if text.isascii() else _NO_TEXT.search(text)
    del data  # a large file would stand twice in memory while its text is read
    if text.strip() and not _is_json(text):
        yield from iter_csv(path, on_error=bad.bad.leave_out)
        return
    try:
        document: Any = json.loads(text)
    except (ValueError, RecursionError):
        yield from iter_json_lines(path, on_error=bad.bad.leave_out)
        return
    if no_text:
        raise ImportFileError(
            f"{path}: byte 0x{no_text[0].encode(errors='surrogateescape').hex()} is not UTF-8; save it as UTF-8, or"
            " convert it with iconv"
        )
    for key in LISTS:
        if isinstance(document, Mapping) and isinstance(document.get(key), list):
            document = document[key]
    for number, record in enumerate(document if isinstance(document, list) else [document], 1):
        if isinstance(record, Mapping):
            yield number, record
            continue
        bad.bad.leave_out_record(number, f"came {type(record).__name__}; expected an object")


def _is_json(text: str) -> bool:
    """Returns whether a text begins as JSON does; where its first line is bad, whether the second is an object."""
    first, _, rest = text.lstrip().partition("\n")
    if first.startswith(("{", "[")):
        return True
    try:
        return isinstance(json.loads(rest.lstrip().partition("\n")[0]), dict)
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


def _time(given: object) -> float | None:
    """Returns seconds since 1970; None where nothing is given. A time without zone is taken as UTC.

    Raises `ValueError` for what is no time, or a time before 2000 or after 2099: a spreadsheet's date is days since
    1900, and read as seconds it would be in 1970.
    """
    if given is None or (isinstance(given, str) and not given.strip()):
        return None
    expected = "expected seconds since 1970, or 2026-11-23T12:00:00Z"
    seconds: object = given
    if isinstance(given, str):
        try:
            seconds = float(given)
        except ValueError:
            try:
                when = datetime.fromisoformat(given.strip())
            except ValueError:
                raise ValueError(f"time {given[:40]!r}; {expected}") from None
            seconds = (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)):
        raise ValueError(f"time {given!r}; {expected}")
    try:
        at = seconds / 1e3 if seconds > MILLISECONDS else float(seconds)
    except OverflowError:
        raise ValueError(f"time of {len(str(seconds))} digits; {expected}") from None
    if EARLIEST <= at < LATEST:
        return at
    why = "which lies before 2000 or after 2099"
    if _SHEET_DAYS[0] <= at <= _SHEET_DAYS[1]:
        day = (_SHEET_EPOCH + timedelta(days=at)).strftime("%Y-%m-%dT%H:%M:%SZ")
        why = f"which looks like a spreadsheet's date ({day}, if it counts days since 1900): write it out"
    raise ValueError(f"time {given!r}, {why}; {expected}")
