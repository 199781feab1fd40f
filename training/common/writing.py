"""What a training may replace, and the decorator that looks before the training begins."""

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import wraps
from pathlib import Path
from typing import Protocol, TypeVar

from metaprobe.checkpoints import CheckpointExists, check_target
from metaprobe.checkpoints.replacing import InService, Replacing, pinned_in, replacing
from metaprobe.monitoring.log import ScoreLog
from metaprobe.records.errors import MissingExtra, RecordError

LOG = "METAPROBE_LOG"
"""Environment variable with the score log, as the middleware of an engine reads it."""


def replacing_of(replace: bool, pins: str | Path | None, log: str | None) -> AbstractContextManager[None]:
    """Returns a context in which every writer replaces only what these say, as `options.ReplaceOptions` has them."""
    known: list[InService] = [] if pins is None else [pinned_in(Path(pins))]
    if named := log or os.environ.get(LOG, "").strip():
        known.append(scored_in(named))
    return replacing(Replacing(replace, tuple(known)))


def scored_in(where: str) -> InService:
    """Returns what says whether a checkpoint has scored answers of the log.

    Raises `CheckpointExists` when it is asked and the log cannot be read: what has scored is then not known.
    """

    def known(digest: str) -> str:
        file = Path(where.removeprefix("sqlite:///"))
        try:
            if "://" not in where.removeprefix("sqlite:///") and not file.is_file():
                raise RecordError(f"there is no file {file}")
            log = ScoreLog.open(where, entries=False)
            try:
                query = "SELECT 1 FROM contexts WHERE checkpoint = :digest LIMIT 1"
                found = log.tables.read(query, {"digest": digest})
            finally:
                log.close()
        except (RecordError, MissingExtra, OSError) as error:
            raise CheckpointExists(
                f"the score log {where} cannot be read ({error}), so that it is not known which checkpoints have "
                "scored its answers: name the log of `metaprobe serve --log`"
            ) from error
        return f"which has scored answers of the log {where}" if found else ""

    return known


class _Writes(Protocol):
    @property
    def out(self) -> str | Path: ...
    def replacing(self) -> AbstractContextManager[None]: ...


Data = TypeVar("Data")
Options = TypeVar("Options", bound=_Writes)
Result = TypeVar("Result")


def writes(kind: str) -> Callable[[Callable[[Data, Options], Result]], Callable[[Data, Options], Result]]:
    """Returns a decorator for trainings: before minutes of fitting it looks whether a checkpoint of the kind may be
    written to `options.out`, and it holds the training to what the options allow to replace."""

    def decorate(training: Callable[[Data, Options], Result]) -> Callable[[Data, Options], Result]:
        @wraps(training)
        def held(data: Data, options: Options) -> Result:
            with options.replacing():
                check_target(options.out, kind)
                return training(data, options)

        return held

    return decorate
