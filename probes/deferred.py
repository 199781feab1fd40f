"""Work of rooms above or beside this one, or of modules built on them, that methods of this room offer: `adapt`, ...

This room may not import those rooms. The front door (`metaprobe/__init__.py`), which is above all rooms and always
imported first, says where each work is done. A module is imported when its work is asked for: all of them are heavy.
"""

from types import ModuleType
from typing import Literal

from metaprobe.records.extras import require

Work = Literal["adapt a predictor", "fit a probe", "read a blend", "read a text", "read decisions", "read texts"]
DONE_IN: dict[Work, tuple[str, str]] = {}
"""Maps a kind of work to the module that does it, and to the extra that this module needs. The front door fills it."""


def module_to(work: Work) -> ModuleType:
    """Returns the module that does the work. Raises `MissingExtra` if its extra is not installed."""
    module, extra = DONE_IN[work]
    return require(module, extra)
