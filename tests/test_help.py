"""The help of every command explains each option: its meaning, its default, and whether it must be given."""

import click
import pytest
from click.testing import CliRunner
from test_command_options import commands

from metaprobe.cli import main

COMMANDS = commands()


def options_of(command: click.Command) -> list[click.Option]:
    return [one for one in command.params if isinstance(one, click.Option) and "--help" not in one.opts]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_says_what_it_is_for_and_shows_its_default(name: str) -> None:
    assert CliRunner().invoke(main, [*name.split(), "--help"]).output.startswith("Usage: ")
    assert COMMANDS[name].short_help or name.count(" "), f"{name} has no line in the list of commands"
    for option in options_of(COMMANDS[name]):
        assert option.help, f"{name} {option.opts} has no help"
        assert option.help.rstrip().endswith((".", "]")), f"{name} {option.opts}: {option.help!r}"
        known = option.to_info_dict()["default"]
        if not (option.is_flag or option.multiple or option.required or known is None or known == ""):
            assert option.show_default, f"{name} {option.opts} does not show its default {known!r}"


@pytest.mark.parametrize("name", ["feedback", "sample", "estimate", "drift", "retrain", "log prune"])
def test_what_is_about_a_log_needs_one(name: str) -> None:
    [option] = [one for one in options_of(COMMANDS[name]) if "--log" in one.opts]
    assert option.required
    assert option.metavar == "LOG"
    done = CliRunner().invoke(main, name.split())
    assert done.exit_code == 2
    assert "Missing option '--log'" in done.output or "Missing argument" in done.output
