"""Decides whether a new version is better than the running one, on answers or questions from which neither learned.

`Promotion.on_runs` judges predictors and probes on run stores, and `Promotion.on_answers` on answers that both have
scored. `Promotion.on_outcomes` judges panels by accuracy and cost, and estimators of P(success) by their probabilities.
An answer that was drawn for a label with propensity p weighs 1 / p.
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
    """Brier score of the running version minus that of the new one; above 0 the new version is better."""
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

        The new version is better if the 95 % interval of the gain in AUROC lies above 0, and that of the gain in the
        Brier score above -margin. So no better order is bought with worse probabilities. Both conditions must hold, so
        two looks give no second chance.

        Raises `RecordError` for runs that one of the versions was trained on. This is checked by the fingerprint of all
        the runs together. It does not find runs that are only a part of the training's runs, or more than these. So
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
        auroc_above = -margin if not_worse else 0.0
        return cls.on_answers(
            new,
            running,
            table.y,
            scores[0],
            scores[1],
            table.groups,
            auroc_above=auroc_above,
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
        running_scores: NDArray[np.float64],
        groups: NDArray[np.str_],
        *,
        auroc_above: float,
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
            running_scores: the running version's scores of the same answers, (n,).
            groups: name of the group of each answer, (n,).
            auroc_above: bound that the whole interval of the gain in AUROC must exceed.
            brier_above: bound that the whole interval of the gain in the Brier score must exceed.
            target: the head that gave the scores; by default the new version's main head.
            seed: seed of the resamples.
            propensity: how likely each answer was to be drawn, (n,); None where all were alike.
        """
        scored = CheckedAnswers(y, scores, groups)
        resamples = cluster_weights(scored.groups.tolist(), seed=seed)
        copies = np.ones(len(scored.y), dtype=np.int64) if propensity is None else _whole_weights(propensity)
        auroc_gain = _weighted_gain(
            auroc, scored.y, scored.score, minus=running_scores, resamples=resamples, copies=copies
        )
        # A lower Brier score is better, so the running version's comes first.
        brier_gain = _weighted_gain(
            brier, scored.y, running_scores, minus=scored.score, resamples=resamples, copies=copies
        )
        reasons = []
        effective_groups = (
            auroc_gain.groups
            if propensity is None
            else int(copies.sum() ** 2 / np.square(copies, dtype=np.float64).sum())
        )
        if effective_groups < MIN_BOOTSTRAP_GROUPS:
            unequal_clause = (
                ""
                if effective_groups == auroc_gain.groups
                else f", as {effective_groups} of equal weight (they were drawn unequally),"
            )
            reasons.append(
                f"{auroc_gain.groups} groups{unequal_clause} are too few to decide; at least {MIN_BOOTSTRAP_GROUPS} "
                "are needed"
            )
        for name, gain, bound in (("AUROC", auroc_gain, auroc_above), ("Brier", brier_gain, brier_above)):
            if not gain.low > bound:  # NaN, as for answers that are all right, counts as not above
                gain_clause = f"{format_interval(gain, 4, signed=True)} on {gain.n} answers in {gain.groups} groups"
                reasons.append(f"{name} gain {gain_clause} is not surely above {bound:g}")
        digest = (running if reasons else new).checkpoint.digest
        check, threshold = None, new.checkpoint.manifest.thresholds.get(FLAG)
        # Whether the new version's own held-out figures hold. They are of answers drawn with equal chances.
        if propensity is not None:
            drawn_rows = equal_chance_mask(propensity, seed=seed)
            scored = CheckedAnswers(scored.y[drawn_rows], scored.score[drawn_rows], scored.groups[drawn_rows])
        with suppress(RecordError):  # the version stores no held-out figures
            check = check_scores(new, scored, target=target or main_head(new), threshold=threshold, seed=seed)
        return cls(not reasons, auroc_gain, brier_gain, digest, tuple(reasons), check)


def _reader(reader_or_folder: CheckedPredictor | str | os.PathLike[str]) -> CheckedPredictor:
    return load_reader(reader_or_folder) if isinstance(reader_or_folder, (str, os.PathLike)) else reader_or_folder


MIN_COPIES = 64
"""Weight of the answer that was likeliest to be drawn, if answers were drawn with unequal chances. Other answers weigh
more. Metrics take whole weights: from 64 on, a weight is rounded by less than 1 %.
"""


