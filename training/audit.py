"""The audits of one method of a cross-fit: what `eval/audits` needs, gathered from evidence and folds."""

import dataclasses
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from metaprobe.eval.audits import AuditInputs, AuditReport, run_audits
from metaprobe.records.activations import Activations
from metaprobe.records.errors import RecordError
from metaprobe.training.calibrate import fit_platt
from metaprobe.training.crossfit import CrossFit
from metaprobe.training.methods import (
    Evidence,
    FeatureTrees,
    HiddenProbe,
    LowRankProbe,
    Method,
    Scores,
)
from metaprobe.training.roles import Roles, outer_folds
from metaprobe.training.states import InMemory

CONTROLS = ("cut by max_tokens", "prompt TF-IDF", "run identity", "dimension x level table")
"""Methods of the cross-fit that explain a figure more simply. Lengths are added by the audits."""
REFIT_FOLDS = 2
"""Outer folds of the refits on shuffled labels and on noise: their scores need be held out, not good."""


def audited(evidence: Evidence, fits: CrossFit, method: Method, *, refits: bool = True, seed: int = 0) -> AuditReport:
    """Every audit of this method that can be made; `refits=False` leaves out those that fit it anew.

    Where the answers are too few for refits in two folds, these audits are named as not made, with the reason.
    """
    if refits:
        try:
            return _audited(evidence, fits, method, refits=True, seed=seed)
        except RecordError as error:
            report = _audited(evidence, fits, method, refits=False, seed=seed)
            return dataclasses.replace(report, skipped=(*report.skipped, f"refits: {error}"))
    return _audited(evidence, fits, method, refits=False, seed=seed)


def _audited(evidence: Evidence, fits: CrossFit, method: Method, *, refits: bool, seed: int) -> AuditReport:
    judged = fits[method.name]
    known = {found.name for found in fits.methods}
    shape = _noise_shape(evidence, method)
    return run_audits(
        AuditInputs(
            name=method.name,
            table=evidence.table,
            score=judged.ranking,
            splits=[_split(roles) for roles in fits.roles],
            controls={name: fits[name].ranking for name in CONTROLS if name in known},
            refit_labels=_labels_refitted(evidence, method) if refits else None,
            refit_features=_noise_refitted(evidence, method) if refits and shape else None,
            features_shape=shape if refits else None,
            labels=evidence.labels_by_source,
            selection_auroc=(
                np.array([[point.auroc for point in probe.sweep] for probe in fits.probes[method.name]])
                if method.name in fits.probes
                else None
            ),
        ),
        seed=seed,
    )


def _split(roles: Roles) -> dict[str, NDArray[np.int64]]:
    return {field.name: getattr(roles, field.name) for field in dataclasses.fields(roles)}


def _labels_refitted(evidence: Evidence, method: Method) -> Callable[[NDArray[np.int64]], Scores]:
    return lambda y: _refitted(dataclasses.replace(evidence, table=dataclasses.replace(evidence.table, y=y)), method)


def _noise_refitted(evidence: Evidence, method: Method) -> Callable[[NDArray[np.float32]], Scores]:
    def refitted(noise: NDArray[np.float32]) -> Scores:
        if isinstance(method, FeatureTrees):
            return _refitted(dataclasses.replace(evidence, features=noise), method)
        assert isinstance(method, HiddenProbe | LowRankProbe)
        ids, position = tuple(evidence.table.call_ids.tolist()), method.positions[:1]
        states = InMemory(Activations(ids, noise[:, None, None].astype(np.float16), (0,), position))
        return _refitted(dataclasses.replace(evidence, states=states), dataclasses.replace(method, positions=position))

    return refitted


def _noise_shape(evidence: Evidence, method: Method) -> tuple[int, ...] | None:
    """What stands for the features: all of them, or one layer's states at one position."""
    if isinstance(method, FeatureTrees):
        return evidence.features.shape
    if isinstance(method, HiddenProbe | LowRankProbe) and evidence.states is not None:
        return evidence.states.read(evidence.states.layers[0], method.positions[0]).shape
    return None


def _refitted(evidence: Evidence, method: Method) -> Scores:
    """Held-out log-odds (n,) of the recipe in `REFIT_FOLDS` folds."""
    table = evidence.table
    scores = np.full(len(table), np.nan)
    for roles in outer_folds(table.groups.tolist(), table.y, folds=REFIT_FOLDS):
        found = method.fit(evidence, roles, seed=0).score(np.arange(len(table)))
        rows = roles.calibration
        scores[roles.test] = fit_platt(found[rows], table.y[rows]).logit(found)[roles.test]
    return scores
