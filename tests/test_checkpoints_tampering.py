"""A checkpoint whose files were changed, are missing or could do harm is refused by name."""

import hashlib
import json
import os
from contextlib import suppress

import numpy as np
import pytest
import spoilt_checkpoints
from hypothesis import assume, given
from hypothesis import strategies as st
from onnx import TensorProto, helper
from spoilt_checkpoints import FILES, WEIGHTS, replace_model, rewrite, sigmoid_model

from metaprobe.checkpoints import (
    CheckpointError,
    ContractMismatch,
    Limits,
    NotACheckpoint,
    TamperedCheckpoint,
    UnsafeModel,
    load_checkpoint,
)
from metaprobe.checkpoints.checkpoint import TAKEN_BY, load_verified
from metaprobe.checkpoints.manifest import parse_manifest

# Most tests here load one that failed an audit.
pytestmark = pytest.mark.filterwarnings("ignore::metaprobe.checkpoints.UntrustedCheckpoint")

saved = spoilt_checkpoints.saved
folder = spoilt_checkpoints.folder


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


@given(st.data())
def test_one_changed_bit_in_any_field_of_the_manifest_is_found(saved, data):
    """Without a digest from elsewhere: its kind, features, thresholds and numbers, and its digest of itself."""
    raw = (saved.path / "manifest.json").read_bytes()
    value = json.loads(raw)
    names = [name for name in value if value[name] not in ({}, [])]
    field = data.draw(st.sampled_from(names))
    starts = sorted(raw.index(f'\n "{name}": '.encode()) for name in value)
    start = raw.index(f'\n "{field}": '.encode())
    end = min([at for at in starts if at > start], default=len(raw) - 3)
    changed = bytearray(raw)
    changed[data.draw(st.integers(start, end - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with suppress(ValueError):
        assume(json.loads(changed) != value)  # a blank, or 1e-05 as 1E-05: the field is the same
    with pytest.raises(CheckpointError):
        parse_manifest(bytes(changed))
    assert parse_manifest(raw) == saved.manifest


@pytest.mark.parametrize("name", FILES)
def test_a_truncated_or_missing_file_is_named(folder, name):
    path = folder / name
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(TamperedCheckpoint if name != "manifest.json" else NotACheckpoint, match=name):
        load_checkpoint(folder)
    path.unlink()
    with pytest.raises(NotACheckpoint, match=name):
        load_checkpoint(folder)


def test_a_digest_of_another_checkpoint_is_refused_and_the_right_one_in_capitals_accepted(folder):
    digest = load_checkpoint(folder).digest
    assert load_checkpoint(folder, sha256=digest.upper()).digest == digest
    with pytest.raises(TamperedCheckpoint, match=digest):
        load_checkpoint(folder, sha256="0" * 64)
    with pytest.raises(ContractMismatch, match="64 hex digits"):
        load_checkpoint(folder, sha256="0" * 63)
    (folder / "README.md").write_text("forged")
    rewrite(folder, lambda m: None, rehash=["README.md"])
    load_checkpoint(folder)  # hashes alone do not show who made it
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
    for load in (load_checkpoint, load_verified):
        with pytest.raises(UnsafeModel, match=rf"{name} has \d+ bytes; at most"):
            load(folder, limits=limits)


def test_a_checkpoint_that_changed_since_it_was_loaded_is_not_handed_on(folder):
    loaded = load_checkpoint(folder)
    assert sorted(loaded.files()) == sorted(FILES)
    changed = json.loads((folder / "manifest.json").read_text())
    changed["kind"] = "other"
    (folder / "manifest.json").write_text(json.dumps(changed))
    with pytest.raises(TamperedCheckpoint):
        loaded.files()


def test_a_dangerous_model_is_refused_though_every_hash_is_right(folder):
    weights = WEIGHTS.copy()
    weights[1] = np.nan
    replace_model(folder, sigmoid_model(weights))
    with pytest.raises(UnsafeModel, match="'W': value 1 of raw_data is NaN"):
        load_checkpoint(folder)
    replace_model(folder, b"no model")
    with pytest.raises(UnsafeModel, match="not an ONNX model"):
        load_checkpoint(folder)


@pytest.mark.parametrize("kind", sorted(TAKEN_BY))
def test_a_model_that_gives_several_numbers_a_row_is_refused(folder, kind):
    rewrite(folder, lambda m: m.update(kind=kind, outputs=[{"name": "score", "type": "float32", "shape": [-1, 2]}]))
    replace_model(folder, sigmoid_model(np.ones((3, 2), np.float32), outputs=2))
    with pytest.raises(ContractMismatch, match=r"score: float32\[None, 2\]; expected each to be numbers \(n, 1\)"):
        load_checkpoint(folder)


def test_a_model_the_runtime_cannot_open_is_a_contract_mismatch(folder, capfd):
    number = helper.make_tensor_value_info("x", TensorProto.FLOAT, [None, 3])
    graph = helper.make_graph([helper.make_node("Not", ["x"], ["y"])], "g", [number], [])
    replace_model(folder, helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]).SerializeToString())
    with pytest.raises(ContractMismatch, match=r"ONNX Runtime .* cannot open"):
        load_checkpoint(folder)
    assert capfd.readouterr() == ("", "")
