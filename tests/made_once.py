"""A folder that is made once for all workers of a run: checkpoints that several files train alike."""

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

MadeOnce = Callable[[str, Callable[[Path], object]], Path]
"""Gives the folder of that name, which the function writes where it is not there yet. Tests only read it."""


def makes_once(base: Path) -> MadeOnce:
    """Makes folders beside the workers' own ones; `base` is the folder of this worker."""
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "made-once"
    folder.mkdir(exist_ok=True)

    def made(name: str, make: Callable[[Path], object]) -> Path:
        with (folder / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (folder / name).exists():
                make(folder / name)
        return folder / name

    return made
