"""What each value of a label file means: right, wrong, unsure, or nothing, and why."""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from metaprobe.monitoring.label_formats import NUMBER, OURS, PLAIN, SCORE, WORD, YES_NO, Said
from metaprobe.monitoring.labels import (
    NO_WORDS,
    RIGHT_WORDS,
    SOURCES,
    UNSURE_WORDS,
    WRONG_WORDS,
    YES_WORDS,
    label_value,
)
from metaprobe.records.errors import RecordError
from metaprobe.records.label_state import MAXIMIZE, MINIMIZE, direction_of_name, tells_part, tells_state, word_meaning

MEANINGS: Mapping[str, float | None] = {"correct": 1.0, "wrong": 0.0, "unsure": None}
FORM = "expected VALUE=correct, VALUE=wrong or VALUE=unsure, joined by commas; for numbers also >=4=correct or <3=wrong"
_BETWEEN = re.compile(r"(?<==correct),|(?<==wrong),|(?<==unsure),")
_LIMIT = re.compile(r"(>=|<=|>|<)\s*(-?\d+(?:\.\d+)?)")

ASK = "say what they mean with --value-map"
SHOWN = 4
"""Words of a kind that are shown."""


@dataclass(frozen=True, slots=True)
class _Rule:
    said: str
    """As the user wrote the value."""
    meaning: str

    def fits(self, text: str, number: float | None) -> bool:
        limit = _LIMIT.fullmatch(self.said)
        if limit is not None:
            at = float(limit[2])
            return (
                number is not None
                and {
                    ">=": number >= at,
                    "<=": number <= at,
                    ">": number > at,
                    "<": number < at,
                }[limit[1]]
            )
        wanted = _number(self.said)
        return text.casefold() == self.said.casefold() or (wanted is not None and wanted == number)


class ValueMap:
    """Values and what a user says that they mean. It remembers which of them were met."""

    def __init__(self, given: str | Mapping[str, str] = "") -> None:
        """`given`: text as on the command line, or value -> `correct`, `wrong` or `unsure`.

        Raises `RecordError` for another meaning, and for a value with two of them.
        """
        pairs = list(given.items()) if isinstance(given, Mapping) else [_pair(one) for one in _parts(given)]
        rules: dict[str, _Rule] = {}
        for value, meaning in pairs:
            key, named = str(value).strip(), str(meaning).strip().casefold()
            if not key or named not in MEANINGS:
                raise RecordError(f"value map: {f'{value}={meaning}'[:60]!r}; {FORM}")
            if (before := rules.setdefault(key.casefold(), _Rule(key, named))).meaning != named:
                raise RecordError(f"value map: {key[:40]!r} is both {before.meaning} and {named}; expected one meaning")
        self._rules = tuple(rules.values())
        self._met: set[_Rule] = set()

    def __len__(self) -> int:
        return len(self._rules)

    def meaning(self, *values: object) -> str:
        """Returns what these values of one record mean, or nothing where the map says nothing of them.

        Raises `RecordError` where the map says two things of them.
        """
        met = {rule for value in values for rule in self._rules if rule.fits(_text(value), _number(value))}
        if len(meanings := sorted({rule.meaning for rule in met})) > 1:
            said = " and ".join(sorted(f"{rule.said}={rule.meaning}" for rule in met))
            raise RecordError(f"value map: {said} both fit {str(values[0])[:40]!r}; expected one meaning of a value")
        self._met |= met
        return meanings[0] if meanings else ""

    def unmet(self) -> list[str]:
        """Returns the values that no record had, as the user wrote them."""
        return [f"{rule.said}={rule.meaning}" for rule in self._rules if rule not in self._met]


def _parts(text: str) -> list[str]:
    return [part for part in _BETWEEN.split(text.strip()) if part.strip()]


def _pair(text: str) -> tuple[str, str]:
    value, _, meaning = text.rpartition("=")
    return value, meaning


def _text(value: object) -> str:
    return "" if value is None else str(value).strip()


@dataclass(frozen=True, slots=True)
class Meaning:
    """What one thing that a record says is taken for."""

    said: Said
    note: str
    """How it is read, or why it is left out."""
    label: bool = True
    """Whether it is a label."""
    value: float | None = None
    """1 right, 0 wrong, None unsure; None where it is no label."""
    notable: bool = True
    """Whether somebody who did not ask should hear of it."""


