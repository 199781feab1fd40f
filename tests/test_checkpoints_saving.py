"""What was saved comes back and runs, and nothing is saved or replaced that should not be."""

import dataclasses
import errno
import hashlib
import json
import os
import re
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import spoilt_checkpoints
from onnx import TensorProto, helper, numpy_helper
from spoilt_checkpoints import DRAFT, FILES, WEIGHTS, rows, save, sigmoid, sigmoid_model

from metaprobe.checkpoints import (
    CheckpointExists,
    ContractMismatch,
    Draft,
    GoldenMismatch,
    UnsafeModel,
    check_target,
    load_checkpoint,
)
from metaprobe.checkpoints.golden import largest_difference
from metaprobe.checkpoints.graph_session import GraphSession, outputs_agree
from metaprobe.checkpoints.manifest import TensorSpec
from metaprobe.checkpoints.save import Replacing, pinned_in, replacing

# Most tests here load one that failed an audit.
pytestmark = pytest.mark.filterwarnings("ignore::metaprobe.checkpoints.UntrustedCheckpoint")

saved = spoilt_checkpoints.saved
folder = spoilt_checkpoints.folder


# Round trip


def test_what_was_saved_is_what_is_loaded(tmp_path):
    written = save(tmp_path / "new" / "probe")
    loaded = load_checkpoint(tmp_path / "new" / "probe", sha256=written.digest)
    assert loaded.manifest == written.manifest
    for field in dataclasses.fields(Draft):
        if field.name != "versions":
            assert getattr(loaded.manifest, field.name) == getattr(DRAFT, field.name)
    assert loaded.manifest.versions.items() >= {"lightgbm": "4.6.0", "numpy": np.__version__}.items()
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", loaded.manifest.created)
    assert loaded.digest == hashlib.sha256((loaded.path / "manifest.json").read_bytes()).hexdigest()
    assert sorted(p.name for p in loaded.path.parent.rglob("*") if p.is_file()) == sorted(FILES)
    x = rows(100)
    np.testing.assert_allclose(loaded.run({"features": x})["score"], sigmoid(x), atol=1e-6)


def test_a_router_without_generator_calibration_or_training_round_trips(tmp_path):
    save(tmp_path / "c", Draft(kind="choice"))
    manifest = load_checkpoint(tmp_path / "c").manifest
    assert (manifest.generator, manifest.calibration, manifest.training) == (None, None, None)


def test_numpy_scalars_in_a_draft_are_written_as_numbers(tmp_path):
    draft = dataclasses.replace(
        DRAFT, thresholds={"t": np.float64(0.25)}, contract={"low": np.arange(2), "n": np.int64(3)}
    )
    assert save(tmp_path / "c", draft).manifest.contract == {"low": [0, 1], "n": 3}


def test_golden_rows_keep_missing_values_as_null_and_at_most_sixteen_rows(folder):
    golden = json.loads((folder / "golden.json").read_text())
    assert golden["inputs"]["features"]["shape"] == [16, 3]
    assert golden["inputs"]["features"]["values"][1] is None
    assert golden["inputs"]["features"]["values"][0] == float(rows()[0, 0])


