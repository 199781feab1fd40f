"""A study: evidence, methods, and what the folds say of them. All training and comparing begins with one.

Every method is fitted and calibrated in the same outer folds by group, so that each answer is judged by a model that
saw no answer of its group. A recipe of `metaprobe.training.recipes` then fits on all groups and writes a checkpoint,
whose figures are those of the folds.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from metaprobe.eval.compare import BEST_BASELINE, Judged
from metaprobe.eval.controls import REVERSED
from metaprobe.eval.results import CONTROL_FAMILIES, Family
from metaprobe.eval.table import usable_groups
from metaprobe.probes.decisions import MADE
from metaprobe.records.extras import require
from metaprobe.training.calibration import calibrator_on, sigmoid
from metaprobe.training.controls import control_methods, controls_apart
from metaprobe.training.evidence import Evidence, Scores, invert, load_evidence
from metaprobe.training.folds import Roles, outer_folds, with_fewer
from metaprobe.training.heads import INVERTED
from metaprobe.training.linear import LinearProbe
from metaprobe.training.methods import (
    AFTER,
    BEFORE,
    BLEND,
    LADDER,
    MEAN_LOGPROB,
    USUAL_LADDER,
    GivenScore,
    HiddenProbeMethod,
    LearnedDecisions,
    LogprobLadder,
    Method,
    calibrators_of,
)
from metaprobe.training.options import OnStep, quiet

BLEND_PRIOR = 20.0
"""Answers' worth of the belief that all parts of a blend weigh the same."""
BLENDED = (MEAN_LOGPROB, LADDER, BEFORE, AFTER)
"""Methods that the blend joins: one signal of each kind. Fixed beforehand, not chosen."""


OwnMethods = Callable[[Evidence, Sequence[str]], Sequence[Method]]


def no_methods(evidence: Evidence, names: Sequence[str]) -> Sequence[Method]:
    """Returns nothing."""
    return ()


@dataclass(frozen=True, slots=True, eq=False)
class CrossFit:
    """All methods on the same folds."""

    methods: tuple[Judged, ...]
    best_baseline: tuple[str, ...]
    """The control that each fold chose on its selection rows."""
    roles: tuple[Roles, ...]
    """Roles of each fold."""
    probes: Mapping[str, tuple[LinearProbe, ...]]
    """Name of each method on hidden states -> its probe of every fold."""

    def __getitem__(self, name: str) -> Judged:
        return next(method for method in self.methods if method.name == name)


def standard_methods(evidence: Evidence, *, ladder: LogprobLadder = USUAL_LADDER) -> list[Method]:
    """Returns the methods of the comparison, in its order.

    There are probes only where hidden states were captured. What was never stated has no number.
    """
    methods = [*decision_methods(evidence), *control_methods(evidence), *([ladder] if evidence.table.measured else [])]
    positions = () if evidence.states is None else evidence.states.positions
    answer = tuple(position for position in positions if position != "prompt_last")
    for name, read in ((BEFORE, ("prompt_last",) if "prompt_last" in positions else ()), (AFTER, answer)):
        if read:
            methods.append(HiddenProbeMethod(name, read))
    return methods


def decision_methods(evidence: Evidence) -> list[Method]:
    """Returns each question's number as a score, and what is learned of all of them; nothing without decisions."""
    if evidence.decisions is None:
        return []
    columns = zip(evidence.decision_names, evidence.decisions.T, strict=True)
    asked = [(name, column) for name, column in columns if "=" not in name and not name.endswith(MADE)]
    known = [(name, column) for name, column in asked if np.isfinite(column).any()]
    given = [GivenScore(f"decision {name}", "decision", lambda _, held=column: held) for name, column in known]
    return [*given, LearnedDecisions()]


@dataclass(frozen=True, slots=True, eq=False)
class Study:
    """Evidence, methods, and what the folds say of them."""

    evidence: Evidence
    methods: tuple[Method, ...]
    fits: CrossFit
    seed: int
    target: str = "correct"
    """The label that was studied."""
    stores: tuple[Path, ...] = ()
    """Where the runs are, for what a comparison says of them; empty where they are not in stores."""

    @property
    def ladder(self) -> LogprobLadder:
        """The recipe of the quality predictor."""
        return next(method for method in self.methods if isinstance(method, LogprobLadder))


def study(
    stores: Sequence[str | Path],
    *,
    target: str = "correct",
    stage: str | None = None,
    agent: str | None = None,
    folds: int = 5,
    seed: int = 0,
    hidden: bool = True,
    own: OwnMethods = no_methods,
    bare: bool = False,
    on_step: OnStep = quiet,
) -> Study:
    """Makes a study of the labelled answers of these stores, by every standard method.

    `own` gives further methods for the evidence and the names of the standard ones. `hidden=False` leaves out the
    probes. With `bare` answers without log-probabilities will do, where none has any. Of a
    label whose 1 is the bad one, `critical`, the opposite is studied, so that everywhere higher scores are better
    answers.
    """
    evidence = load_evidence(stores, target=target, stage=stage, agent=agent, hidden=hidden, bare=bare)
    if target in INVERTED:
        evidence = invert(evidence)
    made = study_of(evidence, folds=folds, seed=seed, own=own, on_step=on_step)
    return replace(made, target=target, stores=tuple(Path(store) for store in stores))


