"""SIGHUP asks for a reload. Before its handler is installed it would kill the process, so it is blocked until then.

`metaprobe serve` blocks it before its first import (`metaprobe.before_imports`), so that every thread blocks it.
"""

import signal

HANGUP: set[int] = {signal.SIGHUP} if hasattr(signal, "SIGHUP") else set()
"""The signal SIGHUP; empty on systems without it."""


def hold_hangups() -> None:
    """Blocks SIGHUP, in this process and in its child processes, until `take_hangups`.

    If an error ends the process before that, the signal is never delivered. Otherwise it would end the process before
    the error is shown.
    """
    if HANGUP:
        signal.pthread_sigmask(signal.SIG_BLOCK, HANGUP)


def take_hangups() -> None:
    """Unblocks SIGHUP, and delivers a blocked one. Call it once a handler is installed."""
    if HANGUP:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, HANGUP)
