"""What was saved comes back and runs, and nothing is saved or replaced that should not be."""

import dataclasses
import errno
import hashlib
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import spoilt_checkpoints
from onnx import TensorProto, helper
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
        DRAFT, thresholds={"t": np.float64(0.25)}, support={"low": np.arange(2), "n": np.int64(3)}
    )
    assert save(tmp_path / "c", draft).manifest.support == {"low": [0, 1], "n": 3}


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
        [helper.make_tensor_value_info("s", TensorProto.STRING, ["n"]), helper.make_tensor_value_info("b", 9, ["n"])],
        [helper.make_tensor_value_info("t", TensorProto.STRING, ["n"]), helper.make_tensor_value_info("c", 9, ["n"])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9).SerializeToString()
    words, truth = np.array(["a", "ö"], object), np.array([True, False])
    save(tmp_path / "s", model=model, golden_inputs={"s": words, "b": truth}, expected={"t": words, "c": ~truth})
    out = load_checkpoint(tmp_path / "s").run({"s": words, "b": truth})
    assert out["t"].tolist() == ["a", "ö"]
    assert out["c"].tolist() == [False, True]


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
        ({"draft": Draft(kind="q", support={"x": float("nan")})}, ContractMismatch, "support.x: expected a finite"),
        ({"draft": Draft(kind="q", support={1: 2})}, ContractMismatch, "keys of an object are strings"),
        ({"draft": Draft(kind="q", support={"x": object()})}, ContractMismatch, "support.x: a object cannot be"),
        ({"draft": Draft(kind="q", thresholds={"t": "0.5"})}, ContractMismatch, "thresholds.t: expected a number"),
    ],
)
def test_what_could_not_be_loaded_is_not_saved(tmp_path, changes, error, message):
    with pytest.raises(error, match=message):
        save(tmp_path / "c", **changes)
    assert list(tmp_path.iterdir()) == []


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

    monkeypatch.setattr("metaprobe.checkpoints.write.tempfile.TemporaryFile", full)
    with pytest.raises(OSError, match=r"nothing can be written in .*: Read-only") as caught:
        check_target(tmp_path / "new" / "checkpoint", "quality")
    assert caught.value.filename == str(tmp_path / "new" / "checkpoint")
    assert not (tmp_path / "new").exists()


def test_the_root_of_the_disk_is_refused_as_any_other_folder_is() -> None:
    with pytest.raises((CheckpointExists, OSError), match=r"is not a checkpoint|nothing can be written"):
        check_target("/", "quality")
