"""Options on the command line: their types, those that several commands share, and click commands made of functions.

Each parameter of a function that is described by an `Option` becomes an option or argument. A parameter whose type is a
dataclass of options stands for all of them, and the function gets the dataclass.
"""

import inspect
import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import MISSING, dataclass, fields, is_dataclass
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import click
from click.shell_completion import CompletionItem

from metaprobe.checkpoints import ContractMismatch, FlagOptions
from metaprobe.checkpoints.files import BUNDLED, HUB, bundled_names
from metaprobe.checkpoints.options import Described, Kind, Option, described, options_of, split_name
from metaprobe.training.options import WrongOptions

FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
FOLDER_THERE = click.Path(exists=True, file_okay=False, path_type=Path)


class Target(click.Path):
    """A folder to write to."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if str(value).startswith((HUB, BUNDLED)):
            self.fail(f"{str(value)!r} can only be read; expected a folder to write to", param, ctx)
        return super().convert(value, param, ctx)


FOLDER_TYPE = Target(file_okay=False, path_type=Path)


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


class Location(click.ParamType):  # type: ignore[type-arg]  # generic in click 8.5, not before
    """A checkpoint folder that exists, `bundled:NAME`, or `hub:OWNER/NAME@REVISION`."""

    name = "checkpoint"

    def __init__(self, *, or_runs: bool = False) -> None:
        """`or_runs`: whether the folder may also be a run store."""
        self.or_runs = or_runs

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """The folders that the shell knows, and the checkpoints that come with the package."""
        bundled = [f"{BUNDLED}{name}" for name in bundled_names()]
        names = [CompletionItem(name) for name in bundled if incomplete and name.startswith(incomplete)]
        return names or [CompletionItem(incomplete, type="dir")]

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text = str(value)
        if not text.startswith((HUB, BUNDLED)) and not Path(text).is_dir():
            came = "a file" if Path(text).exists() else "not there"
            near = f"; did you mean {BUNDLED}{text}?" if text in bundled_names() else ""
            self.fail(f"{text!r} is {came}; expected {_LOCATION}{near}", param, ctx)
        if not self.or_runs and is_store(text):
            self.fail(f"{text!r} is a run store; expected {_LOCATION}. `metaprobe train` makes one of it", param, ctx)
        return text


class NamedLocation(Location):
    """A checkpoint, with the name of a model before it if need be."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        name, location = split_name(str(value))
        checked = super().convert(location, param, ctx)
        return f"{name}={checked}" if name else checked


def is_store(path: str) -> bool:
    """Returns whether a folder holds the files of a run store."""
    return any(Path(path).glob("runs-*.parquet"))


_LOCATION = "a checkpoint folder, bundled:NAME or hub:OWNER/NAME@REVISION"
CHECKPOINT = Location()


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


OPTION_TYPES: Mapping[Kind, Any] = {
    "checkpoint": CHECKPOINT,
    "checkpoint or runs": Location(or_runs=True),
    "file": FILE,
    "folder": FOLDER_TYPE,
    "folder to read": FOLDER_THERE,
    "folder to write in": click.Path(exists=True, file_okay=False, writable=True, path_type=Path),
    "json object": JsonObject(),
    "label sheet": Target(dir_okay=False, path_type=Path),
    "named checkpoint": NamedLocation(),
    "new file": click.Path(dir_okay=False, path_type=Path),
    "path": click.Path(exists=True, path_type=Path),
    "path or stdin": click.Path(exists=True, allow_dash=True, path_type=Path),
    "runs": RUNS,
    "runs or lines": Runs(exists=True, path_type=Path),
    "system": Registered("metaprobe.papers.systems.named_systems:system_names"),
    "task": Registered("metaprobe.papers.tasks.named_tasks:task_names", or_file=True),
    "time": Moment(),
}
"""Maps the kind of an option's text to the type that checks it on the command line."""

