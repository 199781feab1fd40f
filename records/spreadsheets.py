"""The faults that spreadsheets and copied cells make in ids: they round long numbers, and bring blanks along.

An id that was changed names no answer, or another one. Nothing can tell which id it was, so it is said.
"""

import re
from collections.abc import Iterable
from unicodedata import category

_ROUNDED = re.compile(r"[-+]?\d(?:[.,]\d+)?E\+\d+", re.I)
"""Matches a whole number as a spreadsheet shows it when the number is long, such as 1.23457E+15."""
_FULL_DIGITS = 15
"""Digits of a whole number that a spreadsheet keeps. It writes 0 for each further digit."""
IDS_SHOWN = 4
"""How many ids of a kind a message shows."""

ROUNDED_CAUSE = "rounded as spreadsheets round long numbers: export them as text, import the column as Text"
BLANKS_CAUSE = "blanks or invisible signs around or inside, as copied cells bring them along: take them out"
ZEROS_CAUSE = f"only zeros after {_FULL_DIGITS} digits, as spreadsheets round longer numbers: export them as text"
DECIMAL_CAUSE = "a .0 at the end, as where a column of whole numbers was read as decimals: export the ids again as text"
"""Likely causes of ids that are not the log's."""


def likely_fault(name: str) -> str:
    """Returns what a spreadsheet or a copy has probably done to an id, or nothing for an id that looks sound."""
    if _ROUNDED.fullmatch(name.strip()):
        return ROUNDED_CAUSE
    if any(sign.isspace() or category(sign) in ("Cf", "Cc") for sign in name):
        return BLANKS_CAUSE
    if name.isdigit() and len(name) > _FULL_DIGITS and not name[_FULL_DIGITS:].strip("0"):
        return ZEROS_CAUSE
    return DECIMAL_CAUSE if re.fullmatch(r"\d+\.0", name) else ""


def list_faults(ids: Iterable[str]) -> list[str]:
    """Returns a clause for each likely fault of some ids: how many there are, the first of them, and the cause."""
    kinds: dict[str, dict[str, None]] = {}
    for one in ids:
        if why := likely_fault(one):
            kinds.setdefault(why, {})[one] = None
    return [
        f"{len(found)} id{'s' * (len(found) > 1)} ({', '.join(map(repr, list(found)[:IDS_SHOWN]))}"
        f"{', ...' * (len(found) > IDS_SHOWN)}): {why}"
        for why, found in kinds.items()
    ]
