"""The command line is made of the dataclasses and functions that Python has: one name for one thing."""

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any

import click
import pytest

from metaprobe.cli import main
from metaprobe.collecting.extract import extract
from metaprobe.collecting.joining import join_outcomes
from metaprobe.collecting.launch import CollectionPlan
from metaprobe.serving.http.settings import Settings
from metaprobe.training import options
from metaprobe.training.ask_again.train import train_choice

NOTHING = object()


def commands() -> dict[str, click.Command]:
    """Every command by its whole name."""

    def inside(command: click.Command, words: tuple[str, ...]) -> dict[str, click.Command]:
        if not isinstance(command, click.Group):
            return {" ".join(words): command}
        found = [inside(one, (*words, name)) for name, one in command.commands.items()]
        return {name: one for part in found for name, one in part.items()}

    return inside(main, ())


def fields_of(kind: type) -> dict[str, Any]:
    """Name of each field -> its default, `NOTHING` where it has none."""
    return {f.name: NOTHING if f.default is dataclasses.MISSING else f.default for f in dataclasses.fields(kind)}


def arguments_of(function: Callable[..., Any]) -> dict[str, Any]:
    """The same of a function's arguments."""
    given = inspect.signature(function).parameters.values()
    return {p.name: NOTHING if p.default is inspect.Parameter.empty else p.default for p in given}


MADE_OF = {
    "collect": fields_of(CollectionPlan),
    "extract": arguments_of(extract),
    "outcomes": arguments_of(join_outcomes),
    "serve": fields_of(Settings),
    "compare": fields_of(options.CompareOptions),
    "train quality": fields_of(options.QualityOptions),
    "train hidden": fields_of(options.HiddenOptions),
    "train gate": fields_of(options.GateOptions),
    "train router": fields_of(options.RouterOptions),
    "train adapter": fields_of(options.AdapterOptions),
    "train choice": arguments_of(train_choice),
}
OTHERWISE = {
    ("collect", "out"),
    ("extract", "runs"),  # an open store in Python
    ("extract", "llm"),
    ("extract", "logprobs"),  # another function: `collecting.reread`
    ("extract", "out"),
    ("extract", "top_logprobs"),
    ("extract", "via"),  # which class reads
    ("extract", "workers"),  # another function: `collecting.extract_ray`
    ("outcomes", "files"),
    ("outcomes", "out"),  # what comes back in Python
}
"""(command, parameter) that is no field of what the command is made of, for the reason given or because it is plain."""


def same(shown: Any, known: Any) -> bool:
    """Whether a command's default is that of Python: one label is a list of one, none is an empty list."""
    return tuple(shown or ()) == tuple([known] if isinstance(known, str) else known or ())


@pytest.mark.parametrize("name", MADE_OF)
def test_options_have_the_names_and_defaults_that_python_has(name: str) -> None:
    known = MADE_OF[name]
    for parameter in commands()[name].params:
        key = parameter.name or ""
        if (name, key) in OTHERWISE or (isinstance(parameter, click.Argument) and key in ("runs", "outcomes")):
            continue
        assert key in known, f"{name}: {parameter.opts} is {key} in no place of Python; there are {', '.join(known)}"
        if known[key] is NOTHING or known[key] is None or parameter.required:
            continue
        default = parameter.to_info_dict()["default"]
        if getattr(parameter, "multiple", False):
            assert same(default, known[key]), f"{name}: {parameter.opts} is {default!r}, and {known[key]!r} in Python"
        else:
            assert default == known[key], f"{name}: {parameter.opts} is {default!r}, and {known[key]!r} in Python"


def test_an_option_means_the_same_in_every_command() -> None:
    """By what can be told without reading: whether it is a switch, takes a value, and of which type."""
    kinds: dict[str, dict[str, set[str]]] = {}
    for name, command in commands().items():
        for parameter in command.params:
            if isinstance(parameter, click.Option) and parameter.opts != ["--out"]:  # a folder here, a file there
                kind = "switch" if parameter.is_flag else type(parameter.type).__name__
                kinds.setdefault(parameter.opts[0], {}).setdefault(kind, set()).add(name)
    del kinds["--budget"]["IntRange"]  # of `sample`: answers to be labelled; of a router it is dollars
    assert {option: found for option, found in kinds.items() if len(found) > 1} == {}


def test_a_checkpoint_and_a_store_are_what_a_command_is_about_and_no_options() -> None:
    for name, command in commands().items():
        named = {parameter.name for parameter in command.params if isinstance(parameter, click.Option)}
        about = {"checkpoint", "runs", "file", "files"}
        if {"where", "log"} & {parameter.name for parameter in command.params}:  # of a log, one version may be chosen
            about -= {"checkpoint"}
        assert not named & about, name
