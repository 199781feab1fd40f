"""SIGHUP asks for a reload. Before its handler is installed it would end the process, so it is blocked until then.

`metaprobe serve` blocks it before its first import (`metaprobe.early`), so that no thread is there which does not.
"""

import signal

HANGUP: set[int] = {signal.SIGHUP} if hasattr(signal, "SIGHUP") else set()
"""Empty where there is no such signal."""


def hold_hangups() -> None:
    """Has a SIGHUP wait, in this process and in those that are started meanwhile, until `take_hangups`.

    Where an error ends the process before, the signal is never delivered: it would end it before the error is told.
    """
    if HANGUP:
        signal.pthread_sigmask(signal.SIG_BLOCK, HANGUP)


def take_hangups() -> None:
    """Has what waited delivered, and what comes from now on; call it once a handler is there."""
    if HANGUP:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, HANGUP)
