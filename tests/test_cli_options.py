"""Typed options reach the library: every option of a command, and its default where it is left out."""

import dataclasses
import inspect

import click

from metaprobe.checkpoints import FlagOptions
from metaprobe.checkpoints.flagging import FlagKeywords
from metaprobe.cli import main


def every_command(group: click.Group, *names: str) -> list[tuple[str, click.Command]]:
    found: list[tuple[str, click.Command]] = []
    for name, command in group.commands.items():
        inside = isinstance(command, click.Group)
        found += every_command(command, *names, name) if inside else [(" ".join((*names, name)), command)]  # type: ignore[arg-type]
    return found


COMMANDS = every_command(main)


def test_every_command_that_writes_a_checkpoint_says_what_it_may_replace() -> None:
    writing = []
    for name, command in COMMANDS:
        options = {option.name: option for option in command.params if isinstance(option, click.Option)}
        if "heckpoint" in str(getattr(options.get("out"), "help", "")):
            writing.append(name)
            assert {"replace", "pins"} <= options.keys(), name
            assert any("--log" in option.opts for option in options.values()), name
            assert options["replace"].is_flag
    assert len(writing) > 6


FLAGGING = ("flag_rate", "flag_below", "catch", "risk")


def test_the_four_ways_to_say_what_is_flagged_are_alike_in_every_command_that_has_one() -> None:
    found = {}
    for name, command in COMMANDS:
        options = {option.name: option for option in command.params if isinstance(option, click.Option)}
        if options.keys() & {"flag_rate", "flag_below", "catch"}:
            found[name] = [(options[one].help, options[one].opts, options[one].default) for one in FLAGGING]
    assert found.keys() == {
        "adapt", "check", "recalibrate", "retrain", "score", "serve", "train blend", "train hidden",
        "train quality", "train text",
    }  # fmt: skip
    assert all(one == found["adapt"] for one in found.values())
    assert set(inspect.get_annotations(FlagKeywords)) == {field.name for field in dataclasses.fields(FlagOptions)}
