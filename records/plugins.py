"""Loads objects of a user's own code, by `MODULE:NAME` or by the name of an entry point of the user's package."""

import importlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any, Generic, TypeVar

from metaprobe.records.errors import RecordError

T = TypeVar("T")

HOUSE_FUNCTIONS = "metaprobe.house_functions"
"""Group of entry points in which the houses register functions that the core calls by name."""

_REFERENCE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
"""Matches `MODULE:NAME`, such as `my_package.systems:SYSTEM`."""


@dataclass(frozen=True, slots=True)
class Plugins(Generic[T]):
    """Objects of one kind that users and installed packages provide."""

    group: str
    """Group of entry points in which packages register their objects."""
    kind: type[T]
    """Class of which each object must be an instance."""
    what: str
    """The kind of object in messages, such as "system"."""

    def names(self) -> tuple[str, ...]:
        """Returns the names that installed packages register in the group, sorted, without repeats."""
        return tuple(sorted({point.name for point in entry_points(group=self.group)}))

    def load(self, name: str) -> T | None:
        """Returns the object of `MODULE:NAME`, or of the entry point with this name; None if there is neither.

        Raises `RecordError` if the module cannot be imported, lacks the name, or holds another kind of object, or if
        two packages register one name.
        """
        reference = name
        if not _REFERENCE.fullmatch(name):
            references = sorted({point.value for point in entry_points(group=self.group) if point.name == name})
            if len(references) > 1:
                raise RecordError(
                    f"{self.what} {name!r}: {len(references)} installed packages give this name in {self.group}; give "
                    f"one of them as MODULE:NAME: {', '.join(references)}"
                )
            if not references:
                return None
            [reference] = references
        path, _, attribute = reference.partition(":")
        try:
            module = importlib.import_module(path)
        except ModuleNotFoundError as error:
            if error.name is not None and (path == error.name or path.startswith(f"{error.name}.")):
                raise RecordError(
                    f"{self.what} {name!r}: there is no module {error.name!r}; expected MODULE:NAME with a module that "
                    "is installed, or that lies in the folder the command is started from"
                ) from error
            raise RecordError(f"{self.what} {name!r}: {path} needs {error.name}, which is not installed") from error
        except Exception as error:  # whatever the user's module does wrong is said with the module's name
            raise RecordError(
                f"{self.what} {name!r}: {path} cannot be imported: {type(error).__name__}: {error}"
            ) from error
        names = ", ".join(key for key, value in vars(module).items() if isinstance(value, self.kind)) or "none"
        if not hasattr(module, attribute):
            raise RecordError(
                f"{self.what} {name!r}: {path} has no {attribute!r}; of kind {self.kind.__name__} it has: {names}"
            )
        plugin = getattr(module, attribute)
        if not isinstance(plugin, self.kind):
            raise RecordError(
                f"{self.what} {name!r}: {attribute} in {path} is of type {type(plugin).__name__}; expected a "
                f"{self.kind.__module__}.{self.kind.__name__} (docs/own.md shows one). Of that kind {path} has: {names}"
            )
        return plugin


def house_function(name: str) -> Callable[..., Any]:
    """Returns the function that a house registers under this name in `HOUSE_FUNCTIONS`.

    Raises `RecordError` if no installed package registers such a function: the installation is older than the code.
    """
    function = Plugins(HOUSE_FUNCTIONS, object, "function").load(
        name
    )  # any object, because a cached function is no `FunctionType`
    if not callable(function):
        raise RecordError(f"no installed package gives {name!r} in {HOUSE_FUNCTIONS}; install metaprobe again")
    return function
