"""Files are there whole or not at all, and a full disk is named with the file that it had no room for."""

import errno
from pathlib import Path

import pytest

from metaprobe.records.atomic import atomic_write


def test_a_full_disk_names_the_file_and_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "runs.parquet"
    path.write_bytes(b"before")

    def half() -> None:
        with atomic_write(path) as file:
            file.write(b"half")
            raise OSError(errno.ENOSPC, "No space left on device")  # as `write` does: without a name

    with pytest.raises(OSError, match="No space left") as caught:
        half()
    assert caught.value.filename == str(path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["runs.parquet"]
    assert path.read_bytes() == b"before"
