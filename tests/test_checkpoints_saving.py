"""A saved checkpoint comes back and runs, and nothing is saved or replaced that should not be."""

import dataclasses
import errno
import hashlib
import os
import re
import stat
from pathlib import Path

import numpy as np
import pytest
import spoilt_checkpoints
from onnx import TensorProto, helper, numpy_helper
from spoilt_checkpoints import DRAFT, FILES, rows, save, sigmoid, sigmoid_model

from metaprobe.checkpoints import (
    CheckpointExists,
    ContractMismatch,
    Draft,
    GoldenMismatch,
    UnsafeModel,
    check_target,
    load_checkpoint,
)
from metaprobe.checkpoints.graph_session import GraphSession
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


def test_other_types_than_float32_round_trip(tmp_path):
    graph = helper.make_graph(
        [
            helper.make_node("Identity", ["s"], ["t"]),
            helper.make_node("Not", ["b"], ["c"]),
            helper.make_node("Neg", ["d"], ["e"]),
        ],
        "g",
        [helper.make_tensor_value_info(*one, ["n"]) for one in (("s", TensorProto.INT64), ("b", 9), ("d", 11))],
        [helper.make_tensor_value_info(*one, ["n"]) for one in (("t", TensorProto.INT64), ("c", 9), ("e", 11))],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9).SerializeToString()
    inputs = {"s": np.array([2**40, -1]), "b": np.array([True, False]), "d": np.array([0.1, -0.2])}
    expected = {"t": inputs["s"], "c": ~inputs["b"], "e": -inputs["d"]}
    draft = Draft(kind="numbers", contract={"low": np.arange(2)}, thresholds={"t": np.float64(0.25)})
    save(tmp_path / "s", draft, model=model, golden_inputs=inputs, expected=expected)
    loaded = load_checkpoint(tmp_path / "s")
    assert {name: values.tolist() for name, values in loaded.run(inputs).items()} == {
        name: values.tolist() for name, values in expected.items()
    }
    assert (loaded.manifest.contract, loaded.manifest.training) == ({"low": [0, 1]}, None)
    assert [one.type for one in loaded.manifest.inputs] == ["int64", "bool", "float64"]


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


# Saving


def spoilt_row(row, by):
    wrong = sigmoid(rows())
    wrong[row] += by
    return {"score": wrong}


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"expected": {"p": sigmoid(rows())}}, ContractMismatch, r"expected outputs \['p'\]; the model gives"),
        ({"expected": {"score": sigmoid(rows())[:, 0]}}, ContractMismatch, r"expected shape \(40,\); the model gives"),
        ({"golden_inputs": {"features": rows()[:0]}}, ContractMismatch, "no rows"),
        ({"golden_inputs": {"features": rows()[:, :1]}}, ContractMismatch, "shape"),
        ({"expected": spoilt_row(9, 0.02)}, GoldenMismatch, r"by 0\.02 in output 'score' of row 9"),
        ({"expected": spoilt_row(39, np.nan)}, GoldenMismatch, "by inf in output 'score' of row 39"),  # is not kept
        ({"golden_inputs": {"features": np.array([[np.inf, 0, 0]], np.float32)},
          "expected": {"score": np.ones((1, 1))}}, ContractMismatch, "is infinite in a golden row"),
        ({"tolerance": 1e-3}, ContractMismatch, "tolerance is 0.001"),
        ({"model": b"nothing"}, UnsafeModel, "not an ONNX model"),
        ({"draft": Draft(kind="q", contract={"x": float("nan")})}, ContractMismatch, "contract.x: expected a finite"),
        ({"draft": Draft(kind="q", contract={1: 2})}, ContractMismatch, "keys of an object are strings"),
        ({"draft": Draft(kind="q", contract={"x": object()})}, ContractMismatch, "contract.x: a object cannot be"),
        ({"draft": Draft(kind="q", thresholds={"t": "0.5"})}, ContractMismatch, "thresholds.t: expected a number"),
    ],
)  # fmt: skip
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
    with pytest.raises(ContractMismatch, match="extra files cannot be called golden"):
        save(tmp_path / "c", extra={"golden.json": b"mine"})
    assert save(tmp_path / "c", extra={"notes.txt": b"mine"}).extra == {"notes.txt": b"mine"}


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
        pins.write_text(f"out/c {'0' * 64}  # {before}\nout/c {before[:32]}\n")  # a comment and a part pin nothing
        assert pinned_in(pins)(before) == ""
        pins.unlink()
        with pytest.raises(CheckpointExists, match=r"pins cannot be read .* is not known which checkpoints"):
            save(folder, overwrite=True)
        save(tmp_path / "elsewhere")  # where nothing is replaced nobody has to know


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


def test_folders_that_are_no_checkpoint_or_hold_more_are_never_replaced(folder, tmp_path):
    (folder / "model.onnx").write_bytes(b"")
    save(folder, overwrite=True)  # a damaged checkpoint may be replaced
    load_checkpoint(folder)
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
    (folder / "manifest.json").write_text("{")
    with pytest.raises(CheckpointExists, match=r"is not a checkpoint, and is not replaced: .*JSON"):
        save(folder, overwrite=True)
    assert (folder / "manifest.json").read_text() == "{"


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
