"""Figures of a streaming gate: how early it knows, how often it errs, and how many tokens it saves.

Everything comes from held-out answers. A gate that was fitted and calibrated on other groups judged each answer at
every look, and stopped it or not. No model is called: the answer that replaces a stopped one is estimated, and the
report names every assumption.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from metaprobe.eval.answer_table import AnswerTable
from metaprobe.eval.metrics.bootstrap import (
    Interval,
    cluster_weights,
    interval,
    mean_interval,
    paired_difference,
    statistic_interval,
)
from metaprobe.eval.metrics.ranked import Floats, StratifiedAuroc
from metaprobe.routing.gate import GOOD_OR_BAD, words_for

RESAMPLES = 1000
"""Number of bootstrap resamples."""
MIN_TASK_GROUPS = 20
"""Fewest groups with a good answer for which a task gets a false-alarm rate of its own."""

STRONGER_ACCURACY, STRONGER_PRICE = 0.9, 10.0
"""Assumptions about a stronger model to which stopped answers are escalated: its share of good answers to these
questions, and the price of one of its tokens, in tokens of the stopped model. Its answers are assumed to be as long.
"""

Use = Literal["asked again", "escalated"]


@dataclass(frozen=True, slots=True, eq=False)
class HeldOutLooks:
    """n answers as the gates of other folds saw them."""

    table: AnswerTable
    looks: tuple[int, ...]
    """Numbers of tokens after which the gate judges the answer, ascending."""
    probability: NDArray[np.float64]
    """Calibrated P(good) at each look, shape (n, looks); NaN beyond the answer's end, or without a head."""
    full: NDArray[np.float64] | None
    """P(good) by the full-response predictor, once the answer has finished; shape (n,). None for the target `ended`,
    which every finished answer says itself.
    """
    fired: Mapping[float, NDArray[np.int64]]
    """Maps a false-alarm rate to the number of tokens (n,) after which the gate stopped the answer; 0 if it did not."""
    fold: NDArray[np.int64]
    """The fold whose gate judged the answer; shape (n,)."""
    target: str = ""
    """The label that the gates learned, if it is `ended`; else empty."""


@dataclass(frozen=True, slots=True)
class LookResult:
    """How well good and bad answers are told apart after `look` tokens, among the answers that are that long.

    Each AUROC is over pairs of answers of one fold: gates of two folds are calibrated separately, and no gate in use
    compares its scores with those of another.
    """

    look: int
    share: float
    """Share of all answers that are that long."""
    auroc: Interval
    mean_logprob: Interval
    """AUROC of the mean log-probability of the same tokens. For the target `ended`, the sign is the one that orders
    these answers better, because sure beginnings may go with either end.
    """
    gain: Interval
    """AUROC minus that of the mean log-probability; paired."""
    full: Interval | None
    """AUROC of the full-response predictor on the same answers, once they have finished; None if there is none."""


@dataclass(frozen=True, slots=True)
class UseResult:
    """Cost and saving of stopping, if stopped answers are replaced."""

    use: Use
    accuracy_before: float
    accuracy: Interval
    """Share of good answers among the kept and the replacing answers."""
    over_random: Interval
    """`accuracy` minus its expectation if as many answers are replaced at random. This is the gate's own part."""
    tokens: Interval
    """Mean number of tokens per question; tokens of a stronger model count at its price."""
    saved: Interval
    """Share of tokens saved, compared with discarding the same answers only after they were generated in full. The
    final accuracy of both is equal.
    """
    saved_full: Interval
    """Share of tokens saved, compared with the full-response predictor. The predictor discards finished answers, the
    worst first, until the final accuracy equals the gate's. NaN if no number of discarded answers gives that accuracy.
    """


@dataclass(frozen=True, slots=True)
class RateResult:
    """Figures of a gate with one promised false-alarm rate."""

    alpha: float
    false_alarms: Interval
    """Share of good answers stopped at any look, each group counted once. The promise is about this share."""
    bad_stopped: Interval
    """Share of bad answers stopped."""
    median_look: float
    """Median number of tokens after which bad answers are stopped; NaN if none is."""
    tokens_saved: Interval
    """Share of the tokens of all answers that stopping saves, if nothing replaces a stopped answer."""
    tokens_saved_bad: Interval
    """The part of `tokens_saved` that bad answers would have cost. The rest belongs to good answers."""
    uses: tuple[UseResult, ...]
    """Costs and savings if stopped answers are replaced; empty for the target `ended`, which is not quality."""
    by_task: Mapping[str, Interval] = field(default_factory=dict)
    """`false_alarms` of each task that has enough good answers; empty for one task. The promise is for all tasks
    together.
    """

    @property
    def worst_task(self) -> str:
        """The task whose good answers are stopped most often; empty if tasks are not told apart."""
        return max(self.by_task, key=lambda task: self.by_task[task].estimate, default="")


