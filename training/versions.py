"""Decides whether a new version is better than the running one, on answers or questions from which neither learned.

`Promotion.on_runs` judges predictors and probes on run stores, `Promotion.on_answers` on answers that both have scored,
and `Promotion.on_outcomes` judges on outcomes: panels by what their decisions cost, estimators of P(success) by their
probabilities. An answer that was drawn for a label with propensity p weighs 1 / p.
"""

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from metaprobe.checkpoints.flagging import FLAG
from metaprobe.checkpoints.rendered_table import format_interval
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
from metaprobe.records.labelled_scores import equal_chance_mask
from metaprobe.records.outcomes import QuestionOutcomes, read_outcomes
from metaprobe.routing.panel.asking import Panel
from metaprobe.routing.success_estimator import SuccessEstimator
from metaprobe.training.check import (
    MIN_BOOTSTRAP_GROUPS,
    Check,
    CheckedAnswers,
    CheckedPredictor,
    check_scores,
    labelled_answers,
    load_reader,
    main_head,
    target_probabilities,
)
from metaprobe.training.panel.checkpoint_plays import view_of
from metaprobe.training.panel.labelled_panels import panels_of_outcomes
from metaprobe.training.panel.played_asks import by_agent, expected_at
from metaprobe.training.success_fit import success_data

ACCEPTED_LOSS = 0.01
"""Largest loss of AUROC, and of the Brier score, with which a version counts as no worse."""


@dataclass(frozen=True, slots=True)
class Promotion:
    """Whether a new version may take the running one's place."""

    promoted: bool
    auroc_gain: Interval
    """Gain of the new version over the running one, on the same answers, resampled by group."""
    brier_gain: Interval
    """How much lower, which is better, the Brier score of the new version is."""
    digest: str
    """Digest of the version that should run from now on."""
    reasons: tuple[str, ...]
    """Reasons against the promotion; empty if the version was promoted."""
    check: Check | None = None
    """Whether the new version's own held-out figures and threshold hold on these answers; None if it stores none."""
    models: tuple[str, ...] = ()
    """Models whose labelled answers in a log decided; empty if run stores decided."""
    left_out: Mapping[str, int] = field(default_factory=dict)
    """Maps a reason to the number of labelled answers of a log that did not decide for this reason. Empty for run
    stores.
    """
    accepted_loss: ClassVar[float] = ACCEPTED_LOSS
    """Default of the largest loss with which a version counts as no worse."""

    @classmethod
    def on_runs(
        cls,
        new: CheckedPredictor | str | os.PathLike[str],
        running: CheckedPredictor | str | os.PathLike[str],
        stores: Sequence[str | os.PathLike[str]],
        *,
        target: str = "correct",
        stage: str | None = None,
        agent: str | None = None,
        not_worse: bool = False,
        margin: float = ACCEPTED_LOSS,
        seed: int = 0,
    ) -> "Promotion":
        """Returns the decision by labelled runs that neither version was trained on.

        The new version is better if the 95 % interval of the gain in AUROC lies above 0, and the interval of the gain
        in the Brier score above -margin, so that no better order is bought with worse probabilities. Both conditions
        must hold, so two looks give no second chance.

        Raises `RecordError` for runs that one of the versions was trained on. This is checked by the fingerprint of all
        the runs together. It does not find runs that are only a part of the training's runs, or more than these, so
        keep held-out runs in a store of their own. Raises `ContractMismatch` where a version gives no probability of
        `target`.

        Args:
            new: the version that is to take the running one's place, or its folder.
            running: the version that runs now, or its folder.
            stores: run stores with labels.
            target: the label that both predict.
            stage: only calls of this stage.
            agent: only calls of this agent.
            not_worse: whether both intervals need only lie above -margin, as for a version that is smaller or cheaper.
            margin: loss of AUROC and of the Brier score that is still accepted, at least 0.
            seed: seed of the resamples.
        """
        if margin < 0:
            raise ValueError(f"margin is {margin:g}; expected at least 0")
        new, running = _reader(new), _reader(running)
        table, answers = labelled_answers(stores, (new, running), target=target, stage=stage, agent=agent)
        scores = [target_probabilities(reader, target, answers, stores) for reader in (new, running)]
        order = -margin if not_worse else 0.0
        return cls.on_answers(
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

    @staticmethod
    def on_outcomes(
        new: Panel | SuccessEstimator,
        running: Panel | SuccessEstimator,
        questions: Sequence[QuestionOutcomes] | Path,
        *,
        price: float | None = None,
    ) -> "PanelPromotion | SuccessPromotion":
        """Returns whether the new version is better on outcomes that neither was trained on.

        The whole paired interval of its gain must lie above 0. To roll back, load the digest that ran before
        (`metaprobe.load(..., sha256=digest)`): a version is a folder, and a digest pins every byte of it.

        Args:
            new: the new version, a panel or an estimator of P(success).
            running: the version that runs now, of the same kind.
            questions: outcomes of the candidates on these questions, or the file that holds them.
            price: for panels: accuracy that a US dollar for 1,000 questions must bring; by default what it brings at
                the running one's own budget.

        Raises `RecordError` for versions of two kinds, a price of estimators, too few groups, or outcomes that one of
        the versions was trained on.
        """
        if isinstance(questions, Path):
            names = new.agents.names if isinstance(new, Panel) else new.candidates
            questions = read_outcomes(questions, agents=names)
        if isinstance(new, Panel) and isinstance(running, Panel):
            return promote_panel(new, running, questions, price=price)
        if isinstance(new, Panel) or isinstance(running, Panel):
            raise RecordError("a panel and an estimator of P(success) came; expected two versions of one kind")
        if price is not None:
            raise RecordError(f"price {price:g} came; estimators of P(success) are compared by log loss: leave it out")
        return promote_success(new, running, questions)

    @classmethod
    def on_answers(
        cls,
        new: CheckedPredictor,
        running: CheckedPredictor,
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
    ) -> "Promotion":
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
        worth = (
            gained.groups if propensity is None else int(copies.sum() ** 2 / np.square(copies, dtype=np.float64).sum())
        )
        if worth < MIN_BOOTSTRAP_GROUPS:
            unequal = "" if worth == gained.groups else f", as {worth} of equal weight (they were drawn unequally),"
            reasons.append(
                f"{gained.groups} groups{unequal} are too few to decide; at least {MIN_BOOTSTRAP_GROUPS} are needed"
            )
        for name, gain, least in (("AUROC", gained, order), ("Brier", sharper, brier_above)):
            if not gain.low > least:  # also where it is NaN, as of answers that are all right
                gain_clause = f"{format_interval(gain, 4, signed=True)} on {gain.n} answers in {gain.groups} groups"
                reasons.append(f"{name} gain {gain_clause} is not surely above {least:g}")
        digest = (running if reasons else new).checkpoint.digest
        checked, threshold = None, new.checkpoint.manifest.thresholds.get(FLAG)
        if propensity is not None:  # held-out figures are of answers that were equally likely to be there
            drawn_rows = equal_chance_mask(propensity, seed=seed)
            scored = CheckedAnswers(scored.y[drawn_rows], scored.score[drawn_rows], scored.groups[drawn_rows])
        with suppress(RecordError):  # a version without held-out figures has nothing that could hold
            checked = check_scores(new, scored, target=target or main_head(new), threshold=threshold, seed=seed)
        return cls(not reasons, gained, sharper, digest, tuple(reasons), checked)


def _reader(reader_or_folder: CheckedPredictor | str | os.PathLike[str]) -> CheckedPredictor:
    return load_reader(reader_or_folder) if isinstance(reader_or_folder, (str, os.PathLike)) else reader_or_folder


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
            float(np.asarray(metric(y, scores, copies))),
            resample_values(lambda drawn, scores=scores: np.asarray(metric(y, scores, drawn * copies)), resamples),  # type: ignore[misc]
        )
        for scores in (score, other)
    ]
    return paired_interval(values[0], values[1], resamples)