OneCheckpoint = Annotated[str, Option(kind="checkpoint", argument=True)]
Stores = Annotated[tuple[Path, ...], Option(kind="runs", argument=True)]
Answers = Annotated[tuple[Path, ...], Option(kind="runs or lines", argument=True)]
CheckpointOut = Annotated[Path, Option("Checkpoint folder to write.", kind="folder")]
Digest = Annotated[str | None, Option("Digest that the checkpoint must have, from its author.")]
AsJson = Annotated[bool, Option("JSON for programs, in place of a table.", name="json")]


@dataclass(frozen=True, slots=True)
class Fields:
    """Metadata of a parameter that takes the options of the dataclass `of` as a dictionary."""

    of: type


def command(
    group: click.Group, short: str, *, name: str | None = None, cls: type[click.Command] = click.Command
) -> Callable[[Callable[..., Any]], click.Command]:
    """Returns a decorator that makes a command of a function and puts it into `group`.

    `short`: its line in the list of commands. `name`: by default that of the function. Arguments and options are the
    function's parameters, in their order; the docstring is the help.
    """

    def decorate(function: Callable[..., Any]) -> click.Command:
        hints = get_type_hints(function, include_extras=True)
        given = inspect.signature(function).parameters
        single: dict[str, Described] = {}
        grouped: dict[str, type] = {}
        for parameter in given.values():
            hint = hints[parameter.name]
            of = next((one.of for one in getattr(hint, "__metadata__", ()) if isinstance(one, Fields)), hint)
            if is_dataclass(of):
                grouped[parameter.name] = of
            else:
                default = MISSING if parameter.default is parameter.empty else parameter.default
                single[parameter.name] = described(parameter.name, hint, default)  # type: ignore[assignment]
        as_objects = {one for one in grouped if is_dataclass(hints[one])}

        def called(**values: Any) -> Any:
            passed = {key: values[key] for key in single}
            for key, kind in grouped.items():
                taken = {one.name: values[one.name] for one in fields(kind) if one.name in values}
                try:  # refuses options that contradict each other, or that both say what is flagged
                    if issubclass(kind, FlagOptions):
                        FlagOptions(**{one.name: taken.get(one.name) for one in fields(FlagOptions)})
                    passed[key] = kind(**taken) if key in as_objects else taken
                except (WrongOptions, ContractMismatch) as error:
                    raise click.UsageError(str(error)) from error
            return function(**passed)

        shown: dict[str, Described] = {}
        for key in given:
            options = options_of(grouped[key]) if key in grouped else [single[key]]
            shown |= {one.name: one for one in options if one.name == key or one.name not in single}
        made = cls(
            name or function.__name__.replace("_", "-"),
            params=[parameter_of(one) for one in shown.values()],
            callback=called,
            help=inspect.cleandoc(function.__doc__ or ""),
            short_help=short,
        )
        group.add_command(made)
        return made

    return decorate


def parameter_of(one: Described) -> click.Parameter:
    """Returns the click option or argument for a described field."""
    option, default = one.option, one.default
    least: Any = option.above if option.low is None else option.low
    most: Any = option.below if option.high is None else option.high
    kind: Any = one.scalar
    if option.kind is not None:
        kind = OPTION_TYPES[option.kind]
    elif one.choices:
        kind = click.Choice(one.choices)
    elif least is not None or most is not None:
        between = click.IntRange if one.scalar is int else click.FloatRange
        kind = between(least, most, min_open=option.above is not None, max_open=option.below is not None)
    if option.argument:
        return click.Argument(
            [one.name],
            type=kind,
            nargs=-1 if one.many else 1,
            required=default is MISSING,
            metavar=option.metavar,
        )
    known: dict[str, Any] = {} if default is MISSING or default is None else {"default": default}
    if one.many:
        known = {"default": (default,) if isinstance(default, str) else default} if default else {}
        known["multiple"] = True
    names = f"--{one.word}"
    if one.scalar is bool:
        names += f"/--no-{one.word}" * (default is True)
        known["is_flag"] = True
    else:
        known |= {"type": kind, "show_default": default not in (MISSING, None, "", ())}
    return click.Option(
        [names, one.name], help=option.help, required=default is MISSING, metavar=option.metavar, **known
    )
