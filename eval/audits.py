"""Is what was learned what it seems? Audits of a trained method and of its answers, in one call.

report = run_audits(AuditInputs(name="probe", table=table, score=held_out, splits=folds))
report.failed, report.audits, report.skipped, report.controls.strongest

A method is held against simpler predictors, recipes that learn from nothing, the price of choosing, and domains that
were left out. Audits of the data themselves are in `eval.audits_of_data`.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from metaprobe.checkpoints import Severity
from metaprobe.checkpoints.table import format_interval
from metaprobe.eval.audits_of_data import (
    FEW_SHARED,
    Ints,
    Split,
    class_balance,
    group_overlap,
    label_noise,
    near_duplicates,
    repeated_questions,
    repeated_series,
    reworded_questions,
    twins_disagree,
)
from metaprobe.eval.compare import run_of_answers
from metaprobe.eval.controls import COLLECTION, PROMPT, REVERSED, Scores, has_questions
from metaprobe.eval.metrics.bootstrap import (
    ControlComparison,
    ControlDifference,
    Interval,
    MetricValues,
    against_controls,
    cluster_weights,
    interval,
    metric_values,
    paired_interval,
    resampled_interval,
)
from metaprobe.eval.metrics.calibration import ece_interval
from metaprobe.eval.metrics.ranked import auroc, auroc_within
from metaprobe.eval.results import Finding
from metaprobe.eval.table import AnswerTable

CHANCE_INTERVAL_LEVEL = 0.99
"""Level of the intervals around chance: an honest recipe is taken for a leaking one about once in 200 audits."""
OPTIMISM = 0.05
"""AUROC by which the selection may promise more than the test can give."""
RESAMPLES = 1000
REACHED = 0.05
"""The p-value from which chance is no longer taken for an explanation."""
NEGLIGIBLE = 0.02
"""AUROC that does not matter."""
MIN_DOMAIN_ANSWERS = 100
"""Answers that a domain needs, and a tenth of that of either class, for a number to say something."""
MAX_DOMAINS = 8
"""Domains that are left out in turn, the largest: each takes a fit."""
ENOUGH_FOR_ECE = 1000
NO_CONTROL = (
    "there is none without log-probabilities, questions, answers or layer 0 beside another layer: something simpler "
    "may do as well"
)


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """Figures of answers of domains that the fit had not seen."""

    by: str
    """Kind of domain: `task` or `dimension`."""
    auroc: Mapping[str, Interval]
    """By the domain that was left out."""
    mean: Interval
    """Mean of `auroc` over the domains, on the same resamples of groups."""
    gain: Interval
    """The same mean less that of the baseline, which needs no fit, paired."""
    ece: Interval | None
    """Calibration error of all domains together; None below `ENOUGH_FOR_ECE` answers."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AuditInputs:
    """Everything known of one trained method. An audit whose input is None (or empty) is skipped."""

    name: str
    """Name of the method, as the card shows it."""
    table: AnswerTable
    score: Scores
    """(n,): held-out scores, higher for likelier right."""
    splits: Sequence[Split] = ()
    """Role -> row indices, for each outer fold. Where the test rows are all answers, scores are compared with controls
    over pairs of answers of one fold."""
    controls: Mapping[str, Scores] = field(default_factory=dict)
    """Name -> held-out scores (n,) of the controls of `eval.controls` that the method is compared with."""
    itself: str = ""
    """The one number that the method is after calibration: it cannot beat that, and is not compared with it."""
    refit_labels: Callable[[NDArray[np.int64]], Scores] | None = None
    """Labels (n,) -> held-out scores (n,), by the whole recipe."""
    refit_features: Callable[[NDArray[np.float32]], Scores] | None = None
    """Features -> held-out scores (n,), by the whole recipe."""
    features_shape: tuple[int, ...] | None = None
    """Shape of what `refit_features` takes."""
    labels: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)
    """Source -> labels (n,) of 0, 1 and NaN, as from `labels_by_source`."""
    elsewhere: Elsewhere | None = None
    """Figures of domains that were left out."""
    selection_auroc: NDArray[np.floating] | None = None
    """Selection AUROC of every combination that was tried, any shape."""


