"""A hostile checkpoint is refused with a `CheckpointError`: no other exception, no crash, no wait, no gigabytes."""

import ast
import contextlib
import hashlib
import json
import resource
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny import graph_of, tiny_quality

import metaprobe.checkpoints
from metaprobe.checkpoints import (
    CheckpointError,
    TamperedCheckpoint,
    UnsafeModel,
    load_checkpoint,
)
from metaprobe.checkpoints.manifest import own_digest
from metaprobe.checkpoints.onnx_wire import MAX_FIELDS
from metaprobe.probes.quality import QualityPredictor

pytestmark = pytest.mark.filterwarnings(
    "ignore::metaprobe.checkpoints.UntrustedCheckpoint", "ignore:.*:RuntimeWarning:numpy"
)
MEMORY = 500 << 20


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return tiny_quality(tmp_path_factory.mktemp("made") / "quality")


@pytest.fixture(scope="module")
def victim(made, tmp_path_factory):
    """A copy that is written over again and again."""
    return shutil.copytree(made.path, tmp_path_factory.mktemp("victim") / "quality")


@pytest.fixture
def folder(made, tmp_path):
    return shutil.copytree(made.path, tmp_path / "quality")


def write(folder, files, *, rehash=True):
    """Writes the files as an attacker would who can also compute hashes."""
    if rehash:
        try:
            manifest = json.loads(files["manifest.json"])
            for name in manifest["files"].keys() & files.keys():
                data = files[name]
                manifest["files"][name] = {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
            manifest["manifest_sha256"] = own_digest(manifest)
            files = {**files, "manifest.json": json.dumps(manifest).encode()}
        except (ValueError, TypeError, AttributeError, KeyError):
            pass
    for name, data in files.items():
        (folder / name).write_bytes(data)


def peak():
    """Bytes that this process ever had in memory."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


# Any bytes


@given(st.data())
def test_any_edit_of_any_file_is_refused_or_does_no_harm(made, victim, data):
    files = made.files()
    name = data.draw(st.sampled_from(sorted(files)), label="file")
    spoilt = bytearray(files[name])
    for _ in range(data.draw(st.integers(1, 4), label="edits")):
        at = data.draw(st.integers(0, max(len(spoilt) - 1, 0)))
        match data.draw(st.sampled_from(["flip", "cut", "insert", "drop"])):
            case "flip" if spoilt:
                spoilt[at] ^= data.draw(st.integers(1, 255))
            case "cut":
                del spoilt[at:]
            case "drop":
                del spoilt[at : at + data.draw(st.integers(1, 40))]
            case _:
                spoilt[at:at] = data.draw(st.binary(min_size=1, max_size=12))
    write(victim, {**files, name: bytes(spoilt)}, rehash=data.draw(st.booleans(), label="rehash"))
    with contextlib.suppress(CheckpointError):
        load_checkpoint(victim)


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


def places(value, path=()):
    """Every place in a JSON value, lists by their first entries."""
    yield path
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from places(inner, (*path, key))
    elif isinstance(value, list):
        for i, inner in enumerate(value[:2]):
            yield from places(inner, (*path, i))


@given(st.data())
@pytest.mark.parametrize("name", ["manifest.json", "golden.json"])
def test_any_value_in_any_place_of_the_json_files_is_refused_or_does_no_harm(made, victim, name, data):
    files = made.files()
    value = json.loads(files[name])
    path = data.draw(st.sampled_from([place for place in places(value) if place]), label="place")
    holder = value
    for key in path[:-1]:
        holder = holder[key]
    holder[path[-1]] = data.draw(ANYTHING, label="value")
    write(victim, {**files, name: json.dumps(value).encode()})
    with contextlib.suppress(CheckpointError):
        load_checkpoint(victim)


def test_a_size_that_no_file_has_allocates_nothing(made, folder):
    files = made.files()
    manifest = json.loads(files["manifest.json"])
    manifest["files"]["model.onnx"]["bytes"] = 10**18
    manifest["manifest_sha256"] = own_digest(manifest)
    write(folder, {"manifest.json": json.dumps(manifest).encode()}, rehash=False)
    with pytest.raises(TamperedCheckpoint, match="1000000000000000000"):
        load_checkpoint(folder)


def test_no_archive_and_no_pickle_is_opened_anywhere():
    dangerous = {"zipfile", "tarfile", "gzip", "bz2", "lzma", "zlib", "pickle", "marshal", "shelve", "dill", "joblib"}
    for path in Path(metaprobe.checkpoints.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = {alias.name for alias in node.names} if isinstance(node, ast.Import) else set()
            names |= {node.module} if isinstance(node, ast.ImportFrom) else set()
            assert not {str(name).split(".")[0] for name in names} & dangerous, path


# Graphs that ask for too much


@pytest.mark.parametrize(("length", "said"), [(10, "differs by"), (1000, "more than 256 MB")])
def test_a_graph_that_makes_gigabytes_of_kilobytes_is_refused_and_they_are_never_taken(made, folder, length, said):
    """Graphs of all other kinds: `test_graph_sizes.HOSTILE`. One of modest size comes as far as its golden rows."""
    before = peak()
    shapes = {"a": (length, 1, 1), "b": (1, length, 1), "c": (1, 1, length)}
    text = f"""hostile (float[n, {made.manifest.inputs[0].shape[1]}] features) => (float[n, 1] correct) {{
        ab = Add(a, b) big = Add(ab, c) mean = ReduceMean<keepdims=0>(big)
        row = ReduceMean<axes=[1], keepdims=1>(features) correct = Add(row, mean)
    }}"""
    model = graph_of(text, opset=15, **{name: np.ones(shape, np.float32) for name, shape in shapes.items()})
    write(folder, made.files() | {"model.onnx": model})  # every hash is right
    with pytest.raises(CheckpointError, match=said):
        load_checkpoint(folder)
    assert peak() - before < MEMORY


@pytest.mark.slow
def test_a_file_of_nothing_but_empty_messages_is_refused_within_memory(made, folder):
    before = peak()
    nodes = b"\x0a\x00" * (MAX_FIELDS + 1)
    length, at = bytearray(), len(nodes)
    while at > 127:
        length.append(at & 127 | 128)
        at >>= 7
    write(folder, made.files() | {"model.onnx": b"\x3a" + bytes([*length, at]) + nodes})
    with pytest.raises(UnsafeModel, match="fields"):
        load_checkpoint(folder)
    assert peak() - before < MEMORY


# The predictor on top


@given(st.data())
def test_a_predictor_of_any_contract_is_refused_or_works(made, victim, data):
    files = made.files()
    manifest = json.loads(files["manifest.json"])
    part = data.draw(st.sampled_from(["contract", "thresholds", "generator"]))
    key = data.draw(st.sampled_from([*(manifest[part] or {}), "scales", "low", "high", "allowed", "critical"]))
    manifest[part] = (manifest[part] or {}) | {key: data.draw(ANYTHING)}
    write(victim, {**files, "manifest.json": json.dumps(manifest).encode()})
    try:
        predictor = QualityPredictor.load(victim)
    except CheckpointError:
        return
    predictor.predict([-0.5, -0.1, -2.0])