@dataclass(frozen=True, slots=True)
class GateReport:
    """All measured results of a gate."""

    looks: tuple[LookResult, ...]
    rates: tuple[RateResult, ...]
    assumptions: tuple[str, ...]
    """Assumptions of the numbers about replaced answers."""
    target: str = ""
    """The label that the gate learned, if it is `ended`; else empty."""


def first_below(
    probability: NDArray[np.float64], thresholds: NDArray[np.float64], looks: Sequence[int]
) -> NDArray[np.int64]:
    """Returns the tokens (n,) at the first look at which P(good) is below that look's threshold; 0 if there is none.

    Args:
        probability: P(good), shape (n, looks).
        thresholds: the threshold of each look.
        looks: tokens of each look.
    """
    below = probability < thresholds  # NaN is not
    return np.where(below.any(axis=1), np.asarray(looks)[np.argmax(below, axis=1)], 0).astype(np.int64)


def gate_report(held_out: HeldOutLooks, *, resamples: int = RESAMPLES, seed: int = 0) -> GateReport:
    """Returns figures with 95 % intervals from a bootstrap over groups. Looks without two classes are left out.

    Args:
        held_out: the answers.
        resamples: number of bootstrap resamples.
        seed: seed of the bootstrap.
    """
    new_answers = None if held_out.full is None else simulate_asking_again(held_out.table)
    looks = [look_result(held_out, column, resamples=resamples, seed=seed) for column in range(len(held_out.looks))]
    assumptions = (
        ("Nothing replaces a stopped answer.",)
        if new_answers is None
        else (
            new_answers.assumption,
            f"A stronger model answers {STRONGER_ACCURACY:.0%} of the escalated questions well, in as many tokens, at "
            f"{STRONGER_PRICE:g} times the price.",
            "New answers are not watched by a gate, and reading the prompt again costs nothing.",
        )
    )
    return GateReport(
        looks=tuple(look for look in looks if look is not None),
        rates=tuple(
            _rate_result(held_out, alpha, new_answers, resamples=resamples, seed=seed)
            for alpha in sorted(held_out.fired)
        ),
        assumptions=assumptions,
        target=held_out.target,
    )


def look_result(held_out: HeldOutLooks, column: int, *, resamples: int = RESAMPLES, seed: int = 0) -> LookResult | None:
    """Returns the figures of one look; None if the answers that long are all good or all bad, or if none was judged.

    Args:
        held_out: the answers.
        column: index of the look.
        resamples: number of bootstrap resamples.
        seed: seed of the bootstrap.
    """
    table, look = held_out.table, held_out.looks[column]
    rows = np.flatnonzero(np.isfinite(held_out.probability[:, column]))
    y = table.y[rows]
    if len(np.unique(y)) < 2:
        return None
    weights = cluster_weights(table.groups[rows].tolist(), resamples, seed)
    auroc_in_fold = StratifiedAuroc(held_out.fold[rows])
    score = held_out.probability[rows, column]
    mean_logprob = np.array([np.mean(table.logprobs[row][:look], dtype=np.float64) for row in rows])
    if held_out.target and float(auroc_in_fold(y, mean_logprob)) < 0.5:
        mean_logprob = -mean_logprob
    return LookResult(
        look=look,
        share=float(np.mean(table.tokens >= look)),
        auroc=interval(auroc_in_fold, y, score, weights),
        mean_logprob=interval(auroc_in_fold, y, mean_logprob, weights),
        gain=paired_difference(auroc_in_fold, y, score, mean_logprob, weights),
        full=None if held_out.full is None else interval(auroc_in_fold, y, held_out.full[rows], weights),
    )


@dataclass(frozen=True, slots=True, eq=False)
class NewAnswers:
    """Estimated outcome of asking each question (n,) once more."""

    good: NDArray[np.float64]
    """Probability that the new answer is good."""
    tokens: NDArray[np.float64]
    assumption: str


