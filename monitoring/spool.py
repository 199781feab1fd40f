"""Files beside the log that outlive their process.

A spool keeps entries that the database did not take, until it does: in this process or the next. A counter keeps how
many entries a process has accepted, so that a kill cannot hide how many it lost.
"""

import base64
import glob
import hashlib
import json
import mmap
import os
import stat
import struct
import sys
import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

if sys.platform != "win32":
    import fcntl

SUFFIX = ".spool"
ACCEPTED = ".accepted"
_NUMBER = struct.Struct("<Q")
MOST_BYTES = 256 << 20
"""Most bytes of one file. Entries that do not fit are dropped and counted."""
_DROPPED = "dropped"
"""The key of a line that says how many entries were not even kept here."""

Rows = Sequence[Mapping[str, Any]]


class Spool:
    """Rows of the log's table, a JSON line each. While its process lives, the operating system's lock is on the file.

    The file is made when there is something to keep, for its owner's eyes alone: it may hold texts.
    """

    def __init__(self, path: Path, *, most_bytes: int = MOST_BYTES) -> None:
        self.path = path
        self.waiting = 0
        """Rows in the file that were not taken back."""
        self._most_bytes = most_bytes
        self._file: int | None = None
        self._read_until = 0
        """The place in the file up to which rows were taken back."""

    @classmethod
    def left_behind(cls, path: Path) -> Self | None:
        """The file of a process that has ended; None where its process lives, or the file is not this user's own."""
        if sys.platform == "win32":  # where nobody is known to have ended
            return None
        with suppress(OSError):
            file = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
            spool = cls(path)
            spool._file = file
            try:
                held = os.fstat(file)
                if held.st_uid == os.geteuid() and stat.S_ISREG(held.st_mode):
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails while its process lives
                    spool.waiting = sum(_row(line) is not None for line in spool._lines())
                    return spool
            except OSError:
                spool.close()
                raise
            spool.close()
        return None

    def add(self, rows: Rows) -> int:
        """Keeps rows, and says how many: fewer than all where the file is full, or cannot be written."""
        lines = [_line(row) for row in rows]
        try:
            file = self._opened()
            room, size, kept = self._most_bytes - os.fstat(file).st_size, 0, 0
            while kept < len(lines) and size + len(lines[kept]) <= room:
                size += len(lines[kept])
                kept += 1
            self._write(file, b"".join(lines[:kept]))
        except OSError:
            return 0
        self.waiting += kept
        return kept

    def add_dropped(self, number: int) -> None:
        """Keeps how many entries were lost, for whoever opens the log next. A full disk loses that number too."""
        with suppress(OSError):
            self._write(self._opened(), json.dumps({_DROPPED: number}).encode() + b"\n")

    def next(self, most: int) -> tuple[list[dict[str, Any]], int, int]:
        """Rows that wait, how many were dropped before them, and the place behind them for `taken`."""
        rows: list[dict[str, Any]] = []
        dropped, place = 0, self._read_until
        for line in self._lines():
            place += len(line)
            row = _row(line)
            if row is not None:
                rows.append(row)
            else:
                dropped += _dropped(line)
            if len(rows) == most:
                break
        return rows, dropped, place

    def taken(self, rows: int, place: int) -> None:
        """Notes that this many rows, up to that place, are in the log; an exhausted file is removed."""
        self.waiting -= rows
        self._read_until = place
        if self._file is not None and place >= os.fstat(self._file).st_size:
            with suppress(OSError):
                self.path.unlink()
            self.close()

    @property
    def is_open(self) -> bool:
        return self._file is not None

    def close(self) -> None:
        """Lets go of the file, for the next process to find."""
        if self._file is not None:
            os.close(self._file)
            self._file, self._read_until = None, 0

    def _opened(self) -> int:
        if self._file is None:
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
            self._file = os.open(self.path, flags, 0o600)
            if sys.platform != "win32":
                with suppress(OSError):  # a file system without locks
                    fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return self._file

    def _write(self, file: int, data: bytes) -> None:
        """Writes all at the end of the file, or nothing."""
        end = os.lseek(file, 0, os.SEEK_END)
        try:
            left = memoryview(data)
            while left:
                left = left[os.write(file, left) :]
            os.fsync(file)
        except OSError:
            os.ftruncate(file, end)
            raise

    def _lines(self) -> Iterator[bytes]:
        """Yields the lines behind the rows that were taken back."""
        if self._file is None:
            return
        with os.fdopen(os.dup(self._file), "rb") as held:
            held.seek(self._read_until)
            yield from held


