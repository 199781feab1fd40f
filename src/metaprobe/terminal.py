"""Types of options and last lines of output that several commands share."""

import json
import os
import shlex
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click
from click.shell_completion import CompletionItem

from metaprobe.checkpoints.options import Kind, Option

if TYPE_CHECKING:
    from metaprobe.monitoring.log import ScoreLog

FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
NEW_FILE = click.Path(dir_okay=False, path_type=Path)
FOLDER_THERE = click.Path(exists=True, file_okay=False, path_type=Path)


class Target(click.Path):
    """A folder to write to."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if str(value).startswith(_prefixes()):
            self.fail(f"{str(value)!r} can only be read; expected a folder to write to", param, ctx)
        return super().convert(value, param, ctx)


FOLDER = Target(file_okay=False, path_type=Path)


class Runs(click.Path):
    """A run store that exists, or where files may be given a file of lines."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if Path(value).is_file() and not self.file_okay:
            self.fail(
                f"{str(value)!r} is a file, which keeps no hidden states and takes no new labels or calls; expected a "
                "run store: `metaprobe import FILE --out RUNS` makes one of OpenAI-format lines, `metaprobe extract "
                "RUNS --llm MODEL` adds hidden states",
                param,
                ctx,
            )
        if (Path(value) / "manifest.json").is_file():
            expected = "a run store, as `metaprobe collect` makes it" + ", or a file of lines" * self.file_okay
            self.fail(f"{str(value)!r} is a checkpoint; expected {expected}", param, ctx)
        return super().convert(value, param, ctx)


RUNS = Runs(exists=True, file_okay=False, path_type=Path)
RUNS_OR_LINES = Runs(exists=True, path_type=Path)


class Location(click.ParamType):  # type: ignore[type-arg]  # generic in click 8.5, not before
    """A checkpoint folder that exists, `bundled:NAME`, or `hub:OWNER/NAME@REVISION`."""

    name = "checkpoint"

    def __init__(self, *, or_runs: bool = False) -> None:
        """`or_runs`: whether the folder may also be a run store."""
        self.or_runs = or_runs

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """The folders that the shell knows, and the checkpoints that come with the package."""
        names = [CompletionItem(name) for name in _bundled() if incomplete and name.startswith(incomplete)]
        return names or [CompletionItem(incomplete, type="dir")]

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        from metaprobe.checkpoints.files import BUNDLED, bundled_names

        text = str(value)
        if not text.startswith(_prefixes()) and not Path(text).is_dir():
            came = "a file" if Path(text).exists() else "not there"
            near = f"; did you mean {BUNDLED}{text}?" if text in bundled_names() else ""
            self.fail(f"{text!r} is {came}; expected {_LOCATION}{near}", param, ctx)
        if not self.or_runs and is_store(text):
            self.fail(f"{text!r} is a run store; expected {_LOCATION}. `metaprobe train` makes one of it", param, ctx)
        return text


class NamedLocation(Location):
    """A checkpoint, with the name of a model before it if need be."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        from metaprobe.serving.http.settings import split_name

        name, location = split_name(str(value))
        checked = super().convert(location, param, ctx)
        return f"{name}={checked}" if name else checked


def _bundled() -> list[str]:
    from metaprobe.checkpoints.files import BUNDLED, bundled_names

    return [f"{BUNDLED}{name}" for name in bundled_names()]


def is_store(path: str) -> bool:
    """Returns whether a folder holds the files of a run store."""
    return any(Path(path).glob("runs-*.parquet"))


def _prefixes() -> tuple[str, ...]:
    from metaprobe.checkpoints.files import BUNDLED, HUB

    return HUB, BUNDLED


_LOCATION = "a checkpoint folder, bundled:NAME or hub:OWNER/NAME@REVISION"
CHECKPOINT = Location()
NAMED_CHECKPOINT = NamedLocation()
CHECKPOINT_OR_RUNS = Location(or_runs=True)


class Moment(click.ParamType):  # type: ignore[type-arg]  # generic in click 8.5, not before
    """A time, as seconds since 1970: given so, as alarms state it, or as a date or time in UTC or with a zone."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        with suppress(ValueError):
            if 1e8 < (seconds := float(value)) < 1e11:  # 1973 to 5138, which holds no year, no date, no milliseconds
                return seconds
        try:
            when = datetime.fromisoformat(str(value) if "-" in str(value) else "")
        except ValueError:
            self.fail(
                f"{str(value)[:40]!r}; expected seconds since 1970, or 2026-11-23, or 2026-11-23T12:00:00Z", param, ctx
            )
        return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()