def _whole_weights(propensity: NDArray[np.float64]) -> NDArray[np.int64]:
    """Returns whole weights (n,) in proportion to 1 / propensity: all 1 if the propensities are equal, else at least
    `MIN_COPIES`.
    """
    weight = propensity.max() / propensity
    return np.asarray(np.round(weight * (1 if weight.max() == 1 else MIN_COPIES)), dtype=np.int64)


def _weighted_gain(
    metric: MetricFunction,
    y: NDArray[np.int64],
    score: NDArray[np.float64],
    *,
    minus: NDArray[np.float64],
    resamples: NDArray[np.integer],
    copies: NDArray[np.int64],
) -> Interval:
    """Returns the metric of `score` minus that of `minus`, on the same resamples.

    Args:
        metric: the metric.
        y: the labels (n,).
        score: the first scores (n,).
        minus: the scores (n,) whose metric is subtracted.
        resamples: how often each answer occurs in each resample, (R, n).
        copies: weight of each answer (n,), a whole number.
    """
    values = [
        MetricValues(
            float(np.asarray(metric(y, scores, copies))),
            resample_values(lambda drawn, scores=scores: np.asarray(metric(y, scores, drawn * copies)), resamples),  # type: ignore[misc]
        )
        for scores in (score, minus)
    ]
    return paired_interval(values[0], values[1], resamples)


@dataclass(frozen=True, slots=True)
class PanelPromotion:
    """Whether a new panel may take the running one's place."""

    promoted: bool
    gain: Interval
    """Gain in accuracy - price * cost of the new panel over the running one, on the same questions."""
    digest: str
    """Digest of the version that should run from now on."""
    reason: str


MOST_UNESTIMATED = 0.05
"""Largest share of the running version's estimates for which the new version may give no estimate."""
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
    """Log loss of the running version minus that of the new one, in nats, on the same outcomes, resampled by group."""
    digest: str
    """Digest of the version that should run from now on."""
    reason: str


def promote_success(
    new: SuccessEstimator, running: SuccessEstimator, questions: Sequence[QuestionOutcomes]
) -> SuccessPromotion:
    """Returns whether the new estimator is better by log loss; see `Promotion.on_outcomes`.

    Three kinds of outcomes are left out. Logged decisions show only answers that a policy chose to ask for. From
    earlier outcomes one of the versions may have learned. For some outcomes one of the versions gives no estimate; the
    reason counts these. A label that was drawn with propensity p weighs 1 / p.
    """
    # Outcomes from which neither version has learned.
    unlogged = [question for question in questions if not question.propensities]
    learned = max(version.checkpoint.learned_until for version in (new, running))
    usable = [question for question in unlogged if question.answered is None or question.answered > learned]
    early_clause = (
        f"; {len(unlogged) - len(usable)} are left out: {LEARNED_EARLY}" if len(usable) < len(unlogged) else ""
    )
    for version in (new, running):
        if _learned_from(version, usable):
            raise RecordError("these are the questions that one of the versions was trained on; give held-out ones")
    # Both versions estimate every labelled outcome. A question's gain is the mean over its candidates.
    gains, groups, question_weights, estimated_by_running, estimated_by_both = [], [], [], 0, 0
    for question in usable:
        score_of_candidate = {
            name: outcome.score
            for name, outcome in question.agents.items()
            if outcome.score is not None and name in running.candidates
        }
        estimates = [
            {
                estimate.candidate: estimate.p
                for estimate in version.estimate(question.question, list(score_of_candidate), question.dimension)
            }
            for version in (new, running)
        ]
        in_both = [
            name for name in score_of_candidate if estimates[0][name] is not None and estimates[1][name] is not None
        ]
        estimated_by_running += sum(p is not None for p in estimates[1].values())
        estimated_by_both += len(in_both)
        if in_both:
            log_loss_falls = [
                _log_loss(estimates[1][name], score_of_candidate[name])
                - _log_loss(estimates[0][name], score_of_candidate[name])
                for name in in_both
            ]
            label_weights = [1 / (question.agents[name].label_propensity or 1.0) for name in in_both]
            gains.append(float(np.average(log_loss_falls, weights=label_weights)))
            question_weights.append(float(np.mean(label_weights)))
            groups.append(question.group)
    # The number of equal weights that would tell as much as these.
    weight_array = np.array(question_weights)
    effective_groups = (
        min(len(set(groups)), int(weight_array.sum() ** 2 / np.square(weight_array).sum() + 1e-6)) if groups else 0
    )
    if effective_groups < MIN_BOOTSTRAP_GROUPS:
        unequal_clause = f", worth {effective_groups} of equal weight," if effective_groups < len(set(groups)) else ""
        raise RecordError(
            f"{len(set(groups))} groups of questions{unequal_clause} have a label and an estimate of both versions; at "
            f"least {MIN_BOOTSTRAP_GROUPS} are needed: label more questions{early_clause}"
        )
    # Decide. A version that leaves out many estimates of the running one is not better.
    gain = mean_interval(np.array(gains), cluster_weights(groups), weight_array)
    silent_share = 1 - estimated_by_both / estimated_by_running
    reason = f"log loss lower by {format_interval(gain, 4, signed=True)} on {len(gains)} questions{early_clause}"
    if silent_share > MOST_UNESTIMATED:
        silent_clause = f"the new one calls {silent_share:.1%} of the running one's estimates insufficient"
        verdict = f"{silent_clause}; at most {MOST_UNESTIMATED:.0%} are accepted"
    elif gain.low <= 0:
        verdict = "the running one is kept, as it may be no worse"
    else:
        return SuccessPromotion(True, gain, new.checkpoint.digest, f"{reason}: promoted")
    return SuccessPromotion(False, gain, running.checkpoint.digest, f"{reason}: {verdict}")


