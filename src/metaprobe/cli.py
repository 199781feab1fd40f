"""The command line: parse, call one library function, print. Results on stdout, progress on stderr."""

import errno
import sys
import warnings
from importlib.metadata import entry_points
from typing import Any

import click

from metaprobe import (
    __version__,
    answers_cli,
    checkpoints_cli,
    training_cli,
)
from metaprobe.checkpoints import CheckpointError
from metaprobe.records.errors import MissingExtra, RecordError
from metaprobe.records.plugins import Plugins
from metaprobe.terminal import printable_lines
from metaprobe.training.training_options import WrongOptions

RESUMABLE_COMMANDS = ("collect", "demo", "import", "extract", "teach")
"""Commands that continue where they were stopped."""
COMMAND_ENTRY_POINTS = "metaprobe.commands"
"""Group of entry points under which an installed package registers its commands."""
COMMAND_PLUGINS = Plugins(COMMAND_ENTRY_POINTS, click.Command, "command")
"""Commands of installed packages, those of production and papers among them."""
APP_OF_COMMAND = {"assist": "writing_assistant", "study": "writing_assistant"}
"""Maps a command to the folder in apps/ whose package provides it."""


class Command(click.Group):
    """The top command: finds commands of installed packages, and turns errors into one line and an exit code.

    After Ctrl-C it says whether the command can continue where it stopped.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Returns the sorted names of all commands, of this package and of installed ones."""
        return sorted({*super().list_commands(ctx), *COMMAND_PLUGINS.names()})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Returns the command with this name, or None if the name is unknown. Commands of this package come first.

        If the package of a command cannot be imported, the returned command reports this when it is run. So the other
        commands still work, and `metaprobe --help` lists them. Raises `UsageError` for a command of an app that is not
        installed.
        """
        if (own_command := super().get_command(ctx, cmd_name)) is not None:
            return own_command
        try:
            if (plugin_command := COMMAND_PLUGINS.load(cmd_name)) is not None:
                return plugin_command
        except RecordError as error:
            reason = str(error)

            def refuse(words: tuple[str, ...]) -> None:
                raise click.ClickException(reason)

            return click.Command(
                cmd_name,
                callback=refuse,
                params=[click.Argument(["words"], nargs=-1, type=click.UNPROCESSED)],
                short_help="(cannot be imported)",
                context_settings={"ignore_unknown_options": True},
            )
        if folder := APP_OF_COMMAND.get(cmd_name):
            raise click.UsageError(
                f"{cmd_name} is a command of another package, which is not installed: in a checkout of metaprobe, "
                f"pip install ./apps/{folder}"
            )
        return None

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except WrongOptions as error:
            raise click.UsageError(str(error)) from error
        except (RecordError, CheckpointError, MissingExtra) as error:
            # Names in a file from elsewhere could command the terminal.
            raise click.ClickException(printable_lines(str(error))) from error
        except UnicodeEncodeError as error:  # Python reads bytes of an argument that are not UTF-8 as lone surrogates
            if not 0xDC80 <= ord(error.object[error.start]) <= 0xDCFF:
                raise
            raise click.ClickException(
                f"an argument holds the byte 0x{ord(error.object[error.start]) - 0xDC00:02x}, which is not UTF-8; "
                "expected names and paths in UTF-8"
            ) from error
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT) and error.filename is None:
                raise click.ClickException(f"{error.strerror}: make room, and run the same again") from error
            if error.filename is None:  # not about a file: a broken pipe, which click handles, or a bug of ours
                raise
            raise click.ClickException(f"{error.filename}: {error.strerror}") from error
        except KeyboardInterrupt:
            resume_note = " What is stored is kept: the same command goes on from there."
            click.echo(f"\nInterrupted.{resume_note if ctx.invoked_subcommand in RESUMABLE_COMMANDS else ''}", err=True)
            sys.exit(130)


@click.group(cls=Command, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__)
def main() -> None:
    """How good is a language model's answer? Learned models on the signals it already gives off."""
    # Warnings of this package are for the user, so the line of code that raised them is not shown.
    warnings.formatwarning = lambda message, *_, **__: f"warning: {printable_lines(str(message))}\n"


for module in (answers_cli, checkpoints_cli, training_cli):
    for package_command in module.COMMAND_GROUP.commands.values():
        main.add_command(package_command)


def own_commands() -> dict[str, click.Command]:
    """Returns the commands of this distribution by name, with those of its houses, without those of other packages."""
    points = entry_points(group=COMMAND_ENTRY_POINTS)
    houses = {point.name: point.load() for point in points if point.value.startswith("metaprobe.")}
    return dict(sorted({**houses, **main.commands}.items()))


if __name__ == "__main__":
    main()
