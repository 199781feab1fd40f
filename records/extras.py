"""The one door to optional dependencies: a missing one says which extra to install."""

import importlib
from types import ModuleType

from metaprobe.records.errors import MissingExtra


def require(module: str, extra: str) -> ModuleType:
    """The imported module. Raises `MissingExtra` with the line to type where it is absent."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] != module.split(".")[0]:
            raise  # it is there, and something it needs is not: that message is the useful one
        raise MissingExtra(
            f"{module} is needed here and not installed: pip install 'metaprobe[{extra}]' (in a checkout: '.[{extra}]')"
        ) from error
