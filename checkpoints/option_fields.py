"""Describes each option once, at its dataclass field or parameter.

The command line, the environment variables of a server, `help()` in Python and docs/commands.md are made from it:

    folds: Annotated[int, Option("Outer folds by group, for held-out metrics.", low=2)] = 5
"""

from collections.abc import Sequence
from dataclasses import KW_ONLY, MISSING, dataclass, fields
from inspect import get_annotations
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

OptionKind = Literal[
    "checkpoint",
    "checkpoint or runs",
    "file",
    "folder",
    "folder to read",
    "folder to write in",
    "json object",
    "label sheet",
    "named checkpoint",
    "new file",
    "path",
    "path or stdin",
    "runs",
    "runs or lines",
    "system",
    "task",
    "time",
]
"""The kind of thing that the text of an option names. The command line checks it, and lets the shell complete it."""


@dataclass(frozen=True, slots=True)
class Option:
    """Describes an option or argument, as the metadata of `Annotated`. Type and default are those of the field."""

    help: str = ""
    """The purpose of the option, in full sentences."""
    _: KW_ONLY
    name: str = ""
    """Name on the command line without `--`, if it differs from the field's name."""
    kind: OptionKind | None = None
    choices: Sequence[str] = ()
    """Allowed texts. A field of type `Literal` has its own."""
    low: float | None = None
    """Least allowed number; use `above` if that number itself is not allowed."""
    above: float | None = None
    high: float | None = None
    """Largest allowed number; use `below` if that number itself is not allowed."""
    below: float | None = None
    metavar: str | None = None
    """Word for the value in the help."""
    variable: bool = False
    """Whether the middleware in an engine's server reads the option from the environment."""
    argument: bool = False
    """Whether the option is an argument, given by its place without a name."""
    fields_of: type | None = None
    """Dataclass whose options the parameter takes together, as a dictionary, in place of an option of its own."""

    @staticmethod
    def all_in(described_class: type) -> list["Described"]:
        """Returns the described fields of a dataclass: required ones, then the class's own, then those of its bases."""
        hints = get_type_hints(described_class, include_extras=True)
        bases = reversed(list(enumerate(described_class.__mro__)))
        level_of_name = {name: index for index, base in bases for name in get_annotations(base)}
        options = [described(field.name, hints[field.name], field.default) for field in fields(described_class)]
        described_fields = [option for option in options if option is not None]
        return sorted(described_fields, key=lambda option: (option.default is not MISSING, level_of_name[option.name]))


class Described(NamedTuple):
    """A field or parameter with its option."""

    name: str
    option: Option
    scalar: Any
    """Type of one value: `int`, `float`, `bool`, `str`, `Path`, or a `Literal`."""
    many: bool
    """Whether the option takes several values."""
    default: Any
    """Default; `MISSING` if there is none."""

    @property
    def word(self) -> str:
        """Name on the command line without `--`."""
        return self.option.name or self.name.strip("_").replace("_", "-")

    @property
    def variable(self) -> str:
        """Environment variable from which the option is read; empty if there is none."""
        return f"METAPROBE_{self.word.replace('-', '_').upper()}" if self.option.variable else ""

    @property
    def choices(self) -> tuple[str, ...]:
        """Allowed texts; empty if any text is allowed."""
        return get_args(self.scalar) if get_origin(self.scalar) is Literal else tuple(self.option.choices)


def described(name: str, hint: Any, default: Any = MISSING) -> Described | None:
    """Returns a field or parameter with its option; None if its type hint has no `Option`.

    Args:
        name: name of the field or parameter.
        hint: its type hint.
        default: its default; `MISSING` if there is none.
    """
    option = next((metadata for metadata in getattr(hint, "__metadata__", ()) if isinstance(metadata, Option)), None)
    if option is None:
        return None
    kinds = [kind for kind in _union_members(get_args(hint)[0]) if kind is not NoneType]
    lists = [kind for kind in kinds if get_origin(kind) in (tuple, Sequence)]
    scalar = _union_members(get_args(lists[0])[0])[0] if lists else kinds[0]
    return Described(name, option, scalar, bool(lists), default)


def _union_members(kind: Any) -> Sequence[Any]:
    """Returns the members of a union, or the type alone."""
    return get_args(kind) if get_origin(kind) in (Union, UnionType) else [kind]


def split_name(written: str) -> tuple[str, str]:
    """Returns `NAME=CHECKPOINT` as (name, checkpoint); the name is empty if there is none."""
    name, equals, location = written.partition("=")
    return (name, location) if equals and name and location and not Path(written).exists() else ("", written)
