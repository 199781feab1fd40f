"""Every field of a run comes back from the store as it was, also to other readers of its files."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from stored_runs import any_calls, example, filled

from metaprobe.records import store as stored
from metaprobe.records.store import RunStore, fingerprint
from metaprobe.records.types import Call, Decision, Item, Label, Run, Sampling, Statement

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
calls = any_calls(
    text,
    numbers,
    count,
    prompt_token_ids=token_ids,
    token_ids=token_ids,
    logprobs=logprobs,
    top_logprobs=top_logprobs,
    sampling=st.builds(Sampling, numbers, numbers, st.none() | count, count),
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


@settings(max_examples=15, suppress_health_check=[HealthCheck.too_slow])
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
        (Run, set(stored.RUN.names)),
        (Item, {field.name for field in stored.ITEM}),
        (Call, {field.name for field in stored.CALL_TYPE} | {"hidden"}),
        (Statement, {field.name for field in stored.STATEMENT}),
        (Label, {field.name for field in stored.LABEL_TYPE}),
        (Decision, {field.name for field in stored.DECISION_TYPE}),
    ],
)
def test_no_field_of_a_record_is_forgotten(record: type, stored: set[str]) -> None:
    assert {field.name for field in dataclasses.fields(record)} == stored


def test_shards_have_the_size_asked_for_and_keep_the_order(tmp_path: Path) -> None:
    store = filled(tmp_path, 10, shard_runs=4)
    assert [pq.read_metadata(shard).num_rows for shard in store.shards()] == [4, 4, 2]
    assert [run.id for run in store] == [f"run-{i:03d}" for i in range(10)]
    assert len(store) == 10


def test_a_run_stored_twice_is_read_once_and_the_first_counts(tmp_path: Path) -> None:
    store = filled(tmp_path, 3)
    store.append([example(1, final_answer="later"), example(3)])
    assert [run.id for run in store] == ["run-000", "run-001", "run-002", "run-003"]
    assert [run.final_answer for run in store][1] == "secret"
    assert len(store) == 4


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