def test_other_types_than_float32_round_trip(tmp_path):
    x = rows().astype(np.float64)
    model = sigmoid_model(WEIGHTS.astype(np.float64), elem=TensorProto.DOUBLE)
    double = save(tmp_path / "c", model=model, golden_inputs={"features": x}, expected={"score": sigmoid(x)})
    assert double.manifest.inputs[0].type == "float64"

    graph = helper.make_graph(
        [helper.make_node("Identity", ["s"], ["t"]), helper.make_node("Not", ["b"], ["c"])],
        "g",
        [helper.make_tensor_value_info("s", TensorProto.INT64, ["n"]), helper.make_tensor_value_info("b", 9, ["n"])],
        [helper.make_tensor_value_info("t", TensorProto.INT64, ["n"]), helper.make_tensor_value_info("c", 9, ["n"])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9).SerializeToString()
    whole, truth = np.array([2**40, -1]), np.array([True, False])
    save(
        tmp_path / "s",
        Draft(kind="numbers"),
        model=model,
        golden_inputs={"s": whole, "b": truth},
        expected={"t": whole, "c": ~truth},
    )
    out = load_checkpoint(tmp_path / "s").run({"s": whole, "b": truth})
    assert out["t"].tolist() == [2**40, -1]
    assert out["c"].tolist() == [False, True]


def test_strings_are_no_numbers():
    graph = helper.make_graph(
        [helper.make_node("Identity", ["s"], ["t"])],
        "g",
        [helper.make_tensor_value_info("s", TensorProto.STRING, ["n"])],
        [helper.make_tensor_value_info("t", TensorProto.STRING, ["n"])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9).SerializeToString()
    with pytest.raises(UnsafeModel, match="'s' has element type 8; expected numbers"):
        GraphSession(model)


# Running


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({}, r"got inputs \[\]; expected \['features'\]"),
        ({"features": rows(), "more": rows()}, "got inputs"),
        ({"features": rows()[:, :2]}, r"shape \(40, 2\); expected \(any, 3\)"),
        ({"features": rows()[0]}, r"shape \(3,\); expected \(any, 3\)"),
        ({"features": rows().astype(np.float64)}, "type float64; expected float32"),
        ({"features": rows().tolist()}, "is a list; expected a NumPy array"),
    ],
)
def test_inputs_that_do_not_fit_are_refused_with_what_was_expected(folder, inputs, message):
    with pytest.raises(ContractMismatch, match=message):
        load_checkpoint(folder).run(inputs)


def test_no_rows_in_give_no_rows_out(folder):
    assert load_checkpoint(folder).run({"features": np.empty((0, 3), np.float32)})["score"].shape == (0, 1)


def test_threads_sharing_a_checkpoint_get_the_answers_of_one(folder):
    checkpoint = load_checkpoint(folder)
    batches = [rows(n) * n for n in range(1, 65)]
    alone = [checkpoint.run({"features": x})["score"] for x in batches]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda x: checkpoint.run({"features": x})["score"], batches * 4))
    for one, many in zip(alone * 4, together, strict=True):
        np.testing.assert_array_equal(one, many)


BLOCKED = """
import sys

blocked = {"onnx", "torch", "sklearn", "lightgbm", "scipy", "skl2onnx", "pyarrow", "transformers"}

class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in blocked:
            raise ModuleNotFoundError(f"{name} is blocked", name=name)

sys.meta_path.insert(0, Block())
import metaprobe.checkpoints as checkpoints
assert "onnxruntime" not in sys.modules
import numpy as np
checkpoint = checkpoints.load_checkpoint(sys.argv[1])
print(checkpoint.run({"features": np.ones((1, 3), np.float32)})["score"].item())
"""


def test_loading_and_running_need_only_the_base_install(folder):
    result = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", BLOCKED, str(folder)], capture_output=True, text=True, check=False
    )
    assert result.stderr == ""
    assert float(result.stdout) == pytest.approx(sigmoid(np.ones((1, 3))).item(), abs=1e-6)


# Saving


def test_a_graph_that_differs_from_the_original_is_not_saved_and_the_row_is_named(tmp_path):
    x = rows()
    wrong = sigmoid(x)
    wrong[7] += 0.01
    wrong[9] -= 0.02
    with pytest.raises(GoldenMismatch, match=r"differs from the original model by 0\.02 in output 'score' of row 9"):
        save(tmp_path / "c", expected={"score": wrong})
    assert list(tmp_path.iterdir()) == []


