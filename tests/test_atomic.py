"""Files are there whole or not at all, and a full disk is named with the file that it had no room for."""

import errno
import os
from pathlib import Path

import pytest

from metaprobe.records.writing import atomic_write


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


def test_a_link_at_the_temporary_name_leads_nowhere(tmp_path: Path) -> None:
    """A folder from elsewhere may hold a link of this name to a file of whoever works in it."""
    other = tmp_path / "other"
    other.write_bytes(b"kept")
    (tmp_path / ".runs.parquet.tmp").symlink_to(other)
    with atomic_write(tmp_path / "runs.parquet") as file:
        file.write(b"whole")
    assert (other.read_bytes(), (tmp_path / "runs.parquet").read_bytes()) == (b"kept", b"whole")
    assert not (tmp_path / "runs.parquet").is_symlink()


def test_what_was_written_is_on_the_disk_before_it_takes_the_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a power cut leaves the new name with nothing in it, and the old contents are gone."""
    path, done = tmp_path / "runs.parquet", list[str]()
    synced, replaced = os.fsync, Path.replace

    def sync(descriptor: int) -> None:
        done.append(f"sync of {os.fstat(descriptor).st_size} bytes" if not path.exists() else "sync of the folder")
        synced(descriptor)

    def replace(self: Path, target: Path) -> Path:
        done.append("name")
        return replaced(self, target)

    monkeypatch.setattr("metaprobe.records.writing.os.fsync", sync)
    monkeypatch.setattr(Path, "replace", replace)
    with atomic_write(path) as file:
        file.write(b"whole")
    assert done == ["sync of 5 bytes", "name"] + ["sync of the folder"] * (os.name == "posix")
