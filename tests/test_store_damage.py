"""No interruption, damage, kill or second writer costs the store more than what it names."""

import dataclasses
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from stored_runs import example, filled

from metaprobe.records import store as stored
from metaprobe.records.errors import DamagedShard, RecordError, StoreMismatch
from metaprobe.records.store import RunStore, fingerprint
from metaprobe.records.types import Label, Run, Segment, Statement


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_leaving_early_keeps_what_was_added(tmp_path: Path, error: type[BaseException]) -> None:
    store = RunStore(tmp_path)

    def collect_and_fail() -> None:
        with store.writer(shard_runs=4) as writer:
            for i in range(6):
                writer.add(example(i))
            raise error

    with pytest.raises(error):
        collect_and_fail()
    assert len(store) == 6


def test_a_run_that_cannot_be_stored_is_named_and_harms_no_other(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    with store.writer() as writer:
        writer.add(example(0))
        with pytest.raises(RecordError, match="run 'bad' cannot be stored"):
            writer.add(example(1, id="bad", outcome="yes"))
        writer.add(example(2))
    assert store.run_ids() == {"run-000", "run-002"}
    with pytest.raises(RecordError, match="after the writer was closed"):
        writer.add(example(3))
    with pytest.raises(RecordError, match="cannot be stored"):
        store.append([example(4), example(5, outcome="yes")])
    for no_run in (None, {"id": "run-006"}, example(7, calls=[{"id": "call"}])):
        with pytest.raises(RecordError, match="cannot be stored"):
            store.append([example(6), no_run])
    assert store.run_ids() == {"run-000", "run-002"}
    with store.writer() as writer:
        writer.add_all(example(number) for number in (8, 9))
    assert store.run_ids() == {"run-000", "run-002", "run-008", "run-009"}


@pytest.mark.parametrize("end", [-100, 0])
def test_a_shard_that_is_cut_or_empty_is_named_and_the_rest_still_reads(tmp_path: Path, end: int) -> None:
    store = filled(tmp_path, 10, shard_runs=4)
    shard = store.shards()[1]
    shard.write_bytes(shard.read_bytes()[:end])
    for read in (lambda: list(store.runs()), store.run_ids, lambda: len(store), lambda: fingerprint(store)):
        with pytest.raises(DamagedShard, match=rf"{shard.name} is damaged .*delete it .* the other 2 shards"):
            read()
    rest = RunStore(tmp_path, damaged="skip")
    assert [run.id for run in rest] == [f"run-{i:03d}" for i in (0, 1, 2, 3, 8, 9)]
    assert len(rest) == 6
    assert rest.damaged == [shard.name]


@pytest.mark.parametrize("name", [b"completion_tokens", b"max_tokens"])
def test_a_flipped_bit_in_the_name_of_a_field_is_found(tmp_path: Path, name: bytes) -> None:
    """Met by the fuzzer: the file is whole Parquet, but a record has no such field."""
    store = filled(tmp_path, 2)
    shard = store.shards()[0]
    data = shard.read_bytes()
    assert name in data
    shard.write_bytes(data.replace(name, name.replace(b"tokens", b"tnkens")))
    with pytest.raises(DamagedShard, match=rf"{shard.name} is damaged \(run.calls\[\].* has a field .*nkens"):
        list(store.runs())


def test_a_column_of_another_type_is_named(tmp_path: Path) -> None:
    """Met by the fuzzer too, as a matrix that had become a list of records."""
    store = filled(tmp_path, 2)
    shard = store.shards()[0]
    table = pq.read_table(shard)
    pq.write_table(table.set_column(table.schema.get_field_index("outcome"), "outcome", [["good", "bad"]]), shard)
    with pytest.raises(DamagedShard, match=r"run.outcome is of type string; expected double"):
        list(store.runs())


def spoilt(path: Path, change: Callable[[dict[str, Any]], object]) -> RunStore:
    """A store as a program that is not ours may have written it: its second row is changed."""
    store = filled(path, 3)
    rows = pq.read_table(store.shards()[0]).to_pylist()
    change(rows[1])
    pq.write_table(pa.Table.from_pylist(rows, schema=stored.RUN), store.shards()[0])
    return store


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda row: row.update(id=None), r"run.id has no value in 1 of 3"),
        (lambda row: row.update(item=None), r"run.item has no value"),
        (lambda row: row.update(calls=[None]), r"run.calls\[\] has no value"),
        (lambda row: row.update(labels=[None]), r"run.labels\[\] has no value"),
        (lambda row: row["calls"][0].update(messages=None), r"run.calls\[\].messages has no value"),
        (lambda row: row["calls"][0].update(usage=None), r"run.calls\[\].usage has no value"),
        (lambda row: row["calls"][0].update(text=None), r"run.calls\[\].text has no value"),
        (lambda row: row["labels"][0].update(value=None), r"run.labels\[\].value has no value"),
        (
            lambda row: row["calls"][0].update(segments=[{"kind": "answer", "start": -5, "end": 10**9}]),
            r"a segment is 'answer' from token -5",
        ),
    ],
)
def test_values_that_no_run_has_are_named(tmp_path: Path, change: Any, what: str) -> None:
    """A shard from elsewhere is whole Parquet of the right types, and lacks what every run has."""
    store = spoilt(tmp_path, change)
    with pytest.raises(DamagedShard, match=what):
        list(store)
    assert list(RunStore(tmp_path, damaged="skip")) == []