@dataclass(frozen=True, slots=True)
class PanelPromotion:
    """Whether a new version may take the running one's place."""

    promoted: bool
    gain: Interval
    """Gain in accuracy - price * cost of the new panel over the running one, on the same questions."""
    digest: str
    """Digest of the version that should run from now on."""
    reason: str


MOST_UNESTIMATED = 0.05
"""Largest share of the outcomes with an estimate of the running version that the new version may call insufficient."""
LEARNED_EARLY = "one of the versions has learned, or may have, from them or from later outcomes"
"""Reason why outcomes do not decide: a version has learned from them."""
CLOSEST_P = 0.001
"""P(success) is clipped to [CLOSEST_P, 1 - CLOSEST_P] before its log loss is computed, so that one outcome cannot
decide.
"""


@dataclass(frozen=True, slots=True)
class SuccessPromotion:
    """Whether a new estimator of P(success) may take the running one's place."""

    promoted: bool
    log_loss_gain: Interval
    """Log loss of the running version less that of the new one, in nats, on the same outcomes, resampled by group."""
    digest: str
    """Digest of the version that should run from now on."""
    reason: str


def promote_success(
    new: SuccessEstimator, running: SuccessEstimator, questions: Sequence[QuestionOutcomes]
) -> SuccessPromotion:
    """Returns whether the new estimator is better by log loss; see `Promotion.on_outcomes`.

    Logged decisions are left out, because they show the answers that a policy chose to ask for. So are outcomes that
    one of the versions calls insufficient; the reason counts them. So are outcomes of the time until which one of the
    versions has learned. A label that was drawn with propensity p weighs 1 / p.
    """
    every = [question for question in questions if not question.propensities]
    learned = max(version.checkpoint.learned_until for version in (new, running))
    full = [question for question in every if question.answered is None or question.answered > learned]
    early = f"; {len(every) - len(full)} are left out: {LEARNED_EARLY}" if len(full) < len(every) else ""
    for version in (new, running):
        if _learned_from(version, full):
            raise RecordError("these are the questions that one of the versions was trained on; give held-out ones")
    # Both estimate every labelled outcome. A question's gain is the mean over its candidates.
    gains, groups, weights, by_running, by_both = [], [], [], 0, 0
    for question in full:
        score = {
            name: outcome.score
            for name, outcome in question.agents.items()
            if outcome.score is not None and name in running.candidates
        }
        made = [
            {
                estimate.candidate: estimate.p
                for estimate in version.estimate(question.question, list(score), question.dimension)
            }
            for version in (new, running)
        ]
        in_both = [name for name in score if made[0][name] is not None and made[1][name] is not None]
        by_running += sum(p is not None for p in made[1].values())
        by_both += len(in_both)
        if in_both:
            lower = [_log_loss(made[1][name], score[name]) - _log_loss(made[0][name], score[name]) for name in in_both]
            each = [1 / (question.agents[name].label_propensity or 1.0) for name in in_both]
            gains.append(float(np.average(lower, weights=each)))
            weights.append(float(np.mean(each)))
            groups.append(question.group)
    # Unequal weights count as so many equal ones as tell as much.
    weight = np.array(weights)
    worth = min(len(set(groups)), int(weight.sum() ** 2 / np.square(weight).sum() + 1e-6)) if groups else 0
    if worth < MIN_BOOTSTRAP_GROUPS:
        unequal = f", worth {worth} of equal weight," if worth < len(set(groups)) else ""
        raise RecordError(
            f"{len(set(groups))} groups of questions{unequal} have a label and an estimate of both versions; at least "
            f"{MIN_BOOTSTRAP_GROUPS} are needed: label more questions{early}"
        )
    # Decide: better, and not by staying silent where the running one speaks.
    gain = mean_interval(np.array(gains), cluster_weights(groups), weight)
    silent = 1 - by_both / by_running
    reason = f"log loss lower by {format_interval(gain, 4, signed=True)} on {len(gains)} questions{early}"
    if silent > MOST_UNESTIMATED:
        silent_clause = f"the new one calls {silent:.1%} of the running one's estimates insufficient"
        why = f"{silent_clause}; at most {MOST_UNESTIMATED:.0%} are accepted"
    elif gain.low <= 0:
        why = "the running one is kept, as it may be no worse"
    else:
        return SuccessPromotion(True, gain, new.checkpoint.digest, f"{reason}: promoted")
    return SuccessPromotion(False, gain, running.checkpoint.digest, f"{reason}: {why}")


