"""What a user says that values mean: `--value-map "helpful=correct,>=4=correct,<=2=wrong"`."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from metaprobe.records.errors import RecordError

MEANINGS: Mapping[str, float | None] = {"correct": 1.0, "wrong": 0.0, "unsure": None}
FORM = "expected VALUE=correct, VALUE=wrong or VALUE=unsure, joined by commas; for numbers also >=4=correct or <3=wrong"
_BETWEEN = re.compile(r"(?<==correct),|(?<==wrong),|(?<==unsure),")
_LIMIT = re.compile(r"(>=|<=|>|<)\s*(-?\d+(?:\.\d+)?)")


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


def _number(value: object) -> float | None:
    if isinstance(value, bool):
        return float(value)
    try:
        return float(str(value))
    except ValueError:
        return None