class Registered(click.types.StringParamType):
    """A name of a system or task, which the shell completes from those that are installed."""

    def __init__(self, names: str, *, or_file: bool = False) -> None:
        """`names`: module and function that lists them. `or_file`: whether the shell may complete a path instead."""
        self.names, self.or_file = names, or_file

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """The names that begin so, else a path."""
        module, _, function = self.names.partition(":")
        names = [one for one in getattr(import_module(module), function)() if one.startswith(incomplete)]
        items = [CompletionItem(one) for one in names]
        return items or [CompletionItem(incomplete, type="file")] * self.or_file


class JsonObject(click.types.StringParamType):
    """A JSON object."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            held = json.loads(value)
        except (ValueError, RecursionError):
            held = None
        if not isinstance(held, dict):
            self.fail(f"{value!r} is no JSON object; expected one, such as '{{\"top_k\": 0}}'", param, ctx)
        return held


KINDS: Mapping[Kind, Any] = {
    "checkpoint": CHECKPOINT,
    "checkpoint or runs": CHECKPOINT_OR_RUNS,
    "file": FILE,
    "folder": FOLDER,
    "folder to read": FOLDER_THERE,
    "folder to write in": click.Path(exists=True, file_okay=False, writable=True, path_type=Path),
    "json object": JsonObject(),
    "label sheet": Target(dir_okay=False, path_type=Path),
    "named checkpoint": NAMED_CHECKPOINT,
    "new file": NEW_FILE,
    "path": click.Path(exists=True, path_type=Path),
    "path or stdin": click.Path(exists=True, allow_dash=True, path_type=Path),
    "runs": RUNS,
    "runs or lines": RUNS_OR_LINES,
    "system": Registered("metaprobe.pipelines.named_systems:system_names"),
    "task": Registered("metaprobe.tasks.named_tasks:task_names", or_file=True),
    "time": Moment(),
}
"""Maps the kind of an option's text to the type that checks it on the command line."""

OneCheckpoint = Annotated[str, Option(kind="checkpoint", argument=True)]
Stores = Annotated[tuple[Path, ...], Option(kind="runs", argument=True)]
Answers = Annotated[tuple[Path, ...], Option(kind="runs or lines", argument=True)]
CheckpointOut = Annotated[Path, Option("Checkpoint folder to write.", kind="folder")]
Digest = Annotated[str | None, Option("Digest that the checkpoint must have, from its author.")]
AsJson = Annotated[bool, Option("JSON for programs, in place of a table.", name="json")]
Log = Annotated[str, Option("The score log: a SQLite file, or the URL of a database.", metavar="LOG")]
OfModel = Annotated[str | None, Option("Only answers of this model.")]
OfVersion = Annotated[
    str | None, Option("Only this version: its folder, or the beginning of its digest.", metavar="VERSION")
]
Since = Annotated[
    float | None,
    Option("Only answers from then on: 2026-11-23T12:00:00 (UTC), or seconds since 1970.", kind="time"),
]


@contextmanager
def opened_log(url: str) -> Iterator["ScoreLog"]:
    """The log, closed afterwards. A file that is not there is refused: labels in a new log would be of no answer."""
    from metaprobe.monitoring.log import ScoreLog

    file = Path(url.removeprefix("sqlite:///"))
    if "://" not in str(url).removeprefix("sqlite:///") and not (file.is_file() and file.stat().st_size):
        empty = ": the file is empty" if file.is_file() else ""
        raise click.UsageError(
            f"there is no score log {file}{empty}; expected one that `metaprobe serve --log` has written"
        )
    log = ScoreLog.open(url, entries=False)  # a full disk must not keep anybody from reading
    try:
        yield log
    finally:
        log.close()


def say_collected(report: Any) -> None:
    click.echo(f"collected {report.done} runs; {report.stored_before} were stored before", err=True)
    for failure in report.failed[:10]:
        click.echo(f"failed: {failure}", err=True)
    if len(report.failed) > 10:
        click.echo(f"... and {len(report.failed) - 10} more; all of them stand in failed.jsonl", err=True)
    for name, count in report.unread.items():
        click.echo(f"signal {name} could not be read of {count} calls; the rules' fallback was taken there", err=True)
    for stage, (cut, answers) in report.cut.items():
        click.echo(f"{cut} of {answers} answers of stage {stage} were cut: --tokens {stage}=N sets the limit", err=True)


def say_checkpoint(checkpoint: Any) -> None:
    from metaprobe.checkpoints import describe

    click.echo(describe(checkpoint))


def wait_without_spinning() -> None:
    """Threads that spin while they wait take time from whatever else runs on this machine, ourselves included. Call it
    before libraries with threads are loaded."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def command_line() -> str:
    """Returns the line that called this program, quoted for a shell, for the records of what it makes."""
    line = shlex.join(["metaprobe", *sys.argv[1:]])
    return line.encode("utf-8", "backslashreplace").decode()  # a path may hold any bytes
