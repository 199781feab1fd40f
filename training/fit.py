"""Fit on all groups and export: the quality predictor, a hidden-state probe. Held-out figures come from the folds."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from metaprobe.checkpoints import Checkpoint, Training
from metaprobe.eval.audits import AuditReport
from metaprobe.eval.compare import BEST_BASELINE, auroc_gain, method_results
from metaprobe.eval.metrics import Interval
from metaprobe.eval.report.model import Audit
from metaprobe.eval.table import AnswerTable
from metaprobe.probes import hidden as hidden_probe
from metaprobe.probes import quality
from metaprobe.records.errors import RecordError
from metaprobe.training.audit import audited
from metaprobe.training.calibrate import PARITY, Calibrator, choose_calibrator, fit_platt, sigmoid
from metaprobe.training.crossfit import CrossFit
from metaprobe.training.export import Export, write_checkpoint
from metaprobe.training.graphs import linear_graph, trees_graph
from metaprobe.training.guarantees import accept_threshold, flag_threshold
from metaprobe.training.methods import MEAN_LOGPROB, Evidence, FeatureTrees, HiddenProbe, LowRankProbe, Method, Scores
from metaprobe.training.roles import Rows, final_roles, group_folds
from metaprobe.training.trees import Trees, fit_trees

MISS_RATE = 0.1
"""Share of wrong answers that the stored flag threshold may let pass."""
ERROR, CONFIDENCE = 0.1, 0.9
"""Of the stored accept threshold: at most this share of the accepted is wrong, with this confidence."""
PROMISES = {
    "flag": (
        f" Below the threshold `flag` lie, in expectation, at least {1 - MISS_RATE:.0%} of the wrong answers "
        "(conformal risk control)."
    ),
    "accept": (
        f" Of the answers of at least `accept`, no more than {ERROR:.0%} are wrong, with a confidence of "
        f"{CONFIDENCE:.0%} (Learn then Test)."
    ),
}
ENOUGH_FOR_ECE = 1000
"""Held-out answers below which no calibration error is quoted."""


@dataclass(frozen=True, slots=True, eq=False)
class Head:
    """One target of the quality predictor: its answers, and what the folds said."""

    evidence: Evidence
    fits: CrossFit


def export_quality(path: str | Path, heads: Mapping[str, Head], *, seed: int, command: str) -> Checkpoint:
    """One calibrated LightGBM head a target, in one graph; flag threshold and region of support are the first one's."""
    fitted: dict[str, tuple[Trees, Calibrator]] = {}
    metrics: dict[str, Interval] = {}
    checks: list[Audit] = []
    not_made: list[str] = []
    thresholds: dict[str, float] = {}
    support: dict[str, Any] = {}
    for target, head in heads.items():
        table, X = head.evidence.table, head.evidence.features
        roles = final_roles(list(table.groups), table.y, seed=seed)
        trees = fit_trees(X, table.y, roles, names=head.evidence.feature_names, seed=seed)
        scores = trees.score(X)
        calibrator = _calibrator(scores, table, roles.calibration, seed)
        fitted[target] = (trees, calibrator)
        found, report = _held_out(head.evidence, head.fits, FeatureTrees(), seed)
        prefix = "" if len(heads) == 1 else f"{target}."
        metrics |= {f"{prefix}{name}": value for name, value in found.items()}
        checks += [replace(audit, name=f"{prefix}{audit.name}") for audit in report.audits]
        not_made += [f"{prefix}{skipped}" for skipped in report.skipped]
        if not support:
            support = quality.Support.fit(X[roles.train], X[roles.calibration]).to_manifest()
        if target in quality.MAIN_HEADS and not thresholds:
            thresholds = promised(scores, table, roles.calibration, calibrator, seed=seed)
    evidence = next(iter(heads.values())).evidence
    X = evidence.features
    targets = " and ".join(heads)
    return write_checkpoint(
        path,
        Export(
            kind=quality.KIND,
            title=f"Quality predictor: {targets}",
            summary=(
                f"Probability that an answer is {targets}, from {len(evidence.feature_names)} statistics of its token "
                "log-probabilities over windows (LightGBM, then a calibrator)."
                + "".join(PROMISES[name] for name in thresholds)
            ),
            graph=trees_graph(fitted, width=X.shape[1], input_name=quality.INPUT),
            input_name=quality.INPUT,
            inputs=X,
            expected={target: calibrator.probability(trees.score(X)) for target, (trees, calibrator) in fitted.items()},
            contract={"schema": evidence.schema, "features": list(evidence.feature_names), "targets": list(heads)},
            generator=evidence.generator,
            training=_training(evidence, seed, command),
            calibration=", ".join(dict.fromkeys(calibrator.name for _, calibrator in fitted.values())),
            metrics=metrics,
            audits=checks,
            not_audited=not_made,
            thresholds=thresholds,
            support=support,
            packages=("lightgbm", "onnxmltools", "onnx"),
        ),
    )