def study_of(
    evidence: Evidence,
    *,
    folds: int = 5,
    seed: int = 0,
    ladder: LogprobLadder = USUAL_LADDER,
    own: OwnMethods = no_methods,
    on_step: OnStep = quiet,
) -> Study:
    """Makes a study of evidence that is loaded."""
    methods = tuple(standard_methods(evidence, ladder=ladder))
    methods += tuple(own(evidence, [method.name for method in methods]))
    blend = [name for name in BLENDED if name in {method.name for method in methods}]
    fits = crossfit(evidence, methods, folds=folds, seed=seed, blend=blend, on_step=on_step)
    return Study(evidence, methods, fits, seed)


def crossfit(
    evidence: Evidence,
    methods: Sequence[Method],
    *,
    folds: int = 5,
    seed: int = 0,
    blend: Sequence[str] = (),
    labels: int | None = None,
    on_step: OnStep = quiet,
) -> CrossFit:
    """Fit and calibrate every method in every outer fold, by group; the calibrator is chosen on calibration rows.

    `labels`: how many labels each fold learns from, calibration included, in whole groups drawn by `seed`; None for
    all. The test rows are the same.

    Adds the best plain baseline (chosen in each fold on its selection rows) and, where `blend` names at least two
    methods, their blend (`blend_weights`), calibrated again. Raises `RecordError` where the groups do not suffice.
    """
    table = evidence.table
    usable_groups(list(table.groups), table.y, folds=folds)
    n = len(table)
    columns = _columns(methods, blend)
    probability = {name: np.full(n, np.nan) for name, _ in columns}
    ranking = dict(probability)  # the same arrays, but for given scores
    selected: dict[str, list[float]] = {method.name: [] for method in methods}
    probes: dict[str, list[LinearProbe]] = {}
    coverage: dict[str, float] = {name: 1.0 for name, _ in columns}
    chosen_baselines = []

    splits = tuple(
        roles if labels is None else with_fewer(roles, labels, list(table.groups), table.y, seed=seed)
        for roles in outer_folds(list(table.groups), table.y, folds=folds, seed=seed)
    )
    for number, roles in enumerate(splits):
        logits: dict[str, Scores] = {}
        for place, method in enumerate(methods, 1):
            on_step(f"fold {number + 1} of {folds}, method {place} of {len(methods)}: {method.name}")
            fitted = method.fit(evidence, roles, seed=seed)
            if fitted.probe is not None:
                probes.setdefault(method.name, []).append(fitted.probe)
            scores, coverage[method.name] = _without_gaps(fitted.score(np.arange(n)))
            if not method.fitted:
                ranking[method.name] = scores
            rows = roles.calibration if method.fitted else roles.seen
            logits[method.name] = calibrator_on(rows, scores, table, seed, calibrators_of(method)).logit(scores)
            selected[method.name].append(fitted.selection_auroc)
        if (BEST_BASELINE, "plain") in columns:
            # Which way round a reversed control tells was read off all answers, the test rows too.
            chosen = [m.name for m in methods if m.family in CONTROL_FAMILIES and not m.name.endswith(REVERSED)]
            best = max(chosen, key=lambda name: selected[name][-1])
            chosen_baselines.append(best)
            logits[BEST_BASELINE] = logits[best]
        if len(blend) > 1:
            parts, rows = np.array([logits[name] for name in blend]), roles.calibration
            together = blend_weights(parts[:, rows], table.y[rows]) @ parts
            logits[BLEND] = calibrator_on(rows, together, table, seed).logit(together)
        for name, logit in logits.items():
            probability[name][roles.test] = 1 / (1 + np.exp(-logit[roles.test]))
    apart = {method.name: controls_apart(method) for method in methods}
    results = tuple(
        Judged(name, family, probability[name], ranking[name], coverage[name], apart.get(name, ()))
        for name, family in columns
    )
    return CrossFit(
        methods=results,
        best_baseline=tuple(chosen_baselines),
        roles=splits,
        probes={name: tuple(of_folds) for name, of_folds in probes.items()},
    )


def _columns(methods: Sequence[Method], blend: Sequence[str]) -> list[tuple[str, Family]]:
    """Returns name and family of what is judged: the methods, then the best plain baseline and the blend, if any."""
    columns = [(method.name, method.family) for method in methods]
    if any(method.family in CONTROL_FAMILIES for method in methods):
        columns.append((BEST_BASELINE, "plain"))
    if len(blend) > 1:
        columns.append((BLEND, "learned"))
    return columns


def _without_gaps(scores: Scores) -> tuple[Scores, float]:
    """Returns the scores with the median in place of those that are not finite, and the share that was finite."""
    known = np.isfinite(scores)
    return np.where(known, scores, np.median(scores[known]) if known.any() else 0.0), float(known.mean())


def blend_weights(logits: NDArray[np.float64], y: NDArray[np.int64]) -> NDArray[np.float64]:
    """(k,) weights of k methods' calibrated log-odds (k, n): logistic regression, none negative, shrunk to equal ones.

    With few answers the blend is the mean of the log-odds; with many, what adds nothing loses its weight (stacking,
    Breiman 1996, with the prior of a plain average).
    """
    optimize = require("scipy.optimize", "fit")
    k, n = logits.shape

    def loss(parameters: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        weights, shift = parameters[:k], parameters[k]
        z = weights @ logits + shift
        error, away = sigmoid(z) - y, weights - 1 / k
        value = np.logaddexp(0, z).sum() - y @ z + BLEND_PRIOR * away @ away
        return float(value / n), np.r_[logits @ error + 2 * BLEND_PRIOR * away, error.sum()] / n

    bounds = [(0, None)] * k + [(None, None)]
    start = np.r_[np.full(k, 1 / k), 0.0]
    fit = optimize.minimize(loss, start, jac=True, method="SLSQP", bounds=bounds, options={"ftol": 1e-12})
    return np.asarray(fit.x[:k], dtype=np.float64)
