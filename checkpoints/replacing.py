"""Whether a checkpoint that is there may be replaced: asked by the one writer (`save.check_target`) of all of them."""

import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path

from metaprobe.checkpoints.errors import CheckpointExists
from metaprobe.checkpoints.manifest import MANIFEST

InService = Callable[[str], str]
"""Digest -> by what a checkpoint of that digest is in service, as a clause; empty where it is not known to be."""
PINS = "METAPROBE_PINS"
"""Environment variable with the file of `serve --pins`."""


@dataclass(frozen=True, slots=True)
class Replacing:
    """What may be replaced while a command or a training runs."""

    replace: bool = False
    """Whether a checkpoint of the same kind may be replaced."""
    in_service: tuple[InService, ...] = ()
    """A checkpoint that one of these knows is never replaced."""


NOTHING = Replacing()
_running: ContextVar[Replacing] = ContextVar("replacing")
"""Of the running command. It is no argument: in every training, what writes lies many calls below what was asked."""


@contextmanager
def replacing(allowed: Replacing) -> Iterator[None]:
    """Within the block, writers replace what is allowed, beside what an outer block allows, and nothing that either of
    them knows to be in service."""
    outer = _running.get(NOTHING)
    token = _running.set(Replacing(allowed.replace or outer.replace, (*outer.in_service, *allowed.in_service)))
    try:
        yield
    finally:
        _running.reset(token)


def check_replaced(target: Path, *, overwrite: bool) -> None:
    """Raises `CheckpointExists` where the checkpoint in the folder may not be replaced.

    One that a file of pins names, or that has scored answers of a log, is in service or may be gone back to: it is
    never replaced. Any other one is replaced where `overwrite` or the running command says so.
    """
    digest = hashlib.sha256((target / MANIFEST).read_bytes()).hexdigest()
    allowed = _running.get(NOTHING)
    pinned = (pinned_in(Path(named)),) if (named := os.environ.get(PINS, "").strip()) else ()
    for known in (*allowed.in_service, *pinned):
        if reason := known(digest):
            raise CheckpointExists(
                f"{target} holds checkpoint {digest}, {reason}; it may be in service, or be gone back to, and is not "
                "replaced: give another folder"
            )
    if not (overwrite or allowed.replace):
        raise CheckpointExists(
            f"{target} exists and holds checkpoint {digest}; give another folder, or replace that checkpoint by "
            "--replace (in Python replace=True, or overwrite=True where a function has it)"
        )


def pinned_in(pins: Path) -> InService:
    """Returns what says whether a file of pins, lines of [NAME=]CHECKPOINT SHA256, names a digest.

    Raises `CheckpointExists` when it is asked and the file cannot be read: what is in service is then not known.
    """

    def known(digest: str) -> str:
        try:
            lines = pins.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise CheckpointExists(
                f"the file of pins {pins} cannot be read ({error}), so that it is not known which checkpoints are in "
                "service: name the file of `metaprobe serve --pins`"
            ) from error
        words = {word.lower() for line in lines for word in line.partition("#")[0].split()}
        return f"which {pins} pins" if digest in words else ""

    return known
