"""What the commands share: options that mean the same everywhere, and what they say at their end."""

import os
import shlex
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

Command = TypeVar("Command", bound=Callable[..., Any])

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
    """A run store that exists."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if Path(value).is_file():
            self.fail(
                f"{str(value)!r} is a file; expected a run store. `metaprobe import FILE --out RUNS` makes one of "
                "OpenAI-format lines",
                param,
                ctx,
            )
        if (Path(value) / "manifest.json").is_file():
            self.fail(
                f"{str(value)!r} is a checkpoint; expected a run store, as `metaprobe collect` makes it", param, ctx
            )
        return super().convert(value, param, ctx)


RUNS = Runs(exists=True, file_okay=False, path_type=Path)


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
            found = "a file" if Path(text).exists() else "not there"
            near = f"; did you mean {BUNDLED}{text}?" if text in bundled_names() else ""
            self.fail(f"{text!r} is {found}; expected {_LOCATION}{near}", param, ctx)
        if not self.or_runs and is_store(text):
            self.fail(f"{text!r} is a run store; expected {_LOCATION}. `metaprobe train` makes one of it", param, ctx)
        return text


class NamedLocation(Location):
    """A checkpoint, with the name of a model before it if need be."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        from metaprobe.serving.http.settings import split_name

        name, location = split_name(str(value))
        found = super().convert(location, param, ctx)
        return f"{name}={found}" if name else found


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


since_option = click.option(
    "--since", type=Moment(), help="Only answers from then on: 2026-11-23T12:00:00 (UTC), or seconds since 1970."
)


seed_option = click.option(
    "--seed", default=0, show_default=True, type=click.IntRange(0, 2**32 - 1), help="Seed of folds and fits."
)
folds_option = click.option(
    "--folds", default=5, show_default=True, type=click.IntRange(2), help="Outer folds by group, for held-out metrics."
)
model_option = click.option(
    "--llm", default="smollm2-135m", show_default=True, help="Embedded name, folder, GGUF file or hub id."
)
target_option = click.option(
    "--target", multiple=True, default=("correct",), show_default=True, help="Label to predict; repeatable."
)
stage_option = click.option("--stage", help="Only calls of this stage.")
agent_option = click.option("--agent", help="Only calls of this agent.")


def flag_options(command: Command) -> Command:
    """A decorator: gives a command the four options that say which answers are flagged, read off `FlagOptions`."""
    from metaprobe.checkpoints import FlagOptions
    from metaprobe.checkpoints.display import field_docs

    said = field_docs(FlagOptions)
    for field in reversed(fields(FlagOptions)):
        name = f"--{field.name.replace('_', '-')}"
        help_ = f"{said.get(field.name, '').rstrip('.')}. At most one such option."
        command = click.option(name, field.name, type=float, help=help_)(command)
    return command


def replace_options(*, log: bool = True) -> Callable[[Command], Command]:
    """Returns a decorator: gives a command the options that say what of a checkpoint may be replaced.

    `log`: whether `--log` is one of them; a command that reads a log has it already.
    """

    def decorate(command: Command) -> Command:
        from metaprobe.checkpoints.display import field_docs
        from metaprobe.training.options import ReplaceOptions

        said = field_docs(ReplaceOptions)
        if log:
            command = click.option("--log", metavar="URL", help=said.get("log"))(command)
        command = click.option("--pins", type=FILE, help=said.get("pins"))(command)
        return click.option("--replace", is_flag=True, help=said.get("replace"))(command)

    return decorate


def replacing_given(named: dict[str, Any], **more: Any) -> Any:
    """Returns the `ReplaceOptions` among a command's options, and takes them out."""
    from metaprobe.training.options import ReplaceOptions

    taken = {name: named.pop(name) for name in ("replace", "pins", "log") if name in named}
    return ReplaceOptions(**taken, **more)


def flags_given(named: dict[str, Any]) -> Any:
    """Returns the `FlagOptions` among a command's options, and takes them out. Two of them are a usage error."""
    from metaprobe.checkpoints import ContractMismatch
    from metaprobe.checkpoints.flagging import take_flag_options

    try:
        return take_flag_options(named)
    except ContractMismatch as error:
        raise click.UsageError(str(error)) from error


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
    """How this program was called, for the records of what it makes: a line that a shell takes."""
    said = shlex.join(["metaprobe", *sys.argv[1:]])
    return said.encode("utf-8", "backslashreplace").decode()  # a path may hold any bytes
