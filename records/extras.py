"""Imports optional dependencies. An error about a missing one says which extra to install, and how.

The package is on no registry, so an extra is installed from a checkout or with the wheel.
"""

import importlib
from importlib.metadata import version
from types import ModuleType

from metaprobe.records.errors import MissingExtra

EXTRAS = ("fit", "report", "train", "api", "hub", "serve", "postgres", "math")
"""Extras of this package. A dependency of a single purpose has no extra; errors name the dependency itself."""

OWN_PACKAGE = "metaprobe"


def how_to_install(extra: str) -> str:
    """Returns the command that installs an extra of this package, or another requirement of pip."""
    if extra not in EXTRAS:
        return f"pip install '{extra}'"
    wheel = f"metaprobe-{version('metaprobe')}-py3-none-any.whl"
    return f"pip install '.[{extra}]' in a checkout of metaprobe, or pip install './{wheel}[{extra}]' beside its wheel"


def require(module: str, extra: str) -> ModuleType:
    """Returns the imported module. If it is missing, or a module of this package needs one that is missing, raises
    `MissingExtra` with the command that installs it.

    `extra` is one of `EXTRAS`, or a requirement of pip such as "clingo>=5.8,<6".
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        package, missing_module = module.split(".")[0], (error.name or "").split(".")[0]
        is_ours = package == OWN_PACKAGE
        if not missing_module or (missing_module == package) == is_ours:
            raise  # a package is there, and something it needs is not: that message is the useful one
        raise MissingExtra(
            f"{error.name if is_ours else module} is needed here and not installed: {how_to_install(extra)}"
        ) from error
