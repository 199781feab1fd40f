"""A quality checkpoint that is made in milliseconds: P(correct) = sigmoid of the features times fixed weights."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser

from metaprobe.checkpoints import Checkpoint, Draft, Generator, Metric, Training, save_checkpoint
from metaprobe.probes.features import features, schema

FULL = schema("full")


def responses(n: int = 20, *, seed: int = 0) -> list[list[float]]:
    """Log-probabilities of n answers."""
    rng = np.random.default_rng(seed)
    return [(-rng.exponential(1.0, rng.integers(2, 80))).tolist() for _ in range(n)]


def graph_of(text: str, *, opset: int = 17, **weights: np.ndarray) -> bytes:
    """A model of one graph in ONNX's text syntax, with these weights."""
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": {opset}, "ai.onnx.ml": 1]> {text}')
    model.graph.initializer.extend(onnx.numpy_helper.from_array(value, name) for name, value in weights.items())
    return model.SerializeToString()


def tiny_quality(path: Path, *, slope: float = 1.0, reads: str = "full", **changes: Any) -> Checkpoint:
    """Saved at `path`; a surer mean token makes a likelier right answer where `slope` is above 0. `reads`: a schema."""
    names = schema(reads).names
    d = len(names)
    weights = np.zeros((d, 1), np.float32)
    weights[names.index("full.mean")] = slope
    model = graph_of(
        f"""quality (float[n, {d}] features) => (float[n, 1] correct) {{
            missing = IsNaN(features) filled = Where(missing, zero, features) logit = MatMul(filled, weights)
            shifted = Add(logit, one) correct = Sigmoid(shifted)
        }}""",
        weights=weights,
        zero=np.zeros(1, np.float32),
        one=np.ones(1, np.float32),
    )
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
