"""Command-line options: their types, options that several commands share, and click commands made from functions.

Each parameter that an `Option` describes becomes an option or argument of the command. A parameter whose type is a
dataclass of options becomes all options of the dataclass, and the function receives the dataclass.
"""

import inspect
import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import MISSING, fields, is_dataclass
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import click
from click.shell_completion import CompletionItem

from metaprobe.checkpoints import ContractMismatch, FlagOptions
from metaprobe.checkpoints.files import BUNDLED, HUB, bundled_names
from metaprobe.checkpoints.option_fields import Described, Option, OptionKind, described, split_name
from metaprobe.training.training_options import WrongOptions

EXISTING_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
EXISTING_FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)


class FolderToWrite(click.Path):
    """Type of a folder to write to."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if str(value).startswith((HUB, BUNDLED)):
            self.fail(f"{str(value)!r} can only be read; expected a folder to write to", param, ctx)
        return super().convert(value, param, ctx)


FOLDER_TYPE = FolderToWrite(file_okay=False, path_type=Path)


class RunsType(click.Path):
    """Type of an existing run store; if `file_okay`, also of a file of lines."""

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


RUNS = RunsType(exists=True, file_okay=False, path_type=Path)


class Location(click.ParamType):  # type: ignore[type-arg]  # generic in click 8.5, not before
    """Type of an existing checkpoint folder, `bundled:NAME`, or `hub:OWNER/NAME@REVISION`."""

    name = "checkpoint"

    def __init__(self, *, or_runs: bool = False) -> None:
        """`or_runs`: whether the folder may also be a run store."""
        self.or_runs = or_runs

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Returns the bundled checkpoints whose name begins with `incomplete`, else lets the shell complete folders."""
        bundled = [f"{BUNDLED}{name}" for name in bundled_names()]
        names = [CompletionItem(name) for name in bundled if incomplete and name.startswith(incomplete)]
        return names or [CompletionItem(incomplete, type="dir")]

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text = str(value)
        if not text.startswith((HUB, BUNDLED)) and not Path(text).is_dir():
            path_state = "a file" if Path(text).exists() else "not there"
            suggestion = f"; did you mean {BUNDLED}{text}?" if text in bundled_names() else ""
            self.fail(f"{text!r} is {path_state}; expected {_LOCATION}{suggestion}", param, ctx)
        if not self.or_runs and is_store(text):
            self.fail(f"{text!r} is a run store; expected {_LOCATION}. `metaprobe train` makes one of it", param, ctx)
        return text


class NamedLocation(Location):
    """Type of a checkpoint that may have a model's name before it: `NAME=CHECKPOINT`."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        name, location = split_name(str(value))
        checked = super().convert(location, param, ctx)
        return f"{name}={checked}" if name else checked


def is_store(path: str) -> bool:
    """Returns whether a folder holds the files of a run store."""
    return any(Path(path).glob("runs-*.parquet"))


_LOCATION = "a checkpoint folder, bundled:NAME or hub:OWNER/NAME@REVISION"
CHECKPOINT = Location()


class TimeType(click.ParamType):  # type: ignore[type-arg]  # generic in click 8.5, not before
    """Type of a time: seconds since 1970, as alarms state it, or a date or time in UTC or with a zone."""

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


class InstalledName(click.types.StringParamType):
    """Type of a system's or task's name. The shell completes it from the installed names."""

    def __init__(self, names_function: str, *, or_file: bool = False) -> None:
        """Sets up the type.

        Args:
            names_function: `MODULE:FUNCTION` that returns the installed names.
            or_file: whether the shell may also complete a path.
        """
        self.names_function, self.or_file = names_function, or_file

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Returns the installed names that begin with `incomplete`. If there are none and `or_file`, the shell
        completes a path.
        """
        module_name, _, function_name = self.names_function.partition(":")
        names = [name for name in getattr(import_module(module_name), function_name)() if name.startswith(incomplete)]
        items = [CompletionItem(name) for name in names]
        return items or [CompletionItem(incomplete, type="file")] * self.or_file


class JsonObject(click.types.StringParamType):
    """Type of a JSON object."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            parsed = json.loads(value)
        except (ValueError, RecursionError):
            parsed = None
        if not isinstance(parsed, dict):
            self.fail(f"{value!r} is no JSON object; expected one, such as '{{\"top_k\": 0}}'", param, ctx)
        return parsed


OPTION_TYPES: Mapping[OptionKind, Any] = {
    "checkpoint": CHECKPOINT,
    "checkpoint or runs": Location(or_runs=True),
    "file": EXISTING_FILE,
    "folder": FOLDER_TYPE,
    "folder to read": EXISTING_FOLDER,
    "folder to write in": click.Path(exists=True, file_okay=False, writable=True, path_type=Path),
    "json object": JsonObject(),
    "label sheet": FolderToWrite(dir_okay=False, path_type=Path),
    "named checkpoint": NamedLocation(),
    "new file": click.Path(dir_okay=False, path_type=Path),
    "path": click.Path(exists=True, path_type=Path),
    "path or stdin": click.Path(exists=True, allow_dash=True, path_type=Path),
    "runs": RUNS,
    "runs or lines": RunsType(exists=True, path_type=Path),
    "system": InstalledName("metaprobe.papers.systems.named_systems:system_names"),
    "task": InstalledName("metaprobe.papers.tasks.named_tasks:task_names", or_file=True),
    "time": TimeType(),
}
"""Maps the kind of an option's text to the type that checks it on the command line."""

