"""Typed options reach the library: every option of a command, and its default where it is left out."""

import dataclasses
import inspect
from pathlib import Path

import click
import pytest
from asked_library import run

from metaprobe.checkpoints import FlagOptions
from metaprobe.checkpoints.flagging import FlagKeywords
from metaprobe.cli import main


@pytest.fixture
def store(tmp_path: Path) -> Path:
    (tmp_path / "runs").mkdir()
    return tmp_path / "runs"


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


@pytest.mark.parametrize(
    ("kind", "typed"),
    [("gate", ("--alpha", "0")), ("gate", ("--alpha", "1")), ("quality", ("--folds", "1")), ("quality", ("--seed", -1)),
     ("hidden", ("--when", "during")), ("router", ("--seed", -1)), ("adapter", ("--max-length", 7))],
)  # fmt: skip
def test_a_value_out_of_range_is_a_usage_error_before_anything_is_read(
    kind: str, typed: tuple[str, ...], store: Path
) -> None:
    result = run("train", kind, store, "--out", store / "out", *typed)
    assert result.exit_code == 2, result.output
    assert typed[0] in result.stderr
