"""SIGHUP, which asks for a reload, ends a process that has not yet said what it does then: until it has, it waits."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

HANGUP: set[int] = {signal.SIGHUP} if hasattr(signal, "SIGHUP") else set()
"""Empty where there is no such signal."""


_noted: list[int] = []
"""Signals that came while they were to wait, by a thread that was there before and does not wait."""


def _note(number: int, frame: object) -> None:
    _noted.append(number)


@contextmanager
def hangups_wait() -> Iterator[None]:
    """Delivers a SIGHUP that comes to the main thread meanwhile afterwards, or once it calls `take_hangups`.

    Processes that are started meanwhile have it wait as well, until they call that. Where an error ends what is done
    here, a signal that waits is dropped: it would end the process before the error is told.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, HANGUP) if HANGUP else None
    # Threads that are there already, such as OpenBLAS's, do not wait: what reaches them is noted.
    main = bool(HANGUP) and threading.current_thread() is threading.main_thread()
    notes = main and signal.getsignal(signal.SIGHUP) == signal.SIG_DFL
    if notes:
        signal.signal(signal.SIGHUP, _note)
    try:
        yield
    except BaseException:
        if main:
            handler = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # by which the system forgets what waits
            _noted.clear()
            signal.signal(signal.SIGHUP, handler or signal.SIG_DFL)
        raise
    finally:
        if notes and signal.getsignal(signal.SIGHUP) is _note:
            signal.signal(signal.SIGHUP, signal.SIG_DFL)
        if before is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        _deliver()


def take_hangups() -> None:
    """Has what waited delivered, and what comes from now on; call it once a handler is there."""
    if HANGUP:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, HANGUP)
        _deliver()


def _deliver() -> None:
    if _noted:
        _noted.clear()
        signal.raise_signal(signal.SIGHUP)
