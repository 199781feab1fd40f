"""The one door to optional dependencies: a missing one says which extra to install."""

import importlib
from types import ModuleType

from metaprobe.records.errors import MissingExtra

EXTRAS = ("fit", "train", "api", "hub", "serve", "postgres", "math")
"""Extras of this package. A package that serves one purpose only is no extra: it is named itself."""


def require(module: str, extra: str) -> ModuleType:
    """Returns the imported module. Raises `MissingExtra` with the line to type where it is absent.

    `extra`: one of `EXTRAS`, or what pip is to install, such as "clingo>=5.8,<6".
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] != module.split(".")[0]:
            raise  # it is there, and something it needs is not: that message is the useful one
        named = f"'metaprobe[{extra}]' (in a checkout: '.[{extra}]')" if extra in EXTRAS else f"'{extra}'"
        raise MissingExtra(f"{module} is needed here and not installed: pip install {named}") from error
