"""Checks and sets what must come before any other import; nothing slow is imported here.

SIGHUP asks a server for a reload. Until its handler is there, the signal would end the process, so it waits. The
package's rooms are links in a clone, and a clone without symbolic links is told what to do.
"""

import signal
import sys
from pathlib import Path

FIRST_ROOM = "probes"
"""The room that is imported first. Where its link is missing, those of the others are missing too."""


def check_rooms(package: Path) -> None:
    """Raises `ImportError` where the package's folder holds no rooms: a clone without symbolic links."""
    if not (package / FIRST_ROOM).is_dir():
        raise ImportError(
            f"{package} holds no folder {FIRST_ROOM!r}: its rooms (checkpoints, probes, training, ...) are symbolic "
            "links to the clone's top-level folders, and git made plain files of them (core.symlinks=false, as on "
            "Windows without developer mode). Expected links; in the clone, do\n"
            "    git config core.symlinks true\n"
            "    git checkout -- src/metaprobe\n"
            "and install again. On Windows, switch developer mode on first; or install a wheel, which holds folders: "
            "pip install metaprobe-VERSION-py3-none-any.whl"
        )


def hold_hangups() -> None:
    """Has SIGHUP wait in a process that is `metaprobe serve`, until the server takes it (`serving.http.hangup`)."""
    if _is_server(sys.orig_argv, sys.argv) and hasattr(signal, "SIGHUP"):
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})


def _is_server(written: list[str], given: list[str]) -> bool:
    """Whether the command line is `python -m metaprobe serve` or the script `metaprobe serve`.

    `written`: with the interpreter and its options. `given`: as programs see it.
    """
    script = given[0].replace("\\", "/").rpartition("/")[2] if given else ""
    as_module = "-m" in written and written[written.index("-m") + 1 :][:1] == ["metaprobe"]
    return (as_module or script == "metaprobe") and given[1:2] == ["serve"]
