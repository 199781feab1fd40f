"""Scores recorded answers that come with the package: without labels, by agreement, and adapted on fifty labels.

It needs the base install only. The fits are those of `metaprobe train quality --target agreement` and of `metaprobe
adapt`, which write a checkpoint besides (extra `fit`).
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metaprobe.checkpoints import Metric
from metaprobe.eval.answer_table import bare_table
from metaprobe.eval.metrics.bootstrap import cluster_weights, interval
from metaprobe.eval.metrics.ranked import auroc
from metaprobe.probes.contract import BaseRates
from metaprobe.probes.features import features, schema
from metaprobe.probes.quality import FEATURES_INPUT, QualityPredictor
from metaprobe.records.importer import read_openai_lines
from metaprobe.training.agreement import agreement_pairs
from metaprobe.training.base_rates import WEIGHT_SD, Fit, fit_scale
from metaprobe.training.calibrators import sigmoid
from metaprobe.training.ladder import DRAWN_TERMS, WHOLE, LadderRows, fit_linear_step
from metaprobe.training.thresholds import match_share, measure_shares

RECORDED = Path(__file__).with_name("quickstart.jsonl")
"""316 import lines, each of another group, made by research/stores/quickstart.py."""
SAMPLED_ANSWERS = Path(__file__).with_name("quickstart_samples.jsonl")
"""200 import lines: two answers of the model to each of 100 questions, of the groups of the first `LABELS` lines."""
LEAST_SURE = 0.1
"""Share of the answers that `metaprobe teach` flags: those that are least likely to be said again."""
LABELS = 50
"""Labelled answers to adapt on: the first lines. The others are held out."""
TARGET = "correct"


def quickstart() -> dict[str, Any]:
    """Returns what fifty labels make of the bundled predictor, measured on answers of other groups, by name."""
    predictor = QualityPredictor.load()
    runs = list(read_openai_lines(RECORDED))
    calls = [run.calls[0] for run in runs]
    series = [np.asarray(call.logprobs, dtype=np.float32) for call in calls]
    y = np.array([run.label(TARGET, call.id) for run, call in zip(runs, calls, strict=True)], dtype=np.int64)
    before = odds_before_labels(predictor, series)
    fit, scores, threshold = adapted(predictor, before, y, np.arange(LABELS))
    groups = np.array([run.item.group for run in runs])
    table = bare_table(y[LABELS:], groups[LABELS:])
    weights = cluster_weights(table.groups.tolist())
    shares = None if threshold is None else measure_shares(table, scores[LABELS:] < threshold, weights)
    if threshold is None or shares is None:
        raise ValueError(f"{RECORDED} holds no right or no wrong answers: make it again")
    order = interval(auroc, table.y, scores[LABELS:], weights)
    again, sampled_questions = said_again(series[LABELS:])
    order_again = interval(auroc, table.y, again, weights)
    least_sure = again <= np.quantile(again, LEAST_SURE)
    is_kept = scores[LABELS:] >= threshold
    learned = predictor.checkpoint.manifest.training
    shown = zip(runs[LABELS:], calls[LABELS:], scores[LABELS:], again, is_kept, table.y, strict=True)
    return {
        "model": calls[0].model,
        # Answers that the bundled predictor's scale was fitted on; these are among them. Its order was not learned.
        "learned_from": 0 if learned is None else learned.n,
        # Learned without a label, from samples of other questions.
        "sampled_questions": sampled_questions,
        "agreement_auroc": Metric(order_again.estimate, order_again.low, order_again.high, len(table)),
        "least_sure": int(least_sure.sum()),
        "wrong_among_least_sure": float(1 - table.y[least_sure].mean()),
        "labels": LABELS,
        "right_among_labels": int(y[:LABELS].sum()),
        "scale": float(fit.weights[0]),
        "base_rate": fit.rates.mean,  # log-odds that the labels add to the scaled log-odds of the bundled predictor
        "threshold": threshold,  # below it lie as many scores as answers are expected to be wrong
        "auroc": Metric(order.estimate, order.low, order.high, len(table)),
        # Shares of the held-out answers that are flagged: of all, of the wrong ones, and of the right ones.
        **dict(zip(("flagged", "caught", "cost"), shares, strict=True)),
        "right": float(table.y.mean()),
        "right_among_kept": float(table.y[is_kept].mean()),
        "held_out": [
            {
                "question": run.item.question,
                "answer": call.text,
                "score": float(score),
                "agreement": float(agreement),
                "flagged": not keep,
                "right": bool(right),
            }
            for run, call, score, agreement, keep, right in shown
        ],
    }


def odds_before_labels(predictor: QualityPredictor, series: Sequence[NDArray[np.float32]]) -> NDArray[np.float64]:
    """Returns the predictor's log-odds (n,) that an answer is right, before labels.

    `series`: log-probabilities of each of the n answers, in nats.
    """
    outputs = predictor.checkpoint.run({FEATURES_INPUT: features(predictor.schema, series)})
    p = np.asarray(outputs[TARGET], dtype=np.float64).ravel()
    return np.asarray(np.log(p) - np.log1p(-p))


def adapted(
    predictor: QualityPredictor, before: NDArray[np.float64], y: NDArray[np.int64], labelled: NDArray[np.int64]
) -> tuple[Fit, NDArray[np.float64], float | None]:
    """Returns the scale that some labels give, P(right) (n,) by it, and the threshold of the flag.

    Args:
        predictor: the predictor to adapt.
        before: its log-odds (n,).
        y: labels (n,), 0 or 1; those of other places than `labelled` are not read.
        labelled: places of the answers with a label.
    """
    base_rates = BaseRates.from_contract(predictor.checkpoint.manifest.contract, [TARGET])
    scales = 0.0 if base_rates is None else base_rates.scale.get(TARGET, 0.0)
    fit = fit_scale(before[labelled], y[labelled], np.full(len(labelled), "model"), scales=scales)
    scores = sigmoid(fit.weights[0] * before + fit.rates.mean)
    return fit, scores, match_share(scores[labelled], float(scores[labelled].mean()))


def said_again(series: Sequence[NDArray[np.float32]]) -> tuple[NDArray[np.float64], int]:
    """Returns the probability (n,) that the model says an answer again, and the number of questions that taught it.

    `series`: log-probabilities of each of the n answers, in nats.
    """
    runs = list(read_openai_lines(SAMPLED_ANSWERS))
    calls = {call.id: (run, call) for run in runs for call in run.calls}
    pairs = agreement_pairs(runs)
    places, same = pairs.rows_among(list(calls))
    terms_schema = schema("full+terms")
    X = features(terms_schema, [np.asarray(call.logprobs, dtype=np.float32) for _, call in calls.values()])
    groups = np.array([run.item.group for run, _ in calls.values()])
    rows = LadderRows(X[places], same, groups[places], np.full(len(places), "samples"), terms_schema.names)
    whole = np.arange(len(rows.y))
    ladder = fit_linear_step(DRAWN_TERMS, rows, WHOLE.of(rows.X), whole, WEIGHT_SD)  # a training calibrates it besides
    return sigmoid(ladder.score(features(terms_schema, list(series)))), pairs.questions