def test_rows_beyond_the_kept_ones_are_compared_too(tmp_path):
    wrong = sigmoid(rows())
    wrong[39] = np.nan
    with pytest.raises(GoldenMismatch, match="by inf in output 'score' of row 39"):
        save(tmp_path / "c", expected={"score": wrong})


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"expected": {"p": sigmoid(rows())}}, ContractMismatch, r"expected outputs \['p'\]; the model gives"),
        ({"expected": {"score": sigmoid(rows())[:, 0]}}, ContractMismatch, r"expected shape \(40,\); the model gives"),
        ({"golden_inputs": {"features": rows()[:0]}}, ContractMismatch, "no rows"),
        ({"golden_inputs": {"features": rows()[:, :1]}}, ContractMismatch, "shape"),
        ({"tolerance": 1e-3}, ContractMismatch, "tolerance is 0.001"),
        ({"model": b"nothing"}, UnsafeModel, "not an ONNX model"),
        ({"draft": Draft(kind="q", contract={"x": float("nan")})}, ContractMismatch, "contract.x: expected a finite"),
        ({"draft": Draft(kind="q", contract={1: 2})}, ContractMismatch, "keys of an object are strings"),
        ({"draft": Draft(kind="q", contract={"x": object()})}, ContractMismatch, "contract.x: a object cannot be"),
        ({"draft": Draft(kind="q", thresholds={"t": "0.5"})}, ContractMismatch, "thresholds.t: expected a number"),
    ],
)
def test_what_could_not_be_loaded_is_not_saved(tmp_path, changes, error, message):
    with pytest.raises(error, match=message):
        save(tmp_path / "c", **changes)
    assert list(tmp_path.iterdir()) == []


def test_a_difference_of_just_the_tolerance_is_accepted_and_more_is_not(tmp_path):
    x = rows()
    given = GraphSession(sigmoid_model()).run({"features": x})["score"].astype(np.float64)
    save(tmp_path / "exact", expected={"score": given + 2.0**-15}, tolerance=2.0**-15)
    with pytest.raises(GoldenMismatch, match=r"by 3\.05e-05 .* at most 3\.05176e-05 is accepted"):
        save(tmp_path / "more", expected={"score": given + 2.0**-15 + 1e-12}, tolerance=2.0**-15)
    for tolerance in (0.0, 1.001e-4):
        with pytest.raises(ContractMismatch, match=r"expected more than 0 and at most 0\.0001"):
            save(tmp_path / "odd", tolerance=tolerance)
    save(tmp_path / "largest", tolerance=1e-4)


def test_names_of_the_checkpoints_own_files_are_not_given_to_others(tmp_path):
    for name in (*FILES, "raw_golden.json"):
        with pytest.raises(ContractMismatch, match=f"extra files cannot be called {name}; give them other names"):
            save(tmp_path / "c", extra={name: b"mine"})
    assert save(tmp_path / "c", extra={"notes.txt": b"mine"}).extra == {"notes.txt": b"mine"}


def test_a_folder_whose_manifest_cannot_be_read_is_not_replaced(folder):
    (folder / "manifest.json").write_text("{")
    with pytest.raises(CheckpointExists, match=r"is not a checkpoint, and is not replaced: .*JSON"):
        save(folder, overwrite=True)
    assert (folder / "manifest.json").read_text() == "{"


def test_a_full_disk_says_which_file_it_had_no_room_for(tmp_path, monkeypatch):
    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("metaprobe.checkpoints.save.os.fsync", full)
    with pytest.raises(OSError, match="No space left") as caught:
        save(tmp_path / "c")
    assert Path(caught.value.filename).name == "model.onnx"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not hasattr(os, "O_DIRECTORY"), reason="folders cannot be synced here")
def test_a_checkpoint_is_on_the_disk_before_it_takes_its_name(tmp_path, monkeypatch):
    """Else a power cut leaves the name with files in it that are empty or missing."""
    done, synced, renamed = [], os.fsync, Path.rename

    def sync(descriptor):
        done.append("folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file")
        synced(descriptor)

    def rename(self, target):
        done.append("name")
        return renamed(self, target)

    monkeypatch.setattr("metaprobe.checkpoints.save.os.fsync", sync)
    monkeypatch.setattr(Path, "rename", rename)
    save(tmp_path / "c")
    assert done == ["file"] * len(FILES) + ["folder", "name", "folder"]


