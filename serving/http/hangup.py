"""SIGHUP, which asks for a reload, ends a process that has not yet said what it does then: until it has, it waits."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager

HANGUP: set[int] = {signal.SIGHUP} if hasattr(signal, "SIGHUP") else set()
"""Empty where there is no such signal."""


@contextmanager
def hangups_wait() -> Iterator[None]:
    """A SIGHUP that comes meanwhile is delivered afterwards, or once this thread calls `take_hangups`.

    Processes that are started meanwhile have it wait as well, until they call that.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, HANGUP) if HANGUP else None
    try:
        yield
    finally:
        if before is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def take_hangups() -> None:
    """Has what waited delivered, and what comes from now on; call it once a handler is there."""
    if HANGUP:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, HANGUP)
