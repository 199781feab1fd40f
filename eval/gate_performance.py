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
FEWEST_OF_A_TASK = 20
"""Groups with a good answer that a task needs for a rate of its own."""

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
    """How well good and bad answers are told apart after so many tokens, among the answers that are that long.

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
    """`accuracy` minus its expectation when as many answers are replaced at random: the gate's own part."""
    tokens: Interval
    """Tokens a question, in all; those of a stronger model count at its price."""
    saved: Interval
    """Share of tokens saved compared with stopping the same answers once they have finished: the same final quality."""
    saved_full: Interval
    """Share of tokens saved compared with the full-response predictor, which gives up finished answers, the worst
    first, until the final quality is the same. NaN if that is impossible: the gate lowers quality, or raises it beyond
    the predictor's.
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
    """The part of `tokens_saved` that bad answers would have cost. The rest was of use."""
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
    """Returns figures with 95 % intervals from a bootstrap over groups. Looks that hardly any answer reaches are left
    out.

    Args:
        held_out: the answers.
        resamples: number of bootstrap resamples.
        seed: seed of the bootstrap.
    """
    again = None if held_out.full is None else simulate_asking_again(held_out.table)
    looks = [look_result(held_out, column, resamples, seed) for column in range(len(held_out.looks))]
    assumptions = (
        ("Nothing replaces a stopped answer.",)
        if again is None
        else (
            again.assumption,
            f"A stronger model answers {STRONGER_ACCURACY:.0%} of the escalated questions well, in as many tokens, at "
            f"{STRONGER_PRICE:g} times the price.",
            "New answers are not watched by a gate, and reading the prompt again costs nothing.",
        )
    )
    return GateReport(
        looks=tuple(look for look in looks if look is not None),
        rates=tuple(_rate_result(held_out, alpha, again, resamples, seed) for alpha in sorted(held_out.fired)),
        assumptions=assumptions,
        target=held_out.target,
    )


def look_result(held_out: HeldOutLooks, column: int, resamples: int = RESAMPLES, seed: int = 0) -> LookResult | None:
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
    in_fold = StratifiedAuroc(held_out.fold[rows])
    score = held_out.probability[rows, column]
    mean = np.array([np.mean(table.logprobs[row][:look], dtype=np.float64) for row in rows])
    if held_out.target and float(in_fold(y, mean)) < 0.5:
        mean = -mean
    return LookResult(
        look=look,
        share=float(np.mean(table.tokens >= look)),
        auroc=interval(in_fold, y, score, weights),
        mean_logprob=interval(in_fold, y, mean, weights),
        gain=paired_difference(in_fold, y, score, mean, weights),
        full=None if held_out.full is None else interval(in_fold, y, held_out.full[rows], weights),
    )


@dataclass(frozen=True, slots=True, eq=False)
class Again:
    """Estimated outcome of asking each question (n,) once more."""

    good: NDArray[np.float64]
    """Probability that the new answer is good."""
    tokens: NDArray[np.float64]
    assumption: str


def simulate_asking_again(table: AnswerTable) -> Again:
    """Estimates from the model's other answers to the same question; without any, from its average answer."""
    keys = [*zip(table.items.tolist(), table.models.tolist(), table.variants.tolist(), strict=True)]
    number = {key: i for i, key in enumerate(dict.fromkeys(keys))}
    member = np.array([number[key] for key in keys])
    others = np.bincount(member)[member] - 1

    def other(values: NDArray[np.int64]) -> NDArray[np.float64]:
        total = np.bincount(member, weights=values)[member]
        mean_of_others: NDArray[np.float64] = (total - values) / np.maximum(others, 1)
        return np.where(others > 0, mean_of_others, values.mean())

    share = float(np.mean(others > 0))
    average = (
        f"has the average accuracy ({table.y.mean():.1%}) and length ({table.tokens.mean():.0f} tokens) of all "
        f"answers, which flatters it: questions whose answers are stopped are harder than others"
    )
    claim = "is as often good, and as long, as the model's other answers to that question"
    if share == 1:
        text = f"A new answer {claim}."
    elif share == 0:
        text = f"A new answer {average}."
    else:
        text = f"A new answer {claim}, for the {share:.0%} of answers that have others; elsewhere it {average}."
    return Again(other(table.y), other(table.tokens), text)


