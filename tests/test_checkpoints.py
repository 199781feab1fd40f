"""Checkpoints: what was saved comes back, and whatever is not what was saved is refused by name."""

import dataclasses
import hashlib
import json
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from metaprobe.checkpoints import (
    Audit,
    Calibration,
    CheckpointError,
    CheckpointExists,
    ContractMismatch,
    Draft,
    Generator,
    GoldenMismatch,
    Limits,
    Metric,
    NotACheckpoint,
    TamperedCheckpoint,
    Training,
    UnsafeModel,
    UntrustedCheckpoint,
    describe,
    load_checkpoint,
    save_checkpoint,
)
from metaprobe.checkpoints.manifest import Manifest, manifest_bytes, parse_manifest

# Most tests here load one that failed an audit; the last section is about the warning.
pytestmark = pytest.mark.filterwarnings("ignore::metaprobe.checkpoints.UntrustedCheckpoint")

WEIGHTS = np.array([[0.5], [-1.0], [0.25]], np.float32)
FILES = ("manifest.json", "model.onnx", "golden.json", "README.md")
DRAFT = Draft(
    kind="quality",
    contract={"schema": "full", "features": ["full.mean", "full.min", "first3.range"]},
    generator=Generator("org/model", "abc", "bfloat16", "org/model", "raw"),
    thresholds={"correct": 0.5},
    calibration=Calibration("isotonic", "calibration split"),
    metrics={"auroc": Metric(0.75, 0.71, 0.79, 1200)},
    training=Training("sha256:0123", 4000, 700, 42, "metaprobe train quality"),
    audits={"length only": Audit(True, "0.61 < 0.75"), "cut answers": Audit(False, "0.71 from being cut alone")},
    support={"n_tokens": [1, 512]},
    versions={"lightgbm": "4.6.0"},
)


def sigmoid_model(weights=WEIGHTS, *, name="features", elem=TensorProto.FLOAT):
    """score = sigmoid(x W), where NaN counts as 0."""
    initializers = [numpy_helper.from_array(weights, "W"), numpy_helper.from_array(np.zeros(1, weights.dtype), "zero")]
    nodes = [
        helper.make_node("IsNaN", [name], ["missing"]),
        helper.make_node("Where", ["missing", "zero", name], ["filled"]),
        helper.make_node("MatMul", ["filled", "W"], ["logit"]),
        helper.make_node("Sigmoid", ["logit"], ["score"]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(name, elem, [None, len(weights)])],
        [helper.make_tensor_value_info("score", elem, [None, 1])],
        initializers,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9).SerializeToString()


def sigmoid(x, weights=WEIGHTS):
    return 1 / (1 + np.exp(-np.nan_to_num(x.astype(np.float64)) @ weights))


def rows(n=40):
    x = np.random.default_rng(0).normal(size=(n, 3)).astype(np.float32)
    x[0, 1] = np.nan
    return x