def read_meanings(said: Sequence[Said], value_map: ValueMap) -> list[Meaning]:
    """Returns what each of these things means, in their order.

    Raises `ValueError`, of which the first argument is a place among `said`, for a value that its own format does not
    allow, and `RecordError` for a value map that contradicts itself or a record.
    """
    overridden = _overridden(said)
    wide = {one.name for one in said if one.type == SCORE and not _is_share(one.value)}
    found = []
    for place, one in enumerate(said):
        if one.own_id and one.own_id in overridden:
            found.append(_left(one, "another record overrides it"))
            continue
        try:
            found.append(_meaning(one, value_map, wide))
        except RecordError:
            raise
        except ValueError as error:
            raise ValueError(place, str(error)) from error
    return list(_without_parts(found))


def describe_kinds(form: str, found: Sequence[Meaning]) -> Iterator[tuple[str, bool]]:
    """Yields a line for each kind of value, and whether somebody who did not ask should hear of it."""
    kinds: dict[tuple[str, str, str], list[Meaning]] = defaultdict(list)
    for one in found:
        kinds[one.said.kind, one.said.name, one.note].append(one)
    for (kind, name, note), ones in kinds.items():
        values = _values([one.said for one in ones]) if ASK in note else ""
        called = f' "{name[:60]}"' if name else ""
        plural = "s" if kind == "label" and len(ones) > 1 else ""
        yield f"{form}: {len(ones)} {kind}{plural}{called}{values}: {note}", ones[0].notable


def _meaning(said: Said, value_map: ValueMap, wide: set[str]) -> Meaning:
    if said.why_not or (said.astray and not said.request_id):
        return _left(said, said.why_not or said.astray)
    if said.name.casefold().split(".")[0] == OURS:
        return _left(said, "a verdict of metaprobe itself is no label")
    if said.value in (None, "") and said.type != PLAIN:
        return _left(said, "it has no value")
    if mapped := value_map.meaning(said.value, *filter(None, [said.word])):
        _check_map(said, mapped)
        return Meaning(said, "read by the value map", value=MEANINGS[mapped])
    if said.type == PLAIN:
        return Meaning(said, "1 is right", value=label_value(said.value), notable=False)
    stated = said.direction or direction_of_name(said.name)
    word = _fixed(said)
    number = _share(said)
    if said.type == SCORE and (why := _why_apart(said, number, stated)):
        return _left(said, why)
    if word is not None:
        return Meaning(said, "read by the words for right and wrong", value=word, notable=False)
    if any(text in UNSURE_WORDS for text in _words(said)):
        return Meaning(said, "unsure", value=None, notable=False)
    return _by_direction(said, number, stated, wide)


def _why_apart(said: Said, number: float | None, stated: str) -> str:
    """Why the word beside a score does not tell the same as the score; empty where it does, or where there is none."""
    word = said.word.strip().casefold()
    if not word or word in UNSURE_WORDS:
        return ""
    good, high = word_meaning(word) if _fixed(said) is None else _fixed(said), _number(word)
    if word in YES_WORDS or word in NO_WORDS:
        high = float(word in YES_WORDS)
    elif high is not None:
        high = high if high == number else 1.0 - (number or 0.0)
    elif good is None:
        if said.direction in (MAXIMIZE, MINIMIZE) and not tells_state(word):
            return ""  # the record itself says how its score is read
        if tells_part(word) and number is not None and 0 < number < 1:
            return ""
        return f"the meaning of the word {word[:30]!r} beside its score is not known; {ASK}"
    elif number is None or stated not in (MAXIMIZE, MINIMIZE):
        return ""
    else:
        high = good if stated == MAXIMIZE else 1.0 - good
    if number is not None and ((number > 0.5) != (high > 0.5) or number == 0.5 != high):
        return f"its word {word[:30]!r} and its score {number:g} contradict each other"
    return ""


def _by_direction(said: Said, number: float | None, direction: str, wide: set[str]) -> Meaning:
    """The meaning of a value that says how much, and not whether that is good."""
    if said.type == NUMBER:
        return _left(said, f"the range of these numbers is not stated; {ASK}, such as >=4=correct")
    if said.type == SCORE and said.name in wide:
        return _left(said, f"not all of these scores lie between 0 and 1; {ASK}, such as >=4=correct")
    if number is None or said.type not in (YES_NO, WORD, SCORE):
        return _left(said, f"these values are not known; {ASK}")
    if direction not in (MAXIMIZE, MINIMIZE):
        why = f"of direction {direction!r}" if direction else "nothing says whether 1 is right or wrong"
        return _left(said, f"{why}; {ASK}, such as 1=correct,0=wrong")
    if said.direction and direction_of_name(said.name) not in ("", direction):
        return _left(said, f"their name and their direction, {direction}, contradict each other")
    by = "as their direction says" if said.direction else "by the name"
    if direction == MAXIMIZE:
        return Meaning(said, f"1 is right, {by}", value=number, notable=False)
    return Meaning(said, f"turned: 1 is wrong, {by} (minimize)", value=1 - number)


