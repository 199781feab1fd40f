"""Hidden states beside the runs."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save_file

from metaprobe.records.activations import activation_bytes, join_activations
from metaprobe.records.errors import DamagedShard, RecordError, StoreMismatch
from metaprobe.records.store import RunStore
from metaprobe.records.types import Call, Hidden, Item, Run

LAYERS, POSITIONS, WIDTH = (0, 3, 7), ("prompt_last", "answer_mean"), 4


def states(i: int, layers: tuple[int, ...] = LAYERS, width: int = WIDTH) -> Hidden:
    rng = np.random.default_rng(i)
    return Hidden(rng.normal(size=(len(layers), len(POSITIONS), width)).astype(np.float16), layers, POSITIONS)


def run(i: int, *hidden: Hidden | None) -> Run:
    calls = tuple(Call(id=f"call-{i}-{j}", hidden=h) for j, h in enumerate(hidden))
    return Run(f"run-{i}", "test", "", Item(f"item-{i}", ""), calls)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three shards of two runs; every second call of a run has no hidden states."""
    store = RunStore(tmp_path_factory.mktemp("written") / "runs")
    with store.writer(shard_runs=2) as writer:
        for i in range(6):
            writer.add(run(i, states(i), None))
    return store.path


@pytest.fixture
def store(written: Path, tmp_path: Path) -> RunStore:
    """A copy of the three shards, which a test may change."""
    return RunStore(shutil.copytree(written, tmp_path / "runs"))


def test_hidden_states_come_back_in_the_order_asked_for(store: RunStore) -> None:
    everything = store.activations()
    assert everything.call_ids == tuple(f"call-{i}-0" for i in range(6))
    assert (everything.values.dtype, everything.values.shape) == (np.float16, (6, 3, 2, WIDTH))
    assert (everything.layers, everything.positions) == (LAYERS, POSITIONS)
    some = store.activations(["call-5-0", "call-0-0", "call-4-0", "call-5-0"])
    np.testing.assert_array_equal(some.values, [states(i).values for i in (5, 0, 4, 5)])


@pytest.mark.parametrize(
    ("layers", "positions"), [(None, None), ((7,), ("answer_mean",)), ((7, 3, 0), ("answer_mean", "prompt_last"))]
)
def test_a_selection_equals_the_same_cut_of_everything(
    store: RunStore, layers: tuple[int, ...] | None, positions: tuple[str, ...] | None
) -> None:
    found = store.activations(layers=layers, positions=positions)
    rows = [LAYERS.index(layer) for layer in layers or LAYERS]
    columns = [POSITIONS.index(position) for position in positions or POSITIONS]
    np.testing.assert_array_equal(found.values, store.activations().values[:, rows][:, :, columns])
    assert (found.layers, found.positions) == (layers or LAYERS, positions or POSITIONS)


def test_what_is_not_stored_is_named(store: RunStore, tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"for 2 of 3 calls, such as \['call-0-1', 'nobody'\]"):
        store.activations(["call-0-0", "call-0-1", "nobody"])
    with pytest.raises(RecordError, match=r"layer 5 was not kept; the store holds layers \[0, 3, 7\]"):
        store.activations(layers=[5])
    with pytest.raises(RecordError, match="position 'answer_first' was not kept"):
        store.activations(positions=["answer_first"])
    bare = RunStore(tmp_path / "bare")
    bare.append([run(0, None)])
    with pytest.raises(RecordError, match="holds no hidden states"):
        bare.activations()


def test_reading_runs_loads_hidden_states_only_on_request(store: RunStore) -> None:
    assert all(call.hidden is None for run in store for call in run.calls)
    for i, found in enumerate(store.runs(hidden=True)):
        first, second = found.calls
        assert first.hidden is not None
        np.testing.assert_array_equal(first.hidden.values, states(i).values)
        assert (first.hidden.layers, first.hidden.positions, second.hidden) == (LAYERS, POSITIONS, None)


def test_the_file_says_what_its_layers_mean(store: RunStore) -> None:
    with safe_open(store.shards()[0].with_suffix(".safetensors"), framework="numpy") as file:
        assert file.metadata()["convention"] == "index 0 = embeddings output, index i = output of block i"
        assert file.metadata()["layers"] == "[0, 3, 7]"
        assert file.keys() == ["hidden"]


