"""The audits of one method of a cross-fit: what `eval/audits` needs, gathered from evidence and folds."""

import dataclasses
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from metaprobe.eval.audits.domains import Elsewhere, judge_left_out
from metaprobe.eval.audits.run_audits import AuditInputs, AuditReport, run_audits
from metaprobe.eval.audits.simpler_predictors import IDENTITY, SCALED_TOTAL
from metaprobe.records.activations import Activations
from metaprobe.records.errors import RecordError
from metaprobe.training.common.calibrate import choose_calibrator, fit_platt
from metaprobe.training.common.roles import Roles, outer_folds, roles_without
from metaprobe.training.crossfit.folds import CrossFit
from metaprobe.training.crossfit.methods import (
    Evidence,
    FeatureTrees,
    HiddenProbeMethod,
    LogprobLadder,
    LowRankProbe,
    Method,
    Scores,
    calibrators_of,
)
from metaprobe.training.crossfit.terms_control import TERMS_CONTROL, score_by_terms
from metaprobe.training.linear.states import InMemory

CONTROLS = ("prompt TF-IDF", IDENTITY, "dimension x level table")
"""Methods of the cross-fit that explain a number more simply. What needs no fit, such as lengths and the mean
log-probability, is added by the audits."""
REFIT_FOLDS = 2
"""Outer folds of the refits on shuffled labels and on noise: their scores need be held out, not good."""


def audit_method(
    evidence: Evidence,
    fits: CrossFit,
    method: Method,
    *,
    refits: bool = True,
    elsewhere: Elsewhere | None = None,
    seed: int = 0,
) -> AuditReport:
    """Every audit of this method that can be made; `refits=False` leaves out those that fit it anew.

    `elsewhere`: what `out_of_domain` found. Where the answers are too few for refits in two folds, these audits are
    named as not made, with the reason.
    """
    if refits:
        try:
            return _audit(evidence, fits, method, elsewhere, refits=True, seed=seed)
        except RecordError as error:
            report = _audit(evidence, fits, method, elsewhere, refits=False, seed=seed)
            return dataclasses.replace(report, skipped=(*report.skipped, f"refits: {error}"))
    return _audit(evidence, fits, method, elsewhere, refits=False, seed=seed)


def out_of_domain(evidence: Evidence, method: Method, *, seed: int = 0) -> Elsewhere | None:
    """What the recipe reaches on each task, or of one task on each dimension, when it is fitted without it.

    None where there are not two, where what is left does not suffice for a fit, or without log-probabilities, which
    the numbers are compared with.
    """
    table = evidence.table
    if not table.measured:
        return None

    def fit(rows: NDArray[np.int64]) -> tuple[Scores, Scores]:
        roles = roles_without(rows, table.groups.tolist(), table.y, seed=seed)
        scores = method.fit(evidence, roles, seed=seed).score(np.arange(len(table)))
        at = roles.calibration
        found = choose_calibrator(
            scores[at], table.y[at], table.groups[at], candidates=calibrators_of(method), seed=seed
        )
        return scores[rows], found.calibrator.probability(scores[rows])

    try:
        mean = np.array([values.mean() for values in table.logprobs])
        return judge_left_out(table, fit, mean, seed=seed)
    except RecordError:
        return None


def _audit(
    evidence: Evidence, fits: CrossFit, method: Method, elsewhere: Elsewhere | None, *, refits: bool, seed: int
) -> AuditReport:
    judged = fits[method.name]
    shape = _noise_shape(evidence, method)
    return run_audits(
        AuditInputs(
            name=method.name,
            table=evidence.table,
            score=judged.ranking,
            splits=[_split(roles) for roles in fits.roles],
            controls=_find_controls(evidence, fits, method),
            own=(SCALED_TOTAL,) if _for_strangers(method) else (),
            refit_labels=_refit_labels(evidence, method) if refits else None,
            refit_features=_refit_noise(evidence, method) if refits and shape else None,
            features_shape=shape if refits else None,
            labels=evidence.labels_by_source,
            elsewhere=elsewhere,
            selection_auroc=(
                np.array([[point.auroc for point in probe.sweep] for probe in fits.probes[method.name]])
                if method.name in fits.probes
                else None
            ),
        ),
        seed=seed,
    )


def _find_controls(evidence: Evidence, fits: CrossFit, method: Method) -> dict[str, Scores]:
    """Returns what explains the numbers more simply, by held-out scores of the same folds.

    Nothing for a predictor of runs that nobody has seen: these controls know the runs or the questions, which it is
    made to do without.
    """
    if _for_strangers(method):
        return {}
    known = {found.name for found in fits.methods}
    controls = {name: fits[name].ranking for name in CONTROLS if name in known}
    terms = None if isinstance(method, LogprobLadder) else score_by_terms(evidence, fits.roles)
    return controls if terms is None else {**controls, TERMS_CONTROL: terms}


def _for_strangers(method: Method) -> bool:
    return isinstance(method, LogprobLadder) and method.new_tasks


def _split(roles: Roles) -> dict[str, NDArray[np.int64]]:
    return {field.name: getattr(roles, field.name) for field in dataclasses.fields(roles)}


def _refit_labels(evidence: Evidence, method: Method) -> Callable[[NDArray[np.int64]], Scores]:
    return lambda y: _refit(dataclasses.replace(evidence, table=dataclasses.replace(evidence.table, y=y)), method)


def _refit_noise(evidence: Evidence, method: Method) -> Callable[[NDArray[np.float32]], Scores]:
    def refitted(noise: NDArray[np.float32]) -> Scores:
        if isinstance(method, FeatureTrees | LogprobLadder):
            # Whose run an answer is of is no feature: with one run for all, base rates cannot stand in for noise.
            nothing = np.full(len(noise), "")
            table = dataclasses.replace(evidence.table, models=nothing, tasks=nothing, variants=nothing)
            return _refit(dataclasses.replace(evidence, features=noise, table=table), method)
        assert isinstance(method, HiddenProbeMethod | LowRankProbe)
        ids, position = tuple(evidence.table.call_ids.tolist()), method.positions[:1]
        states = InMemory(Activations(ids, noise[:, None, None].astype(np.float16), (0,), position))
        return _refit(dataclasses.replace(evidence, states=states), dataclasses.replace(method, positions=position))

    return refitted


def _noise_shape(evidence: Evidence, method: Method) -> tuple[int, ...] | None:
    """What stands for the features: all of them, or one layer's states at one position."""
    if isinstance(method, FeatureTrees | LogprobLadder):
        return evidence.features.shape
    if isinstance(method, HiddenProbeMethod | LowRankProbe) and evidence.states is not None:
        return evidence.states.read(evidence.states.layers[0], method.positions[0]).shape
    return None


def _refit(evidence: Evidence, method: Method) -> Scores:
    """Held-out log-odds (n,) of the recipe in `REFIT_FOLDS` folds."""
    table = evidence.table
    scores = np.full(len(table), np.nan)
    for roles in outer_folds(table.groups.tolist(), table.y, folds=REFIT_FOLDS):
        found = method.fit(evidence, roles, seed=0).score(np.arange(len(table)))
        rows = roles.calibration
        scores[roles.test] = fit_platt(found[rows], table.y[rows]).logit(found)[roles.test]
    return scores
