"""A checkpoint that was trained without labels, made in milliseconds; it flags by its head `agreement`."""

from pathlib import Path
from typing import Any

import numpy as np
from tiny import graph_of, responses

from metaprobe.checkpoints import Checkpoint, Draft, FlagPoint, Generator, Metric, Training, save_checkpoint
from metaprobe.probes.features import features, schema

SURE, UNSURE = [-0.01, -0.02, -0.01, -0.03], [-2.5, -3.0, -1.5, -2.0]
"""Log-probabilities of an answer that would be said again, and of one that would not."""


def tiny_agreement(path: Path, **changes: Any) -> Checkpoint:
    """Saved at `path`: agreement = sigmoid(2 + 2 x mean log-probability), with a curve of flag rates."""
    names = schema("full").names
    d = len(names)
    weights = np.zeros((d, 1), np.float32)
    weights[names.index("full.mean")] = 2.0
    model = graph_of(
        f"""quality (float[n, {d}] features) => (float[n, 1] agreement) {{
            missing = IsNaN(features) filled = Where(missing, zero, features) logit = MatMul(filled, weights)
            shifted = Add(logit, two) agreement = Sigmoid(shifted)
        }}""",
        weights=weights,
        zero=np.zeros(1, np.float32),
        two=np.full(1, 2.0, np.float32),
    )
    X = features(schema("full"), [np.array(logprobs) for logprobs in responses(8)])
    share = Metric(0.1, 0.05, 0.15, 400)
    stated = {
        "kind": "quality",
        "contract": {"schema": "full", "features": list(names), "targets": ["agreement"], "flagged_by": "agreement"},
        "generator": Generator("m", logprobs_mode="raw"),
        "thresholds": {"flag": 0.4},
        "flagging": tuple(FlagPoint(rate, 0.2 + rate, share, share) for rate in (0.05, 0.5)),
        "metrics": {"auroc": Metric(0.75, 0.71, 0.79, 400)},
        "training": Training("0123456789abcdef", 400, 100, 0, "metaprobe teach URL questions.jsonl --out quality"),
    }
    expected = 1 / (1 + np.exp(-(np.nan_to_num(X.astype(np.float64)) @ weights + 2)))
    return save_checkpoint(
        path,
        Draft(**(stated | changes)),
        model=model,
        golden_inputs={"features": X},
        expected={"agreement": expected},
        card="# Quality predictor: agreement\n\nMade for tests.\n",
    )
