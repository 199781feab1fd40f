"""Checkpoints on a hub: what is fetched, what is refused before and after, and what is given away."""

import dataclasses
import hashlib
import json
import os
import pickle
import subprocess
import sys
import warnings
from pathlib import Path

import httpx
import pytest
from fake_hub import FakeHub, running
from tiny import responses, tiny_quality

from metaprobe import QualityPredictor
from metaprobe.checkpoints import (
    CheckpointExists,
    ContractMismatch,
    HubError,
    Limits,
    MovingRevision,
    NotACheckpoint,
    TamperedCheckpoint,
    UnsafeModel,
    load_checkpoint,
    push,
)
from metaprobe.checkpoints.files import explain_errors, location_of
from metaprobe.checkpoints.manifest import FileEntry, manifest_bytes, own_digest
from metaprobe.probes.hidden import ConfidenceProbe, DifficultyProbe
from metaprobe.routing.gate import StreamingGate
from metaprobe.routing.panel.asking import Panel

huggingface_hub = pytest.importorskip("huggingface_hub")
constants = pytest.importorskip("huggingface_hub.constants")

NAME = "org/quality"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A checkpoint that tests only read."""
    return tiny_quality(tmp_path_factory.mktemp("made") / "quality")


@pytest.fixture(scope="module")
def server():
    with running(FakeHub()) as hub:
        yield hub


@pytest.fixture
def hub(server, made, tmp_path, monkeypatch):
    """A hub that holds the checkpoint and a file that no manifest names, and an empty cache."""
    server.commits, server.requests, server.sizes, server.private = {}, [], {}, set()
    server.commit(NAME, made.files() | {"pytorch_model.bin": b"a pickle"})
    monkeypatch.setattr(constants, "ENDPOINT", server.url)
    monkeypatch.setattr(
        constants, "HUGGINGFACE_CO_URL_TEMPLATE", server.url + "/{repo_id}/resolve/{revision}/{filename}"
    )
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no-token"))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    return server


def head(hub, name=NAME):
    return list(hub.commits[name])[-1]


def pinned(hub):
    return f"hub:{NAME}@{head(hub)}"


# Fetching


def test_what_is_fetched_is_what_was_uploaded_and_nothing_that_the_manifest_does_not_name(hub, made):
    loaded = load_checkpoint(pinned(hub))
    assert loaded.digest == made.digest
    assert loaded.manifest == made.manifest
    assert all(hub.got(name) for name in ("manifest.json", *made.manifest.files))
    assert not hub.got("pytorch_model.bin")


def test_a_folder_is_loaded_under_the_same_name_unless_a_revision_says_hub(made, tmp_path, monkeypatch):
    copied = QualityPredictor(made).save_pretrained(tmp_path / "copy")
    assert QualityPredictor.from_pretrained(str(tmp_path / "copy")).checkpoint.digest == copied.digest == made.digest
    monkeypatch.chdir(tmp_path)
    Path("org").mkdir()
    assert location_of("org") == "org"
    assert location_of("org/quality", "v1") == "hub:org/quality@v1"
    assert location_of("hub:org/quality@v1") == "hub:org/quality@v1"
    with pytest.raises(NotACheckpoint, match="was given too"):
        location_of("hub:org/quality@v1", "v2")


def test_every_class_that_loads_a_checkpoint_loads_it_from_the_hub(hub):
    for kind in (ConfidenceProbe, DifficultyProbe, Panel, StreamingGate):
        with pytest.raises(ContractMismatch, match="quality"):  # it was fetched, and is of another kind
            kind.from_pretrained(NAME, revision=head(hub))


def test_a_branch_warns_that_it_can_move_and_names_the_commit_to_pin(hub, made):
    with pytest.warns(MovingRevision, match=f"{NAME}@{head(hub)}") as told:
        load_checkpoint(f"hub:{NAME}")
    assert told[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load_checkpoint(pinned(hub))
        load_checkpoint(f"hub:{NAME}@main", sha256=made.digest)


def test_a_digest_is_held_against_the_manifest_before_anything_else_is_fetched(hub):
    with pytest.raises(TamperedCheckpoint, match="not the checkpoint you asked for"):
        load_checkpoint(pinned(hub), sha256="0" * 64)
    assert not hub.got("model.onnx")


@pytest.mark.parametrize(
    ("location", "message"),
    [
        ("hub:org/nothing@main", "no such repository"),
        (f"hub:{NAME}@v9", "no such revision"),
        (f"hub:{NAME}@{'0' * 40}", "no such revision"),
    ],
)
def test_what_the_hub_has_not_is_named(hub, location, message):
    with pytest.raises(NotACheckpoint, match=message):
        load_checkpoint(location)
    hub.private.add(NAME)
    with pytest.raises(NotACheckpoint, match="hf auth login"):
        load_checkpoint(pinned(hub))
    hub.private.clear()
    del hub.commits[NAME][head(hub)]["golden.json"]
    with pytest.raises(NotACheckpoint, match=r"golden\.json of hub:.* no such file"):
        load_checkpoint(pinned(hub))


def test_locations_that_are_none_are_refused_without_asking(hub, made):
    for location in ("hub:", "hub:name", "hub:a/b/c", "hub:../x", f"hub:{NAME}@", f"hub:{NAME}@../up"):
        with pytest.raises(NotACheckpoint, match="expected"):
            load_checkpoint(location)
    for name in ("mine", "a/b/c", "../x", "org/mine@v1"):
        with pytest.raises(NotACheckpoint, match="names no repository; expected OWNER/NAME"):
            push(made, name, license="mit")
    assert not hub.requests


@pytest.mark.parametrize("name", ["model.onnx", "README.md", "golden.json"])
def test_a_changed_file_is_refused_though_the_hub_vouches_for_it(hub, name):
    files = hub.commits[NAME][head(hub)]
    files[name] = files[name][:-1] + bytes([files[name][-1] ^ 1])
    with pytest.raises(TamperedCheckpoint, match=name):
        load_checkpoint(pinned(hub))


def test_a_truncated_file_is_refused_and_not_kept_and_a_spoilt_cache_is_noticed(hub, made):
    files = hub.commits[NAME][head(hub)]
    whole = files["model.onnx"]
    hub.sizes["model.onnx"] = len(whole)
    files["model.onnx"] = whole[:-7]
    with pytest.raises(HubError, match=r"model\.onnx"):
        load_checkpoint(pinned(hub))
    files["model.onnx"] = whole
    loaded = load_checkpoint(pinned(hub))
    assert loaded.digest == made.digest
    with (loaded.path / "model.onnx").open("r+b") as file:
        file.write(b"\0\0\0")
    with pytest.raises(TamperedCheckpoint, match=r"model\.onnx"):
        load_checkpoint(pinned(hub))


@pytest.mark.parametrize("name", ["manifest.json", "README.md"])
def test_a_file_above_its_limit_is_never_downloaded(hub, name):
    hub.sizes[name] = Limits().of(name) + 1
    with pytest.raises(UnsafeModel, match=f"{name} .* at most"):
        load_checkpoint(pinned(hub))
    assert not hub.got(name)


def test_names_that_lead_out_of_the_repository_are_refused_before_they_are_asked_for(hub):
    files = hub.commits[NAME][head(hub)]
    manifest = json.loads(files["manifest.json"])
    manifest["files"]["../../up"] = manifest["files"]["README.md"]
    manifest["manifest_sha256"] = own_digest(manifest)
    files["manifest.json"] = json.dumps(manifest).encode()
    with pytest.raises(UnsafeModel, match="plain file name"):
        load_checkpoint(pinned(hub))
    assert not any("up" in path for _, path in hub.requests)


def test_what_was_fetched_once_needs_no_network(hub, made, monkeypatch):
    with pytest.warns(MovingRevision):
        load_checkpoint(f"hub:{NAME}")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    hub.requests.clear()
    assert load_checkpoint(pinned(hub)).digest == made.digest
    with pytest.warns(MovingRevision):
        assert load_checkpoint(f"hub:{NAME}").digest == made.digest
    with pytest.raises(HubError, match="cannot be reached"):
        load_checkpoint("hub:org/other@main")
    assert not hub.requests


def test_without_the_library_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(HubError, match=r"pip install 'huggingface-hub>=1\.0'"):
        load_checkpoint(f"hub:{NAME}@main")


# Giving away


def test_the_card_holds_what_the_hub_indexes(hub, made):
    published = QualityPredictor(made).push_to_hub("org/mine", license="apache-2.0", tags=("truthfulqa",))
    loaded = load_checkpoint(published.location, sha256=published.digest)
    assert published.commit == head(hub, "org/mine")
    assert loaded.manifest.metrics == made.manifest.metrics
    assert loaded.digest != made.digest  # the card has the hub's metadata now
    assert push(loaded, "other/mine", license="apache-2.0", tags=("truthfulqa",)).digest == published.digest
    card = huggingface_hub.ModelCard(hub.commits["org/mine"][head(hub, "org/mine")]["README.md"].decode())
    assert card.data.license == "apache-2.0"
    assert card.data.library_name == "metaprobe"
    assert {"metaprobe", "quality", "truthfulqa"} <= set(card.data.tags)
    assert card.data.base_model == ["org/model"]
    (result,) = card.data.eval_results
    assert (result.metric_type, result.metric_value) == ("auroc", 0.75)
    assert "0.710 to 0.790" in result.metric_name
    assert card.text.strip() == "# Quality predictor\n\nMade for tests."


def test_a_fetched_checkpoint_is_copied_and_sent_to_processes_though_the_cache_is_made_of_links(hub, made, tmp_path):
    predictor = QualityPredictor.from_pretrained(NAME, revision=head(hub))
    assert predictor.predict(responses(1)[0]) == QualityPredictor(made).predict(responses(1)[0])
    assert any(path.is_symlink() for path in predictor.checkpoint.path.iterdir())
    assert pickle.loads(pickle.dumps(predictor.checkpoint)).digest == made.digest
    copied = predictor.save_pretrained(tmp_path / "copy")
    assert not any(path.is_symlink() for path in (tmp_path / "copy").iterdir())
    assert load_checkpoint(tmp_path / "copy", sha256=made.digest).digest == copied.digest
    with pytest.raises(CheckpointExists):
        predictor.save_pretrained(tmp_path / "copy")
    predictor.save_pretrained(tmp_path / "copy", overwrite=True)


def test_a_rule_across_the_card_is_no_front_matter(hub, made, tmp_path):
    card = "# Card\n\n---\nkey: kept\n---\n\nThe end.\n"
    ruled = rewritten_card(made, tmp_path / "ruled", card)
    push(ruled, "org/mine", license="mit")
    first = hub.commits["org/mine"][head(hub, "org/mine")]["README.md"].decode()
    assert first.startswith("---\nlicense: ")
    assert first.endswith(card)
    push(load_checkpoint(f"hub:org/mine@{head(hub, 'org/mine')}"), "org/other", license="apache-2.0")
    second = hub.commits["org/other"][head(hub, "org/other")]["README.md"].decode()
    assert second == first.replace('"mit"', '"apache-2.0"').replace('"mine"', '"other"')


def rewritten_card(made, folder, card):
    """The same checkpoint with another card."""
    copied = QualityPredictor(made).save_pretrained(folder)
    data = card.encode()
    (folder / "README.md").write_bytes(data)
    entry = FileEntry(hashlib.sha256(data).hexdigest(), len(data))
    files = {**copied.manifest.files, "README.md": entry}
    (folder / "manifest.json").write_bytes(manifest_bytes(dataclasses.replace(copied.manifest, files=files)))
    return load_checkpoint(folder)


def test_what_a_hub_says_of_a_file_is_not_believed_where_it_makes_no_sense(hub, monkeypatch):
    real = huggingface_hub.hf_hub_download

    def odd(**said):
        def download(*arguments, dry_run=False, **options):
            found = real(*arguments, dry_run=dry_run, **options)
            return dataclasses.replace(found, **said) if dry_run else found

        monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)

    odd(file_size=None)
    with pytest.raises(UnsafeModel, match=r"does not say how large manifest\.json of hub:.* is; it is not fetched"):
        load_checkpoint(pinned(hub))
    odd(commit_hash="../up")
    with pytest.raises(HubError, match=r"manifest\.json of hub:.* is at commit '\.\./up', which is none"):
        load_checkpoint(pinned(hub))
    assert not hub.got("manifest.json")


def test_a_gate_of_the_hub_is_named():
    errors = pytest.importorskip("huggingface_hub.errors")
    response = httpx.Response(403, request=httpx.Request("GET", "http://hub"))
    with (
        pytest.raises(HubError, match="a file: access must be asked for on the hub, then log in"),
        explain_errors("a file"),
    ):
        raise errors.GatedRepoError("closed", response=response)


def test_files_that_changed_after_loading_are_not_given_away(made, tmp_path):
    predictor = QualityPredictor(made)
    copy = predictor.save_pretrained(tmp_path / "copy")
    (tmp_path / "copy" / "README.md").write_text("# Another card\n")
    with pytest.raises(TamperedCheckpoint, match=r"README\.md"):
        QualityPredictor(copy).save_pretrained(tmp_path / "further")
    assert not (tmp_path / "further").exists()


def test_a_refusing_hub_and_an_odd_licence_are_reported(hub, made):
    hub.private.add("org/closed")
    with pytest.raises(HubError, match="org/closed"):
        push(made, "org/closed", license="mit")
    with pytest.raises(ContractMismatch, match="of the hub such as"):
        push(made, "org/mine", license="do what you want\ntags: [x]")


@pytest.mark.slow
def test_the_commands_reach_a_hub_through_hf_endpoint(hub, made, tmp_path):
    environment = {**os.environ, "HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "home")}

    def run(*arguments):
        command = [sys.executable, "-m", "metaprobe.cli", *arguments]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)

    pushed = run("push", str(made.path), "org/mine", "--license", "mit")
    assert pushed.returncode == 0, pushed.stderr
    told = json.loads(pushed.stdout)
    assert hashlib.sha256(hub.commits["org/mine"][head(hub, "org/mine")]["manifest.json"]).hexdigest() == told["sha256"]
    verified = run("verify", told["location"], "--sha256", told["sha256"])
    assert (verified.returncode, verified.stderr) == (0, "")
    refused = run("verify", told["location"], "--sha256", "0" * 64)
    assert refused.returncode == 1
    assert "not the checkpoint you asked for" in refused.stderr