def save(path, draft=DRAFT, **changes):
    x = rows()
    options = {
        "model": sigmoid_model(),
        "golden_inputs": {"features": x},
        "expected": {"score": sigmoid(x)},
        "card": "# A card\n",
    }
    return save_checkpoint(path, draft, **(options | changes))


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A checkpoint that tests only read."""
    return save(tmp_path_factory.mktemp("saved") / "probe")


@pytest.fixture
def folder(saved, tmp_path):
    """A copy of it to be spoilt."""
    return shutil.copytree(saved.path, tmp_path / "probe")


def rewrite(folder, change, *, rehash=()):
    """Applies `change` to manifest.json as an object, as someone would who can also recompute hashes."""
    manifest = json.loads((folder / "manifest.json").read_text())
    for name in rehash:
        data = (folder / name).read_bytes()
        manifest["files"][name] = {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
    change(manifest)
    (folder / "manifest.json").write_text(json.dumps(manifest))


def rewrite_golden(folder, change):
    golden = json.loads((folder / "golden.json").read_text())
    change(golden)
    (folder / "golden.json").write_text(json.dumps(golden))
    rewrite(folder, lambda m: None, rehash=["golden.json"])


def replace_model(folder, model):
    (folder / "model.onnx").write_bytes(model)
    rewrite(folder, lambda m: None, rehash=["model.onnx"])


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


# Integrity


@pytest.mark.parametrize("name", FILES[1:])
@pytest.mark.parametrize("at", [0, 0.5, 1])
def test_one_changed_byte_in_any_listed_file_is_noticed(folder, name, at):
    data = bytearray((folder / name).read_bytes())
    data[int(at * (len(data) - 1))] ^= 1
    (folder / name).write_bytes(data)
    with pytest.raises(TamperedCheckpoint, match=name):
        load_checkpoint(folder)


@given(st.data())
def test_one_changed_byte_of_the_manifest_is_refused_where_the_digest_is_given(saved, tmp_path_factory, data):
    raw = bytearray((saved.path / "manifest.json").read_bytes())
    raw[data.draw(st.integers(0, len(raw) - 1))] ^= data.draw(st.integers(1, 255))
    folder = tmp_path_factory.mktemp("c")
    (folder / "manifest.json").write_bytes(raw)
    with pytest.raises(TamperedCheckpoint, match="not the checkpoint you asked for"):
        load_checkpoint(folder, sha256=saved.digest)


@pytest.mark.parametrize("name", FILES)
def test_a_truncated_file_is_refused(folder, name):
    path = folder / name
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(TamperedCheckpoint if name != "manifest.json" else NotACheckpoint, match=name):
        load_checkpoint(folder)


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_named(folder, name):
    (folder / name).unlink()
    with pytest.raises(NotACheckpoint, match=name):
        load_checkpoint(folder)


def test_a_digest_of_another_checkpoint_is_refused_and_the_right_one_in_capitals_accepted(folder):
    digest = load_checkpoint(folder).digest
    assert load_checkpoint(folder, sha256=digest.upper()).digest == digest
    with pytest.raises(TamperedCheckpoint, match=digest):
        load_checkpoint(folder, sha256="0" * 64)
    with pytest.raises(ContractMismatch, match="64 hex digits"):
        load_checkpoint(folder, sha256="0" * 63)


def test_hashes_alone_do_not_show_who_made_it(folder):
    digest = load_checkpoint(folder).digest
    (folder / "README.md").write_text("forged")
    rewrite(folder, lambda m: None, rehash=["README.md"])
    load_checkpoint(folder)
    with pytest.raises(TamperedCheckpoint):
        load_checkpoint(folder, sha256=digest)


def test_files_that_are_not_listed_are_never_read(folder):
    os.mkfifo(folder / "pipe")  # reading it would block
    (folder / "dangling").symlink_to("/nowhere")
    load_checkpoint(folder)


# Files that could harm


@pytest.mark.parametrize("name", FILES)
def test_links_are_refused_wherever_they_lead(folder, tmp_path, name):
    elsewhere = tmp_path / "elsewhere"
    (folder / name).rename(elsewhere)
    (folder / name).symlink_to(elsewhere)
    with pytest.raises(UnsafeModel, match="link"):
        load_checkpoint(folder)


def test_pipes_and_folders_in_the_place_of_files_are_refused_without_waiting(folder):
    (folder / "README.md").unlink()
    os.mkfifo(folder / "README.md")
    with pytest.raises(UnsafeModel, match="no regular file"):
        load_checkpoint(folder)
    (folder / "README.md").unlink()
    (folder / "README.md").mkdir()
    with pytest.raises(UnsafeModel, match="no regular file"):
        load_checkpoint(folder)


@pytest.mark.parametrize("name", ["../secret", "a/b", "a\\b", "..", ".", "", "/etc/passwd", ".hidden", "manifest.json"])
def test_file_names_that_are_not_plain_are_refused(folder, name):
    (folder.parent / "secret").write_bytes(b"x")
    entry = {"sha256": hashlib.sha256(b"x").hexdigest(), "bytes": 1}
    rewrite(folder, lambda m: m["files"].update({name: entry}))
    with pytest.raises(UnsafeModel, match="not a plain file name"):
        load_checkpoint(folder)


def test_more_files_than_any_checkpoint_has_are_refused(folder):
    entry = {"sha256": "0" * 64, "bytes": 1}
    rewrite(folder, lambda m: m["files"].update({f"f{i}": entry for i in range(20)}))
    with pytest.raises(UnsafeModel, match="at most 16"):
        load_checkpoint(folder)


@pytest.mark.parametrize(
    ("limits", "name"),
    [(Limits(manifest_bytes=9), FILES[0]), (Limits(model_bytes=9), FILES[1]), (Limits(file_bytes=5), "golden.json")],
)
def test_files_above_their_limit_are_refused(folder, limits, name):
    with pytest.raises(UnsafeModel, match=rf"{name} has \d+ bytes; at most"):
        load_checkpoint(folder, limits=limits)


def test_a_dangerous_model_is_refused_though_every_hash_is_right(folder):
    weights = WEIGHTS.copy()
    weights[1] = np.nan
    replace_model(folder, sigmoid_model(weights))
    with pytest.raises(UnsafeModel, match="'W': value 1 of raw_data is NaN"):
        load_checkpoint(folder)
    replace_model(folder, b"no model")
    with pytest.raises(UnsafeModel, match="not an ONNX model"):
        load_checkpoint(folder)


def test_a_model_the_runtime_cannot_open_is_a_contract_mismatch(folder, capfd):
    graph = helper.make_graph([helper.make_node("NoSuchOperator", ["x"], ["y"])], "g", [], [])
    replace_model(folder, helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]).SerializeToString())
    with pytest.raises(ContractMismatch, match=r"ONNX Runtime .* cannot open"):
        load_checkpoint(folder)
    assert capfd.readouterr() == ("", "")


# The manifest


@pytest.mark.parametrize("text", ["", "{", "\xff", '{"a": NaN}', '{"a": 1e999}', '{"a": 1, "a": 2}', "[" * 100_000])
def test_manifests_that_are_not_strict_json_are_refused(folder, text):
    (folder / "manifest.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(NotACheckpoint, match=r"manifest\.json is not strict JSON"):
        load_checkpoint(folder)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("format_version", 2, "format_version is 2, this metaprobe reads 1; upgrade"),
        ("format_version", 0, "format_version is 0.*export the checkpoint again"),
        ("format_version", "1", "format_version: expected an integer, got '1'"),
        ("format_version", True, "format_version: expected an integer, got True"),
        ("kind", "", "kind is empty"),
        ("kind", None, "kind: expected a string, got None"),
        ("created", "yesterday", "created: expected an ISO 8601 time"),
        ("created", "2030-01-01T00:00:00", "created: expected an ISO 8601 time with offset"),
        ("inputs", {}, "inputs: expected a list"),
        ("inputs.0.shape", [None, "3"], r"inputs\[0\]\.shape\[1\]: expected an integer, got '3'"),
        ("inputs.0.shape", [None, -2], r"inputs\[0\]: expected a name and lengths >= 0"),
        ("contract", [], "contract: expected an object"),
        ("generator.logprobs_mode", "cooked", "generator.logprobs_mode: expected 'raw' or 'processed' or 'unknown'"),
        ("thresholds.correct", "0.5", "thresholds.correct: expected a number"),
        ("thresholds.correct", True, "thresholds.correct: expected a number, got True"),
        ("thresholds.correct", 10**400, "thresholds.correct: expected a number that fits"),
        ("metrics.auroc.n", 1.5, "metrics.auroc.n: expected an integer"),
        ("metrics.auroc.low", 0.9, "metrics.auroc: expected low <= high"),
        ("audits.cut answers.passed", 1, "passed: expected true or false"),
        ("training.seed", None, "training.seed: expected an integer"),
        ("surprise", 1, "unknown field 'surprise'; known are kind"),
        ("files.model.onnx", {"sha256": "abc", "bytes": 1}, "expected 64 lower-case hex digits"),
    ],
)
def test_fields_of_the_wrong_type_are_named_with_what_was_expected(folder, path, value, message):
    def change(manifest):
        *way, last = ["files", "model.onnx"] if path.startswith("files") else path.split(".")
        for step in way:
            manifest = manifest[int(step) if isinstance(manifest, list) else step]
        manifest[last] = value

    rewrite(folder, change)
    with pytest.raises(ContractMismatch, match=message):
        load_checkpoint(folder)


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(Manifest)])
def test_a_missing_field_is_named(folder, name):
    rewrite(folder, lambda m: m.pop(name))
    with pytest.raises(ContractMismatch, match=f"missing '{name}'"):
        load_checkpoint(folder)


def test_a_manifest_must_list_the_files_of_a_checkpoint(folder):
    rewrite(folder, lambda m: m["files"].pop("golden.json"))
    with pytest.raises(ContractMismatch, match=r"does not list golden\.json"):
        load_checkpoint(folder)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(
    contract=st.dictionaries(st.text(), json_values, max_size=4),
    thresholds=st.dictionaries(st.text(), st.floats(allow_nan=False, allow_infinity=False), max_size=3),
    kind=st.text(min_size=1),
)
def test_any_manifest_is_read_back_as_it_was_written(contract, thresholds, kind):
    entries = {name: {"sha256": "0" * 64, "bytes": 1} for name in FILES[1:]}
    tensor = {"name": "x", "type": "float32", "shape": [None, 3]}
    empty = {name: {} for name in ("metrics", "audits", "support", "versions")}
    value = {
        **empty, "kind": kind, "contract": contract, "thresholds": thresholds, "generator": None, "calibration": None,
        "training": None, "format_version": 1, "created": "2030-01-01T00:00:00+00:00", "inputs": [tensor],
        "outputs": [tensor], "files": entries,
    }  # fmt: skip
    manifest = parse_manifest(json.dumps(value).encode())
    assert manifest.contract == contract
    assert manifest.thresholds == thresholds
    assert parse_manifest(manifest_bytes(manifest)) == manifest


def test_minus_one_is_read_as_any_length(folder):
    rewrite(folder, lambda m: m["inputs"][0].update(shape=[-1, 3]))
    assert load_checkpoint(folder).manifest.inputs[0].shape == (None, 3)


# Contract between manifest, graph and golden rows


@pytest.mark.parametrize(
    "model",
    [
        sigmoid_model(name="other"),
        sigmoid_model(np.ones((4, 1), np.float32)),
        sigmoid_model(WEIGHTS.astype(np.float64), elem=TensorProto.DOUBLE),
    ],
    ids=["name", "shape", "type"],
)
def test_a_graph_with_other_inputs_than_stated_is_refused(folder, model):
    replace_model(folder, model)
    with pytest.raises(ContractMismatch, match=r"states inputs features: float32\[None, 3\]; model.onnx has"):
        load_checkpoint(folder)


@pytest.mark.parametrize("change", [{"name": "p"}, {"type": "int64"}, {"shape": [None, 2]}, {"shape": [None]}])
def test_a_graph_with_other_outputs_than_stated_is_refused(folder, change):
    rewrite(folder, lambda m: m["outputs"][0].update(change))
    with pytest.raises(ContractMismatch, match="states outputs"):
        load_checkpoint(folder)


def test_a_graph_that_computes_something_else_is_noticed_by_the_golden_rows(folder):
    replace_model(folder, sigmoid_model(WEIGHTS + np.float32(1e-3)))
    with pytest.raises(GoldenMismatch, match="output 'score' of row"):
        load_checkpoint(folder)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda g: g["outputs"]["score"]["values"].__setitem__(5, 0.999), GoldenMismatch, "of row 5 differs"),
        (lambda g: g["outputs"]["score"]["values"].__setitem__(5, None), GoldenMismatch, "of row 5 differs by inf"),
        (lambda g: g.update(tolerance=1.0), ContractMismatch, "tolerance is 1.0; expected more than 0 and at most"),
        (lambda g: g.update(tolerance=0), ContractMismatch, "tolerance is 0.0"),
        (lambda g: g.update(inputs={}), ContractMismatch, "there are no rows"),
        (lambda g: g["inputs"].update(more=g["inputs"]["features"]), ContractMismatch, "inputs are .*'more'"),
        (lambda g: g["inputs"]["features"].update(shape=[16, 4]), ContractMismatch, "48 values do not fill"),
        (lambda g: g["inputs"]["features"].update(shape=[-16, -3]), ContractMismatch, "48 values do not fill"),
        (lambda g: g["inputs"]["features"]["values"].__setitem__(0, "1"), ContractMismatch, "'1' is not a float32"),
        (lambda g: g["inputs"]["features"]["values"].__setitem__(0, True), ContractMismatch, "True is not a float32"),
        (lambda g: g["inputs"]["features"]["values"].__setitem__(0, 10**400), ContractMismatch, "does not fit"),
    ],
)
def test_golden_rows_that_are_not_as_recorded_are_refused(folder, change, error, message):
    rewrite_golden(folder, change)
    with pytest.raises(error, match=message):
        load_checkpoint(folder)


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


# Reading about it


def test_the_description_shows_what_matters_and_failed_audits_loudly(folder):
    checkpoint = load_checkpoint(folder)
    text = describe(checkpoint)
    for part in (
        "quality checkpoint", checkpoint.digest, "org/model", "log-probabilities raw", "features: float32 (any, 3)",
        "auroc 0.750 [0.710, 0.790] n = 1200", "correct = 0.5", "isotonic", "1 FAILED",
        "FAIL (weak)  cut answers: 0.71",
        "pass  length only", "4000 rows in 700 groups", "full.min",
    ):  # fmt: skip
        assert part in text


def test_the_description_cannot_steer_a_terminal(tmp_path):
    text = describe(save(tmp_path / "c", Draft(kind="q\x1b[2J", contract={"a\r": "b\n"})))
    assert all(line.isprintable() for line in text.split("\n"))
    assert r"q\x1b[2J" in text


def test_a_bare_description_says_none(tmp_path):
    text = describe(save(tmp_path / "c", Draft(kind="choice")))
    assert "generator   any" in text
    assert "metrics     none" in text


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


def test_every_error_is_caught_by_the_base():
    kinds = (NotACheckpoint, TamperedCheckpoint, UnsafeModel, ContractMismatch, GoldenMismatch, CheckpointExists)
    assert all(issubclass(kind, CheckpointError) and issubclass(kind, ValueError) for kind in kinds)


# Failed audits


MIXED = {
    "length only": Audit(False, "as good", "weak"),
    "shuffled labels": Audit(False, "0.71", "invalid"),
    "group overlap": Audit(True, "none", "invalid"),
}


def test_loading_one_that_failed_audits_warns_of_them_the_worse_first(tmp_path):
    written = save(tmp_path / "c", dataclasses.replace(DRAFT, audits=MIXED))
    with pytest.warns(UntrustedCheckpoint, match="NOT TRUSTWORTHY") as caught:
        loaded = load_checkpoint(tmp_path / "c")
    text = str(caught[0].message)
    assert "cannot be believed (failed: shuffled labels); its figures are weaker than they look (failed: length" in text
    assert "group overlap" not in text
    assert caught[0].filename == __file__
    assert not written.trustworthy
    assert not loaded.trustworthy
    assert loaded.manifest.audits == MIXED
    shown = describe(loaded)
    assert shown.startswith("NOT TRUSTWORTHY: its figures cannot be believed")
    assert "FAIL (invalid)  shuffled labels" in shown


@pytest.mark.filterwarnings("error")
def test_saving_does_not_warn_and_passed_audits_never_do(tmp_path):
    save(tmp_path / "failed", dataclasses.replace(DRAFT, audits=MIXED))
    for name, audits in (("none", {}), ("passed", {"group overlap": Audit(True, "none", "invalid")})):
        save(tmp_path / name, dataclasses.replace(DRAFT, audits=audits))
        assert load_checkpoint(tmp_path / name).trustworthy
        assert describe(load_checkpoint(tmp_path / name)).startswith("quality checkpoint")


def test_a_manifest_from_before_severities_still_loads_as_weak(folder):
    def forget(manifest):
        for audit in manifest["audits"].values():
            del audit["severity"]

    rewrite(folder, forget)
    with pytest.warns(UntrustedCheckpoint, match="weaker than they look .failed: cut answers"):
        loaded = load_checkpoint(folder)
    assert loaded.manifest.audits["cut answers"].severity == "weak"


def test_an_unknown_severity_is_refused(folder):
    rewrite(folder, lambda m: m["audits"]["cut answers"].update(severity="fine"))
    with pytest.raises(ContractMismatch, match="'invalid' or 'weak', got 'fine'"):
        load_checkpoint(folder)


def test_the_warning_cannot_steer_a_terminal(folder):
    rewrite(folder, lambda m: m["audits"].update({"x\x1b[2J": {"passed": False, "detail": "", "severity": "weak"}}))
    with pytest.warns(UntrustedCheckpoint) as caught:
        load_checkpoint(folder)
    assert str(caught[0].message).isprintable()
