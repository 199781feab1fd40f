"""Opens files that may be compressed. Standard library only, but for Zstandard (extra `zstd`)."""

import gzip
import io
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from metaprobe.records.errors import ImportFileError
from metaprobe.records.extras import require

GZIP, ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
"""What compressed files begin with."""
BLOCK = 1 << 16
"""Bytes that are read at once."""
SMALL = 1 << 10
"""The same of Zstandard, of which four bytes may unpack to 128 kB."""

MOST_BYTES = 256 << 20
"""Bytes in memory that any Parquet file may unpack to; a larger file may unpack to `BYTES_RATIO` times its size."""
BYTES_RATIO = 400
"""Recorded stores unpack to 2 to 20 times their size. Prompts that repeat may be a hundred times smaller on disk."""
MOST_COLUMNS = 10_000
"""Columns of a Parquet file, those within structs too; a run store has 80."""
MOST_VALUES = 4_000_000
"""Values in all columns of any Parquet file; a larger file may hold `VALUES_RATIO` for each of its bytes. A value takes
about 100 bytes as a Python object."""
VALUES_RATIO = 30
"""Recorded stores hold at most 1.02 values a byte."""

OnBytes = Callable[[int], object]
"""Told how many bytes of the file, as it lies on the disk, are read so far."""


@contextmanager
def opened(path: Path, on_bytes: OnBytes | None = None) -> Iterator[IO[bytes]]:
    """Yields the file's bytes, uncompressed. Raises `ImportFileError` where it cannot be opened.

    What reading a damaged file raises is known by `is_damage`.
    """
    expected = "expected JSON lines (.jsonl, .jsonl.gz, .jsonl.zst) or a log"
    try:
        with path.open("rb") as file:
            start = file.peek(4)[:4]  # a pipe cannot be read twice
            counted: Any = io.BufferedReader(_Telling(file, on_bytes), BLOCK) if on_bytes is not None else file
            if path.suffix == ".gz" or start.startswith(GZIP):
                with gzip.open(counted) as unpacked:
                    yield unpacked  # type: ignore[misc]
            elif path.suffix == ".zst" or start == ZSTD:
                yield io.BufferedReader(_Zstandard(counted), BLOCK)
            else:
                yield counted
    except FileNotFoundError as error:
        raise ImportFileError(f"{path}: there is no such file; {expected}") from error
    except IsADirectoryError as error:
        raise ImportFileError(f"{path} is a folder; {expected}") from error


def is_damage(error: Exception) -> bool:
    """Returns whether it is what the unpackers raise for a compressed file that is damaged or cut off."""
    damaged = isinstance(error, (EOFError, gzip.BadGzipFile, zlib.error))
    return damaged or type(error).__name__ == "ZstdError"


def check_values(metadata: Any, size: int) -> None:
    """Raises `ValueError` where a Parquet file's footer speaks of far more values than a file of `size` bytes holds."""
    if metadata.num_columns > MOST_COLUMNS:
        raise ValueError(f"it has {metadata.num_columns} columns; expected at most {MOST_COLUMNS}")
    groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
    count = sum(group.column(index).num_values for group in groups for index in range(group.num_columns))
    if count > max(MOST_VALUES, VALUES_RATIO * size):
        raise ValueError(
            f"its {size} bytes hold {count} values; expected at most {max(MOST_VALUES, VALUES_RATIO * size)}"
        )


def check_memory(taken: int, size: int) -> None:
    """Raises `ValueError` where rows of a Parquet file of `size` bytes take far more memory than such files do."""
    if taken > max(MOST_BYTES, BYTES_RATIO * size):
        raise ValueError(
            f"its {size} bytes unpack to more than {max(MOST_BYTES, BYTES_RATIO * size)}; expected a store of answers"
        )


class _Telling(io.RawIOBase):
    """A file that tells how far it was read."""

    def __init__(self, file: IO[bytes], on_bytes: OnBytes) -> None:
        self._file, self._on_bytes = file, on_bytes
        self._read = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._file.read(len(buffer))
        buffer[: len(data)] = data
        self._read += len(data)
        self._on_bytes(self._read)
        return len(data)


class _Zstandard(io.RawIOBase):
    """The bytes in a file of Zstandard frames. The library's own reader says nothing of a file that was cut off."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._library = require("zstandard", "zstd")
        self._frame: Any = None
        self._given, self._waiting = b"", b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._waiting:
            self._given = self._given or self._file.read(SMALL)
            if not self._given:
                if self._frame is not None:
                    raise EOFError("the last frame has no end")
                return 0
            if self._frame is None:
                self._frame = self._library.ZstdDecompressor().decompressobj()
            self._waiting = self._frame.decompress(self._given)
            self._given = self._frame.unused_data
            if self._frame.eof:
                self._frame = None
        data, self._waiting = self._waiting[: len(buffer)], self._waiting[len(buffer) :]
        buffer[: len(data)] = data
        return len(data)
