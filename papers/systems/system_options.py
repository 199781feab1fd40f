"""Options of a system: how long answers may get at each stage, and its constants."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from metaprobe.api import RecordError

N = TypeVar("N", int, float)


@dataclass(frozen=True, slots=True)
class Constant(Generic[N]):
    """A number that a system works with, such as how many rounds there are."""

    name: str
    default: N
    """A whole number where the constant is one."""
    meaning: str
    low: float = 1
    high: float = math.inf

    def parse(self, text: str) -> N:
        """The number that a text states. Raises `RecordError` for anything else, or outside `low` to `high`."""
        try:
            value = type(self.default)(text)
        except ValueError:
            value = type(self.default)(self.low) - 1  # refused below
        if not self.low <= value <= self.high or not math.isfinite(value):
            kind = "a whole number" if isinstance(self.default, int) else "a number"
            most = f"from {self.low:g} to {self.high:g}" if math.isfinite(self.high) else f"of at least {self.low:g}"
            raise RecordError(f"constant {self.name}={text}: expected {kind} {most} ({self.meaning})")
        return value

    def __str__(self) -> str:
        return f"{self.name} ({self.default:g}: {self.meaning})"


@dataclass(frozen=True, slots=True)
class Options:
    """Settings that differ from the default."""

    tokens: Mapping[str, int | None] = field(default_factory=dict)
    """Stage -> the most tokens that a call there generates; None: as many as its model likes (endpoints only)."""
    constants: Mapping[str, Any] = field(default_factory=dict)
    """Name of a constant -> its value."""

    def value(self, constant: Constant[N]) -> N:
        """Returns the value that was set, or the default."""
        value: N = self.constants.get(constant.name, constant.default)
        return value

    @property
    def description(self) -> list[Any]:
        """For a run's id: equal for equal options, empty where nothing was set."""
        set_ = [sorted(self.tokens.items()), sorted(self.constants.items())]
        return [set_] if any(set_) else []


@dataclass(frozen=True, slots=True)
class Need:
    """A package that a system cannot do without."""

    module: str
    extra: str
    """The extra of ours that installs it."""
    without: tuple[str, ...] = ()
    """Variants that do not need it."""
