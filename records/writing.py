"""Writes files whole or not at all, and lets only one writer at a time write into a folder or a file.

The lock is the operating system's. If a process is killed, the system releases its lock.
"""

import errno
import os
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from metaprobe.records.errors import StoreHeld

if sys.platform != "win32":
    import fcntl

HELD = ".writer"
"""Ending of the lock file, which names its holder. Only the operating system's lock on it counts, not the file."""
_WITHOUT_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)
_counting = threading.Lock()


class OneWriter:
    """Keeps every other process, and every other `OneWriter` of this process, from writing into a folder.

    It may be entered again while it is held. If the system or the file system has no locks, no writer is kept out.
    """

    def __init__(self, folder: Path, *, of: str = "") -> None:
        """`of` is the name of a file in the folder, if only this file is locked instead of the whole folder."""
        self._folder = folder
        self._kept = folder / of if of else folder
        self._path = folder / (f".{of}{HELD}" if of else HELD)
        self._times = 0
        self._descriptor = -1
        self._made = False

    def __enter__(self) -> Self:
        """Makes the folder if there is none. Raises `StoreHeld`, with the holder's name, if another writer holds it."""
        with _counting:
            if not self._times:
                self._made = not self._folder.exists()
                self._folder.mkdir(parents=True, exist_ok=True)
                self._descriptor = _locked(self._path, self._kept)
            self._times += 1
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with _counting:
            self._times -= 1
            if self._times:
                return
            if self._descriptor >= 0:
                self._path.unlink(missing_ok=True)  # while it is held, so that it is nobody else's
                os.close(self._descriptor)
            if self._made:
                with suppress(OSError):  # something was written: it stays
                    self._folder.rmdir()


def _locked(path: Path, kept: Path) -> int:
    """Returns the descriptor of the lock file `path`, locked for `kept`; -1 if the system has no such locks."""
    if sys.platform == "win32":
        return -1
    while True:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise
            raise StoreHeld(
                f"{path} is a link, which a writer's lock never is; remove it if you trust {kept}"
            ) from error
        try:
            _lock(descriptor, kept)
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(descriptor), path.stat()):
                    with suppress(OSError):  # on a full disk the file stays empty, but the lock is held
                        os.ftruncate(descriptor, 0)
                        os.write(descriptor, f"process {os.getpid()} on {socket.gethostname()}".encode())
                    return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # its holder took it away between our two steps


def _lock(descriptor: int, kept: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        holder = os.pread(descriptor, 200, 0).decode(errors="replace") or "another process"
        raise StoreHeld(
            f"{kept} is being written to by {holder}, and it has one writer at a time: wait until it has ended, "
            "or stop it, and run this again; or give another name. Reading goes on as ever"
        ) from error
    except OSError as error:
        if error.errno not in _WITHOUT_LOCKS:
            raise


@contextmanager
def atomic_write(path: Path, *, shared: bool = False) -> Iterator[BinaryIO]:
    """Yields a file to write to. It gets the name `path` when the block ends without an error, on the disk and not only
    in its cache.

    Until then it has a hidden name that ends in `.tmp`. A kill may leave this file behind; every reader skips it.
    `shared`: several processes may write the same content at once, so the hidden name holds the process's id.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp" if shared else f".{path.name}.tmp")
    try:
        temporary.unlink(missing_ok=True)  # of a kill; or a link in a folder from elsewhere, to somebody's file
        with temporary.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename is None:
            error.filename = str(path)  # a full disk does not say where it is full
        raise
    if os.name == "posix":  # the new name itself is kept by the folder; elsewhere folders cannot be opened
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