def simulate_asking_again(table: AnswerTable) -> NewAnswers:
    """Estimates the outcome of asking again from the model's other answers to the same question. If there are none, the
    average of all answers is used.
    """
    keys = [*zip(table.items.tolist(), table.models.tolist(), table.variants.tolist(), strict=True)]
    number_of_key = {key: i for i, key in enumerate(dict.fromkeys(keys))}
    member = np.array([number_of_key[key] for key in keys])
    other_answer_count = np.bincount(member)[member] - 1

    def mean_of_others(values: NDArray[np.int64]) -> NDArray[np.float64]:
        total = np.bincount(member, weights=values)[member]
        means: NDArray[np.float64] = (total - values) / np.maximum(other_answer_count, 1)
        return np.where(other_answer_count > 0, means, values.mean())

    share_with_others = float(np.mean(other_answer_count > 0))
    average_claim = (
        f"has the average accuracy ({table.y.mean():.1%}) and length ({table.tokens.mean():.0f} tokens) of all "
        f"answers, which flatters it: questions whose answers are stopped are harder than others"
    )
    others_claim = "is as often good, and as long, as the model's other answers to that question"
    if share_with_others == 1:
        assumption = f"A new answer {others_claim}."
    elif share_with_others == 0:
        assumption = f"A new answer {average_claim}."
    else:
        assumption = (
            f"A new answer {others_claim}, for the {share_with_others:.0%} of answers that have others; elsewhere it "
            f"{average_claim}."
        )
    return NewAnswers(mean_of_others(table.y), mean_of_others(table.tokens), assumption)


def _rate_result(
    held_out: HeldOutLooks, alpha: float, new_answers: NewAnswers | None, *, resamples: int, seed: int
) -> RateResult:
    """Returns the figures of one promised false-alarm rate.

    Args:
        held_out: the answers.
        alpha: the promised rate, a key of `held_out.fired`.
        new_answers: outcome of asking again; None if stopped answers are not replaced.
        resamples: number of bootstrap resamples.
        seed: seed of the bootstrap.
    """
    table, fired = held_out.table, held_out.fired[alpha]
    good, bad = table.y == 1, table.y == 0
    stopped_bad = fired[bad & (fired > 0)]
    tasks = np.unique(table.tasks).tolist()
    good_rows_of_task = {task: good & (table.tasks == task) for task in tasks if len(tasks) > 1}

    def false_alarms(rows: NDArray[np.bool_]) -> Interval:
        groups, member = np.unique(table.groups[rows], return_inverse=True)
        stopped_share = np.bincount(member, weights=fired[rows] > 0) / np.bincount(member)
        return mean_interval(stopped_share, cluster_weights(groups.tolist(), resamples, seed))

    # The answers that replace stopped ones, by use, and the tokens that stopping saves.
    uses: dict[Use, NewAnswers] = {}
    if new_answers is not None:
        stronger_answers = NewAnswers(np.full(len(table), STRONGER_ACCURACY), new_answers.tokens * STRONGER_PRICE, "")
        uses = {"asked again": new_answers, "escalated": stronger_answers}
    tokens_after = np.where(fired > 0, table.tokens - fired, 0)
    weights = cluster_weights(table.groups.tolist(), resamples, seed)

    def saved_share(rows: NDArray[np.bool_]) -> Interval:
        return statistic_interval(lambda weight: (weight @ (tokens_after * rows)) / (weight @ table.tokens), weights)

    return RateResult(
        alpha=alpha,
        false_alarms=false_alarms(good),
        bad_stopped=mean_interval(fired[bad] > 0, cluster_weights(table.groups[bad].tolist(), resamples, seed)),
        median_look=float(np.median(stopped_bad)) if len(stopped_bad) else float("nan"),
        tokens_saved=saved_share(good | bad),
        tokens_saved_bad=saved_share(bad),
        uses=tuple(
            _use_result(use, held_out, fired, answers_of_use, resamples=resamples, seed=seed)
            for use, answers_of_use in uses.items()
        ),
        by_task={
            task: false_alarms(rows)
            for task, rows in good_rows_of_task.items()
            if len(np.unique(table.groups[rows])) >= MIN_TASK_GROUPS
        },
    )