def test_a_run_that_could_not_be_read_again_is_not_stored(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    call = dataclasses.replace(example(0).calls[0], segments=(Segment("answer", 0, 9),))
    for bad in (example(0, labels=(Label("call-0", "correct", None, "human"),)), example(0, calls=(call,))):  # type: ignore[arg-type]
        with pytest.raises(RecordError, match="run 'run-000' cannot be stored"):
            store.append([bad])
    store.append([example(1)])
    assert len(list(store)) == 1


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes")
def test_a_pipe_among_the_shards_is_not_waited_for(tmp_path: Path) -> None:
    filled(tmp_path, 1)
    os.mkfifo(tmp_path / "runs-00001-00000000.parquet")
    os.mkfifo(tmp_path / "states-a-b.safetensors")
    for read in (list[Run], RunStore.activations):
        with pytest.raises(DamagedShard, match="no regular file"):
            read(RunStore(tmp_path))


def test_a_small_file_that_unpacks_to_a_large_one_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = filled(tmp_path, 3, shard_runs=3)
    rows = pq.read_table(store.shards()[0]).to_pylist()
    monkeypatch.setattr("metaprobe.records.lines.MOST_VALUES", 4_000)
    monkeypatch.setattr("metaprobe.records.lines.VALUES_RATIO", 1)
    for row in rows:
        row["calls"][0] |= {"tokens": [], "top_logprobs": None, "logprobs": np.zeros(200_000, np.float32)}
    pq.write_table(pa.Table.from_pylist(rows, schema=stored.RUN), store.shards()[0], compression="zstd")
    with pytest.raises(DamagedShard, match=r"bytes hold 60\d+ values; expected at most"):
        list(store)
    for row in rows:
        row["calls"][0]["logprobs"] = None
        row["final_answer"] = "x" * 300_000
    pq.write_table(pa.Table.from_pylist(rows, schema=stored.RUN), store.shards()[0], compression="zstd")
    monkeypatch.setattr("metaprobe.records.lines.MAX_UNPACKED_BYTES", 1 << 19)
    monkeypatch.setattr("metaprobe.records.lines.BYTES_RATIO", 1)
    with pytest.raises(DamagedShard, match=r"unpack to \d+ or more"):
        list(store)


def test_a_flipped_bit_in_the_numbers_is_found(tmp_path: Path) -> None:
    store = filled(tmp_path, 4)
    (shard,) = store.shards()
    metadata = pq.read_metadata(shard).row_group(0)
    columns = [metadata.column(i) for i in range(metadata.num_columns)]
    column = next(c for c in columns if c.path_in_schema.startswith("calls.list.element.logprobs."))
    whole = shard.read_bytes()
    end = column.data_page_offset + column.total_compressed_size
    for at in range(end - 24, end, 5):  # numbers that no compression made smaller: only the checksum can tell
        content = bytearray(whole)
        content[at] ^= 1
        shard.write_bytes(content)
        with pytest.raises(DamagedShard, match=shard.name):
            list(store)


def test_the_fingerprint_ignores_the_order_of_shards_and_sees_every_change(tmp_path: Path) -> None:
    store = filled(tmp_path, 3)
    known = fingerprint(store)
    assert known == fingerprint([example(2), example(0), example(1)])
    call = example(0).calls[0]
    for changed in (
        example(0, id="other"),
        example(0, labels=()),
        example(0, statements=(Statement(call.id, "confidence", None),)),
        example(0, calls=(dataclasses.replace(call, logprobs=None),)),
        example(0, calls=(dataclasses.replace(call, logprobs=np.nextafter(call.logprobs, np.float32(0))),)),
        example(0, item=dataclasses.replace(example(0).item, group="other")),
    ):
        assert fingerprint([changed, example(1), example(2)]) != known


COLLECT = """
import os, signal, sys
from pathlib import Path
import numpy as np
from metaprobe.records.store import RunStore
from metaprobe.records.types import Call, Hidden, Item, Run

folder, first, last, kill_before_rename = sys.argv[1], *map(int, sys.argv[2:])
rename, renames = Path.replace, 0

def dying_rename(self, target):
    global renames
    renames += 1
    if renames == kill_before_rename:
        os.kill(os.getpid(), signal.SIGKILL)
    return rename(self, target)

Path.replace = dying_rename
store = RunStore(folder)
done = store.run_ids()
with store.writer(shard_runs=4) as writer:
    for i in range(first, last):
        if f"run-{i:03d}" not in done:
            hidden = Hidden(np.full((2, 1, 3), i, np.float16), (0, 5), ("prompt_last",))
            call = Call(id=f"call-{i}", logprobs=np.array([-i], np.float32), hidden=hidden)
            writer.add(Run(f"run-{i:03d}", "test", "", Item(f"item-{i}", ""), (call,)))
"""


def collect(folder: Path, first: int, last: int, kill_before_rename: int = 0) -> subprocess.Popen[bytes]:
    numbers = [str(n) for n in (first, last, kill_before_rename)]
    return subprocess.Popen([sys.executable, "-c", COLLECT, str(folder), *numbers])


@pytest.mark.parametrize(("kill_before_rename", "whole_shards"), [(2, 0), (5, 2)])
def test_a_kill_loses_at_most_the_unfinished_shard_and_resuming_completes(
    tmp_path: Path, kill_before_rename: int, whole_shards: int
) -> None:
    """Each shard is two renames, hidden states first: between the two of the first shard, and before a third shard."""
    assert collect(tmp_path, 0, 14, kill_before_rename).wait() == -9
    store = RunStore(tmp_path)
    assert list(tmp_path.glob(".*.tmp"))
    assert store.run_ids() == {f"run-{i:03d}" for i in range(4 * whole_shards)}
    if whole_shards:
        assert [run.id for run in store] == [f"run-{i:03d}" for i in range(4 * whole_shards)]
    assert collect(tmp_path, 0, 14).wait() == 0
    assert [run.id for run in store] == [f"run-{i:03d}" for i in range(14)]
    found = store.activations()
    assert found.call_ids == tuple(f"call-{i}" for i in range(14))
    assert found.values[:, 0, 0, 0].tolist() == list(range(14))


def test_threads_may_share_a_writer(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    with store.writer(shard_runs=3) as writer:
        threads = [
            threading.Thread(target=lambda start=start: [writer.add(example(i)) for i in range(start, start + 20)])
            for start in (0, 20)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert store.run_ids() == {f"run-{i:03d}" for i in range(40)}


def test_shards_of_another_format_are_refused(tmp_path: Path) -> None:
    store = filled(tmp_path, 1)
    (shard,) = store.shards()
    table = pq.read_table(shard)
    pq.write_table(table.replace_schema_metadata({stored.FORMAT_KEY: "2"}), shard)
    with pytest.raises(StoreMismatch, match="has format 2, this metaprobe reads 1"):
        list(store)
    pq.write_table(pa.table({"id": ["x"]}), shard)
    with pytest.raises(StoreMismatch, match="no shard of a run store"):
        store.run_ids()