def test_infinite_and_empty_outputs_are_compared_as_what_they_are(tmp_path):
    none = {"score": np.empty((0, 1))}
    assert largest_difference(none, none).size == 0
    a, b = {"x": np.array([[1.0], [100.0]])}, {"x": np.array([[1.5], [101.0]])}
    found = largest_difference(a, b)
    assert (found.size, found.output, found.row) == (0.5, "x", 0)  # absolute up to 1
    assert largest_difference({"x": np.array([100.0])}, {"x": np.array([101.0])}).size == pytest.approx(0.01)
    assert largest_difference({"x": np.array(2.0)}, {"x": np.array(3.0)}).size == 0.5
    infinite = rows()
    infinite[3, 0] = np.inf
    with pytest.raises(ContractMismatch, match="'features' is infinite in a golden row; expected finite numbers"):
        save(tmp_path / "c", golden_inputs={"features": infinite}, expected={"score": sigmoid(infinite)})


def test_an_existing_checkpoint_is_replaced_only_when_asked(folder):
    before = load_checkpoint(folder).digest
    with pytest.raises(CheckpointExists, match="overwrite=True"):
        save(folder)
    assert load_checkpoint(folder).digest == before
    after = save(folder, dataclasses.replace(DRAFT, thresholds={"flag": 0.25}), overwrite=True)
    assert load_checkpoint(folder, sha256=after.digest).manifest.thresholds == {"flag": 0.25}
    with pytest.raises(CheckpointExists, match="not replaced by one of kind 'hidden'"):
        save(folder, dataclasses.replace(DRAFT, kind="hidden"), overwrite=True)
    assert [p.name for p in folder.parent.iterdir()] == ["probe"]


def pinned(path, *digests):
    path.write_text("".join(f"m{i}=out/c{i} {digest}  # why\n" for i, digest in enumerate(digests)))
    return path


@pytest.mark.parametrize("by", ["context", "environment"])
def test_a_checkpoint_that_a_file_of_pins_names_is_never_replaced(folder, tmp_path, monkeypatch, by):
    before = load_checkpoint(folder).digest
    pins = pinned(tmp_path / "pins", "0" * 64, before)
    if by == "environment":
        monkeypatch.setenv("METAPROBE_PINS", str(pins))
    guards = (pinned_in(pins),) if by == "context" else ()
    with replacing(Replacing(replace=True, in_service=guards)):
        with pytest.raises(CheckpointExists, match=f"holds checkpoint {before}, which .*pins pins; .*another folder"):
            save(folder, overwrite=True)
        assert load_checkpoint(folder).digest == before
        pinned(pins, "0" * 64)
        assert save(folder, dataclasses.replace(DRAFT, thresholds={"flag": 0.25})).digest != before
        pins.unlink()
        with pytest.raises(CheckpointExists, match=r"pins cannot be read .* is not known which checkpoints"):
            save(folder, overwrite=True)
        save(tmp_path / "elsewhere")  # where nothing is replaced nobody has to know


def test_a_comment_and_a_part_of_a_digest_pin_nothing(folder, tmp_path):
    digest = load_checkpoint(folder).digest
    (tmp_path / "pins").write_text(f"out/c {'0' * 64}  # {digest}\nout/c {digest[:32]}\n")
    assert pinned_in(tmp_path / "pins")(digest) == ""
    (tmp_path / "pins").write_text(f"out/c {digest.upper()}\n")
    assert pinned_in(tmp_path / "pins")(digest)


def test_what_one_block_forbids_an_inner_one_does_not_allow(folder):
    def known(digest):
        return f"which I know ({digest[:4]})"

    with replacing(Replacing(in_service=(known,))), replacing(Replacing(replace=True)):
        with pytest.raises(CheckpointExists, match="which I know"):
            save(folder)
        with pytest.raises(CheckpointExists, match="which I know"):
            check_target(folder, DRAFT.kind)
    with replacing(Replacing(replace=True)), replacing(Replacing()):
        save(folder)
    with pytest.raises(CheckpointExists, match="--replace"):
        save(folder)


def test_a_damaged_checkpoint_can_be_replaced(folder):
    (folder / "model.onnx").write_bytes(b"")
    save(folder, overwrite=True)
    load_checkpoint(folder)