def _rate_result(held_out: HeldOutLooks, alpha: float, again: Again | None, resamples: int, seed: int) -> RateResult:
    table, fired = held_out.table, held_out.fired[alpha]
    good, bad = table.y == 1, table.y == 0
    stopped_bad = fired[bad & (fired > 0)]
    tasks = np.unique(table.tasks).tolist()
    good_of_task = {task: good & (table.tasks == task) for task in tasks if len(tasks) > 1}

    def false_alarms(rows: NDArray[np.bool_]) -> Interval:
        groups, member = np.unique(table.groups[rows], return_inverse=True)
        stopped_share = np.bincount(member, weights=fired[rows] > 0) / np.bincount(member)
        return mean_interval(stopped_share, cluster_weights(groups.tolist(), resamples, seed))

    uses: dict[Use, Again] = {}
    if again is not None:
        dearer = Again(np.full(len(table), STRONGER_ACCURACY), again.tokens * STRONGER_PRICE, "")
        uses = {"asked again": again, "escalated": dearer}
    tokens_after = np.where(fired > 0, table.tokens - fired, 0)
    weights = cluster_weights(table.groups.tolist(), resamples, seed)

    def saved(rows: NDArray[np.bool_]) -> Interval:
        return statistic_interval(lambda weight: (weight @ (tokens_after * rows)) / (weight @ table.tokens), weights)

    return RateResult(
        alpha=alpha,
        false_alarms=false_alarms(good),
        bad_stopped=mean_interval(fired[bad] > 0, cluster_weights(table.groups[bad].tolist(), resamples, seed)),
        median_look=float(np.median(stopped_bad)) if len(stopped_bad) else float("nan"),
        tokens_saved=saved(good | bad),
        tokens_saved_bad=saved(bad),
        uses=tuple(_use_result(use, held_out, fired, new, resamples, seed) for use, new in uses.items()),
        by_task={
            task: false_alarms(rows)
            for task, rows in good_of_task.items()
            if len(np.unique(table.groups[rows])) >= FEWEST_OF_A_TASK
        },
    )


def _use_result(
    use: Use, held_out: HeldOutLooks, fired: NDArray[np.int64], new: Again, resamples: int, seed: int
) -> UseResult:
    table = held_out.table
    stopped = fired > 0
    weights = cluster_weights(table.groups.tolist(), resamples, seed)
    accuracy = np.where(stopped, new.good, table.y)
    tokens = np.where(stopped, fired + new.tokens, table.tokens)
    finished = np.where(stopped, table.tokens + new.tokens, table.tokens)
    assert held_out.full is not None
    worst_first = np.argsort(held_out.full, kind="stable")
    lift, cost = (new.good - table.y)[worst_first], new.tokens[worst_first]

    def saved(weight: Floats) -> Floats:
        return 1 - (weight @ tokens) / (weight @ finished)

    def saved_full(weight: Floats) -> Floats:
        gained = weight @ (accuracy - table.y)
        ordered = weight[:, worst_first]
        lifts = np.cumsum(ordered * lift, axis=1)  # (R, n): after the worst 1, 2, ... have been replaced
        enough = lifts >= gained[:, None] - 1e-9
        costs = np.cumsum(ordered * cost, axis=1)[np.arange(len(weight)), np.argmax(enough, axis=1)]
        spent = weight @ table.tokens + np.where(gained > 1e-9, costs, 0.0)
        reached = (gained > -1e-9) & ((gained <= 1e-9) | enough.any(axis=1))
        return np.where(reached, 1 - (weight @ tokens) / spent, np.nan)

    def over_random(weight: Floats) -> Floats:
        drawn = (weight @ stopped) / weight.sum(axis=1)  # the same share of the same resampled answers
        at_random: Floats = drawn * (weight @ (new.good - table.y))
        gained: Floats = weight @ (accuracy - table.y) - at_random
        return np.asarray(gained / weight.sum(axis=1))

    def of(statistic: Callable[[Floats], Floats]) -> Interval:
        return statistic_interval(lambda weight: statistic(weight.astype(np.float64)), weights)

    return UseResult(
        use=use,
        accuracy_before=float(table.y.mean()),
        accuracy=mean_interval(accuracy, weights),
        over_random=of(over_random),
        tokens=mean_interval(tokens, weights),
        saved=of(saved),
        saved_full=of(saved_full),
    )


def gate_lines(report: GateReport) -> list[str]:
    """Returns the numbers as lines for a terminal."""
    words = words_for(report.target)
    named = "" if words is GOOD_OR_BAD else f" of {words.probability}"
    lines = [
        f"after {look.look:2} tokens: AUROC{named} {interval_text(look.auroc)}, "
        f"mean log-probability {interval_text(look.mean_logprob)}"
        f"{'' if look.full is None else f', finished answer {look.full.estimate:.3f}'}  ({look.share:.0%} of answers)"
        for look in report.looks
    ]
    lines += [f"What begins after token {look.look} is not seen." for look in report.looks[-1:]]
    for rate in report.rates:
        worst = rate.worst_task
        of_worst = f"; of {words.good_ones} of {worst} {interval_text(rate.by_task[worst], '.1%')}" if worst else ""
        lines += [
            f"promised {rate.alpha:g}: stops {interval_text(rate.false_alarms, '.1%')} of {words.good}, "
            f"{interval_text(rate.bad_stopped, '.1%')} of {words.bad}{of_worst}",
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
