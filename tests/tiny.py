"""A quality checkpoint that is made in milliseconds: P(correct) = sigmoid of the features times fixed weights."""

from pathlib import Path
from typing import Any

import numpy as np
from onnx import helper, numpy_helper

from metaprobe.checkpoints import Checkpoint, Draft, Generator, Metric, Training, save_checkpoint
from metaprobe.probes.features import features, schema

FULL = schema("full")


def responses(n: int = 20, *, seed: int = 0) -> list[list[float]]:
    """Log-probabilities of n answers."""
    rng = np.random.default_rng(seed)
    return [(-rng.exponential(1.0, rng.integers(2, 80))).tolist() for _ in range(n)]


def tiny_quality(path: Path, *, slope: float = 1.0, reads: str = "full", **changes: Any) -> Checkpoint:
    """Saved at `path`; a surer mean token makes a likelier right answer where `slope` is above 0. `reads`: a schema."""
    names = schema(reads).names
    d = len(names)
    weights = np.zeros((d, 1), np.float32)
    weights[names.index("full.mean")] = slope
    graph = helper.make_graph(
        [
            helper.make_node("IsNaN", ["features"], ["missing"]),
            helper.make_node("Where", ["missing", "zero", "features"], ["filled"]),
            helper.make_node("MatMul", ["filled", "weights"], ["logit"]),
            helper.make_node("Add", ["logit", "one"], ["shifted"]),
            helper.make_node("Sigmoid", ["shifted"], ["correct"]),
        ],
        "quality",
        [helper.make_tensor_value_info("features", 1, [None, d])],
        [helper.make_tensor_value_info("correct", 1, [None, 1])],
        [
            numpy_helper.from_array(weights, "weights"),
            numpy_helper.from_array(np.zeros(1, np.float32), "zero"),
            numpy_helper.from_array(np.ones(1, np.float32), "one"),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9).SerializeToString()
    X = features(schema(reads), [np.array(logprobs) for logprobs in responses(8)])
    stated = {
        "kind": "quality",
        "contract": {"schema": reads, "features": list(names)},
        "generator": Generator("org/model", "abc", "bfloat16", "org/model", "raw"),
        "thresholds": {"flag": 0.4},
        "metrics": {"auroc": Metric(0.75, 0.71, 0.79, 1200)},
        "training": Training("0123456789abcdef", 4000, 700, 0, "metaprobe train quality runs --out quality"),
    }
    expected = 1 / (1 + np.exp(-(np.nan_to_num(X.astype(np.float64)) @ weights + 1)))
    return save_checkpoint(
        path,
        Draft(**(stated | changes)),
        model=model,
        golden_inputs={"features": X},
        expected={"correct": expected},
        card="# Quality predictor\n\nMade for tests.\n",
    )
