"""Shared by tests of checkpoints: one of three weights, made in milliseconds, and the ways to spoil a copy of it."""

import hashlib
import json
import shutil

import numpy as np
import pytest
from tiny import graph_of

from metaprobe.checkpoints import (
    Audit,
    Calibration,
    Draft,
    Generator,
    Metric,
    Training,
    save_checkpoint,
)
from metaprobe.checkpoints.manifest import OWN_DIGEST_FIELD, own_digest

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
    versions={"lightgbm": "4.6.0"},
)


def sigmoid_model(weights=WEIGHTS, *, name="features", elem="float", outputs=1):
    """score = sigmoid(x W), where NaN counts as 0."""
    text = f"""g ({elem}[n, {len(weights)}] {name}) => ({elem}[n, {outputs}] score) {{
        missing = IsNaN({name}) filled = Where(missing, zero, {name}) logit = MatMul(filled, W) score = Sigmoid(logit)
    }}"""
    return graph_of(text, W=weights, zero=np.zeros(1, weights.dtype))


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
    if OWN_DIGEST_FIELD in manifest:
        manifest[OWN_DIGEST_FIELD] = own_digest(manifest)
    (folder / "manifest.json").write_text(json.dumps(manifest))


def replace_model(folder, model):
    (folder / "model.onnx").write_bytes(model)
    rewrite(folder, lambda m: None, rehash=["model.onnx"])
