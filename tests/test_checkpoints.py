"""A checkpoint comes back as it was saved, describes itself, and is refused where anything in it was changed."""

import dataclasses
import errno
import hashlib
import json
import os
import re
import shutil
import stat
import warnings
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import spoilt_checkpoints
from hypothesis import assume, given
from hypothesis import strategies as st
from spoilt_checkpoints import DRAFT, FILES, WEIGHTS, replace_model, rewrite, rows, save, sigmoid, sigmoid_model
from tiny import graph_of

from metaprobe.checkpoints import (
    Audit,
    CheckpointError,
    CheckpointExists,
    ContractMismatch,
    Draft,
    FlagPoint,
    GoldenMismatch,
    Limits,
    Metric,
    NotACheckpoint,
    TamperedCheckpoint,
    UnsafeModel,
    UntrustedCheckpoint,
    check_target,
    describe,
    load_checkpoint,
)
from metaprobe.checkpoints.checkpoint import (
    PROGRAMS_OF_KIND,
    ROUNDED_TOLERANCE,
    GraphSession,
    check_tolerance,
    load_verified,
)
from metaprobe.checkpoints.manifest import (
    MEANING,
    OWN_DIGEST_FIELD,
    Manifest,
    manifest_bytes,
    own_digest,
    parse_manifest,
)
from metaprobe.checkpoints.save import Replacing, pinned_in, replacing

# Most tests here load one that failed an audit.
pytestmark = pytest.mark.filterwarnings("ignore::metaprobe.checkpoints.UntrustedCheckpoint")


saved, folder = spoilt_checkpoints.saved, spoilt_checkpoints.folder


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
    inputs, outputs = "int64[n] s, bool[n] b, double[n] d", "int64[n] t, bool[n] c, double[n] e"
    model = graph_of(f"g ({inputs}) => ({outputs}) {{ t = Identity(s) c = Not(b) e = Neg(d) }}")
    inputs = {"s": np.array([2**40, -1]), "b": np.array([True, False]), "d": np.array([0.1, -0.2])}
    expected = {"t": inputs["s"], "c": ~inputs["b"], "e": -inputs["d"]}
    draft = Draft(kind="numbers", contract={"low": np.arange(2)}, thresholds={"t": np.float64(0.25)})
    save(tmp_path / "s", draft, model=model, golden_inputs=inputs, expected=expected)
    loaded = load_checkpoint(tmp_path / "s")
    for name, values in loaded.run(inputs).items():
        assert values.tolist() == expected[name].tolist()
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


def test_only_a_graph_that_rounds_its_states_may_differ_by_more():
    check_tolerance(ROUNDED_TOLERANCE, "adapter")
    for kind, tolerance in (("adapter", 2 * ROUNDED_TOLERANCE), ("quality", 2e-4), (None, 2e-4)):
        with pytest.raises(ContractMismatch, match="expected more than 0 and at most"):
            check_tolerance(tolerance, kind)


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
    before, real = load_checkpoint(folder).digest, Path.rename

    def failing(self, target):
        if self.name.endswith(".tmp"):
            raise OSError("disk gone")
        return real(self, target)

    monkeypatch.setattr(Path, "rename", failing)
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
    model = graph_of("g (float[n] x) => (float[m, 2] y) <int64[2] shape = {-1, 2}> { y = Reshape(x, shape) }")
    odd, even = {"x": np.zeros(3, np.float32)}, {"x": np.zeros(4, np.float32)}
    for trial, rows_said in ((False, "these inputs"), (True, "its golden rows")):
        session = GraphSession(model, trial=trial)
        assert session.run(even)["y"].shape == (2, 2)
        with pytest.raises(ContractMismatch, match=f"could not run the model on {rows_said}"):
            session.run(odd)


# --- A checkpoint whose files were changed, are missing or could do harm is refused by name


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


@pytest.mark.parametrize("kind", sorted(PROGRAMS_OF_KIND))
def test_a_model_that_gives_several_numbers_a_row_is_refused(folder, kind):
    rewrite(folder, lambda m: m.update(kind=kind, outputs=[{"name": "score", "type": "float32", "shape": [-1, 2]}]))
    replace_model(folder, sigmoid_model(np.ones((3, 2), np.float32), outputs=2))
    with pytest.raises(ContractMismatch, match=r"score: float32\[None, 2\]; expected each to be numbers \(n, 1\)"):
        load_checkpoint(folder)


def test_a_model_the_runtime_cannot_open_is_a_contract_mismatch(folder, capfd):
    replace_model(folder, graph_of("g (float[n, 3] x) => () { y = Not(x) }"))
    with pytest.raises(ContractMismatch, match=r"ONNX Runtime .* cannot open"):
        load_checkpoint(folder)
    assert capfd.readouterr() == ("", "")