def _log_loss(p: float | None, score: float | None) -> float:
    """Returns the cross-entropy in nats of an estimate and a score in [0, 1], both known."""
    assert p is not None
    assert score is not None
    near = min(max(p, CLOSEST_P), 1 - CLOSEST_P)
    return float(-score * np.log(near) - (1 - score) * np.log(1 - near))


def _learned_from(version: SuccessEstimator, questions: Sequence[QuestionOutcomes]) -> bool:
    """Returns whether an estimator was trained on exactly these questions, with labels of its candidates."""
    training = version.checkpoint.manifest.training
    own_fingerprints = [
        replace(
            question, agents={name: outcome for name, outcome in question.agents.items() if name in version.candidates}
        )
        for question in questions
    ]
    # Too few questions to train on are not those of a training.
    with suppress(RecordError):
        return training is not None and success_data(own_fingerprints).fingerprint == training.fingerprint
    return False


def promote_panel(
    new: Panel, running: Panel, questions: Sequence[QuestionOutcomes], *, price: float | None = None
) -> PanelPromotion:
    """Returns whether the new panel is better; see `Promotion.on_outcomes`.

    Each asks whom its own curves say at that price.

    Raises `RecordError` where one of them stores no way of asking, or was trained on these questions.
    """
    plan = running.ask_plan(price=price)
    assert running.asks is not None
    dollar = running.asks.curves.implied_price(plan.cost) if price is None else price
    if new.same != running.same:
        raise RecordError(
            f"one compares answers by {new.same} and the other by {running.same}: train both with --same {new.same}"
        )
    data = panels_of_outcomes(questions, same=new.same)
    fingerprints = {
        p.checkpoint.manifest.training.fingerprint for p in (new, running) if p.checkpoint.manifest.training
    }
    if data.fingerprint in fingerprints:
        raise RecordError("these are the questions that one of the versions was trained on; give held-out ones")
    panels = by_agent(data, sorted({*new.agents.names, *running.agents.names}), fewest=MIN_BOOTSTRAP_GROUPS)
    values = []
    for panel in (new, running):
        view = view_of(panel, by_agent(panels, panel.agents.names, fewest=1))
        expected = expected_at(view, panel.ask_plan(price=dollar), panel.pick)
        values.append(expected.score - dollar * expected.cost)
    gain = mean_interval(values[0] - values[1], cluster_weights(list(panels.groups)))
    better = gain.low > 0
    reason = f"gain {format_interval(gain, 4, signed=True)} at a price of {dollar:.4g} on {len(panels)} questions"
    return PanelPromotion(
        better,
        gain,
        (new if better else running).checkpoint.digest,
        f"{reason}: {'promoted' if better else 'the running one is kept, as it may be no worse'}",
    )
