"""Whether a new version is better than the running one, on answers or questions that neither learned from.

`promote` judges predictors and probes on run stores, `decide_promotion` on answers that both have scored, and
`promote_panel` panels by what their decisions cost. An answer that was drawn for a label with propensity p weighs
1 / p.
"""

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from metaprobe.checkpoints.flagging import FLAG
from metaprobe.checkpoints.table import format_interval
from metaprobe.eval.metrics.bootstrap import (
    Interval,
    MetricValues,
    cluster_weights,
    mean_interval,
    paired_interval,
    resample_values,
)
from metaprobe.eval.metrics.calibration import brier
from metaprobe.eval.metrics.ranked import MetricFunction, auroc
from metaprobe.records.errors import RecordError
from metaprobe.records.labelled_scores import thin
from metaprobe.records.outcomes import QuestionOutcomes, read_outcomes
from metaprobe.routing.panel import Panel
from metaprobe.training.check import (
    MIN_BOOTSTRAP_GROUPS,
    Check,
    CheckedAnswers,
    Reader,
    check_scores,
    labelled_answers,
    load_reader,
    main_head,
    target_probabilities,
)
from metaprobe.training.panel_data import panels_of_outcomes
from metaprobe.training.panel_fit import by_agent, expected_at, view_of

ACCEPTED_LOSS = 0.01
"""Loss of AUROC, and of the Brier score, that is still accepted where a version need only be no worse."""


@dataclass(frozen=True, slots=True)
class Promotion:
    """Whether a new version may take the running one's place."""

    promoted: bool
    auroc_gain: Interval
    """Gain of the new version over the running one, on the same answers, resampled by group."""
    brier_gain: Interval
    """How much lower, that is better, the new one's Brier score is."""
    digest: str
    """Digest of the version that should run from now on."""
    reasons: tuple[str, ...]
    """Why not; empty where it was promoted."""
    check: Check | None = None
    """Whether the new version's own held-out figures and threshold hold on these answers; None where it stores none."""
    models: tuple[str, ...] = ()
    """Models whose labelled answers in a log decided it; empty where run stores did."""
    left_out: Mapping[str, int] = field(default_factory=dict)
    """Labelled answers of a log that did not decide: the reason -> how many they are. Empty for run stores."""
    accepted_loss: ClassVar[float] = ACCEPTED_LOSS
    """Loss that is still accepted where a version need only be no worse, if nothing else is said."""


def promote(
    new: Reader | str | os.PathLike[str],
    running: Reader | str | os.PathLike[str],
    stores: Sequence[str | os.PathLike[str]],
    *,
    target: str = "correct",
    stage: str | None = None,
    agent: str | None = None,
    not_worse: bool = False,
    margin: float = ACCEPTED_LOSS,
    seed: int = 0,
) -> Promotion:
    """The new version only where it is better on labelled runs that neither was trained on.

    Better: the 95 % interval of the gain in AUROC lies above 0, and that of the gain in the Brier score above -margin,
    so that no better order is bought with worse probabilities. With `not_worse` both need only lie above -margin: for
    a version that is smaller, newer or cheaper. Both conditions must hold, so two looks give no second chance.

    Raises `RecordError` for runs that one of them was trained on. That is noticed by the fingerprint of all the runs,
    so not where they are only a part of them, or more: keep held-out runs in a store of their own. Raises
    `ContractMismatch` where one gives no probability of `target`.
    """
    if margin < 0:
        raise ValueError(f"margin is {margin:g}; expected at least 0")
    new, running = _reader(new), _reader(running)
    table, answers = labelled_answers(stores, (new, running), target=target, stage=stage, agent=agent)
    scores = [target_probabilities(reader, target, answers, stores) for reader in (new, running)]
    order = -margin if not_worse else 0.0
    return decide_promotion(
        new,
        running,
        table.y,
        scores[0],
        scores[1],
        table.groups,
        order=order,
        brier_above=-margin,
        target=target,
        seed=seed,
    )


def _reader(given: Reader | str | os.PathLike[str]) -> Reader:
    return load_reader(given) if isinstance(given, (str, os.PathLike)) else given


