"""Makes click commands of functions: each parameter that is described by an `Option` becomes an option or argument.

A parameter whose type is a dataclass of options stands for all of them, and the function gets the dataclass.
"""

import inspect
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields, is_dataclass
from typing import Any, get_type_hints

import click

from metaprobe.checkpoints import ContractMismatch, FlagOptions
from metaprobe.checkpoints.options import Described, described, options_of
from metaprobe.terminal import KINDS
from metaprobe.training.options import WrongOptions


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
                _check_flags(kind, taken)
                passed[key] = _built(kind, taken) if key in as_objects else taken
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


def _built(kind: type, options: dict[str, Any]) -> Any:
    """Returns the options as their dataclass. Raises a usage error where two contradict each other."""
    try:
        return kind(**options)
    except WrongOptions as error:
        raise click.UsageError(str(error)) from error


def _check_flags(kind: type, options: dict[str, Any]) -> None:
    """Raises a usage error where more than one option says what is flagged, or one is out of range."""
    if issubclass(kind, FlagOptions):
        try:
            FlagOptions(**{one.name: options.get(one.name) for one in fields(FlagOptions)})
        except ContractMismatch as error:
            raise click.UsageError(str(error)) from error


def parameter_of(one: Described) -> click.Parameter:
    """Returns the click option or argument for a described field."""
    option, default = one.option, one.default
    kind = _type_of(one)
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
    if one.scalar is bool:
        names = f"--{one.word}/--no-{one.word}" if default is True else f"--{one.word}"
        known["is_flag"] = True
    else:
        names = f"--{one.word}"
        known |= {"type": kind, "show_default": default not in (MISSING, None, "", ())}
    return click.Option(
        [names, one.name], help=option.help, required=default is MISSING, metavar=option.metavar, **known
    )


def _type_of(one: Described) -> Any:
    option = one.option
    if option.kind is not None:
        return KINDS[option.kind]
    if one.choices:
        return click.Choice(one.choices)
    least: Any = option.above if option.low is None else option.low
    most: Any = option.below if option.high is None else option.high
    if least is None and most is None:
        return one.scalar
    kind = click.IntRange if one.scalar is int else click.FloatRange
    return kind(least, most, min_open=option.above is not None, max_open=option.below is not None)
