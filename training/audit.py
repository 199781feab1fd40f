"""The audits of one method of a cross-fit: what `eval/audits` needs, gathered from evidence and folds."""

import dataclasses
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from metaprobe.eval.audits import AuditInputs, AuditReport, Elsewhere, judge_left_out, run_audits
from metaprobe.eval.compare import Judged, auroc_gain, control_names, method_results
from metaprobe.eval.metrics.bootstrap import Interval, cluster_weights, interval, paired_difference
from metaprobe.eval.metrics.calibration import debiased_ece
from metaprobe.eval.metrics.discrimination import auroc
from metaprobe.eval.metrics.stratified import StratifiedAuroc
from metaprobe.eval.table import AnswerTable
from metaprobe.records.activations import Activations
from metaprobe.records.errors import RecordError
from metaprobe.training.calibration import calibrator_on, fit_platt
from metaprobe.training.controls import RUN_IDENTITY
from metaprobe.training.evidence import Evidence, Scores, runs_of
from metaprobe.training.folds import outer_folds, roles_without
from metaprobe.training.methods import (
    MEAN_LOGPROB,
    FeatureTrees,
    HiddenProbeMethod,
    LogprobLadder,
    Method,
    calibrators_of,
)
from metaprobe.training.states import InMemory
from metaprobe.training.study import CrossFit

REFIT_FOLDS = 2
"""Outer folds of the refits on shuffled labels and on noise: their scores need be held out, not good."""


def audit_method(
    evidence: Evidence,
    fits: CrossFit,
    method: Method | Judged,
    *,
    elsewhere: Elsewhere | None = None,
    seed: int = 0,
) -> AuditReport:
    """Every audit of this method that can be made; those that fit it anew are for a `Method`.

    It is held against every control of the folds but those `apart`. `elsewhere`: what `out_of_domain` found. Where the
    answers are too few for refits in two folds, these audits are named as not made, with the reason.
    """
    judged, recipe = fits[method.name], None if isinstance(method, Judged) else method
    shape = None if recipe is None else _noise_shape(evidence, recipe)
    controls = {*control_names(fits.methods), *judged.beside} - {judged.name, judged.itself, *judged.apart}
    sweeps = fits.probes.get(method.name)
    inputs = AuditInputs(
        name=method.name,
        table=evidence.table,
        score=judged.ranking,
        splits=[roles.parts for roles in fits.roles],
        controls={each.name: each.ranking for each in fits.methods if each.name in controls},
        itself=judged.itself,
        refit_labels=None if recipe is None else _refit_labels(evidence, recipe),
        refit_features=None if recipe is None or shape is None else _refit_noise(evidence, recipe),
        features_shape=shape,
        labels=evidence.labels_by_source,
        elsewhere=elsewhere,
        selection_auroc=(
            None if sweeps is None else np.array([[point.auroc for point in probe.sweep] for probe in sweeps])
        ),
    )
    return made_audits(inputs, seed=seed)


def made_audits(inputs: AuditInputs, *, seed: int = 0) -> AuditReport:
    """Runs the audits; where the answers are too few for refits, those are named as not made, with the reason."""
    try:
        return run_audits(inputs, seed=seed)
    except RecordError as error:
        if inputs.refit_labels is None:
            raise
        without = dataclasses.replace(inputs, refit_labels=None, refit_features=None, features_shape=None)
        report = run_audits(without, seed=seed)
        return dataclasses.replace(report, skipped=(*report.skipped, f"refits: {error}"))


def out_of_domain(evidence: Evidence, method: Method, *, seed: int = 0) -> Elsewhere | None:
    """Returns what the recipe reaches on each task, or for one task on each dimension, when it is fitted without it.

    None where there are not two, where what is left does not suffice for a fit, or without log-probabilities, which
    the numbers are compared with.
    """
    table = evidence.table
    if not table.measured:
        return None

    def fit(rows: NDArray[np.int64]) -> tuple[Scores, Scores]:
        roles = roles_without(rows, table.groups.tolist(), table.y, seed=seed)
        scores = method.fit(evidence, roles, seed=seed).score(np.arange(len(table)))
        calibrator = calibrator_on(roles.calibration, scores, table, seed, calibrators_of(method))
        return scores[rows], calibrator.probability(scores[rows])

    try:
        mean = np.array([values.mean() for values in table.logprobs])
        return judge_left_out(table, fit, mean, seed=seed)
    except RecordError:
        return None


def _refit_labels(evidence: Evidence, method: Method) -> Callable[[NDArray[np.int64]], Scores]:
    return lambda y: _refit(dataclasses.replace(evidence, table=dataclasses.replace(evidence.table, y=y)), method)


def _refit_noise(evidence: Evidence, method: Method) -> Callable[[NDArray[np.float32]], Scores]:
    def refitted(noise: NDArray[np.float32]) -> Scores:
        if isinstance(method, FeatureTrees | LogprobLadder):
            # The run of an answer is no feature: with one run for all, base rates cannot stand in for noise.
            nothing = np.full(len(noise), "")
            table = dataclasses.replace(evidence.table, models=nothing, tasks=nothing, variants=nothing)
            return _refit(dataclasses.replace(evidence, features=noise, table=table), method)
        assert isinstance(method, HiddenProbeMethod)
        ids, position = tuple(evidence.table.call_ids.tolist()), method.positions[:1]
        states = InMemory(Activations(ids, noise[:, None, None].astype(np.float16), (0,), position))
        return _refit(dataclasses.replace(evidence, states=states), dataclasses.replace(method, positions=position))

    return refitted


