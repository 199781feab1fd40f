"""One process writes into a store at a time; what it cannot write is named, and no reader finds a run twice."""

import dataclasses
import errno
import fcntl
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet as pq
import pytest
from stored_runs import example, filled

from metaprobe.records.errors import StoreHeld, Unwritable
from metaprobe.records.store import RunStore
from metaprobe.records.writing import LOCK_NAME

HOLD = """
import sys
from stored_runs import example
from metaprobe.records.store import RunStore
with RunStore(sys.argv[1]).writer(shard_runs=4) as writer:
    for i in range(6):
        writer.add(example(i))
    print("holding", flush=True)
    sys.stdin.readline()
"""


@pytest.fixture
def holder(tmp_path: Path) -> Iterator["subprocess.Popen[str]"]:
    """Another process that has written one shard into `tmp_path`, and goes on writing."""
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "holding\n"
        yield process
        process.kill()


def rows(folder: Path) -> list[str]:
    """The run ids that a reader of Parquet finds, of every row."""
    query = duckdb.sql(f"SELECT id FROM '{folder}/*.parquet' ORDER BY id")
    return [row[0] for row in query.fetchall()]


def test_a_second_writer_is_refused_with_the_first_ones_process_and_readers_are_not(
    tmp_path: Path, holder: "subprocess.Popen[str]"
) -> None:
    store = RunStore(tmp_path)
    writes: list[Callable[[], object]] = [
        lambda: store.writer().__enter__(),
        lambda: store.append([example(9)]),
        lambda: store.rewrite(lambda run: dataclasses.replace(run, outcome=0.0)),
    ]
    for write in writes:
        with pytest.raises(StoreHeld, match=rf"by process {holder.pid} on .*wait until it has ended, or stop it"):
            write()
    assert [run.id for run in store] == rows(tmp_path) == [f"run-{i:03d}" for i in range(4)]
    holder.communicate("\n")
    store.append([example(9)])
    assert rows(tmp_path) == [*(f"run-{i:03d}" for i in range(6)), "run-009"]
    assert all(path.name.startswith("runs-") for path in tmp_path.iterdir())


def test_a_killed_writer_holds_nobody_up_and_leaves_no_row_twice(
    tmp_path: Path, holder: "subprocess.Popen[str]"
) -> None:
    (tmp_path / ".runs-00001-00000000.parquet.tmp").write_bytes(b"what it was writing")
    holder.kill()
    holder.wait()
    store = RunStore(tmp_path)
    with store.writer() as writer:
        for i in range(6):
            if f"run-{i:03d}" not in store.run_ids():
                writer.add(example(i))
    assert rows(tmp_path) == [f"run-{i:03d}" for i in range(6)]
    assert all(path.name.startswith("runs-") for path in tmp_path.iterdir())


def test_a_writer_of_the_same_process_is_kept_out_as_well_and_one_store_may_nest(tmp_path: Path) -> None:
    store = RunStore(tmp_path / "runs")
    with store.alone(), store.writer() as writer:
        writer.add(example(0))
        store.append([example(1)])
        with pytest.raises(StoreHeld, match=f"process {os.getpid()} "), RunStore(store.path).writer():
            pass
    with RunStore(store.path).writer() as writer:
        writer.add(example(2))
    assert len(store) == 3
    with RunStore(tmp_path / "nothing").alone():
        pass
    assert not (tmp_path / "nothing").exists()


def test_a_lock_file_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    """In a folder from elsewhere it could lead to a file of whoever writes there, which the lock would empty."""
    other = tmp_path / "other"
    other.write_text("kept")
    store = filled(tmp_path / "runs", 1)
    (store.path / ".writer").symlink_to(other)
    with pytest.raises(StoreHeld, match="is a link"):
        store.append([example(2)])
    assert other.read_text() == "kept"


@pytest.mark.parametrize("without", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS])
def test_where_the_file_system_has_no_locks_nobody_is_kept_out_and_other_errors_are_said(
    without: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refusing(number: int) -> Callable[[int, int], None]:
        def lock(descriptor: int, kind: int) -> None:
            raise OSError(number, os.strerror(number))

        return lock

    monkeypatch.setattr(fcntl, "flock", refusing(without))
    with RunStore(tmp_path).writer() as writer:
        writer.add(example(0))
        RunStore(tmp_path).append([example(1)])
    assert rows(tmp_path) == ["run-000", "run-001"]
    monkeypatch.setattr(fcntl, "flock", refusing(errno.EIO))
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        RunStore(tmp_path).append([example(2)])
    assert rows(tmp_path) == ["run-000", "run-001"]


def test_a_shard_whose_write_was_interrupted_after_its_rename_is_not_written_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, rename = RunStore(tmp_path), Path.replace

    def interrupted(self: Path, target: Path) -> None:
        rename(self, target)
        monkeypatch.setattr(Path, "replace", rename)
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", interrupted)
    with store.writer(shard_runs=2) as writer:
        writer.add(example(0))
        with pytest.raises(KeyboardInterrupt):
            writer.add(example(1))
    assert rows(tmp_path) == ["run-000", "run-001"]


def test_a_full_disk_is_named_once_and_the_end_of_the_block_tries_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, whole = RunStore(tmp_path), pq.write_table

    def full(*args: Any, **options: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(pq, "write_table", full)
    with store.writer(shard_runs=2) as writer:
        writer.add(example(0))
        with pytest.raises(Unwritable, match=r"2 runs cannot be written to .*: No space left on device"):
            writer.add(example(1))
        monkeypatch.setattr(pq, "write_table", whole)
    assert rows(tmp_path) == ["run-000", "run-001"]


def test_a_lock_file_that_its_holder_takes_away_meanwhile_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, taken = fcntl.flock, []

    def late(descriptor: int, kind: int) -> None:
        if not taken:  # between the opening of the file and its lock, its last holder ended and took it away
            taken.append((tmp_path / LOCK_NAME).unlink())
        lock(descriptor, kind)

    monkeypatch.setattr(fcntl, "flock", late)
    with RunStore(tmp_path).writer() as writer:
        writer.add(example(0))
        with pytest.raises(StoreHeld, match=f"process {os.getpid()} "), RunStore(tmp_path).writer():
            pass
    assert rows(tmp_path) == ["run-000"]
