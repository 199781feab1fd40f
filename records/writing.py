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

LOCK_NAME = ".writer"
"""Name of the lock file, or its ending if one file is locked. The lock file names its holder.

Only the operating system's lock on it counts, not the file.
"""
_WITHOUT_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)
_count_lock = threading.Lock()


class OneWriter:
    """Keeps every other process, and every other `OneWriter` of this process, from writing into a folder.

    It may be entered again while it is held. If the system or the file system has no locks, no writer is kept out.
    """

    def __init__(self, folder: Path, *, of: str = "") -> None:
        """`of` is the name of a file in the folder, if only this file is locked instead of the whole folder."""
        self._folder = folder
        self._locked_path = folder / of if of else folder
        self._path = folder / (f".{of}{LOCK_NAME}" if of else LOCK_NAME)
        self._enter_count = 0
        self._descriptor = -1
        self._has_made_folder = False

    def __enter__(self) -> Self:
        """Makes the folder if there is none. Raises `StoreHeld`, with the holder's name, if another writer holds it."""
        with _count_lock:
            if not self._enter_count:
                self._has_made_folder = not self._folder.exists()
                self._folder.mkdir(parents=True, exist_ok=True)
                self._descriptor = _open_locked(self._path, self._locked_path)
            self._enter_count += 1
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with _count_lock:
            self._enter_count -= 1
            if self._enter_count:
                return
            if self._descriptor >= 0:
                self._path.unlink(missing_ok=True)  # while the lock is held, so that the file is still ours
                os.close(self._descriptor)
            if self._has_made_folder:
                with suppress(OSError):  # something was written: it stays
                    self._folder.rmdir()


def _open_locked(path: Path, locked_path: Path) -> int:
    """Returns the descriptor of the lock file `path`, locked for `locked_path`; -1 if the system has no such locks."""
    if sys.platform == "win32":
        return -1
    while True:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise
            raise StoreHeld(
                f"{path} is a link, which a writer's lock never is; remove it if you trust {locked_path}"
            ) from error
        try:
            _lock(descriptor, locked_path)
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(descriptor), path.stat()):
                    with suppress(OSError):  # on a full disk the file stays empty, but the lock is held
                        os.ftruncate(descriptor, 0)
                        os.write(descriptor, f"process {os.getpid()} on {socket.gethostname()}".encode())
                    return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # its holder has removed it between opening and locking


def _lock(descriptor: int, locked_path: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        holder = os.pread(descriptor, 200, 0).decode(errors="replace") or "another process"
        raise StoreHeld(
            f"{locked_path} is being written to by {holder}, and it has one writer at a time: wait until it has ended, "
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
    `shared`: several processes or threads may write the same content at once, so the hidden name holds their ids.
    """
    writer = f".{os.getpid()}-{threading.get_ident()}" if shared else ""
    temporary = path.with_name(f".{path.name}{writer}.tmp")
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
    if os.name == "posix":  # the folder holds the new name; on other systems folders cannot be opened
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
