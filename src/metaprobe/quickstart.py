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
from metaprobe.probes.features import features, schema
from metaprobe.probes.quality import FEATURES_INPUT, QualityPredictor
from metaprobe.probes.training_runs import BaseRates
from metaprobe.records.importer import read_openai_lines
from metaprobe.training.agreement import agreement_pairs
from metaprobe.training.base_rates import WEIGHT_SD, Fit, fit_scale
from metaprobe.training.calibrators import sigmoid
from metaprobe.training.ladder import DRAWN_TERMS, WHOLE, LadderRows, fit_linear_step
from metaprobe.training.thresholds import match_share, measure_shares

RECORDED = Path(__file__).with_name("quickstart.jsonl")
"""316 import lines, each of another group, made by research/stores/quickstart.py."""
SAMPLED_ANSWERS = Path(__file__).with_name("quickstart_samples.jsonl")
"""200 import lines: two answers of the model to each of 100 questions, in the groups of the labelled lines above."""
LEAST_SURE_SHARE = 0.1
"""Share of the answers that `metaprobe teach` flags: those that are least likely to be said again."""
LABEL_COUNT = 50
"""Number of labelled answers to adapt on: the first lines. The others are held out."""
TARGET = "correct"


def quickstart() -> dict[str, Any]:
    """Returns figures of the bundled predictor after it was adapted on fifty labels, by name.

    The figures are measured on answers of other groups.
    """
    predictor = QualityPredictor.load()
    runs = list(read_openai_lines(RECORDED))
    calls = [run.calls[0] for run in runs]
    series = [np.asarray(call.logprobs, dtype=np.float32) for call in calls]
    y = np.array([run.label(TARGET, call.id) for run, call in zip(runs, calls, strict=True)], dtype=np.int64)
    log_odds_before_labels = predict_log_odds(predictor, series)
    fit, scores, threshold = adapt_to_labels(predictor, log_odds_before_labels, y, np.arange(LABEL_COUNT))
    groups = np.array([run.item.group for run in runs])
    table = bare_table(y[LABEL_COUNT:], groups[LABEL_COUNT:])
    weights = cluster_weights(table.groups.tolist())
    shares = None if threshold is None else measure_shares(table, scores[LABEL_COUNT:] < threshold, weights)
    if threshold is None or shares is None:
        raise ValueError(f"{RECORDED} holds no right or no wrong answers: make it again")
    auroc_interval = interval(auroc, table.y, scores[LABEL_COUNT:], weights)
    p_said_again, sampled_questions = score_by_agreement(series[LABEL_COUNT:])
    agreement_auroc = interval(auroc, table.y, p_said_again, weights)
    is_least_sure = p_said_again <= np.quantile(p_said_again, LEAST_SURE_SHARE)
    is_kept = scores[LABEL_COUNT:] >= threshold
    training = predictor.checkpoint.manifest.training
    answer_rows = zip(
        runs[LABEL_COUNT:], calls[LABEL_COUNT:], scores[LABEL_COUNT:], p_said_again, is_kept, table.y, strict=True
    )
    return {
        "model": calls[0].model,
        # Number of answers on which the bundled predictor's scale was fitted, these among them. Its order was not
        # learned.
        "learned_from": 0 if training is None else training.n,
        # Learned without a label, from samples of other questions.
        "sampled_questions": sampled_questions,
        "agreement_auroc": Metric(agreement_auroc.estimate, agreement_auroc.low, agreement_auroc.high, len(table)),
        "least_sure_count": int(is_least_sure.sum()),
        "wrong_among_least_sure": float(1 - table.y[is_least_sure].mean()),
        "labels": LABEL_COUNT,
        "right_among_labels": int(y[:LABEL_COUNT].sum()),
        "scale": float(fit.weights[0]),
        "base_rate": fit.rates.mean,  # log-odds that the labels add to the scaled log-odds of the bundled predictor
        "threshold": threshold,  # below it lie as many scores as answers are expected to be wrong
        "auroc": Metric(auroc_interval.estimate, auroc_interval.low, auroc_interval.high, len(table)),
        # Shares of the held-out answers that are flagged: of all, of the wrong ones, and of the right ones.
        **dict(zip(("flagged", "caught", "right_flagged"), shares, strict=True)),
        "right": float(table.y.mean()),
        "right_among_kept": float(table.y[is_kept].mean()),
        "held_out": [
            {
                "question": run.item.question,
                "answer": call.text,
                "score": float(score),
                "agreement": float(agreement),
                "flagged": not kept,
                "right": bool(right),
            }
            for run, call, score, agreement, kept, right in answer_rows
        ],
    }


def predict_log_odds(predictor: QualityPredictor, series: Sequence[NDArray[np.float32]]) -> NDArray[np.float64]:
    """Returns the predictor's log-odds (n,) that an answer is right, before labels.

    `series`: log-probabilities of each of the n answers, in nats.
    """
    outputs = predictor.checkpoint.run({FEATURES_INPUT: features(predictor.schema, series)})
    p = np.asarray(outputs[TARGET], dtype=np.float64).ravel()
    return np.asarray(np.log(p) - np.log1p(-p))


def adapt_to_labels(
    predictor: QualityPredictor,
    log_odds_before_labels: NDArray[np.float64],
    y: NDArray[np.int64],
    labelled: NDArray[np.int64],
) -> tuple[Fit, NDArray[np.float64], float | None]:
    """Returns the scale fitted on the labels, P(right) (n,) by that scale, and the threshold of the flag.

    Args:
        predictor: the predictor to adapt.
        log_odds_before_labels: the predictor's log-odds (n,).
        y: labels (n,), 0 or 1. Only the labels at `labelled` are read.
        labelled: indices of the answers with a label.
    """
    base_rates = BaseRates.from_contract(predictor.checkpoint.manifest.contract, [TARGET])
    scale_spread = 0.0 if base_rates is None else base_rates.scale.get(TARGET, 0.0)
    fit = fit_scale(log_odds_before_labels[labelled], y[labelled], np.full(len(labelled), "model"), scales=scale_spread)
    scores = sigmoid(fit.weights[0] * log_odds_before_labels + fit.rates.mean)
    return fit, scores, match_share(scores[labelled], float(scores[labelled].mean()))


def score_by_agreement(series: Sequence[NDArray[np.float32]]) -> tuple[NDArray[np.float64], int]:
    """Returns the probability (n,) that the model says an answer again, and the number of questions that taught it.

    `series`: log-probabilities of each of the n answers, in nats.
    """
    runs = list(read_openai_lines(SAMPLED_ANSWERS))
    calls = {call.id: (run, call) for run in runs for call in run.calls}
    pairs = agreement_pairs(runs)
    rows_of_pairs, says_same = pairs.rows_among(list(calls))
    terms_schema = schema("full+terms")
    X = features(terms_schema, [np.asarray(call.logprobs, dtype=np.float32) for _, call in calls.values()])
    groups = np.array([run.item.group for run, _ in calls.values()])
    rows = LadderRows(
        X[rows_of_pairs], says_same, groups[rows_of_pairs], np.full(len(rows_of_pairs), "samples"), terms_schema.names
    )
    all_rows = np.arange(len(rows.y))
    ladder = fit_linear_step(
        DRAWN_TERMS, rows, WHOLE.of(rows.X), all_rows, WEIGHT_SD
    )  # a training calibrates it besides
    return sigmoid(ladder.score(features(terms_schema, list(series)))), pairs.questions
