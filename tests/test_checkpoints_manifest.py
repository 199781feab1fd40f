"""A manifest is strict, says what it lacks, and fits the graph and the golden rows beside it."""

import dataclasses
import json

import numpy as np
import pytest
import spoilt_checkpoints
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto
from spoilt_checkpoints import FILES, WEIGHTS, replace_model, rewrite, sigmoid_model

from metaprobe.checkpoints import (
    ContractMismatch,
    GoldenMismatch,
    NotACheckpoint,
    load_checkpoint,
)
from metaprobe.checkpoints.manifest import OWN, Manifest, manifest_bytes, own_digest, parse_manifest

# Most tests here load one that failed an audit.
pytestmark = pytest.mark.filterwarnings("ignore::metaprobe.checkpoints.UntrustedCheckpoint")

saved = spoilt_checkpoints.saved
folder = spoilt_checkpoints.folder


def rewrite_golden(folder, change):
    golden = json.loads((folder / "golden.json").read_text())
    change(golden)
    (folder / "golden.json").write_text(json.dumps(golden))
    rewrite(folder, lambda m: None, rehash=["golden.json"])


# The manifest


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "\xff\xfe{}",
        '{"a": NaN}',
        '{"format_version": 1e999}',
        '{"a": 1, "a": 2}',
        "[" * 500_000,
        '{"a":' * 200_000,
        '{"format_version": ' + "9" * 900_000 + "}",
    ],
    ids=lambda text: text[:20],
)
def test_manifests_that_are_not_strict_json_are_refused(folder, text):
    (folder / "manifest.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(NotACheckpoint, match=r"manifest\.json is not strict JSON"):
        load_checkpoint(folder)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("format_version", 2, "format_version is 2, this metaprobe reads 1; upgrade"),
        ("format_version", 0, "format_version is 0.*export the checkpoint again"),
        ("format_version", True, "format_version: expected an integer, got True"),
        ("kind", "", "kind is empty"),
        ("created", "2030-01-01T00:00:00", "created: expected an ISO 8601 time with offset"),
        ("inputs", {}, "inputs: expected a list"),
        ("inputs.0.shape", [None, "3"], r"inputs\[0\]\.shape\[1\]: expected an integer, got '3'"),
        ("inputs.0.shape", [None, -2], r"inputs\[0\]: expected a name and lengths >= 0"),
        ("generator.logprobs_mode", "cooked", "generator.logprobs_mode: expected 'raw' or 'processed' or 'unknown'"),
        ("thresholds.correct", True, "thresholds.correct: expected a number, got True"),
        ("thresholds.correct", 10**400, "thresholds.correct: expected a number that fits"),
        ("metrics.auroc.n", 1.5, "metrics.auroc.n: expected an integer"),
        ("metrics.auroc.low", 0.9, "metrics.auroc: expected low <= high"),
        ("audits.cut answers.passed", 1, "passed: expected true or false"),
        ("audits.cut answers.severity", "fine", "'invalid' or 'weak' or 'unaudited', got 'fine'"),
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


def test_a_missing_field_or_file_is_named(saved):
    whole = json.loads((saved.path / "manifest.json").read_text())
    for name in (field.name for field in dataclasses.fields(Manifest)):
        with pytest.raises(ContractMismatch, match=f"missing '{name}'"):
            parse_manifest(json.dumps({key: value for key, value in whole.items() if key != name}).encode())
    whole["files"].pop("golden.json")
    with pytest.raises(ContractMismatch, match=r"does not list golden\.json"):
        parse_manifest(json.dumps(whole).encode())


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
    empty = {name: {} for name in ("metrics", "audits", "versions")}
    value = {
        **empty, "kind": kind, "contract": contract, "thresholds": thresholds, "generator": None, "calibration": None,
        "training": None, "format_version": 1, "created": "2030-01-01T00:00:00+00:00", "inputs": [tensor],
        "outputs": [tensor], "files": entries, "flagging": [], "promises": [], "operating": None,
    }  # fmt: skip
    manifest = parse_manifest(json.dumps(value | {OWN: own_digest(value)}).encode())
    assert manifest.contract == contract
    assert manifest.thresholds == thresholds
    written = parse_manifest(manifest_bytes(manifest))
    assert written == manifest


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
        *[
            (
                lambda g, shape=shape: g["inputs"]["features"].update(shape=shape),
                ContractMismatch,
                "do not fill|no rows",
            )
            for shape in ([16, 4], [-16, -3], [10**4000] * 200, [1] * 100, [0] * 9, [2**63, 2**63], [-1])
        ],
        (lambda g: g["inputs"]["features"]["values"].__setitem__(0, "1"), ContractMismatch, "'1' is not a float32"),
        (lambda g: g["inputs"]["features"]["values"].__setitem__(0, True), ContractMismatch, "True is not a float32"),
        (lambda g: g["inputs"]["features"]["values"].__setitem__(0, 10**400), ContractMismatch, "does not fit"),
    ],
)
def test_golden_rows_that_are_not_as_recorded_are_refused(folder, change, error, message):
    rewrite_golden(folder, change)
    with pytest.raises(error, match=message):
        load_checkpoint(folder)
