"""The four ways to say which answers are flagged: one dataclass, of which options and keyword arguments are made."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, TypedDict

from metaprobe.checkpoints.errors import ContractMismatch


class FlagKeywords(TypedDict, total=False):
    """The fields of `FlagOptions` as keyword arguments, for type checkers."""

    flag_rate: float | None
    flag_below: float | None
    catch: float | None
    risk: float | None


@dataclass(frozen=True, kw_only=True)
class FlagOptions:
    """Which answers are flagged. At most one of the four is given; without any, the stored threshold counts.

    Raises `ContractMismatch` for two of them, and for a value out of range.
    """

    # No slots: the options of a training inherit these beside their own, and two bases cannot both have slots.
    flag_rate: float | None = None
    """Share of the answers to flag, those of the lowest scores; above 0 and below 1."""
    flag_below: float | None = None
    """Score below which an answer is flagged, from 0 to 1."""
    catch: float | None = None
    """Share of the wrong answers to flag, promised on average over trainings; above 0 and below 1."""
    risk: float | None = None
    """Largest share of wrong answers among those not flagged, with 95 % confidence; above 0 and below 1."""

    def __post_init__(self) -> None:
        given = self.flags
        if len(given) > 1:
            raise ContractMismatch(
                f"{' and '.join(f'{name}={value!r}' for name, value in given.items())} were given; each of them sets "
                "the threshold, so give at most one"
            )
        for name, value in given.items():
            number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
            closed = name == "flag_below"
            if not number or not (0 <= value <= 1 if closed else 0 < value < 1):
                expected = "a score from 0 to 1" if closed else "a share above 0 and below 1, such as 0.3"
                raise ContractMismatch(f"{name} is {value!r}; expected {expected}")

    @property
    def flags(self) -> dict[str, Any]:
        """The options that are given, by name: none or one."""
        values = {field.name: getattr(self, field.name) for field in fields(FlagOptions)}
        return {name: value for name, value in values.items() if value is not None}

    def as_flags(self) -> "FlagOptions":
        """Returns the four alone, for options that inherit them beside others."""
        return FlagOptions(**self.flags)


USUAL_FLAGS = FlagOptions()
"""No option is given."""


def take_flag_options(named: dict[str, Any]) -> FlagOptions:
    """Returns the four options out of a mapping of all options of a command; they are removed from the mapping."""
    return FlagOptions(**{field.name: named.pop(field.name, None) for field in fields(FlagOptions)})


def flag_options_of_environment(environment: Mapping[str, str]) -> FlagOptions:
    """Returns the options in variables such as `METAPROBE_FLAG_RATE`.

    Raises `ContractMismatch` where one is no number.
    """
    found: dict[str, Any] = {}
    for field in fields(FlagOptions):
        name = f"METAPROBE_{field.name.upper()}"
        if written := environment.get(name, "").strip():
            try:
                found[field.name] = float(written)
            except ValueError:
                raise ContractMismatch(f"{name} is {written!r}; expected a number, such as 0.3") from None
    return FlagOptions(**found)