# --- A manifest is strict, says what it lacks, and fits the graph and the golden rows beside it


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
    manifest = parse_manifest(json.dumps(value | {OWN_DIGEST_FIELD: own_digest(value)}).encode())
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
        sigmoid_model(WEIGHTS.astype(np.float64), elem="double"),
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


# --- A checkpoint's description shows what matters, and one whose numbers cannot be believed warns when it is loaded


DOCS = Path(__file__).parents[1] / "docs"
ABSENT, WEAK = Audit(True, "none", "invalid"), Audit(False, "as good", "weak")
INVALID, UNTRIED = Audit(False, "0.71", "invalid"), Audit(False, "there is none", "unaudited")


def test_the_description_shows_what_a_checkpoint_is_worth_before_what_it_reads(tmp_path):
    share = Metric(0.6, 0.5, 0.7, 100)
    draft = dataclasses.replace(DRAFT, flagging=(FlagPoint(0.3, 0.4, caught=share, cost=share),))
    checkpoint = save(tmp_path / "c", draft)
    text = describe(checkpoint)
    for part in (
        "quality checkpoint", checkpoint.digest, "org/model", "features: float32 (any, 3)",
        "auroc 0.750 [0.710, 0.790] n = 1200", "correct = 0.5", "FAIL (weak)  cut answers: 0.71",
        "4000 rows in 700 groups", "full.min",
    ):  # fmt: skip
        assert part in text
    titles = [line.split()[0] for line in text.splitlines()[2:] if not line.startswith(" ")]
    assert titles[:4] == ["trust", "flagging", "metrics", "audits"]


def test_what_is_long_is_cut_and_what_is_absent_is_said(tmp_path):
    contract = {"six": [1, 2, 3, 4, 5, 6], "seven": [1, 2, 3, 4, 5, 6, 7], "long": "x" * 101}
    text = describe(save(tmp_path / "c", Draft(kind="choice", contract=contract)))
    for line in (
        "six: [1, 2, 3, 4, 5, 6]", "seven: 7 values, [1, 2, 3] ... [7]", "long: " + "x" * 100 + "...",
        "generator   any", "metrics     none",
    ):  # fmt: skip
        assert f"{line}\n" in text


def test_neither_description_nor_warning_can_steer_a_terminal(tmp_path, folder):
    text = describe(save(tmp_path / "c", Draft(kind="q\x1b[2J", contract={"a\r": "b\n"})))
    assert all(line.isprintable() for line in text.split("\n"))
    assert r"q\x1b[2J" in text
    rewrite(folder, lambda m: m["audits"].update({"x\x1b[2J": {"passed": False, "detail": "", "severity": "invalid"}}))
    with pytest.warns(UntrustedCheckpoint) as caught:
        load_checkpoint(folder)
    assert str(caught[0].message).isprintable()


def test_an_adapted_checkpoint_names_the_one_that_was_audited_for_the_order(tmp_path):
    """`trust sound: nothing was audited` contradicted itself."""
    adapted = dataclasses.replace(DRAFT, audits={}, contract={"adapted_from": "ab" * 32})
    text = describe(save(tmp_path / "c", adapted))
    assert "unaudited: adapted from checkpoint abababababab, which was audited for the order" in text