def decide_promotion(
    new: Reader,
    running: Reader,
    y: NDArray[np.int64],
    scores: NDArray[np.float64],
    of_running: NDArray[np.float64],
    groups: NDArray[np.str_],
    *,
    order: float,
    brier_above: float,
    target: str | None = None,
    seed: int = 0,
    propensity: NDArray[np.float64] | None = None,
) -> Promotion:
    """Returns the decision by answers that both versions have scored.

    Args:
        new: the version that is to take the running one's place.
        running: the version that runs now.
        y: labels of n answers, 1 right and 0 wrong.
        scores: the new version's scores of these answers, (n,).
        of_running: the running version's scores of the same answers, (n,).
        groups: name of the group of each answer, (n,).
        order: the gain in AUROC must surely be above this.
        brier_above: the gain in the Brier score must surely be above this.
        target: the head that gave the scores; by default the new version's main head.
        seed: seed of the resamples.
        propensity: how likely each answer was to be drawn, (n,); None where all were alike.
    """
    scored = CheckedAnswers(y, scores, groups)
    resamples = cluster_weights(scored.groups.tolist(), seed=seed)
    copies = np.ones(len(scored.y), dtype=np.int64) if propensity is None else _copies(propensity)
    gained = _weighted_gain(auroc, scored.y, scored.score, of_running, resamples, copies)
    sharper = _weighted_gain(brier, scored.y, of_running, scored.score, resamples, copies)
    reasons = []
    worth = gained.groups if propensity is None else int(copies.sum() ** 2 / np.square(copies, dtype=np.float64).sum())
    if worth < MIN_BOOTSTRAP_GROUPS:
        unequal = "" if worth == gained.groups else f", as {worth} of equal weight (they were drawn unequally),"
        reasons.append(
            f"{gained.groups} groups{unequal} are too few to decide; at least {MIN_BOOTSTRAP_GROUPS} are needed"
        )
    for name, gain, least in (("AUROC", gained, order), ("Brier", sharper, brier_above)):
        if not gain.low > least:  # also where it is NaN, as of answers that are all right
            told = f"{format_interval(gain, 4, signed=True)} on {gain.n} answers in {gain.groups} groups"
            reasons.append(f"{name} gain {told} is not surely above {least:g}")
    digest = (running if reasons else new).checkpoint.digest
    checked, threshold = None, new.checkpoint.manifest.thresholds.get(FLAG)
    if propensity is not None:  # held-out figures are of answers that were equally likely to be there
        kept = thin(propensity, seed=seed)
        scored = CheckedAnswers(scored.y[kept], scored.score[kept], scored.groups[kept])
    with suppress(RecordError):  # a version without held-out figures has nothing that could hold
        checked = check_scores(new, scored, target=target or main_head(new), threshold=threshold, seed=seed)
    return Promotion(not reasons, gained, sharper, digest, tuple(reasons), checked)


COPIES = 64
"""How often the answer that was likeliest to be drawn counts where others were less likely; these count more often.
Metrics take whole numbers: with 64 a weight is rounded by less than 1 %."""


def _copies(propensity: NDArray[np.float64]) -> NDArray[np.int64]:
    """Returns whole numbers (n,) in proportion to 1 / propensity: 1 where all are alike, else at least `COPIES`."""
    weight = propensity.max() / propensity
    return np.asarray(np.round(weight * (1 if weight.max() == 1 else COPIES)), dtype=np.int64)


def _weighted_gain(
    metric: MetricFunction,
    y: NDArray[np.int64],
    score: NDArray[np.float64],
    other: NDArray[np.float64],
    resamples: NDArray[np.integer],
    copies: NDArray[np.int64],
) -> Interval:
    """Returns the metric of `score` less that of `other`, on the same resamples (R, n), each answer `copies` times."""
    values = [
        MetricValues(
            float(np.asarray(metric(y, one, copies))),
            resample_values(lambda drawn, one=one: np.asarray(metric(y, one, drawn * copies)), resamples),  # type: ignore[misc]
        )
        for one in (score, other)
    ]
    return paired_interval(values[0], values[1], resamples)


@dataclass(frozen=True, slots=True)
class PanelPromotion:
    """Whether a new version may take the running one's place."""

    promoted: bool
    gain: Interval
    """Gain in accuracy - price * cost, new minus running, on the same questions."""
    digest: str
    """Digest of the version that should run from now on."""
    reason: str


def promote_panel(
    new: Panel, running: Panel, questions: Sequence[QuestionOutcomes] | Path, *, price: float | None = None
) -> PanelPromotion:
    """The new version only where the paired interval of its gain is above 0 on questions that neither was trained on.

    Each asks whom its own curves say at that price. To roll back, load the digest that ran before
    (`Panel.load(..., sha256=digest)`): a version is a folder, and a digest pins every byte of it.

    Args:
        new: the version that is to take the running one's place.
        running: the version that runs now.
        questions: outcomes of all agents on these questions, or the file that holds them.
        price: accuracy that a US dollar for 1,000 questions must bring; by default what it brings at the running
            one's own budget.

    Raises `RecordError` where one of them stores no way of asking, or was trained on these questions.
    """
    if isinstance(questions, Path):
        questions = read_outcomes(questions)
    plan = running.ask_plan(price=price)
    assert running.asks is not None
    dollar = running.asks.curves.implied_price(plan.cost) if price is None else price
    if new.same != running.same:
        raise RecordError(f"one compares answers by {new.same} and the other by {running.same}: train both alike")
    data = panels_of_outcomes(questions, same=new.same)
    seen = {p.checkpoint.manifest.training.fingerprint for p in (new, running) if p.checkpoint.manifest.training}
    if data.fingerprint in seen:
        raise RecordError("these are the questions that one of the versions was trained on; give held-out ones")
    laid = by_agent(data, sorted({*new.agents.names, *running.agents.names}), fewest=MIN_BOOTSTRAP_GROUPS)
    values = []
    for panel in (new, running):
        view = view_of(panel, by_agent(laid, panel.agents.names, fewest=1))
        came = expected_at(view, panel.ask_plan(price=dollar), panel.pick)
        values.append(came.score - dollar * came.cost)
    gain = mean_interval(values[0] - values[1], cluster_weights(list(laid.groups)))
    better = gain.low > 0
    reason = f"gain {format_interval(gain, 4, signed=True)} at a price of {dollar:.4g} on {len(laid)} questions"
    return PanelPromotion(
        better,
        gain,
        (new if better else running).checkpoint.digest,
        f"{reason}: {'promoted' if better else 'the running one is kept, as it may be no worse'}",
    )
