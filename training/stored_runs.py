"""Reads all runs of run stores and of files of lines, for trainings and checks."""

import warnings
from collections.abc import Collection, Sequence
from pathlib import Path

from metaprobe.records.bad_lines import BadFile, at_line
from metaprobe.records.errors import ImportFileError, NoLogprobs, RecordError, of_kind
from metaprobe.records.importer import LINES, read_log
from metaprobe.records.logs.logged_answer import LogOptions
from metaprobe.records.store import RunStore
from metaprobe.records.types import Run


def load_runs(paths: Sequence[str | Path], *, plain: bool = False, warned: bool = False) -> list[Run]:
    """Returns all runs of run stores and of files of lines.

    Lines without log-probabilities are left out, with a warning that counts them. Bad lines are left out too, counted
    by reason and named (`records.bad_lines`).

    Raises `RecordError` if two stores hold a run of the same id. Raises `ImportFileError` if more than half of the
    lines of a file are bad, or if none holds log-probabilities.

    Args:
        paths: run stores and files of lines.
        plain: whether lines without log-probabilities are kept.
        warned: whether the user has already been warned of left-out lines, so that the warning is not repeated.
    """
    runs: dict[str, Run] = {}
    for path in map(Path, paths):
        if path.is_file():
            runs |= {run.id: run for run in _runs_of_lines(path, runs, plain=plain, warned=warned)}
            continue
        for run in RunStore(path):
            if run.id in runs:
                raise RecordError(
                    f"{', '.join(map(str, paths))} hold the id {run.id!r} more than once; expected every answer in one "
                    "of them. Lines without an id are named after their file: rename one, or give the lines ids"
                )
            runs[run.id] = run
    return list(runs.values())


def _runs_of_lines(path: Path, known_ids: Collection[str], *, plain: bool, warned: bool) -> list[Run]:
    """Returns the runs of a file of lines. A line whose id is among those `known_ids` of other files is bad."""
    runs: list[Run] = []
    bare: list[ImportFileError] = []
    with BadFile.reading(path) as bad:

        def on_bad(error: ImportFileError) -> None:
            if isinstance(error.__cause__, NoLogprobs):
                bare.append(error)
                bad.sound += 1  # the line is whole, and another training can read it
            else:
                bad.leave_out(error)

        for line in read_log(path, LINES, LogOptions(plain=plain, on_error=on_bad)):
            if line.run.id in known_ids:
                repeated_id = of_kind(
                    f"the id {line.run.id!r} is in another of the files too; expected every answer in one of them."
                    " Lines without an id are named after their file: rename one, or give the lines ids",
                    "an id that another file has",
                )
                bad.leave_out(at_line(path, line.number, repeated_id, line.record))
                continue
            runs.append(line.run)
            bad.sound += 1
    if bare and not runs:
        raise bare[0]
    if bare and not warned:
        warnings.warn(
            f"{len(bare)} of {len(bare) + len(runs)} lines of {path} are left out: they hold no log-probabilities "
            f"that can be used (first: line {bare[0].line})",
            stacklevel=3,
        )
    return runs
