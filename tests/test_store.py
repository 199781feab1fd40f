"""The run store: nothing lost, nothing twice, nothing half."""

import dataclasses
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from metaprobe.records import schema
from metaprobe.records.errors import DamagedShard, RecordError, StoreMismatch
from metaprobe.records.fingerprint import fingerprint
from metaprobe.records.store import RunStore
from metaprobe.records.types import Call, Decision, Item, Label, Message, Run, Sampling, Statement, Usage

text = st.text(max_size=8)
texts = st.lists(text, max_size=3).map(tuple)
numbers = st.floats(allow_nan=False, width=64)
maybe_number = st.none() | numbers
ids = st.integers(-(2**31), 2**31 - 1)
token_ids = st.none() | hnp.arrays(np.int32, st.integers(0, 5), elements=ids)
logprobs = st.none() | hnp.arrays(np.float32, st.integers(0, 5), elements=st.floats(-100, 0, width=32))
top_logprobs = st.none() | hnp.arrays(
    np.float32,
    st.tuples(st.integers(1, 4), st.integers(0, 3)),
    elements=st.floats(-100, 0, width=32) | st.just(float("nan")),
)
scores = st.dictionaries(text, numbers, max_size=3)
count = st.integers(0, 2**62)
calls = st.builds(
    Call,
    id=text,
    stage=text,
    agent=text,
    round=st.integers(0, 9),
    parent=st.none() | text,
    model=text,
    model_revision=text,
    model_dtype=text,
    messages=st.lists(st.builds(Message, text, text), max_size=2).map(tuple),
    prompt_token_ids=token_ids,
    text=text,
    tokens=texts,
    token_ids=token_ids,
    logprobs=logprobs,
    top_logprobs=top_logprobs,
    sampling=st.builds(Sampling, numbers, numbers, st.none() | count, count),
    logprobs_mode=st.sampled_from(["raw", "processed", "unknown"]),
    finish_reason=text,
    usage=st.builds(Usage, count, count),
    latency_ms=maybe_number,
    cost_usd=maybe_number,
    error=st.none() | text,
)
items = st.builds(
    Item, text, text, texts, text, texts, text, text, text, text, text, st.sampled_from(["exact", "none"])
)
runs = st.builds(
    Run,
    id=text,
    system=text,
    variant=text,
    item=items,
    calls=st.lists(calls, max_size=3).map(tuple),
    statements=st.lists(st.builds(Statement, text, text, maybe_number), max_size=2).map(tuple),
    labels=st.lists(st.builds(Label, text, text, numbers, text), max_size=2).map(tuple),
    decisions=st.lists(st.builds(Decision, text, text, text, scores, scores, text), max_size=2).map(tuple),
    final_answer=text,
    outcome=maybe_number,
)