def _log_loss(p: float | None, score: float | None) -> float:
    """Returns the cross-entropy in nats of an estimate and a score in [0, 1], both known."""
    assert p is not None
    assert score is not None
    clipped = min(max(p, CLOSEST_P), 1 - CLOSEST_P)
    return float(-score * np.log(clipped) - (1 - score) * np.log(1 - clipped))


def _learned_from(version: SuccessEstimator, questions: Sequence[QuestionOutcomes]) -> bool:
    """Returns whether an estimator was trained on exactly these questions, with labels of its candidates."""
    training = version.checkpoint.manifest.training
    own_questions = [
        replace(
            question, agents={name: outcome for name, outcome in question.agents.items() if name in version.candidates}
        )
        for question in questions
    ]
    # With too few questions for a training, `success_data` raises: the version was not trained on them.
    with suppress(RecordError):
        return training is not None and success_data(own_questions).fingerprint == training.fingerprint
    return False


def promote_panel(
    new: Panel, running: Panel, questions: Sequence[QuestionOutcomes], *, price: float | None = None
) -> PanelPromotion:
    """Returns whether the new panel is better; see `Promotion.on_outcomes`.

    Each panel asks the agents that its own curves name at that price.

    Raises `RecordError` where one of them stores no way of asking, or was trained on these questions.
    """
    plan = running.ask_plan(price=price)
    assert running.asks is not None
    used_price = running.asks.curves.implied_price(plan.cost) if price is None else price
    if new.same != running.same:
        raise RecordError(
            f"one compares answers by {new.same} and the other by {running.same}: train both with --same {new.same}"
        )
    data = panels_of_outcomes(questions, same=new.same)
    fingerprints = {
        version.checkpoint.manifest.training.fingerprint
        for version in (new, running)
        if version.checkpoint.manifest.training
    }
    if data.fingerprint in fingerprints:
        raise RecordError("these are the questions that one of the versions was trained on; give held-out ones")
    panels = by_agent(data, sorted({*new.agents.names, *running.agents.names}), fewest=MIN_BOOTSTRAP_GROUPS)
    values = []
    for panel in (new, running):
        view = view_of(panel, by_agent(panels, panel.agents.names, fewest=1))
        expected = expected_at(view, panel.ask_plan(price=used_price), panel.pick)
        values.append(expected.score - used_price * expected.cost)
    gain = mean_interval(values[0] - values[1], cluster_weights(list(panels.groups)))
    is_better = gain.low > 0
    reason = f"gain {format_interval(gain, 4, signed=True)} at a price of {used_price:.4g} on {len(panels)} questions"
    return PanelPromotion(
        is_better,
        gain,
        (new if is_better else running).checkpoint.digest,
        f"{reason}: {'promoted' if is_better else 'the running one is kept, as it may be no worse'}",
    )
