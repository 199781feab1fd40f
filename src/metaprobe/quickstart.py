"""Scores recorded answers that come with the package, adapts on fifty of them, and shows flags beside the truth.

It needs the base install only. The fit is that of `metaprobe adapt`, which writes a checkpoint besides (extra `fit`).
"""

from pathlib import Path
from typing import Any

import numpy as np

from metaprobe.checkpoints import Metric
from metaprobe.eval.metrics.bootstrap import cluster_weights, interval
from metaprobe.eval.metrics.ranked import auroc
from metaprobe.eval.table import bare_table
from metaprobe.probes.contract import BaseRates
from metaprobe.probes.features import features
from metaprobe.probes.quality import FEATURES_INPUT, QualityPredictor
from metaprobe.records.importer import read_openai_lines
from metaprobe.training.calibration import sigmoid
from metaprobe.training.ladder import fit_scale
from metaprobe.training.thresholds import match_share, measure_shares

RECORDED = Path(__file__).with_name("quickstart.jsonl")
"""316 import lines, each of another group, made by research/stores/quickstart.py."""
LABELS = 50
"""Labelled answers to adapt on: the first lines. The others are held out."""
TARGET = "correct"


def quickstart() -> dict[str, Any]:
    """Returns what fifty labels make of the bundled predictor, measured on answers of other groups, by name."""
    predictor = QualityPredictor.load()
    runs = list(read_openai_lines(RECORDED))
    calls = [run.calls[0] for run in runs]
    series = [np.asarray(call.logprobs, dtype=np.float32) for call in calls]
    outputs = predictor.checkpoint.run({FEATURES_INPUT: features(predictor.schema, series)})
    p = np.asarray(outputs[TARGET], dtype=np.float64).ravel()
    before = np.log(p) - np.log1p(-p)
    y = np.array([run.label(TARGET, call.id) for run, call in zip(runs, calls, strict=True)], dtype=np.int64)
    known = BaseRates.from_contract(predictor.checkpoint.manifest.contract, [TARGET])
    scales = 0.0 if known is None else known.scale.get(TARGET, 0.0)
    fit = fit_scale(before[:LABELS], y[:LABELS], np.full(LABELS, calls[0].model), scales=scales)
    scores = sigmoid(fit.weights[0] * before + fit.rates.mean)
    threshold = match_share(scores[:LABELS], float(scores[:LABELS].mean()))
    groups = np.array([run.item.group for run in runs])
    table = bare_table(y[LABELS:], groups[LABELS:])
    weights = cluster_weights(table.groups.tolist())
    shares = None if threshold is None else measure_shares(table, scores[LABELS:] < threshold, weights)
    if threshold is None or shares is None:
        raise ValueError(f"{RECORDED} holds no right or no wrong answers: make it again")
    order = interval(auroc, table.y, scores[LABELS:], weights)
    kept = scores[LABELS:] >= threshold
    learned = predictor.checkpoint.manifest.training
    shown = zip(runs[LABELS:], calls[LABELS:], scores[LABELS:], kept, table.y, strict=True)
    return {
        "model": calls[0].model,
        # Answers that the bundled predictor's scale was fitted on; these are among them. Its order was not learned.
        "learned_from": 0 if learned is None else learned.n,
        "labels": LABELS,
        "right_among_labels": int(y[:LABELS].sum()),
        "scale": float(fit.weights[0]),
        "base_rate": fit.rates.mean,  # log-odds that the labels add to the scaled log-odds of the bundled predictor
        "threshold": threshold,  # below it lie as many scores as answers are expected to be wrong
        "auroc": Metric(order.estimate, order.low, order.high, len(table)),
        # Shares of the held-out answers that are flagged: of all, of the wrong ones, and of the right ones.
        **dict(zip(("flagged", "caught", "cost"), shares, strict=True)),
        "right": float(table.y.mean()),
        "right_among_kept": float(table.y[kept].mean()),
        "held_out": [
            {
                "question": run.item.question,
                "answer": call.text,
                "score": float(score),
                "flagged": not keep,
                "right": bool(right),
            }
            for run, call, score, keep, right in shown
        ],
    }