@dataclass(frozen=True, slots=True)
class AuditReport:
    """Results of the audits, and names of the audits that were not made."""

    audits: tuple[Finding, ...]
    skipped: tuple[str, ...]
    """Audits that could not be made, each with what they need."""
    controls: ControlComparison | None = None
    """The score against every control; None where the report is not of one score."""
    controls_within: ControlComparison | None = None
    """The same over pairs of answers of one run; None where there is one run."""

    @property
    def failed(self) -> tuple[Finding, ...]:
        """The audits that did not pass."""
        return tuple(audit for audit in self.audits if not audit.passed)


def run_audits(inputs: AuditInputs, *, seed: int = 0) -> AuditReport:
    """Every audit whose input is there. The refits cost 5 and 3 times the recipe; the others take seconds."""
    name, table, score, splits = inputs.name, inputs.table, inputs.score, inputs.splits
    y, groups, questions = table.y, table.groups, table.questions
    weights = cluster_weights(groups.tolist(), RESAMPLES, seed)
    fold = _fold_of(splits, len(y))
    metric = auroc_within(fold)
    own = interval(metric, y, score, weights)
    of_answers, of_scores, skipped = [class_balance(y)], [above_chance(own, name=name)], list[str]()
    if splits:
        of_answers.append(group_overlap(groups, splits))
    else:
        skipped.append("group overlap: needs the splits")
    if splits and has_questions(table):
        of_answers += [repeated_questions(questions, splits, y=y), near_duplicates(questions, splits, y=y, seed=seed)]
        of_answers.append(reworded_questions(questions, splits, y=y))
    else:
        skipped.append("repeated, nearly repeated and reworded questions: need the splits and the questions' texts")
    if splits and table.measured:
        of_answers.append(repeated_series(table.logprobs, splits, y=y))
    else:
        skipped.append("answers that occur twice: need the splits and the log-probabilities")
    if twins := twins_disagree(table.logprobs, y):
        of_answers.append(twins)
    if noise := label_noise(inputs.labels, groups, y=y, seed=seed):
        of_answers += noise
    else:
        skipped.append(f"label noise: needs {FEW_SHARED} answers labelled by two sources")
    controls = against_controls(y, score, inputs.controls, weights, metric=metric) if inputs.controls else None
    if inputs.itself:
        level = "level, difference 0.000: the order is the same, calibration adds how likely answers are to be right"
        of_scores.append(Finding(f"{name} is {inputs.itself}, calibrated", True, level))
    elif controls is None:
        of_scores.append(Finding(f"{name} was held against a control", False, NO_CONTROL, "unaudited"))
    if controls is not None:
        of_scores += beats_controls(controls, name=name)
    within: ControlComparison | None = None
    if inputs.controls and (runs := run_of_answers(table)).any():
        within = against_controls(y, score, inputs.controls, weights, metric=auroc_within(fold, runs))
        of_scores.append(beats_controls_within(within, name=name))
    else:
        skipped.append("controls within runs: needs answers of several runs (models, tasks, ways of asking)")
    if PROMPT not in inputs.controls:
        skipped.append(f"{PROMPT}: needs its held-out scores")
    if inputs.refit_labels is not None:
        of_scores.append(shuffled_labels(inputs.refit_labels, y, score, groups, seed=seed))
    else:
        skipped.append("shuffled labels: needs the recipe")
    if inputs.refit_features is not None and inputs.features_shape is not None:
        of_scores.append(random_features(inputs.refit_features, y, inputs.features_shape, groups, seed=seed))
    else:
        skipped.append("random features: needs the recipe and the features' shape")
    if inputs.elsewhere is not None:
        of_scores.append(holds_elsewhere(inputs.elsewhere, name=name, home=own.estimate))
    else:
        needs = f"two tasks, or two dimensions, with {MIN_DOMAIN_ANSWERS} answers each, and a fit without each"
        skipped.append(f"other domains: needs {needs}")
    if inputs.selection_auroc is not None:
        of_scores.append(layers_tried(inputs.selection_auroc, own, name=name))
    else:
        skipped.append("layers tried: needs the sweep that chose the probe")
    of_method = tuple(dataclasses.replace(finding, method=name) for finding in of_scores)
    return AuditReport((*of_answers, *of_method), tuple(skipped), controls, within)


