"""How many entries a process has accepted, in a small file that outlives it: a kill then cannot hide what it lost."""

import glob
import hashlib
import mmap
import os
import struct
import sys
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

if sys.platform != "win32":
    import fcntl

SUFFIX = ".accepted"
_NUMBER = struct.Struct("<Q")


class Accepted:
    """A counter that is a file mapped into memory: counting costs no call of the system, and survives SIGKILL.

    While its process lives, the operating system's lock is on the file.
    """

    def __init__(self, beside: Path) -> None:
        """Makes the file, whose name begins as `beside` does."""
        self.name = uuid.uuid4().hex
        self._path = beside.with_name(f"{beside.name}.{self.name}{SUFFIX}")
        hidden = self._path.with_suffix(".new")  # until it is locked, nobody may take it for one left behind
        self._file = hidden.open("w+b", buffering=0)  # what a full disk refuses is not written again at the end
        try:
            self._file.write(_NUMBER.pack(0))
            _lock(self._file.fileno())
            hidden.rename(self._path)
            self._map = mmap.mmap(self._file.fileno(), _NUMBER.size)
        except OSError:
            self._file.close()
            hidden.unlink(missing_ok=True)
            raise

    def set(self, number: int) -> None:
        """How many have been accepted so far."""
        _NUMBER.pack_into(self._map, 0, number)

    def close(self) -> None:
        """Takes the file away: nothing is lost."""
        self._map.close()
        self._path.unlink(missing_ok=True)
        self._file.close()


def beside_of(where: str) -> Path:
    """How the names of one log's counters begin: as its file, or for a URL in the folder for temporary files."""
    if "://" not in where:
        return Path(where)
    return Path(tempfile.gettempdir()) / f"metaprobe-log-{hashlib.sha256(where.encode()).hexdigest()[:16]}"


def left_behind(beside: Path) -> Iterator[tuple[str, int]]:
    """(name, entries accepted) of every process that ended without `close`; its file is then taken away.

    Where the system has no such locks, nobody is taken for dead.
    """
    if sys.platform == "win32":
        return
    for path in sorted(beside.parent.glob(f"{glob.escape(beside.name)}.*{SUFFIX}")):
        with suppress(OSError, struct.error), path.open("r+b") as file:
            fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails while its process lives
            (number,) = _NUMBER.unpack(os.pread(file.fileno(), _NUMBER.size, 0))
            yield path.name.removesuffix(SUFFIX).rpartition(".")[2], number
            path.unlink(missing_ok=True)


def _lock(descriptor: int) -> None:
    if sys.platform != "win32":
        with suppress(OSError):  # a file system without locks
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
