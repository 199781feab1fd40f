"""Writes the options of every command into docs/commands.md, from the `Option` of each; a test checks the page.

python scripts/commands_page.py
"""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import click

from metaprobe.checkpoints.option_fields import Option
from metaprobe.cli import own_commands
from metaprobe.production.http.settings import Settings

PAGE = Path(__file__).parent.parent / "docs" / "commands.md"
BEGIN = "<!-- options: written by scripts/commands_page.py -->\n"
SHARED = 3
"""An option with the same meaning in at least so many commands is explained once, above them."""


def every_command(inside: Mapping[str, click.Command], before: str = "") -> dict[str, click.Command]:
    """Returns each command by its whole name, in alphabetical order; no command of an app."""
    every: dict[str, click.Command] = {}
    for name, command in sorted(inside.items()):
        whole = f"{before} {name}".strip()
        every |= every_command(command.commands, whole) if isinstance(command, click.Group) else {whole: command}
    return every


def explained(option: click.Option) -> str:
    """Returns an option with its value, meaning, range and default, as an item of a list."""
    kind = option.type
    if isinstance(kind, click.Choice):
        value = "|".join(map(str, kind.choices))
    else:
        value = "" if option.is_flag else option.metavar or kind.name.upper().removesuffix(" RANGE")
    default = option.to_info_dict()["default"]
    default = ", ".join(default) if isinstance(default, tuple | list) else default
    facts = ["required"] if option.required else [f"by default {default}"] if option.show_default else []
    if isinstance(kind, click.IntRange | click.FloatRange):
        least = [] if kind.min is None else [f"{'above' if kind.min_open else 'at least'} {kind.min:g}"]
        most = [] if kind.max is None else [f"{'below' if kind.max_open else 'at most'} {int(kind.max):d}"]
        facts += least + most
    names = " / ".join([*option.opts, *option.secondary_opts])
    return f"- `{f'{names} {value}'.strip()}`: {' '.join((option.help or '').split())}" + (
        f" ({', '.join(facts)})" if facts else ""
    )


def options_section() -> str:
    """Returns the options of all commands: the shared ones, then those of each command, then the variables."""
    commands = every_command(own_commands())
    items = {
        name: {explained(option): option.opts[0] for option in command.params if isinstance(option, click.Option)}
        for name, command in commands.items()
    }
    often = Counter(item for items_of_command in items.values() for item in items_of_command)
    shared = sorted(item for item, count in often.items() if count >= SHARED)
    lines = ["## Options", "", f"The same in {SHARED} commands or more:", "", *shared]
    for name, command in commands.items():
        arguments = [
            argument.human_readable_name for argument in command.params if isinstance(argument, click.Argument)
        ]
        lines += ["", f"### {' '.join([name, *arguments])}", "", str(command.short_help), ""]
        lines += [item for item in items[name] if item not in shared]
        also = [f"`{word}`" for item, word in items[name].items() if item in shared]
        lines += [f"- {', '.join(also)}: as above"] if also else []
    lines += ["", "## Environment variables of the middleware", ""]
    lines += [
        f"- `{setting.variable}`: {setting.option.help}" for setting in Option.all_in(Settings) if setting.variable
    ]
    return "\n".join(lines).replace("\n\n\n", "\n\n") + "\n"


def page(before: str) -> str:
    """Returns the page with the options in their place: everything after `BEGIN`."""
    return f"{before.partition(BEGIN)[0]}{BEGIN}\n{options_section()}"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