OneCheckpoint = Annotated[str, Option(kind="checkpoint", argument=True)]
Stores = Annotated[tuple[Path, ...], Option(kind="runs", argument=True)]
RunsOrLines = Annotated[tuple[Path, ...], Option(kind="runs or lines", argument=True)]
Digest = Annotated[str | None, Option("Digest that the checkpoint must have, from its author.")]
AsJson = Annotated[bool, Option("JSON for programs, in place of a table.", name="json")]


def command(
    group: click.Group, short: str, *, name: str | None = None, cls: type[click.Command] = click.Command
) -> Callable[[Callable[..., Any]], click.Command]:
    """Returns a decorator that makes a click command of a function and adds it to `group`.

    The function's parameters become arguments and options, in their order. The function's docstring becomes the help.

    Args:
        group: the group that gets the command.
        short: one line that describes the command in the group's list.
        name: name of the command; by default the function's name.
        cls: class of the command.
    """

    def decorate(function: Callable[..., Any]) -> click.Command:
        # Sort the parameters into single options and classes of options.
        hints = get_type_hints(function, include_extras=True)
        parameters = inspect.signature(function).parameters
        single_options: dict[str, Described] = {}
        option_classes: dict[str, Any] = {}
        for parameter in parameters.values():
            hint = hints[parameter.name]
            option_hints = [option for option in getattr(hint, "__metadata__", ()) if isinstance(option, Option)]
            options_type: Any = next((option.fields_of for option in option_hints if option.fields_of), hint)
            if is_dataclass(options_type):
                option_classes[parameter.name] = options_type
            else:
                default = MISSING if parameter.default is parameter.empty else parameter.default
                single_options[parameter.name] = described(parameter.name, hint, default)  # type: ignore[assignment]
        passed_as_object = {key for key in option_classes if is_dataclass(hints[key])}

        # The function that click calls.
        def callback(**values: Any) -> Any:
            passed = {key: values[key] for key in single_options}
            for key, kind in option_classes.items():
                class_values = {field.name: values[field.name] for field in fields(kind) if field.name in values}
                try:  # refuses options that contradict each other, or that both say what is flagged
                    if issubclass(kind, FlagOptions):
                        FlagOptions(**{field.name: class_values.get(field.name) for field in fields(FlagOptions)})
                    passed[key] = kind(**class_values) if key in passed_as_object else class_values
                except (WrongOptions, ContractMismatch) as error:
                    raise click.UsageError(str(error)) from error
            return function(**passed)

        # The command.
        parameters_shown: dict[str, Described] = {}
        for key in parameters:
            options = Option.all_in(option_classes[key]) if key in option_classes else [single_options[key]]
            parameters_shown |= {
                option.name: option for option in options if option.name == key or option.name not in single_options
            }
        click_command = cls(
            name or function.__name__.replace("_", "-"),
            params=[parameter_of(option) for option in parameters_shown.values()],
            callback=callback,
            help=inspect.cleandoc(function.__doc__ or ""),
            short_help=short,
        )
        group.add_command(click_command)
        return click_command

    return decorate


def parameter_of(described_option: Described) -> click.Parameter:
    """Returns the click option or argument for a described field."""
    option, default = described_option.option, described_option.default
    least: Any = option.above if option.low is None else option.low
    most: Any = option.below if option.high is None else option.high
    value_type: Any = described_option.scalar
    if option.kind is not None:
        value_type = OPTION_TYPES[option.kind]
    elif described_option.choices:
        value_type = click.Choice(described_option.choices)
    elif least is not None or most is not None:
        range_type = click.IntRange if described_option.scalar is int else click.FloatRange
        value_type = range_type(least, most, min_open=option.above is not None, max_open=option.below is not None)
    if option.argument:
        return click.Argument(
            [described_option.name],
            type=value_type,
            nargs=-1 if described_option.many else 1,
            required=default is MISSING,
            metavar=option.metavar,
        )
    keywords: dict[str, Any] = {} if default is MISSING or default is None else {"default": default}
    if described_option.many:
        keywords = {"default": (default,) if isinstance(default, str) else default} if default else {}
        keywords["multiple"] = True
    flag_names = f"--{described_option.word}"
    if described_option.scalar is bool:
        flag_names += f"/--no-{described_option.word}" * (default is True)
        keywords["is_flag"] = True
    else:
        keywords |= {"type": value_type, "show_default": default not in (MISSING, None, "", ())}
    return click.Option(
        [flag_names, described_option.name],
        help=option.help,
        required=default is MISSING,
        metavar=option.metavar,
        **keywords,
    )