@pytest.mark.parametrize(
    ("audits", "trust", "weaknesses"),
    [
        ({}, "unaudited", ()),
        ({"overlap": ABSENT}, "sound", ()),
        ({"held against a control": UNTRIED, "overlap": ABSENT}, "unaudited", ("held against a control",)),
        ({"held against a control": UNTRIED, "length only": WEAK}, "weak", ("held against a control", "length only")),
        ({"length only": WEAK, "overlap": ABSENT}, "weak", ("length only",)),
        ({"length only": WEAK, "shuffled": INVALID, "overlap": ABSENT}, "invalid", ("length only", "shuffled")),
    ],
)
def test_only_numbers_that_cannot_be_believed_cause_a_warning_and_saving_never_does(
    tmp_path, audits, trust, weaknesses
):
    """A warning that is always there is read by nobody."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        save(tmp_path / "c", dataclasses.replace(DRAFT, audits=audits))
        assert caught == []
        loaded = load_checkpoint(tmp_path / "c")
    assert (loaded.trust, loaded.weaknesses) == (trust, weaknesses)
    shown = describe(loaded)
    assert f"trust       {trust}: " in shown
    assert all(f"FAIL ({audits[name].severity})  {name}" in shown for name in weaknesses)
    assert shown.startswith("NOT TRUSTWORTHY") is (trust == "invalid")
    if trust != "invalid":
        assert caught == []
        return
    assert [(one.category, one.filename) for one in caught] == [(UntrustedCheckpoint, __file__)]
    text = str(caught[0].message)
    assert f"cannot be believed (failed: shuffled); its numbers {MEANING['weak']} (failed: length only)" in text


CURVE = [["fixed number", 1.0, 1.0, 0.5], ["sure enough", 0.8, 1.74, 0.625], ["fixed number", 9.0, 9.0, 0.75]]
BUDGETS = [[1.0, [0], [1.0], 2.0, 0.5]], [[1.0, [1], [1.0], 4.0, 0.6]]


@pytest.mark.parametrize(
    ("contract", "rows"),
    [
        ({"stops": CURVE}, ["1.0 0.500 fixed number 1", "1.7 0.625 sure enough 0.8", "9.0 0.750 fixed number 9"]),
        (
            {
                "stops": [],
                "asks": {
                    "settings": dict(zip(("cascade", "table"), BUDGETS, strict=True)),
                    "budgets": [2.0 + step for step in range(15)],
                    "accuracy": {"cascade": [0.5] * 15, "table": [0.9, 0.9] + [0.6] * 13},
                },
            },
            # Below 4 dollars nobody can be asked by the table.
            ["2 0.500 cascade", *(f"{budget} 0.600 table" for budget in range(4, 17, 2))],
        ),
        ({"stops": [["fixed number"]]}, []),
        ({"stops": [], "asks": {"budgets": [], "settings": {}, "accuracy": {}}}, []),
    ],
)
def test_a_panel_shows_what_asking_on_is_worth(tmp_path, contract, rows):
    shown = describe(save(tmp_path / "c", Draft(kind="panel", contract={"pick": "joint", **contract})))
    lines = [" ".join(line.split()) for line in shown.splitlines()]
    assert "pick: joint" in lines
    assert ("asking on groups left out" in lines) is bool(rows)
    assert [line for line in lines if line and line[0].isdigit()] == rows


def test_where_scores_are_at_chance_the_line_says_what_that_is_about(tmp_path):
    chance, better = Metric(0.5, 0.4, 0.6, 90), Metric(0.7, 0.6, 0.8, 90)
    looks = {"look5.auroc": chance, "look20.auroc": better, "look50.auroc": chance}
    for kind, metrics, told in (
        ("gate", looks, {"look5": "too early to tell: later looks", "look50": "too few answers are that long"}),
        ("gate", {"look5.auroc": chance, "look20.auroc": chance}, {"look5": "check the labels"}),
        ("panel", {"kept_3.auroc": chance}, {"kept_3": "this is about telling right kept answers from wrong ones"}),
    ):
        lines = describe(save(tmp_path / f"{kind}{len(told)}", Draft(kind=kind, metrics=metrics))).splitlines()
        for head, sentence in told.items():
            at = next(at for at, line in enumerate(lines) if line.startswith(f"CHANCE      {head}:"))
            assert lines[at + 1].strip().startswith(sentence)


def test_the_guide_and_the_glossary_say_of_failed_audits_what_cards_say() -> None:
    guide = (DOCS / "train.md").read_text(encoding="utf-8")
    glossary = (DOCS / "choose.md").read_text(encoding="utf-8")
    for kind, words in MEANING.items():
        assert f"| `{kind}` | the numbers {words}" in guide
        assert f"they {words}" in glossary


HUGE = np.full((3, 1), 3e38, np.float32)
"""Weights of a graph that overflows."""


def linear_model(weights):
    return graph_of(
        f"g (float[n, {len(weights)}] given) => (float[n, 1] logit) {{ logit = MatMul(given, W) }}", W=weights
    )


def test_every_graph_of_a_checkpoint_has_golden_rows_that_are_replayed(tmp_path):
    made = save(tmp_path / "c", extra={"more.onnx": linear_model(WEIGHTS)})
    assert "more.onnx.golden.json" in made.manifest.files
    for graph, named in ((linear_model(2 * WEIGHTS), GoldenMismatch), (linear_model(HUGE), ContractMismatch)):
        folder = shutil.copytree(made.path, tmp_path / named.__name__)
        (folder / "more.onnx").write_bytes(graph)
        rewrite(folder, lambda manifest: None, rehash=["more.onnx"])
        with pytest.raises(named, match=r"more\.onnx"):
            load_checkpoint(folder)
    with pytest.raises(ContractMismatch, match="no finite number"):
        save(tmp_path / "d", extra={"more.onnx": linear_model(HUGE)})


def test_a_further_graph_without_golden_rows_must_give_numbers_all_the_same(tmp_path):
    folder = save(tmp_path / "c", extra={"more.onnx": linear_model(WEIGHTS)}).path

    def forget(manifest):
        del manifest["files"]["more.onnx.golden.json"]

    rewrite(folder, forget)
    assert load_checkpoint(folder).manifest.kind == "quality"  # one from before
    (folder / "more.onnx").write_bytes(linear_model(HUGE))
    rewrite(folder, lambda manifest: None, rehash=["more.onnx"])
    with pytest.raises(ContractMismatch, match="no finite number"):
        load_checkpoint(folder)
