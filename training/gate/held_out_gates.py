"""What gates say of answers they have not seen, in outer folds by group, and the audits of that."""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from metaprobe.eval.audits.run_audits import AuditInputs, AuditReport, run_audits
from metaprobe.eval.gate_performance import HeldOutLooks, first_below
from metaprobe.probes.features import COUNTS
from metaprobe.records.errors import RecordError
from metaprobe.training.common.calibrate import choose_calibrator
from metaprobe.training.common.roles import Roles, Rows, outer_folds
from metaprobe.training.crossfit.methods import USUAL_LADDER, Evidence, Scores, calibrators_of
from metaprobe.training.gate.fit import fit_gate
from metaprobe.training.gate.look_models import Features

AUDIT_FOLDS = 2
"""Outer folds of the refits on shuffled labels: their scores need be held out, not good."""
NAME = "streaming gate"

OnStep = Callable[[str], None]


def judge_held_out(
    evidence: Evidence,
    X: Features,
    *,
    alphas: Sequence[float],
    folds: int = 5,
    seed: int = 0,
    on_step: OnStep = lambda what: None,
) -> tuple[HeldOutLooks, list[Roles]]:
    """What gates of outer folds, by group, say of answers they have not seen, and when they fire; and the folds.

    A rate that some fold's calibration groups do not allow is left out.
    """
    table = evidence.table
    n = len(table)
    probability, full = np.full((n, len(COUNTS)), np.nan), np.full(n, np.nan)
    fired: dict[float, NDArray[np.int64]] = {alpha: np.zeros(n, np.int64) for alpha in alphas}
    splits = list(outer_folds(table.groups.tolist(), table.y, folds=folds, seed=seed))
    for number, roles in enumerate(splits):
        on_step(f"fold {number + 1} of {folds}")
        test, rows = roles.test, roles.calibration
        gate = fit_gate(X, table, roles, alphas=alphas, seed=seed)
        probability[test] = gate.probability(X[test], table.tokens[test])
        for alpha in [*fired]:
            if alpha not in gate.thresholds:
                del fired[alpha]
                continue
            below = np.array([gate.thresholds[alpha].get(look, 0.0) for look in COUNTS])
            fired[alpha][test] = first_below(probability[test], below, COUNTS)
        scores = USUAL_LADDER.fit(evidence, roles, seed=seed).score(np.arange(n))
        candidates = calibrators_of(USUAL_LADDER)
        calibrator = choose_calibrator(
            scores[rows], table.y[rows], table.groups[rows], candidates=candidates, seed=seed
        ).calibrator
        full[test] = calibrator.probability(scores[test])
    return HeldOutLooks(table, COUNTS, probability, full, fired), splits


def audit_gate(
    evidence: Evidence, X: Features, held_out: HeldOutLooks, splits: Sequence[Roles], *, seed: int
) -> AuditReport:
    """The audits of the last judgement that each answer got."""
    table = evidence.table

    def refitted(y: NDArray[np.int64]) -> Scores:
        relabelled = dataclasses.replace(table, y=y)
        probability = np.full((len(y), len(COUNTS)), np.nan)
        for roles in outer_folds(table.groups.tolist(), y, folds=AUDIT_FOLDS, seed=seed):
            gate = fit_gate(X, relabelled, roles, seed=seed)
            probability[roles.test] = gate.probability(X[roles.test], table.tokens[roles.test])
        return _last(probability)

    inputs = AuditInputs(
        name=NAME,
        table=dataclasses.replace(table, logprobs=_judge(table.logprobs)),
        score=_last(held_out.probability),
        splits=[_by_role(roles) for roles in splits],
        refit_labels=refitted,
        labels=evidence.labels_by_source,
    )
    try:
        return run_audits(inputs, seed=seed)
    except RecordError as error:
        report = run_audits(dataclasses.replace(inputs, refit_labels=None), seed=seed)
        return dataclasses.replace(report, skipped=(*report.skipped, f"refits: {error}"))


def _judge(logprobs: NDArray[np.object_]) -> NDArray[np.object_]:
    """What the gate has seen of each answer at its last look, so that no control knows more of it than the gate."""
    seen = np.empty(len(logprobs), dtype=object)
    seen[:] = [
        values[: max((look for look in COUNTS if look <= len(values)), default=len(values))] for values in logprobs
    ]
    return seen


def _last(probability: Scores) -> Scores:
    """The last judgement of each answer (n,); of those that ended before the first, the middle of all."""
    last = np.full(len(probability), np.nan)
    for column in probability.T:
        last = np.where(np.isnan(column), last, column)
    return np.where(np.isnan(last), np.nanmedian(last), last)


def _by_role(roles: Roles) -> dict[str, Rows]:
    return {field.name: getattr(roles, field.name) for field in dataclasses.fields(roles)}