class Accepted:
    """A counter that is a file mapped into memory: counting costs no call of the system, and survives SIGKILL.

    While its process lives, the operating system's lock is on the file.
    """

    def __init__(self, beside: Path) -> None:
        """Makes the file, whose name begins as `beside` does."""
        self.name = uuid.uuid4().hex
        self._path = beside.with_name(f"{beside.name}.{self.name}{ACCEPTED}")
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
        """Sets the number of entries accepted so far."""
        _NUMBER.pack_into(self._map, 0, number)

    def close(self) -> None:
        """Takes the file away: nothing is lost."""
        self._map.close()
        self._path.unlink(missing_ok=True)
        self._file.close()


def beside_of(where: str) -> Path:
    """Returns the start of the names of a log's counters: its file, or for a URL a name among temporary files."""
    if "://" not in where:
        return Path(where)
    return Path(tempfile.gettempdir()) / f"metaprobe-log-{hashlib.sha256(where.encode()).hexdigest()[:16]}"


def left_behind(beside: Path) -> Iterator[tuple[str, int]]:
    """(name, entries accepted) of every process that ended without `close`; its file is then taken away.

    Where the system has no such locks, nobody is taken for dead.
    """
    if sys.platform == "win32":
        return
    for path in sorted(beside.parent.glob(f"{glob.escape(beside.name)}.*{ACCEPTED}")):
        with suppress(OSError, struct.error), path.open("r+b") as file:
            fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails while its process lives
            (number,) = _NUMBER.unpack(os.pread(file.fileno(), _NUMBER.size, 0))
            yield path.name.removesuffix(ACCEPTED).rpartition(".")[2], number
            path.unlink(missing_ok=True)


def _lock(descriptor: int) -> None:
    if sys.platform != "win32":
        with suppress(OSError):  # a file system without locks
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def spool_names(where: str, beside: Path, folder: Path | None) -> Path:
    """Returns the start of the names of a log's spools: that of its counters, or a name in the given folder."""
    if folder is None:
        return beside
    named = where if "://" in where else str(Path(where).resolve())
    return folder / f"metaprobe-log-{hashlib.sha256(named.encode()).hexdigest()[:16]}"


def spools_beside(beside: Path) -> list[Path]:
    """The spools of one log, whoever has them."""
    return sorted(beside.parent.glob(f"{glob.escape(beside.name)}.*{SUFFIX}"))


def writer_of(path: Path) -> str:
    """The name of the writer whose spool this is."""
    return path.name.removesuffix(SUFFIX).rpartition(".")[2]


def _line(row: Mapping[str, Any]) -> bytes:
    held = dict(row)
    if held.get("logprobs") is not None:
        held["logprobs"] = base64.b64encode(held["logprobs"]).decode()
    return json.dumps(held).encode() + b"\n"


def _row(line: bytes) -> dict[str, Any] | None:
    """The row that a line holds; None for a line that holds none, or that was cut."""
    try:
        held = json.loads(line) if line.endswith(b"\n") else None
        if not isinstance(held, dict) or "request_id" not in held:
            return None
        if held.get("logprobs") is not None:
            held["logprobs"] = base64.b64decode(held["logprobs"])
    except (ValueError, TypeError, RecursionError):
        return None
    return held


def _dropped(line: bytes) -> int:
    """Returns how many lost entries a line without a row stands for: the number in it, or 1."""
    try:
        held = json.loads(line)
        return max(0, int(held[_DROPPED]))
    except (ValueError, TypeError, KeyError, RecursionError):
        return 1