def _fold_of(splits: Sequence[Split], n: int) -> Ints | None:
    """Returns the outer fold (n,) whose test rows hold each answer; None without folds that hold all answers."""
    if len(splits) < 2 or sum(len(split.get("test", ())) for split in splits) != n:
        return None
    fold = np.zeros(n, dtype=np.int64)
    for number, split in enumerate(splits):
        fold[split["test"]] = number
    return fold


def above_chance(value: Interval, *, name: str) -> Finding:
    """The AUROC's interval lies above 0.5. `invalid` where none of it is more than `NEGLIGIBLE` above."""
    severity: Severity = "invalid" if value.high < 0.5 + NEGLIGIBLE else "weak"
    return Finding(f"{name} is above chance", bool(value.low > 0.5), f"AUROC {format_interval(value, 3)}", severity)


def beats_controls(
    comparison: ControlComparison, *, name: str, metric: str = "AUROC", chance: float = 0.5
) -> list[Finding]:
    """One line a control, the strongest first: the method's AUROC exceeds the control's on the same answers.

    Passes where the paired interval over groups lies above 0 and the difference stands after Holm's correction over all
    controls. Fails as `weak`; as `invalid` where the control is one of `COLLECTION`, carries information, and the
    method is at most `NEGLIGIBLE` above it by the whole interval: then the way of collecting explains the numbers.
    `metric` is the name of what was compared where that is not AUROC, `chance` its value of a score that knows nothing.
    """
    audits = []
    for control in comparison.controls:
        gain = control.difference
        detail = (
            f"{metric} {comparison.estimate:.3f} against {control.estimate:.3f}, gain {gain.estimate:+.3f} "
            f"[{gain.low:+.3f}, {gain.high:+.3f}]"
        )
        if len(comparison.controls) > 1:
            detail += _corrected(control, len(comparison.controls))
        if control is comparison.strongest:
            detail += "; the strongest control"
        informative = control.estimate > chance + NEGLIGIBLE
        collected = control.name.removesuffix(REVERSED) in COLLECTION
        explained = collected and informative and gain.high < NEGLIGIBLE
        severity: Severity = "invalid" if explained else "weak"
        audits.append(Finding(f"{name} beats {control.name}", control.beaten, detail, severity))
    return audits


def beats_controls_within(comparison: ControlComparison, *, name: str) -> Finding:
    """One line for all: over pairs of answers of one run the AUROC exceeds each control's, after Holm's correction.

    Pooled over runs that differ in how many answers are right, a score is good that knows the run; here it has to know
    the answers. `comparison` holds a `StratifiedAuroc` over the runs. The detail names the strongest control.
    """
    best = comparison.strongest
    gain = best.difference
    detail = (
        f"AUROC over pairs of one run {comparison.estimate:.3f}, of the strongest control there, {best.name}, "
        f"{best.estimate:.3f}, gain {gain.estimate:+.3f} [{gain.low:+.3f}, {gain.high:+.3f}]"
        f"{_corrected(best, len(comparison.controls))}"
    )
    if others := [control.name for control in comparison.standing if control is not best]:
        detail += f"; not clearly beaten either: {', '.join(others)}"
    return Finding(f"{name} beats every control within runs", comparison.beaten, detail)


def _corrected(control: ControlDifference, count: int) -> str:
    """The p-value among `count` controls, in words; where it undoes what the interval shows, how they differ."""
    p = control.p_holm
    shown = "cannot be determined" if np.isnan(p) else "< 0.001" if p < 0.001 else f"= {p:.3f}"
    told = f", p {shown} after Holm's correction over {count} controls"
    alone = control.difference.low > 0 and not control.beaten
    return f"{told} (the interval is of this one alone, not corrected)" if alone else told


