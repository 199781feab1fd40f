"""The faults that spreadsheets and copied cells make in ids: they round long numbers, and bring blanks along.

An id that was changed names no answer, or another one. Nothing can tell which id it was, so it is said.
"""

import re
from collections.abc import Iterable
from enum import StrEnum
from unicodedata import category

_ROUNDED = re.compile(r"[-+]?\d(?:[.,]\d+)?E\+\d+", re.I)
"""Matches a whole number as a spreadsheet shows it when the number is long, such as 1.23457E+15."""
_FULL_DIGITS = 15
"""Digits of a whole number that a spreadsheet keeps. It writes 0 for each further digit."""
IDS_SHOWN = 4
"""How many ids of a kind a message shows."""


class IdFault(StrEnum):
    """A fault that a spreadsheet or a copy has probably made in an id; the value says it, and what to do."""

    ROUNDED = "rounded as spreadsheets round long numbers: export them as text, import the column as Text"
    BLANKS = "blanks or invisible signs around or inside, as copied cells bring them along: take them out"
    ZEROS = f"only zeros after {_FULL_DIGITS} digits, as spreadsheets round longer numbers: export them as text"
    DECIMAL = "a .0 at the end, as where a column of whole numbers was read as decimals: export the ids again as text"

    @classmethod
    def of(cls, name: str) -> "IdFault | None":
        """Returns the likely fault of an id, or None for an id that looks sound."""
        if _ROUNDED.fullmatch(name.strip()):
            return cls.ROUNDED
        if any(sign.isspace() or category(sign) in ("Cf", "Cc") for sign in name):
            return cls.BLANKS
        if name.isdigit() and len(name) > _FULL_DIGITS and not name[_FULL_DIGITS:].strip("0"):
            return cls.ZEROS
        return cls.DECIMAL if re.fullmatch(r"\d+\.0", name) else None


def list_faults(ids: Iterable[str]) -> list[str]:
    """Returns a clause for each likely fault of some ids: how many there are, the first of them, and the cause."""
    kinds: dict[IdFault, dict[str, None]] = {}
    for one in ids:
        if why := IdFault.of(one):
            kinds.setdefault(why, {})[one] = None
    return [
        f"{len(found)} id{'s' * (len(found) > 1)} ({', '.join(map(repr, list(found)[:IDS_SHOWN]))}"
        f"{', ...' * (len(found) > IDS_SHOWN)}): {why}"
        for why, found in kinds.items()
    ]
