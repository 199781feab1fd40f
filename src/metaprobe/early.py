"""SIGHUP asks a server for a reload. Until its handler is there, the signal would end the process, so it waits.

Nothing slow is imported here: `metaprobe` calls this before anything else.
"""

import signal
import sys


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
