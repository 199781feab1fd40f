"""Finds the modules that do heavy work for methods of this room, such as `adapt`.

These modules belong to rooms above or beside this one, which this room may not import. The front door
(`metaprobe/__init__.py`) is above all rooms and always imported first; it names the module for each kind of work. A
module is imported when its work is asked for.
"""

from types import ModuleType
from typing import Literal

from metaprobe.records.extras import require

Work = Literal[
    "adapt a predictor", "fit a probe", "read a blend", "read a text", "read canaries", "read decisions", "read texts"
]
DONE_IN: dict[Work, tuple[str, str]] = {}
"""Maps a kind of work to the module that does it, and to the extra that this module needs. The front door fills it."""


def module_to(work: Work) -> ModuleType:
    """Returns the module that does the work. Raises `MissingExtra` if its extra is not installed."""
    module, extra = DONE_IN[work]
    return require(module, extra)
