"""Fit on all groups and export: the quality predictor, a hidden-state probe. Held-out figures come from the folds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from metaprobe.checkpoints import Checkpoint, Training
from metaprobe.eval.compare import BEST_BASELINE, audits, auroc_gain, method_results
from metaprobe.eval.metrics import Interval
from metaprobe.probes import hidden as hidden_probe
from metaprobe.probes import quality
from metaprobe.training.calibrate import Platt, fit_platt, flag_threshold
from metaprobe.training.crossfit import CrossFit
from metaprobe.training.export import Export, write_checkpoint
from metaprobe.training.graphs import linear_graph, trees_graph
from metaprobe.training.linear import fit_linear_probe
from metaprobe.training.methods import MEAN_LOGPROB, Evidence
from metaprobe.training.roles import final_roles
from metaprobe.training.trees import Trees, fit_trees

MISS_RATE = 0.1
"""Share of wrong answers that the stored flag threshold may let pass."""
FLAG_PROMISE = (
    f" Below the threshold `flag` lie, in expectation, at least {1 - MISS_RATE:.0%} of the wrong answers (conformal "
    "risk control)."
)
ENOUGH_FOR_ECE = 1000
"""Held-out answers below which no calibration error is quoted."""


@dataclass(frozen=True, slots=True, eq=False)
class Head:
    """One target of the quality predictor: its answers, and what the folds said."""

    evidence: Evidence
    fits: CrossFit


def export_quality(path: str | Path, heads: Mapping[str, Head], *, method: str, seed: int, command: str) -> Checkpoint:
    """One calibrated LightGBM head a target, in one graph; flag threshold and region of support are the first one's."""
    fitted: dict[str, tuple[Trees, Platt]] = {}
    metrics: dict[str, Interval] = {}
    checks: list[tuple[str, bool, str]] = []
    thresholds: dict[str, float] = {}
    support: dict[str, Any] = {}
    for target, head in heads.items():
        table, X = head.evidence.table, head.evidence.features
        roles = final_roles(list(table.groups), table.y, seed=seed)
        trees = fit_trees(X, table.y, roles, names=head.evidence.feature_names, seed=seed)
        platt = fit_platt(trees.score(X[roles.calibration]), table.y[roles.calibration])
        fitted[target] = (trees, platt)
        found, audited = _held_out(head.evidence, head.fits, method)
        prefix = "" if len(heads) == 1 else f"{target}."
        metrics |= {f"{prefix}{name}": value for name, value in found.items()}
        checks += [(f"{prefix}{name}", passed, detail) for name, passed, detail in audited]
        if not support:
            support = quality.Support.fit(X[roles.train], X[roles.calibration]).to_manifest()
        if target in quality.MAIN_HEADS and not thresholds:
            calibrated = platt.probability(trees.score(X[roles.calibration]))
            flag = flag_threshold(calibrated, table.y[roles.calibration], miss_rate=MISS_RATE)
            if np.isfinite(flag):  # else there are too few wrong answers to promise anything
                thresholds["flag"] = flag
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
                "log-probabilities over windows (LightGBM, then Platt scaling)." + (FLAG_PROMISE if thresholds else "")
            ),
            graph=trees_graph(fitted, width=X.shape[1], input_name=quality.INPUT),
            input_name=quality.INPUT,
            inputs=X,
            expected={target: platt.probability(trees.score(X)) for target, (trees, platt) in fitted.items()},
            contract={"schema": evidence.schema, "features": list(evidence.feature_names), "targets": list(heads)},
            generator=evidence.generator,
            training=_training(evidence, seed, command),
            calibration="platt",
            metrics=metrics,
            audits=checks,
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
    method: str,
    positions: Sequence[str],
    target: str,
    seed: int,
    command: str,
) -> Checkpoint:
    """A linear probe for `target` at the best of these positions, scaler and calibrator in its graph."""
    activations, table = evidence.activations, evidence.table
    assert activations is not None, "train_hidden has looked"
    roles = final_roles(list(table.groups), table.y, seed=seed)
    probe = fit_linear_probe(activations, table.y, table.groups.tolist(), roles, positions=positions, seed=seed)
    layer, position = activations.layers.index(probe.layer), activations.positions.index(probe.position)
    hidden = np.ascontiguousarray(activations.values[:, layer, position], dtype=np.float32)
    platt = fit_platt(probe.score(hidden[roles.calibration]), table.y[roles.calibration])
    metrics, checks = _held_out(evidence, fits, method)
    before = probe.position == "prompt_last"
    return write_checkpoint(
        path,
        Export(
            kind=hidden_probe.KIND,
            title=f"{'Difficulty' if before else 'Confidence'} probe: {target}",
            summary=(
                f"Probability that the answer {'will be' if before else 'is'} {target}, from the hidden state of layer "
                f"{probe.layer} at {probe.position} (linear, then Platt scaling). Layer 0 is the embeddings' output, "
                f"layer i the output of block i. Difficulty is one minus that probability."
            ),
            graph=linear_graph(
                input_name=hidden_probe.INPUT,
                mean=probe.mean,
                scale=probe.scale,
                weights=(probe.weights * platt.slope)[:, None],
                intercept=np.array([probe.intercept * platt.slope + platt.intercept]),
                outputs=[target],
            ),
            input_name=hidden_probe.INPUT,
            inputs=hidden,
            expected={target: platt.probability(probe.score(hidden))},
            contract={
                "layer": probe.layer,
                "position": probe.position,
                "width": hidden.shape[1],
                "convention": "layer 0 = embeddings output, layer i = output of block i",
                "target": target,
            },
            generator=evidence.generator,
            training=_training(evidence, seed, command),
            calibration="platt",
            metrics=metrics,
            audits=checks,
            packages=("onnx",),
        ),
    )


def _held_out(
    evidence: Evidence, fits: CrossFit, name: str
) -> tuple[Mapping[str, Interval], list[tuple[str, bool, str]]]:
    """Figures and audits of one method from the folds."""
    method = fits[name]
    [found, *_] = method_results(evidence.table, [method, *(m for m in fits.methods if m.name == BEST_BASELINE)])
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
    metrics["auroc_gain_over_mean_log_probability"] = auroc_gain(evidence.table, method, fits[MEAN_LOGPROB])
    return metrics, [(a.name, a.passed, a.detail) for a in audits(evidence.table, [found], fits.methods)]


def _training(evidence: Evidence, seed: int, command: str) -> Training:
    groups = len(set(evidence.table.groups.tolist()))
    return Training(evidence.fingerprint, len(evidence.table), groups, seed, command)
