"""Checks and sets what must come before any other import. Nothing slow is imported here.

SIGHUP asks a server for a reload. Before the server installs its handler the signal would end the process, so it is
blocked until then. In a clone without symbolic links that is not installed, the import raises an error that says what
to do.
"""

import signal
import sys
from importlib.util import find_spec

FIRST_ROOM = "metaprobe.probes"
"""The room that is imported first. If it is missing, the other rooms are missing too."""


def check_rooms() -> None:
    """Raises `ImportError` if the package's rooms are not found: the clone has no links and is not installed."""
    if find_spec(FIRST_ROOM) is None:
        raise ImportError(
            "the rooms of metaprobe (checkpoints, probes, training, ...) are not found: they are top-level folders of "
            "its clone, and only an installation or the links in src/metaprobe lead to them. Expected an installation;"
            " in the clone, run `pip install .`"
        )


def hold_early_hangups() -> None:
    """Blocks SIGHUP in a process that is `metaprobe serve`, until the server handles it (`production.http.hangup`)."""
    if _is_server(sys.orig_argv, sys.argv) and hasattr(signal, "SIGHUP"):
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})


def _is_server(written: list[str], arguments: list[str]) -> bool:
    """Returns whether the command line is `python -m metaprobe serve` or the script `metaprobe serve`.

    `written` is the command line with the interpreter and its options; `arguments` is `sys.argv`.
    """
    script = arguments[0].replace("\\", "/").rpartition("/")[2] if arguments else ""
    as_module = "-m" in written and written[written.index("-m") + 1 :][:1] == ["metaprobe"]
    return (as_module or script == "metaprobe") and arguments[1:2] == ["serve"]