@pytest.mark.parametrize("other", [states(9, layers=(0, 3, 8)), states(9, width=5)])
def test_hidden_states_of_another_kind_are_refused(store: RunStore, other: Hidden) -> None:
    with store.writer() as writer:
        writer.add(run(10, states(10)))
        with pytest.raises(StoreMismatch, match=r"call 'call-11-0' has hidden states of .*the store holds"):
            writer.add(run(11, other))
    assert "run-11" not in store.run_ids()
    assert "call-10-0" in store.activations().call_ids


def test_a_shape_that_contradicts_the_names_is_refused(store: RunStore) -> None:
    with pytest.raises(StoreMismatch, match=r"shape \(3, 2, 4\) for 2 layers and 2 positions"):
        store.append([run(0, Hidden(states(0).values, (0, 3), POSITIONS))])


def test_wider_numbers_are_held_at_the_largest_of_float16(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    values = np.array([[[1e6, -1e6, 0.5]]], np.float32)
    store.append([run(0, Hidden(values, (0,), ("prompt_last",)))])
    assert store.activations().values.tolist() == [[[[65504.0, -65504.0, 0.5]]]]


def test_hidden_states_without_their_shard_are_passed_over(store: RunStore) -> None:
    newest = store.shards()[-1]
    orphan = newest.with_suffix(".safetensors")
    newest.unlink()
    assert orphan.exists()
    assert store.activations().call_ids == tuple(f"call-{i}-0" for i in range(4))
    store.append([run(i, states(i), None) for i in (4, 5)])
    assert len(store.activations().call_ids) == 6


def test_a_damaged_file_is_named_and_the_rest_still_reads(store: RunStore) -> None:
    path = store.shards()[1].with_suffix(".safetensors")
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(DamagedShard, match=f"{path.name} is damaged"):
        store.activations()
    rest = RunStore(store.path, damaged="skip")
    assert rest.activations().call_ids == ("call-0-0", "call-1-0", "call-4-0", "call-5-0")
    assert rest.damaged == [path.name]
    assert len(list(rest)) == 6


def test_a_run_stored_twice_has_the_hidden_states_of_the_first(store: RunStore) -> None:
    store.append([run(0, states(99))])
    np.testing.assert_array_equal(store.activations(["call-0-0"]).values[0], states(0).values)


def test_states_cut_out_by_index_are_stored_as_they_read(tmp_path: Path) -> None:
    """NumPy lays out such a cut in another order than it reads, and safetensors writes memory."""
    everything = np.arange(4 * 3 * WIDTH, dtype=np.float16).reshape(4, 3, WIDTH)
    cut = everything[[1, 3]][:, [0, 2]]
    assert not cut.flags.c_contiguous
    store = RunStore(tmp_path)
    store.append([run(0, Hidden(cut, (1, 3), POSITIONS))])
    np.testing.assert_array_equal(store.activations().values[0], cut)


@pytest.fixture
def extracted(store: RunStore) -> RunStore:
    """Beside the three shards: other layers and positions of all twelve calls."""
    ids = [f"call-{i}-{j}" for i in range(6) for j in range(2)]
    others = {
        call_id: Hidden(np.full((2, 2, WIDTH), i, np.float16), (2, 3), ("answer_mean", "before_exact"))
        for i, call_id in enumerate(ids)
    }
    (store.path / "states-a-b.safetensors").write_bytes(activation_bytes(others))
    return store


def test_the_kind_that_holds_what_is_asked_for_is_read(extracted: RunStore) -> None:
    assert extracted.activations(layers=(2,)).values.shape == (12, 1, 2, WIDTH)
    assert extracted.activations(positions=("prompt_last",)).values.shape == (6, 3, 1, WIDTH)
    assert extracted.activations(["call-3-1"]).layers == (2, 3)  # only the one kind holds it
    both = extracted.activations(layers=(3,), positions=("answer_mean",))
    assert len(both.call_ids) == 12
    for i in range(6):  # what was kept while answering comes first
        np.testing.assert_array_equal(both.values[i, 0, 0], states(i).values[1, 1])
    assert [file.layout.layers for file in extracted.activation_files()] == [LAYERS] * 3 + [(2, 3)]
    assert all(
        call.hidden is None or call.hidden.layers == LAYERS for r in extracted.runs(hidden=True) for call in r.calls
    )


def test_a_damaged_extracted_file_is_named(extracted: RunStore) -> None:
    path = extracted.path / "states-a-b.safetensors"
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(DamagedShard, match=r"states-a-b.safetensors is damaged"):
        extracted.activations()
    assert len(RunStore(extracted.path, damaged="skip").activations().call_ids) == 6


@pytest.mark.parametrize(
    ("changes", "dtype", "what"),
    [
        ({"call_ids": "5"}, np.float16, "'call_ids' is 5; expected a list of str"),
        ({"call_ids": "[[1]]"}, np.float16, "'call_ids' is .*; expected a list of str"),
        ({"layers": "null"}, np.float16, "'layers' is null; expected a list of int"),
        ({"layers": "[-1, 2]"}, np.float16, "'layers' is .*; expected a list of int"),
        ({"layers": "[2, 3, 4]"}, np.float16, r"shape \[1, 2, 2, 4\], its header speaks of \[1, 3, 2, 4\]"),
        ({"layers": "[2, 2]"}, np.float16, "'layers' names one twice"),
        ({"layers": "[" * 100_000}, np.float16, "'layers' is nested too deeply"),
        ({"positions": '"ab"'}, np.float16, "'positions' is .*; expected a list of str"),
        ({}, np.float64, "'hidden' is F64 .*; expected F16 with 4 axes"),
        ({}, np.int64, "'hidden' is I64 .*; expected F16 with 4 axes"),
    ],
)
def test_a_header_that_no_writer_of_ours_wrote_is_damaged(
    extracted: RunStore, changes: dict[str, str], dtype: type, what: str
) -> None:
    header = {"call_ids": '["call-3-1"]', "layers": "[2, 3]", "positions": '["answer_mean", "before_exact"]'} | changes
    save_file({"hidden": np.zeros((1, 2, 2, WIDTH), dtype)}, extracted.path / "states-a-b.safetensors", header)
    with pytest.raises(DamagedShard, match=what):
        extracted.activations()


def test_states_from_several_files_are_joined_only_where_every_call_has_all_of_them(extracted: RunStore) -> None:
    files = extracted.activation_files()
    # Layer 0 is in one file, layer 2 in another.
    both = join_activations(files, ["call-1-0", "call-0-0"], (0, 2), ("answer_mean",))
    np.testing.assert_array_equal(both[:, 0, 0], [states(1).values[0, 1], states(0).values[0, 1]])
    np.testing.assert_array_equal(both[:, 1, 0, 0], [2, 0])
    wanted = ["call-0-0", *(f"call-{i}-1" for i in range(6))]
    with pytest.raises(RecordError, match=r"6 of 7 calls lack hidden states of layers \[0, 2\] at answer_mean"):
        join_activations(files, wanted, (0, 2), ("answer_mean",))
    wide = {"call-0-0": Hidden(np.zeros((1, 1, WIDTH + 1), np.float16), (9,), ("answer_mean",))}
    (extracted.path / "states-c-d.safetensors").write_bytes(activation_bytes(wide))
    with pytest.raises(StoreMismatch, match=r"states-c-d.* of width 5; others have 4"):
        join_activations(extracted.activation_files(), ["call-0-0"], (0, 9), ("answer_mean",))


def test_the_model_that_read_the_states_may_be_asked_for(store: RunStore, tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="read by 'other'; they were by the model that answered"):
        store.activations(model="other")
    read = RunStore(tmp_path / "read")
    read.append([run(i, None) for i in range(2)])
    for i, model in enumerate(("eye", "lens")):
        held = activation_bytes({f"call-{i}-0": states(i)}, model=model)
        (read.path / f"states-{model}-b.safetensors").write_bytes(held)
    np.testing.assert_array_equal(read.activations(model="lens").values, [states(1).values])
    (read.path / "states-lens-b.safetensors").unlink()
    with pytest.raises(RecordError, match="read by 'lens'; they were by eye"):
        read.activations(model="lens")


def test_what_several_kinds_would_answer_differently_is_refused(extracted: RunStore) -> None:
    with pytest.raises(StoreMismatch, match=r"several of the kinds.*layers \[0, 3, 7\].*states-a-b"):
        extracted.activations()
    with pytest.raises(StoreMismatch, match="several of the kinds"):
        extracted.activations(layers=(3,))
    with pytest.raises(StoreMismatch, match="none of the kinds"):
        extracted.activations(layers=(0, 2))
    with pytest.raises(StoreMismatch, match="none of the kinds"):
        extracted.activations(model="other")
    with extracted.writer() as writer:  # collecting goes on with what it kept before
        writer.add(run(10, states(10)))