def _use_result(
    use: Use, held_out: HeldOutLooks, fired: NDArray[np.int64], new_answers: NewAnswers, *, resamples: int, seed: int
) -> UseResult:
    """Returns cost and saving if stopped answers are replaced.

    Args:
        use: name of the use.
        held_out: the answers.
        fired: tokens (n,) after which each answer was stopped; 0 if it was not.
        new_answers: the answers that replace stopped ones.
        resamples: number of bootstrap resamples.
        seed: seed of the bootstrap.
    """
    # Accuracy and tokens of each question: stopped by the gate, or discarded once finished.
    table = held_out.table
    stopped = fired > 0
    weights = cluster_weights(table.groups.tolist(), resamples, seed)
    accuracy = np.where(stopped, new_answers.good, table.y)
    tokens_if_stopped = np.where(stopped, fired + new_answers.tokens, table.tokens)
    tokens_if_finished = np.where(stopped, table.tokens + new_answers.tokens, table.tokens)
    assert held_out.full is not None
    # Gain and cost of discarding finished answers, the worst by the full-response predictor first.
    worst_first = np.argsort(held_out.full, kind="stable")
    lift, cost = (new_answers.good - table.y)[worst_first], new_answers.tokens[worst_first]

    # The figures as functions of the answers' multiplicities (R, n).
    def saved(weight: Floats) -> Floats:
        return 1 - (weight @ tokens_if_stopped) / (weight @ tokens_if_finished)

    def saved_full(weight: Floats) -> Floats:
        gained = weight @ (accuracy - table.y)
        ordered = weight[:, worst_first]
        lifts = np.cumsum(ordered * lift, axis=1)  # (R, n): after the worst 1, 2, ... have been replaced
        enough = lifts >= gained[:, None] - 1e-9
        costs = np.cumsum(ordered * cost, axis=1)[np.arange(len(weight)), np.argmax(enough, axis=1)]
        spent = weight @ table.tokens + np.where(gained > 1e-9, costs, 0.0)
        reached = (gained > -1e-9) & ((gained <= 1e-9) | enough.any(axis=1))
        return np.where(reached, 1 - (weight @ tokens_if_stopped) / spent, np.nan)

    def over_random(weight: Floats) -> Floats:
        stopped_share = (weight @ stopped) / weight.sum(axis=1)  # the same share of the same resampled answers
        at_random: Floats = stopped_share * (weight @ (new_answers.good - table.y))
        gained: Floats = weight @ (accuracy - table.y) - at_random
        return np.asarray(gained / weight.sum(axis=1))

    def over_resamples(statistic: Callable[[Floats], Floats]) -> Interval:
        return statistic_interval(lambda weight: statistic(weight.astype(np.float64)), weights)

    return UseResult(
        use=use,
        accuracy_before=float(table.y.mean()),
        accuracy=mean_interval(accuracy, weights),
        over_random=over_resamples(over_random),
        tokens=mean_interval(tokens_if_stopped, weights),
        saved=over_resamples(saved),
        saved_full=over_resamples(saved_full),
    )


def gate_lines(report: GateReport) -> list[str]:
    """Returns the numbers as lines for a terminal."""
    words = words_for(report.target)
    of_probability = "" if words is GOOD_OR_BAD else f" of {words.probability}"
    lines = [
        f"after {look.look:2} tokens: AUROC{of_probability} {interval_text(look.auroc)}, "
        f"mean log-probability {interval_text(look.mean_logprob)}"
        f"{'' if look.full is None else f', finished answer {look.full.estimate:.3f}'}  ({look.share:.0%} of answers)"
        for look in report.looks
    ]
    lines += [f"What begins after token {look.look} is not seen." for look in report.looks[-1:]]
    for rate in report.rates:
        worst_task = rate.worst_task
        worst_task_text = (
            f"; of {words.good_ones} of {worst_task} {interval_text(rate.by_task[worst_task], '.1%')}"
            if worst_task
            else ""
        )
        lines += [
            f"promised {rate.alpha:g}: stops {interval_text(rate.false_alarms, '.1%')} of {words.good}, "
            f"{interval_text(rate.bad_stopped, '.1%')} of {words.bad}{worst_task_text}",
            f"    saves {interval_text(rate.tokens_saved, '.1%')} of all tokens, "
            f"{interval_text(rate.tokens_saved_bad, '.1%')} in {words.bad}",
        ]
        lines += [
            f"    {use.use}: accuracy {use.accuracy_before:.1%} -> {use.accuracy.estimate:.1%}, "
            f"{use.saved.estimate:.1%} of tokens saved against giving up the same answers finished"
            for use in rate.uses
        ]
    return lines


def interval_text(value: Interval, form: str = ".3f", scale: float = 1.0) -> str:
    """Returns for example `0.812 [0.790, 0.834]`; `-` if there is no estimate.

    Args:
        value: the interval.
        form: format of each number.
        scale: factor of each number.
    """
    if np.isnan(value.estimate):
        return "-"
    estimate, low, high = (format(scale * x, form) for x in (value.estimate, value.low, value.high))
    return f"{estimate} [{low}, {high}]"