def plain(value: Any) -> Any:
    """A record as something that `==` compares whole: types, shapes, NaN and all."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, np.ndarray):
        return (str(value.dtype), value.shape, value.tobytes())
    if isinstance(value, (list, tuple)):
        return [plain(entry) for entry in value]
    return value


def example(i: int, **changes: Any) -> Run:
    """A small run, told apart from the others by its number."""
    rng = np.random.default_rng(i)
    call = Call(
        id=f"call-{i}",
        text=f"secret {i}",
        tokens=("secret", f" {i}"),
        token_ids=np.array([5, i], np.int32),
        prompt_token_ids=np.array([1, 2, 3], np.int32),
        messages=(Message("user", "secret question"),),
        logprobs=-rng.exponential(size=2).astype(np.float32),
        top_logprobs=-rng.exponential(size=(2, 3)).astype(np.float32),
        error="secret error",
    )
    run = Run(
        id=f"run-{i:03d}",
        system="test",
        variant="v",
        item=Item(f"item-{i}", "secret question", gold=("secret",), choices=("secret", "b"), group=f"g{i}"),
        calls=(call,),
        statements=(Statement(call.id, "confidence", 0.25),),
        labels=(Label(call.id, "correct", float(i % 2), "program"),),
        decisions=(Decision("d", "assess", "execute", {"execute": 0.5, "ask": 0.25}, {"execute": 1.0}, "why"),),
        final_answer="secret",
        outcome=1.0,
    )
    return dataclasses.replace(run, **changes)


def filled(path: Path, n: int = 10, shard_runs: int = 4) -> RunStore:
    store = RunStore(path)
    with store.writer(shard_runs=shard_runs) as writer:
        for i in range(n):
            writer.add(example(i))
    return store


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(runs, min_size=1, max_size=3, unique_by=lambda run: run.id))
def test_every_run_comes_back_as_it_was(tmp_path_factory: pytest.TempPathFactory, written: list[Run]) -> None:
    store = RunStore(tmp_path_factory.mktemp("store"))
    store.append(written)
    assert plain(list(store)) == plain(written)
    assert store.run_ids() == {run.id for run in written}
    assert fingerprint(store) == fingerprint(written)


@pytest.mark.parametrize(
    ("record", "stored"),
    [
        (Run, set(schema.RUN.names)),
        (Item, {field.name for field in schema.ITEM}),
        (Call, {field.name for field in schema.CALL} | {"hidden"}),
        (Statement, {field.name for field in schema.STATEMENT}),
        (Label, {field.name for field in schema.LABEL}),
        (Decision, {field.name for field in schema.DECISION}),
    ],
)
def test_no_field_of_a_record_is_forgotten(record: type, stored: set[str]) -> None:
    assert {field.name for field in dataclasses.fields(record)} == stored


def test_arrays_read_can_be_written_to_and_do_not_share_memory(tmp_path: Path) -> None:
    first, second = list(filled(tmp_path, 2))
    assert first.calls[0].logprobs.flags.writeable
    assert not np.shares_memory(first.calls[0].logprobs, second.calls[0].logprobs)
    assert first.calls[0].logprobs.base is None


def test_shards_have_the_size_asked_for_and_keep_the_order(tmp_path: Path) -> None:
    store = filled(tmp_path, 10, shard_runs=4)
    assert [pq.read_metadata(shard).num_rows for shard in store.shards()] == [4, 4, 2]
    assert [run.id for run in store] == [f"run-{i:03d}" for i in range(10)]
    assert len(store) == 10


def test_reading_is_a_shard_at_a_time(tmp_path: Path) -> None:
    store = filled(tmp_path, 10, shard_runs=4)
    reading = iter(store)
    assert next(reading).id == "run-000"
    for shard in store.shards()[1:]:
        shard.write_bytes(b"")
    assert [next(reading).id for _ in range(3)] == ["run-001", "run-002", "run-003"]
    with pytest.raises(DamagedShard):
        next(reading)


def test_a_run_stored_twice_is_read_once_and_the_first_counts(tmp_path: Path) -> None:
    store = filled(tmp_path, 3)
    store.append([example(1, final_answer="later"), example(3)])
    assert [run.id for run in store] == ["run-000", "run-001", "run-002", "run-003"]
    assert [run.final_answer for run in store][1] == "secret"
    assert len(store) == 4


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
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


def test_an_interrupted_write_is_made_good_on_leaving(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = RunStore(tmp_path)
    whole = pq.write_table

    def interrupted(*args: Any, **options: Any) -> None:
        monkeypatch.setattr(pq, "write_table", whole)
        raise KeyboardInterrupt

    monkeypatch.setattr(pq, "write_table", interrupted)
    with store.writer(shard_runs=2) as writer:
        writer.add(example(0))
        with pytest.raises(KeyboardInterrupt):
            writer.add(example(1))
    assert [run.id for run in store] == ["run-000", "run-001"]
    assert len(list(tmp_path.iterdir())) == 1


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
    assert store.run_ids() == {"run-000", "run-002"}


def test_half_a_surrogate_pair_does_not_cost_the_run(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    store.append([example(0, final_answer="a\ud83d", variant="é😀")])
    (run,) = store
    assert (run.final_answer, run.variant) == ("a\ufffd", "é😀")


def test_without_text_nothing_that_was_said_is_on_the_disk(tmp_path: Path) -> None:
    store = RunStore(tmp_path / "private")
    with store.writer(text=False) as writer:
        writer.add(example(0))
    stored = str(pq.read_table(store.shards()[0]).to_pylist())
    assert "secret" not in stored
    assert "secret" in str(pq.read_table(filled(tmp_path / "open", 1).shards()[0]).to_pylist())
    (run,) = store
    (call,) = run.calls
    original = example(0)
    assert (call.text, call.tokens, call.token_ids, call.prompt_token_ids, call.messages) == ("", (), None, None, ())
    assert call.error is not None
    np.testing.assert_array_equal(call.logprobs, original.calls[0].logprobs)
    np.testing.assert_array_equal(call.top_logprobs, original.calls[0].top_logprobs)
    assert (run.labels, run.statements, run.decisions) == (original.labels, original.statements, original.decisions)
    assert fingerprint(store) == fingerprint([original])


def cut_off(shard: Path) -> None:
    shard.write_bytes(shard.read_bytes()[:-100])


def emptied(shard: Path) -> None:
    shard.write_bytes(b"")


@pytest.mark.parametrize("damage", [cut_off, emptied])
def test_a_damaged_shard_is_named_and_the_rest_still_reads(tmp_path: Path, damage: Any) -> None:
    store = filled(tmp_path, 10, shard_runs=4)
    shard = store.shards()[1]
    damage(shard)
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


def test_a_flipped_bit_in_the_numbers_is_found(tmp_path: Path) -> None:
    store = filled(tmp_path, 4)
    (shard,) = store.shards()
    metadata = pq.read_metadata(shard).row_group(0)
    columns = [metadata.column(i) for i in range(metadata.num_columns)]
    column = next(c for c in columns if c.path_in_schema.startswith("calls.list.element.logprobs."))
    content = bytearray(shard.read_bytes())
    content[column.data_page_offset + column.total_compressed_size // 2] ^= 1
    shard.write_bytes(content)
    with pytest.raises(DamagedShard, match=shard.name):
        list(store)


def test_what_is_no_store_is_said_to_be_none(tmp_path: Path) -> None:
    for read in (list[Run], fingerprint, RunStore.activations):
        with pytest.raises(RecordError, match="no such folder"):
            read(RunStore(tmp_path / "absent"))
        with pytest.raises(RecordError, match="is no run store, or nothing was collected"):
            read(RunStore(tmp_path))
    assert RunStore(tmp_path / "absent").run_ids() == set()
    (tmp_path / "file").write_text("")
    with pytest.raises(RecordError, match="is a file"):
        RunStore(tmp_path / "file").run_ids()


def test_shards_of_another_format_are_refused(tmp_path: Path) -> None:
    store = filled(tmp_path, 1)
    (shard,) = store.shards()
    table = pq.read_table(shard)
    pq.write_table(table.replace_schema_metadata({schema.FORMAT_KEY: "2"}), shard)
    with pytest.raises(StoreMismatch, match="has format 2, this metaprobe reads 1"):
        list(store)
    pq.write_table(pa.table({"id": ["x"]}), shard)
    with pytest.raises(StoreMismatch, match="no shard of a run store"):
        store.run_ids()


def test_leftovers_and_foreign_files_are_passed_over(tmp_path: Path) -> None:
    store = filled(tmp_path, 2)
    for name in (".runs-00007-0123abcd.parquet.tmp", "notes.parquet", "runs-1.parquet", "README.md"):
        (tmp_path / name).write_bytes(b"half")
    assert len(store.shards()) == 1
    assert [run.id for run in store] == ["run-000", "run-001"]


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


@pytest.mark.parametrize(("kill_before_rename", "whole_shards"), [(1, 0), (2, 0), (5, 2)])
def test_a_kill_loses_at_most_the_unfinished_shard_and_resuming_completes(
    tmp_path: Path, kill_before_rename: int, whole_shards: int
) -> None:
    """Each shard is two renames, hidden states first: before the first, between the two, and before a third shard."""
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


def test_two_processes_writing_into_one_folder_lose_nothing(tmp_path: Path) -> None:
    processes = [collect(tmp_path, 0, 41), collect(tmp_path, 41, 80)]
    assert [process.wait() for process in processes] == [0, 0]
    assert sorted(run.id for run in RunStore(tmp_path)) == [f"run-{i:03d}" for i in range(80)]
    assert len(RunStore(tmp_path).activations().call_ids) == 80


def test_datasets_reads_the_shards(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    store = filled(tmp_path / "runs", 5, shard_runs=3)
    files = [str(shard) for shard in store.shards()]
    rows = datasets.Dataset.from_parquet(files, cache_dir=str(tmp_path / "cache"))
    assert rows["id"][:] == [f"run-{i:03d}" for i in range(5)]
    np.testing.assert_array_equal(np.float32(rows[4]["calls"][0]["logprobs"]), example(4).calls[0].logprobs)


def test_duckdb_and_polars_read_the_folder(tmp_path: Path) -> None:
    duckdb, polars = pytest.importorskip("duckdb"), pytest.importorskip("polars")
    filled(tmp_path, 5, shard_runs=3)
    (tmp_path / ".runs-00009-00000000.parquet.tmp").write_bytes(b"half")
    query = (
        "SELECT id, calls[1].logprobs[1], decisions[1].scores[1].action"
        f" FROM read_parquet('{tmp_path}/*.parquet') ORDER BY id"
    )
    found = duckdb.sql(query).fetchall()
    assert found == [(f"run-{i:03d}", float(example(i).calls[0].logprobs[0]), "execute") for i in range(5)]
    frame = polars.read_parquet(tmp_path / "*.parquet").sort("id")
    assert frame["labels"][1][0]["value"] == 1.0