def shuffled_labels(
    refit: Callable[[NDArray[np.int64]], Scores],
    y: NDArray[np.int64],
    score: Scores,
    groups: NDArray[np.str_],
    *,
    permutations: int = 5,
    seed: int = 0,
) -> Finding:
    """With labels permuted by group, the whole recipe is at chance on held-out answers: nothing looks at test labels.

    `refit` takes labels (n,) and returns the held-out scores (n,) that everything, from feature selection to blending,
    gives for them. `score` are those of the true labels. Fails where the interval of the mean AUROC over the
    permutations lies above 0.5. Below is no fault: out-of-fold scores of pure noise fall somewhat under 0.5, for a fold
    with many ones leaves few for learning.
    """
    rng = np.random.default_rng(seed)
    shuffled = [permute_by_group(y, groups, rng) for _ in range(permutations)]
    aurocs, mean = _mean_auroc([(labels, refit(labels)) for labels in shuffled], groups, seed)
    true = float(auroc(y, score))
    detail = (
        f"mean AUROC {format_interval(mean, 3)} over {permutations} permutations by group; {true:.3f} with the true "
        f"labels: {_permutation_test(aurocs, true, groups)}"
    )
    return Finding("shuffled labels are at chance", not mean.low > 0.5, detail, "invalid")


def _permutation_test(aurocs: Scores, true: float, groups: NDArray[np.str_]) -> str:
    """The p-value of the true AUROC among those of permuted labels, in words; or that there can be none that counts."""
    orders = math.factorial(min(len(np.unique(groups)), 20))
    smallest = 1 / min(len(aurocs) + 1, orders)
    if smallest <= REACHED:
        return f"p = {max((1 + int(np.sum(aurocs >= true))) / (len(aurocs) + 1), smallest):.3f}"
    few = "groups" if orders <= len(aurocs) + 1 else "permutations"
    return (
        f"whether that is chance cannot be tested with so few {few}, for the smallest p possible is {smallest:.2f}; "
        "the controls test it"
    )


def random_features(
    refit: Callable[[NDArray[np.float32]], Scores],
    y: NDArray[np.int64],
    shape: tuple[int, ...],
    groups: NDArray[np.str_],
    *,
    draws: int = 3,
    seed: int = 0,
) -> Finding:
    """With Gaussian noise of this shape (n, ...) for features, the whole recipe is at chance on held-out answers."""
    rng = np.random.default_rng(seed)
    _, mean = _mean_auroc([(y, refit(rng.standard_normal(shape, np.float32))) for _ in range(draws)], groups, seed)
    detail = f"mean AUROC {format_interval(mean, 3)} over {draws} draws of noise of shape {shape}"
    return Finding("random features are at chance", not mean.low > 0.5, detail, "invalid")


def permute_by_group(y: NDArray[np.int64], groups: NDArray[np.str_], rng: np.random.Generator) -> NDArray[np.int64]:
    """The labels dealt out anew, group by group: what stood together in one group stays together.

    The rows, sorted by group, are filled with the groups' runs of labels in random order. Where all groups have one
    size, whole groups exchange their labels; else the runs are laid across the borders of the groups. Inside a run the
    order is drawn too: else rows that stand at one place in every group (a stage, a way of asking) would keep what that
    place says of the label.
    """
    order = np.argsort(groups, kind="stable")
    borders = np.flatnonzero(groups[order][1:] != groups[order][:-1]) + 1
    runs = np.split(y[order], borders)
    out = np.empty_like(y)
    out[order] = np.concatenate([rng.permutation(runs[i]) for i in rng.permutation(len(runs))])
    return out


def layers_tried(selection_auroc: NDArray[np.floating], test: Interval, *, name: str) -> Finding:
    """The test AUROC keeps what the best of all combinations tried (layer, position, penalty) promised on selection.

    `selection_auroc` of any shape, NaN where nothing was fitted. Fails where the upper end of the test's interval is
    more than 0.05 below the promise. The test estimate itself stands: nothing was chosen by it.
    """
    tried = selection_auroc[np.isfinite(selection_auroc)]
    if tried.size == 0:
        raise ValueError("selection_auroc holds no finite value: the sweep that chose the probe is needed")
    best = float(tried.max())
    detail = (
        f"best of {tried.size} combinations {best:.3f} on selection (median {float(np.median(tried)):.3f}), "
        f"{format_interval(test, 3)} on test: optimism {best - test.estimate:+.3f}"
    )
    return Finding(f"{name} keeps what selection promised", not test.high < best - OPTIMISM, detail)