def _noise_shape(evidence: Evidence, method: Method) -> tuple[int, ...] | None:
    """Returns the shape of the noise that replaces the features: all of them, or one layer's states at one position."""
    if isinstance(method, FeatureTrees | LogprobLadder):
        return evidence.features.shape
    if isinstance(method, HiddenProbeMethod) and evidence.states is not None:
        return evidence.states.read(evidence.states.layers[0], method.positions[0]).shape
    return None


def _refit(evidence: Evidence, method: Method) -> Scores:
    """Held-out log-odds (n,) of the recipe in `REFIT_FOLDS` folds."""
    table = evidence.table
    scores = np.full(len(table), np.nan)
    for roles in outer_folds(table.groups.tolist(), table.y, folds=REFIT_FOLDS):
        every = method.fit(evidence, roles, seed=0).score(np.arange(len(table)))
        rows = roles.calibration
        scores[roles.test] = fit_platt(every[rows], table.y[rows]).logit(every)[roles.test]
    return scores


# Figures held out, as checkpoints and cards give them

ENOUGH_FOR_ECE = 1000
"""Held-out answers below which no calibration error is quoted."""


def measure_held_out(
    evidence: Evidence, fits: CrossFit, method: Method, seed: int
) -> tuple[dict[str, Interval], AuditReport]:
    """Returns figures and audits of one method from the folds."""
    table, judged = evidence.table, fits[method.name]
    # The mean needs no selecting, and anybody would try it first.
    metrics = figures_of(table, judged, fits[MEAN_LOGPROB] if table.measured else None)
    if "ece" in metrics:
        weights = cluster_weights(table.groups.tolist(), seed=seed)
        metrics["ece_debiased"] = debiased_ece(table.y, judged.probability, weights)
    elsewhere = out_of_domain(evidence, method, seed=seed)
    if elsewhere is not None:
        metrics |= {f"auroc_without_{elsewhere.by}.{name}": value for name, value in elsewhere.auroc.items()}
        metrics[f"auroc_without_{elsewhere.by}"] = elsewhere.mean
        metrics[f"auroc_gain_over_mean_log_probability_without_{elsewhere.by}"] = elsewhere.gain
        if elsewhere.ece is not None:
            metrics[f"ece_without_{elsewhere.by}"] = elsewhere.ece
    report = audit_method(evidence, fits, method, elsewhere=elsewhere, seed=seed)
    if report.controls is not None:
        metrics["auroc_gain_over_strongest_control"] = report.controls.strongest.difference
    inside = within_runs(table, fits, judged, seed=seed)
    if report.controls_within is not None:
        inside["auroc_within_runs_gain_over_strongest_control"] = report.controls_within.strongest.difference
    return inside | metrics, report


def within_runs(table: AnswerTable, fits: CrossFit, judged: Judged, *, seed: int = 0) -> dict[str, Interval]:
    """Returns the AUROC over pairs of answers of one run only, and that of knowing nothing but the run.

    A run is a model, a task and a way of asking. Empty where there is one run, or where its identity was not fitted.
    """
    if not RUN_IDENTITY.varies(table) or RUN_IDENTITY.name not in {one.name for one in fits.methods}:
        return {}
    within, weights = StratifiedAuroc(runs_of(table)), cluster_weights(table.groups.tolist(), seed=seed)
    known, mean = fits[RUN_IDENTITY.name].ranking, fits[MEAN_LOGPROB].ranking if table.measured else None
    return {
        **figures_within(within, table.y, judged.ranking, mean, weights),
        "auroc_of_run_identity": interval(auroc, table.y, known, weights),
    }


def figures_of(table: AnswerTable, judged: Judged, mean: Judged | None) -> dict[str, Interval]:
    """Returns what a method's held-out scores are worth, also beside the mean log-probability where that is given."""
    [result] = method_results(table, [judged])
    metrics = {name: getattr(result, name) for name in ("auroc", "auprc", "brier_skill", "aurc")}
    if len(table) >= ENOUGH_FOR_ECE:
        metrics["ece"] = result.ece
    if mean is not None:
        metrics["auroc_gain_over_mean_log_probability"] = auroc_gain(table, judged, mean)
    return metrics


def figures_within(
    within: StratifiedAuroc, y: NDArray[np.int64], ranking: Scores, mean: Scores | None, weights: NDArray[np.int32]
) -> dict[str, Interval]:
    """Returns the AUROC within runs and its gain over the mean log-probability, where there is one.

    Both are left out where they cannot be computed, because no run has right and wrong answers.
    """
    figures = {"auroc_within_runs": interval(within, y, ranking, weights)}
    if mean is not None:
        over_mean = paired_difference(within, y, ranking, mean, weights)
        figures["auroc_within_runs_gain_over_mean_log_probability"] = over_mean
    return {name: figure for name, figure in figures.items() if np.isfinite(figure.estimate)}
