"""Options of a system: how long answers may get at each stage, and its constants."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from metaprobe.api import RecordError

N = TypeVar("N", int, float)


@dataclass(frozen=True, slots=True)
class Constant(Generic[N]):
    """A number with which a system works, such as the number of rounds."""

    name: str
    default: N
    """A whole number if the constant is one."""
    meaning: str
    low: float = 1
    high: float = math.inf

    def parse(self, text: str) -> N:
        """Returns the number that a text states. Raises `RecordError` for anything else, or outside `low` to `high`."""
        try:
            value = type(self.default)(text)
        except ValueError:
            value = type(self.default)(self.low) - 1  # refused below
        if not self.low <= value <= self.high or not math.isfinite(value):
            kind = "a whole number" if isinstance(self.default, int) else "a number"
            range_text = (
                f"from {self.low:g} to {self.high:g}" if math.isfinite(self.high) else f"of at least {self.low:g}"
            )
            raise RecordError(f"constant {self.name}={text}: expected {kind} {range_text} ({self.meaning})")
        return value

    def __str__(self) -> str:
        return f"{self.name} ({self.default:g}: {self.meaning})"


@dataclass(frozen=True, slots=True)
class Options:
    """Settings that differ from the default."""

    tokens: Mapping[str, int | None] = field(default_factory=dict)
    """Maps a stage to its limit of tokens; None is no limit (endpoints only)."""
    constants: Mapping[str, Any] = field(default_factory=dict)
    """Maps the name of a constant to its value."""

    def value(self, constant: Constant[N]) -> N:
        """Returns the value that was set, or the default."""
        value: N = self.constants.get(constant.name, constant.default)
        return value

    @property
    def description(self) -> list[Any]:
        """Part of a run's id: equal for equal options, empty if nothing was set."""
        parts = [sorted(self.tokens.items()), sorted(self.constants.items())]
        return [parts] if any(parts) else []


@dataclass(frozen=True, slots=True)
class Need:
    """A package without which a system cannot run."""

    module: str
    extra: str
    """The extra of ours that installs it."""
    without: tuple[str, ...] = ()
    """Variants that do not need it."""
