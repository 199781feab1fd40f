"""Detects faults that spreadsheets and copied cells make in ids: rounded long numbers, and added blanks.

A changed id names no answer, or another one. The original id cannot be recovered, so a message reports the fault.
"""

import re
from collections.abc import Iterable
from enum import StrEnum
from unicodedata import category

_ROUNDED = re.compile(r"[-+]?\d(?:[.,]\d+)?E\+\d+", re.I)
"""Matches a long whole number as a spreadsheet shows it, such as 1.23457E+15."""
_FULL_DIGITS = 15
"""Digits of a whole number that a spreadsheet keeps. It replaces each further digit by 0."""
IDS_SHOWN = 4
"""Most ids of one fault that a message shows."""


class IdFault(StrEnum):
    """A fault that a spreadsheet or a copy has probably made in an id. The value names the fault, and what to do."""

    ROUNDED = "rounded as spreadsheets round long numbers: export them as text, import the column as Text"
    BLANKS = "blanks or invisible signs around or inside, as copied cells bring them along: take them out"
    ZEROS = f"only zeros after {_FULL_DIGITS} digits, as spreadsheets round longer numbers: export them as text"
    DECIMAL = "a .0 at the end, as where a column of whole numbers was read as decimals: export the ids again as text"

    @classmethod
    def of(cls, name: str) -> "IdFault | None":
        """Returns the likely fault of an id, or None if the id looks intact."""
        if _ROUNDED.fullmatch(name.strip()):
            return cls.ROUNDED
        if any(sign.isspace() or category(sign) in ("Cf", "Cc") for sign in name):
            return cls.BLANKS
        if name.isdigit() and len(name) > _FULL_DIGITS and not name[_FULL_DIGITS:].strip("0"):
            return cls.ZEROS
        return cls.DECIMAL if re.fullmatch(r"\d+\.0", name) else None

    @classmethod
    def list_all(cls, ids: Iterable[str]) -> list[str]:
        """Returns a clause for each likely fault of some ids: how many there are, the first of them, and the cause."""
        ids_of_fault: dict[IdFault, dict[str, None]] = {}
        for identity in ids:
            if fault := cls.of(identity):
                ids_of_fault.setdefault(fault, {})[identity] = None
        return [
            f"{len(faulty_ids)} id{'s' * (len(faulty_ids) > 1)} ({', '.join(map(repr, list(faulty_ids)[:IDS_SHOWN]))}"
            f"{', ...' * (len(faulty_ids) > IDS_SHOWN)}): {fault}"
            for fault, faulty_ids in ids_of_fault.items()
        ]