def export_hidden(
    path: str | Path,
    evidence: Evidence,
    fits: CrossFit,
    *,
    method: HiddenProbe | LowRankProbe,
    target: str,
    seed: int,
    command: str,
) -> Checkpoint:
    """The probe of that method for `target`, fitted on all groups, its calibrator in its graph."""
    states, table = evidence.states, evidence.table
    assert states is not None, "train_hidden has looked"
    roles = final_roles(list(table.groups), table.y, seed=seed)
    probe = method.probe(evidence, roles, seed=seed)
    hidden = probe.read(states)
    scores = probe.score_of(hidden)
    calibrator = _calibrator(scores, table, roles.calibration, seed)
    thresholds = promised(scores, table, roles.calibration, calibrator, seed=seed)
    metrics, report = _held_out(evidence, fits, method, seed)
    before = probe.position == "prompt_last"
    layers = ", ".join(map(str, probe.layers))
    return write_checkpoint(
        path,
        Export(
            kind=hidden_probe.KIND,
            title=f"{'Difficulty' if before else 'Confidence'} probe: {target}",
            summary=(
                f"Probability that the answer {'will be' if before else 'is'} {target}, from the hidden state of layer "
                f"{layers} at {probe.position} ({probe.kind}, then a calibrator; chosen among {probe.tried} "
                "combinations on learning rows). Layer 0 is the embeddings' output, layer i the output of block i. "
                "Difficulty is one minus that probability." + "".join(PROMISES[name] for name in thresholds)
            ),
            graph=linear_graph(
                input_name=hidden_probe.INPUT,
                mean=probe.mean,
                scale=probe.scale,
                weights=probe.weights[:, None],
                intercept=np.array([probe.intercept]),
                outputs=[target],
                calibrator=calibrator,
            ),
            input_name=hidden_probe.INPUT,
            inputs=hidden,
            expected={target: calibrator.probability(scores)},
            contract=probe.contract(target),
            generator=evidence.generator,
            training=_training(evidence, seed, command),
            calibration=calibrator.name,
            metrics=metrics,
            audits=report.audits,
            not_audited=report.skipped,
            thresholds=thresholds,
            packages=("onnx",),
        ),
    )


def promised(
    scores: Scores, table: AnswerTable, rows: Rows, calibrator: Calibrator, *, seed: int = 0
) -> dict[str, float]:
    """Thresholds on the calibrated probability that keep a promise, of `PROMISES`; those that cannot be are left out.

    Both come from calibration rows, one a group. `flag` does not depend on the map from scores to probabilities, as
    long as it rises. `accept` does: its grid must be fixed before its rows are seen, so that one half of the groups
    fits a calibrator, in whose probabilities the other half is tested.
    """
    found, groups, spread = {}, table.groups, float(scores.std()) or 1.0

    def at(raw: float) -> float:
        return float(calibrator.probability(np.array([raw]))[0])

    order = sigmoid((scores - scores.mean()) / spread)  # any fixed rising map into [0, 1]
    flag = flag_threshold(order[rows], table.y[rows], miss_rate=MISS_RATE, groups=groups[rows], seed=seed)
    if flag < 1:
        # A calibrator may be flat there: all that share the probability are flagged.
        found["flag"] = min(at(_log_odds(max(flag, 1e-9)) * spread + float(scores.mean())) + PARITY, 1.0)
    try:
        (fits, tests), *_ = group_folds(rows, groups.tolist(), table.y, 2, seed)
        platt = fit_platt(scores[fits], table.y[fits])
    except RecordError:
        return found  # too few groups for two halves
    accept = accept_threshold(
        platt.probability(scores[tests]),
        table.y[tests],
        error=ERROR,
        confidence=CONFIDENCE,
        groups=groups[tests],
        seed=seed,
    )
    if np.isfinite(accept) and platt.slope > 0:
        raw = (_log_odds(accept) - platt.intercept) / platt.slope
        # Where it is flat, answers just below the threshold share its probability, and none of them is accepted.
        found["accept"] = at(raw) if at(raw) > at(raw - 1e-3 * spread) else at(raw) + PARITY
    return found


def _log_odds(probability: float) -> float:
    return float(np.log(probability / (1 - probability)))


def _calibrator(scores: Scores, table: AnswerTable, rows: Rows, seed: int) -> Calibrator:
    return choose_calibrator(scores[rows], table.y[rows], table.groups[rows], seed=seed).calibrator


def _held_out(
    evidence: Evidence, fits: CrossFit, method: Method, seed: int
) -> tuple[Mapping[str, Interval], AuditReport]:
    """Figures and audits of one method from the folds."""
    judged = fits[method.name]
    [found, *_] = method_results(evidence.table, [judged, *(m for m in fits.methods if m.name == BEST_BASELINE)])
    metrics = {
        "auroc": found.auroc,
        "auprc": found.auprc,
        "brier_skill": found.brier_skill,
        "aurc": found.aurc,
    }
    if len(evidence.table) >= ENOUGH_FOR_ECE:
        metrics["ece_debiased"] = found.ece
    if found.diff_baseline is not None:
        metrics["auroc_gain_over_best_plain_baseline"] = found.diff_baseline
    # The baseline that needs no selecting, and that anybody would try first.
    metrics["auroc_gain_over_mean_log_probability"] = auroc_gain(evidence.table, judged, fits[MEAN_LOGPROB])
    return metrics, audited(evidence, fits, method, seed=seed)


def _training(evidence: Evidence, seed: int, command: str) -> Training:
    groups = len(set(evidence.table.groups.tolist()))
    return Training(evidence.fingerprint, len(evidence.table), groups, seed, command)