def _check_map(said: Said, mapped: str) -> None:
    """Raises `RecordError` where the user says the opposite of what the record itself states."""
    word, number = _fixed(said), _share(said)
    stated = word
    if stated is None and number in (0.0, 1.0) and said.direction in (MAXIMIZE, MINIMIZE):
        stated = number if said.direction == MAXIMIZE else 1.0 - number
    if stated is not None and MEANINGS[mapped] == 1 - stated:
        why = f"the direction {said.direction}" if word is None else "its own word"
        raise RecordError(
            f"the value map calls {str(said.word or said.value)[:40]!r} of {said.name!r} {mapped}, and {why} says the "
            "opposite; expected a map for values that nothing else explains"
        )


def _fixed(said: Said) -> float | None:
    """1 or 0 where the value or the word beside it is one for right or for wrong; None elsewhere."""
    for text in _words(said):
        if text in RIGHT_WORDS or text in WRONG_WORDS:
            return float(text in RIGHT_WORDS)
    return None


def _share(said: Said) -> float | None:
    """The value in [0, 1]: a yes is 1. None for anything else."""
    if said.type == SCORE:
        return _number(said.value) if _is_share(said.value) else None
    if said.type == YES_NO and (number := _number(said.value)) in (0.0, 1.0):
        return number
    for text in _texts(said):
        if said.type in (YES_NO, WORD) and (text in YES_WORDS or text in NO_WORDS):
            return float(text in YES_WORDS)
    return None


def _words(said: Said) -> list[str]:
    """The words of a value whose type is a word, or a score with a word beside it."""
    return _texts(said) if said.type in (WORD, SCORE) else []


def _texts(said: Said) -> list[str]:
    return [one.strip().casefold() for one in (said.word, said.value) if isinstance(one, str) and one.strip()]


def _number(value: object) -> float | None:
    try:
        return float(value) if isinstance(value, (bool, int, float, str)) else None
    except (ValueError, OverflowError):
        return None


def _is_share(value: object) -> bool:
    number = _number(value)
    return number is not None and 0 <= number <= 1


def _left(said: Said, why: str) -> Meaning:
    return Meaning(said, f"left out, {why}", label=False)


def _overridden(said: Sequence[Said]) -> set[str]:
    """Ids of the records whose place another one takes: one that may be a label, of a source that is no weaker."""
    by_id = {one.own_id: one for one in said if one.own_id}
    return {
        one.overrides
        for one in said
        if one.overrides in by_id and not one.why_not and _rank(one) <= _rank(by_id[one.overrides])
    }


def _rank(said: Said) -> int:
    """0 for a person, more for weaker sources; a record of the user's own that does not say counts as a person's."""
    return SOURCES.index(said.source) if said.source else 0


def _without_parts(found: Sequence[Meaning]) -> Iterator[Meaning]:
    """The same; where several parts of one trace were judged, labels of parts are left out: which is the answer?"""
    parts: dict[tuple[str, str], set[str]] = defaultdict(set)
    for one in found:
        if one.label:
            parts[one.said.name, one.said.request_id].add(one.said.part)
    for one in found:
        several = len(parts[one.said.name, one.said.request_id]) > 1
        if one.label and one.said.part and several:
            yield _left(one.said, "several parts of its trace were judged; say whose id the answer has (--id)")
        else:
            yield one


def _values(said: Sequence[Said]) -> str:
    """The values of a kind for a message: a range of numbers, or the first few words."""
    numbers = [number for one in said if (number := _number(one.value)) is not None]
    if len(numbers) == len(said):
        low, high = min(numbers), max(numbers)
        return f" {low:g}..{high:g}" if low < high else f", all {low:g}"
    words = list(dict.fromkeys(str(one.value)[:30] for one in said if one.value not in (None, "")))
    more = ", ..." if len(words) > SHOWN else ""
    return f" ({', '.join(words[:SHOWN])}{more})" if words else ""