def _mean_auroc(
    runs: list[tuple[NDArray[np.int64], Scores]], groups: NDArray[np.str_], seed: int
) -> tuple[Scores, Interval]:
    """AUROC of each run, and their mean with its interval by a bootstrap over groups."""
    weights = cluster_weights(groups.tolist(), RESAMPLES, seed)
    values = [metric_values(auroc, y, score, weights) for y, score in runs]
    estimates = np.array([one.estimate for one in values])
    means = np.mean([one.resamples for one in values], axis=0)
    return estimates, resampled_interval(float(estimates.mean()), means, weights, level=CHANCE_INTERVAL_LEVEL)


def domains_of(table: AnswerTable) -> tuple[str, dict[str, Ints]]:
    """Returns the kind of domain, and the rows of each domain that is large enough: tasks, or dimensions of one task.

    Empty where there are not two.
    """
    for by, names in (("task", table.tasks), ("dimension", table.dimensions)):
        rows = {str(name): np.flatnonzero(names == name) for name in np.unique(names)}
        large = {
            name: here
            for name, here in rows.items()
            if len(here) >= MIN_DOMAIN_ANSWERS
            and np.bincount(table.y[here], minlength=2).min() >= MIN_DOMAIN_ANSWERS / 10
        }
        if len(large) > 1:
            kept = sorted(large, key=lambda name: -len(large[name]))[:MAX_DOMAINS]
            return by, {name: large[name] for name in sorted(kept)}
    return "", {}


def judge_left_out(
    table: AnswerTable,
    fit: Callable[[Ints], tuple[Scores, Scores]],
    baseline: Scores,
    *,
    resamples: int = 1000,
    seed: int = 0,
) -> Elsewhere | None:
    """Each domain judged by a fit on the others; None where there are not two domains.

    `fit` takes the rows of a domain, learns from the rest, and gives scores and probabilities (rows,) of that domain.
    `baseline` (n,): scores that were not fitted, to compare with.
    """
    by, domains = domains_of(table)
    if not domains:
        return None
    weights = cluster_weights(table.groups.tolist(), resamples, seed)
    by_domain: dict[str, Interval] = {}
    fitted, plain = [], []
    probability = np.full(len(table), np.nan)
    for name, rows in domains.items():
        scores, probability[rows] = fit(rows)
        mine = weights[:, rows]
        fitted.append(metric_values(auroc, table.y[rows], scores, mine))
        plain.append(metric_values(auroc, table.y[rows], baseline[rows], mine))
        by_domain[name] = resampled_interval(fitted[-1].estimate, fitted[-1].resamples, mine)
    over, under = (
        MetricValues(float(np.mean([v.estimate for v in values])), np.mean([v.resamples for v in values], axis=0))
        for values in (fitted, plain)
    )
    judged = np.flatnonzero(np.isfinite(probability))
    error = None
    if len(judged) >= ENOUGH_FOR_ECE:
        error = ece_interval(table.y[judged], probability[judged], weights[:, judged])
    mean = resampled_interval(over.estimate, over.resamples, weights)
    return Elsewhere(by, by_domain, mean, paired_interval(over, under, weights), error)


def holds_elsewhere(left_out: Elsewhere, *, name: str, home: float) -> Finding:
    """The mean AUROC on domains that were left out is above chance."""
    worst = min(left_out.auroc, key=lambda domain: left_out.auroc[domain].estimate)
    detail = (
        f"mean AUROC {format_interval(left_out.mean, 3)} on each {left_out.by} by a fit without it, {home:.3f} at "
        f"home; lowest {left_out.auroc[worst].estimate:.3f} on {worst}; over mean log-probability "
        f"{left_out.gain.estimate:+.3f} [{left_out.gain.low:+.3f}, {left_out.gain.high:+.3f}]"
    )
    return Finding(f"{name} is above chance on a {left_out.by} it has not seen", bool(left_out.mean.low > 0.5), detail)