def test_folders_that_are_no_checkpoint_or_hold_more_are_never_replaced(folder, tmp_path):
    (folder / "notes.txt").write_text("mine")
    with pytest.raises(CheckpointExists, match=r"also holds notes\.txt"):
        save(folder, overwrite=True)
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.tex").write_text("mine")
    with pytest.raises(CheckpointExists, match="is not a checkpoint"):
        save(tmp_path / "home", overwrite=True)
    with pytest.raises(CheckpointExists, match="not a folder"):
        save(tmp_path / "home" / "thesis.tex", overwrite=True)
    assert (tmp_path / "home" / "thesis.tex").read_text() == "mine"
    with pytest.raises(CheckpointExists, match="which is a file"):
        save(tmp_path / "home" / "thesis.tex" / "probe", overwrite=True)
    (tmp_path / "empty").mkdir()
    save(tmp_path / "empty")


def test_a_failed_replacement_leaves_the_old_checkpoint(folder, monkeypatch):
    before = load_checkpoint(folder).digest
    real = type(folder).rename

    def failing(self, target):
        if self.name.endswith(".tmp"):
            raise OSError("disk gone")
        return real(self, target)

    monkeypatch.setattr(type(folder), "rename", failing)
    with pytest.raises(OSError, match="disk gone"):
        save(folder, overwrite=True)
    assert load_checkpoint(folder).digest == before
    assert [p.name for p in folder.parent.iterdir()] == ["probe"]


def test_where_nothing_can_be_written_a_training_is_told_before_it_begins(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def full(**_: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr("metaprobe.checkpoints.save.tempfile.TemporaryFile", full)
    with pytest.raises(OSError, match=r"nothing can be written in .*: Read-only") as caught:
        check_target(tmp_path / "new" / "checkpoint", "quality")
    assert caught.value.filename == str(tmp_path / "new" / "checkpoint")
    assert not (tmp_path / "new").exists()


def test_the_root_of_the_disk_is_refused_as_any_other_folder_is() -> None:
    with pytest.raises((CheckpointExists, OSError), match=r"is not a checkpoint|nothing can be written"):
        check_target("/", "quality")


def test_inputs_that_the_runtime_fails_on_are_a_contract_mismatch():
    reshaped = helper.make_graph(
        [helper.make_node("Reshape", ["x", "shape"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [None])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None, 2])],
        [numpy_helper.from_array(np.array([-1, 2]), "shape")],
    )
    model = helper.make_model(reshaped, opset_imports=[helper.make_opsetid("", 17)], ir_version=9).SerializeToString()
    odd, even = {"x": np.zeros(3, np.float32)}, {"x": np.zeros(4, np.float32)}
    for trial, rows_said in ((False, "these inputs"), (True, "its golden rows")):
        session = GraphSession(model, trial=trial)
        assert session.run(even)["y"].shape == (2, 2)
        with pytest.raises(ContractMismatch, match=f"could not run the model on {rows_said}"):
            session.run(odd)


def test_outputs_that_are_no_arrays_are_refused_with_the_remedy():
    pairs = helper.make_map_type_proto(TensorProto.INT64, helper.make_tensor_type_proto(TensorProto.FLOAT, []))
    graph = helper.make_graph(
        [helper.make_node("ZipMap", ["x"], ["y"], domain="ai.onnx.ml", classlabels_int64s=[0, 1])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [None, 2])],
        [helper.make_value_info("y", helper.make_sequence_type_proto(pairs))],
    )
    opsets = [helper.make_opsetid("", 15), helper.make_opsetid("ai.onnx.ml", 1)]
    with pytest.raises(UnsafeModel, match=r"operator .*ZipMap.* export with zipmap=False"):
        GraphSession(helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString())


def test_shapes_agree_where_none_of_their_lengths_contradicts():
    def spec(*shape):
        return (TensorSpec("y", "float32", shape),)

    assert outputs_agree(spec(None, 1), spec(5, 1))
    assert outputs_agree(spec(), spec(None, 1))
    assert outputs_agree(spec(None, 1), spec())
    assert not outputs_agree(spec(None, 1), spec(None, 2))
    assert not outputs_agree(spec(None, 1), spec(None))
    assert not outputs_agree(spec(None, 1), (TensorSpec("z", "float32", (None, 1)),))
    assert not outputs_agree(spec(None, 1), (*spec(None, 1), *spec(None, 1)))
