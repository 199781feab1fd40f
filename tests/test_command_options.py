"""The command line is made of the dataclasses and functions that Python has: one name for one thing."""

import dataclasses
import inspect
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Literal

import click
import pytest
from click.testing import CliRunner

from metaprobe.checkpoints import FlagOptions
from metaprobe.checkpoints.flagging import FlagKeywords
from metaprobe.checkpoints.option_fields import Option
from metaprobe.cli import main, own_commands
from metaprobe.option_commands import command as made_of
from metaprobe.production.http.environment import from_environment
from metaprobe.production.http.settings import Settings
from metaprobe.records.errors import RecordError
from metaprobe.training.training_options import Seed

sys.path.append(str(Path(__file__).parent.parent / "scripts"))

import commands_page


@cache
def commands() -> dict[str, click.Command]:
    """Every command by its whole name."""

    def inside(command: click.Command, words: tuple[str, ...]) -> dict[str, click.Command]:
        if not isinstance(command, click.Group):
            return {" ".join(words): command}
        found = [inside(one, (*words, name)) for name, one in command.commands.items()]
        return {name: one for part in found for name, one in part.items()}

    return {name: one for first, own in own_commands().items() for name, one in inside(own, (first,)).items()}


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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Base:
    """Options that others inherit."""

    seed: Annotated[int, Option("Seed.", low=0)] = 3
    on_step: str = "not on the command line"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Own(Base):
    """Options of every form."""

    out: Annotated[Path, Option("Folder.", kind="folder")]
    share: Annotated[float | None, Option("Share.", above=0, below=1, variable=True)] = None
    names: Annotated[str | Sequence[str], Option("Names.", name="name", variable=True)] = "first"
    way: Annotated[Literal["a", "b"], Option("Way.", variable=True)] = "a"
    text: Annotated[bool, Option("Texts.", variable=True)] = True


def made() -> click.Command:
    """A command that prints what it was given."""

    @made_of(click.Group(), "Prints.")
    def own(files: Annotated[tuple[str, ...], Option(argument=True)], options: Own, seed: Seed = 0) -> None:
        """Prints its options."""
        click.echo(f"{files} {options} {seed}")

    return own


def test_a_command_is_made_of_a_dataclass_and_a_parameter_of_the_same_name_reaches_both() -> None:
    done = CliRunner().invoke(made(), ["x", "y", "--out", "o", "--share", "0.5", "--no-text", "--seed", "7"])
    expected = Own(out=Path("o"), share=0.5, names=("first",), text=False, seed=7)
    assert done.output == f"('x', 'y') {expected} 7\n"
    done = CliRunner().invoke(made(), ["x", "--out", "o", "--name", "p", "--name", "q", "--way", "b"])
    assert done.output == f"('x',) {Own(out=Path('o'), names=('p', 'q'), way='b', seed=0)} 0\n"


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        (["x"], "Missing option '--out'"),
        (["--out", "o"], "Missing argument"),
        (["x", "--out", "o", "--share", "1"], "0<x<1"),
        (["x", "--out", "o", "--way", "c"], "'c' is not one of"),
        (["x", "--out", "o", "--seed", "-1"], "0<=x<=4294967295"),
        (["x", "--out", "o", "--on-step", "s"], "No such option"),
    ],
)
def test_what_an_option_does_not_allow_is_a_usage_error(typed: list[str], words: str) -> None:
    done = CliRunner().invoke(made(), typed)
    assert done.exit_code == 2
    assert words in done.output


def test_the_environment_gives_the_fields_that_say_so() -> None:
    given = {"METAPROBE_SHARE": "0.5", "METAPROBE_NAME": "n", "METAPROBE_TEXT": "False", "METAPROBE_OUT": "o"}
    assert from_environment(Own, given, RecordError) == {"share": 0.5, "names": ("n",), "text": False}
    assert from_environment(Own, {"METAPROBE_SHARE": " "}, RecordError) == {"share": None}
    wrong = {"SHARE": ("half", "a number"), "TEXT": ("maybe", "0, false, 1, true"), "WAY": ("c", "a, b")}
    for name, (value, expected) in wrong.items():
        with pytest.raises(RecordError, match=f"METAPROBE_{name} is '{value}'; expected .*{expected}"):
            from_environment(Own, {f"METAPROBE_{name}": value}, RecordError)


def test_every_setting_of_the_server_is_an_option_or_says_why_not() -> None:
    known = {one.name for one in Option.all_in(Settings)}
    others = {field.name for field in dataclasses.fields(Settings)} - known
    assert others == {"more_checkpoints", "upstream"}


def test_the_page_of_the_commands_is_made_of_their_options() -> None:
    """`python scripts/commands_page.py` writes it."""
    written = commands_page.PAGE.read_text(encoding="utf-8")
    assert written == commands_page.page(written)


def test_every_command_that_writes_a_checkpoint_says_what_it_may_replace() -> None:
    writing = []
    for name, command in commands().items():
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
    for name, command in commands().items():
        options = {option.name: option for option in command.params if isinstance(option, click.Option)}
        if options.keys() & {"flag_rate", "flag_below", "catch"}:
            found[name] = [(options[one].help, options[one].opts, options[one].default) for one in FLAGGING]
    assert found.keys() == {
        "adapt", "check", "recalibrate", "retrain", "score", "serve", "teach", "train blend",
        "train hidden", "train quality", "train text",
    }  # fmt: skip
    assert all(one == found["adapt"] for one in found.values())
    assert set(inspect.get_annotations(FlagKeywords)) == {field.name for field in dataclasses.fields(FlagOptions)}


COMMANDS = commands()


def shown_options(command: click.Command) -> list[click.Option]:
    return [one for one in command.params if isinstance(one, click.Option) and "--help" not in one.opts]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_says_what_it_is_for_and_shows_its_default(name: str) -> None:
    assert CliRunner().invoke(main, [*name.split(), "--help"]).output.startswith("Usage: ")
    assert COMMANDS[name].short_help or name.count(" "), f"{name} has no line in the list of commands"
    for option in shown_options(COMMANDS[name]):
        assert option.help, f"{name} {option.opts} has no help"
        assert option.help.rstrip().endswith((".", "]")), f"{name} {option.opts}: {option.help!r}"
        known = option.to_info_dict()["default"]
        if not (option.is_flag or option.multiple or option.required or known is None or known == ""):
            assert option.show_default, f"{name} {option.opts} does not show its default {known!r}"


@pytest.mark.parametrize("name", ["feedback", "sample", "estimate", "drift", "retrain", "log prune"])
def test_what_is_about_a_log_needs_one(name: str) -> None:
    [option] = [one for one in shown_options(COMMANDS[name]) if "--log" in one.opts]
    assert option.required
    assert option.metavar == "LOG"
    done = CliRunner().invoke(main, name.split())
    assert done.exit_code == 2
    assert "Missing option '--log'" in done.output or "Missing argument" in done.output
