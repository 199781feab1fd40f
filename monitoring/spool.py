"""The file of a process that writes a log: it stands beside the log, and outlives the process.

Its first line counts the entries that the process has accepted, so that a kill cannot hide how many it lost. The other
lines are entries that the database did not take, until it does: in this process or the next.
"""

import base64
import glob
import hashlib
import json
import mmap
import os
import stat
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
_COUNT = b"%20d\n"
_HEAD = len(_COUNT % 0)
"""Bytes of the first line."""
MOST_BYTES = 256 << 20
"""Most bytes of one file. Entries that do not fit are dropped and counted."""
_DROPPED = "dropped"
"""The key of a line that says how many entries were not even kept here."""

Rows = Sequence[Mapping[str, Any]]


class Spool:
    """Rows of the log's table, a JSON line each. While its process lives, the operating system's lock is on the file.

    The count is mapped into memory: counting costs no call of the system, and survives SIGKILL. The file is for its
    owner's eyes alone: it may hold texts.
    """

    def __init__(self, path: Path, file: int) -> None:
        """`make` and `left_behind` are the ways to one. `file`: the open file."""
        self.path = path
        self.writer = path.name.removesuffix(SUFFIX).rpartition(".")[2]
        """The name of the process in the log's database."""
        self._file = file
        self._count = mmap.mmap(file, _HEAD)
        self._read_until = _HEAD
        """The place in the file up to which rows were taken back."""
        self.waiting = sum(_row(line) is not None for line in self._lines())
        """Rows in the file that were not taken back."""

    @classmethod
    def make(cls, start: Path) -> Self:
        """Makes a file, whose name begins as `start` does. Raises `OSError`."""
        path = start.with_name(f"{start.name}.{uuid.uuid4().hex}{SUFFIX}")
        hidden = path.with_suffix(".new")  # until it is locked, nobody may take it for one left behind
        file = os.open(hidden, os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0), 0o600)
        try:
            os.write(file, _COUNT % 0)
            _lock(file)
            hidden.rename(path)
            return cls(path, file)
        except (OSError, ValueError):
            os.close(file)
            hidden.unlink(missing_ok=True)
            raise

    @classmethod
    def left_behind(cls, start: Path) -> Iterator[Self]:
        """Yields the files of processes that have ended, unless they are not this user's own.

        Where the system has no such locks, nobody is taken for dead.
        """
        if sys.platform == "win32":
            return
        for path in sorted(start.parent.glob(f"{glob.escape(start.name)}.*{SUFFIX}")):
            with suppress(OSError):
                file = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
                try:
                    held = os.fstat(file)
                    if held.st_uid != os.geteuid() or not stat.S_ISREG(held.st_mode):
                        raise PermissionError
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails while its process lives
                    spool = cls(path, file)
                except (OSError, ValueError):
                    os.close(file)
                else:
                    yield spool

    @property
    def accepted(self) -> int:
        """The number of entries that the process has accepted; 0 where that cannot be read."""
        with suppress(ValueError):
            return int(self._count[:])
        return 0

    def count(self, number: int) -> None:
        """Sets the number of entries accepted so far."""
        self._count[:] = _COUNT % number

    def add(self, rows: Rows) -> int:
        """Keeps rows, and says how many: fewer than all where the file is full, or cannot be written."""
        lines = [_line(row) for row in rows]
        try:
            room, size, kept = MOST_BYTES - os.fstat(self._file).st_size, 0, 0
            while kept < len(lines) and size + len(lines[kept]) <= room:
                size += len(lines[kept])
                kept += 1
            self._write(b"".join(lines[:kept]))
        except OSError:
            return 0
        self.waiting += kept
        return kept

    def add_dropped(self, number: int) -> None:
        """Keeps how many entries were lost, for whoever opens the log next. A full disk loses that number too."""
        with suppress(OSError):
            self._write(json.dumps({_DROPPED: number}).encode() + b"\n")

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
        """Notes that this many rows, up to that place, are in the log; an exhausted file becomes short."""
        self.waiting -= rows
        self._read_until = place
        if not self.unread:
            os.ftruncate(self._file, _HEAD)
            self._read_until = _HEAD

    @property
    def unread(self) -> bool:
        """Whether the file holds lines that were not taken back."""
        return self._read_until < os.fstat(self._file).st_size

    def close(self) -> None:
        """Lets go of the file: for the next process to find where lines wait in it, else it is removed."""
        if not self.unread:
            self.path.unlink(missing_ok=True)
        self.let_go()

    def let_go(self) -> None:
        """Closes the file and leaves it as it is."""
        self._count.close()
        os.close(self._file)

    def _write(self, data: bytes) -> None:
        """Writes all at the end of the file, or nothing."""
        end = os.lseek(self._file, 0, os.SEEK_END)
        try:
            left = memoryview(data)
            while left:
                left = left[os.write(self._file, left) :]
            os.fsync(self._file)
        except OSError:
            os.ftruncate(self._file, end)
            raise

    def _lines(self) -> Iterator[bytes]:
        """Yields the lines behind the rows that were taken back."""
        with os.fdopen(os.dup(self._file), "rb") as held:
            held.seek(self._read_until)
            yield from held


def spool_start(where: str, folder: Path | None) -> Path:
    """Returns the start of the names of a log's spools: its file, or a name in the given folder.

    For a URL the folder is that for temporary files, unless another is given.
    """
    if folder is None and "://" not in where:
        return Path(where)
    named = where if "://" in where else str(Path(where).resolve())
    name = f"metaprobe-log-{hashlib.sha256(named.encode()).hexdigest()[:16]}"
    return Path(folder or tempfile.gettempdir()) / name


def _lock(descriptor: int) -> None:
    if sys.platform != "win32":
        with suppress(OSError):  # a file system without locks
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


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
