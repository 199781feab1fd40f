"""Audits of a trained method and of its answers, in one call: do its numbers mean what they seem to mean?

    report = run_audits(AuditInputs(name="probe", table=table, score=held_out, splits=folds))
    report.failed, report.audits, report.skipped, report.controls.strongest

A method is compared with simpler predictors and with recipes that have nothing to learn from. It is also compared with
the optimism of having chosen the best layer, and with its figures on domains that were left out. Audits of the data
themselves are in `eval.audits_of_data`.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from metaprobe.checkpoints import Severity
from metaprobe.checkpoints.rendered_table import format_interval
from metaprobe.eval.answer_table import AnswerTable
from metaprobe.eval.audits_of_data import (
    MIN_SHARED_LABELS,
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

CHANCE_INTERVAL_LEVEL = 0.99
"""Level of the intervals around chance: about 1 in 200 audits calls an honest recipe leaking."""
ALLOWED_OPTIMISM = 0.05
"""How much higher the AUROC on selection data may be than the upper end of the test interval."""
RESAMPLES = 1000
"""Number of bootstrap resamples."""
SIGNIFICANCE_LEVEL = 0.05
"""A p-value of at most this level excludes chance."""
NEGLIGIBLE_AUROC = 0.02
"""A difference in AUROC that does not matter."""
MIN_DOMAIN_ANSWERS = 100
"""Fewest answers of a domain for a useful figure; each class needs a tenth of them."""
MAX_DOMAINS = 8
"""Most domains that are left out in turn, the largest ones first: each takes a fit."""
ENOUGH_FOR_ECE = 1000
"""Fewest answers for which a calibration error is given."""
NO_CONTROL_DETAIL = (
    "there is none without log-probabilities, questions, answers or layer 0 beside another layer: something simpler "
    "may do as well"
)


@dataclass(frozen=True, slots=True)
class LeftOutDomains:
    """Figures for answers of domains that the fit had not seen."""

    by: str
    """Kind of domain: `task` or `dimension`."""
    auroc: Mapping[str, Interval]
    """Maps each left-out domain to its AUROC."""
    mean: Interval
    """Mean of `auroc` over the domains, on the same resamples of groups."""
    gain: Interval
    """`mean` minus the same mean of the baseline, which needs no fit; paired."""
    ece: Interval | None
    """Calibration error of all domains together; None if there are fewer than `ENOUGH_FOR_ECE` answers."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AuditInputs:
    """Everything known about one trained method. An audit whose input is None or empty is skipped."""

    name: str
    """Name of the method, as the card shows it."""
    table: AnswerTable
    score: Scores
    """Held-out scores (n,); higher means likelier right."""
    splits: Sequence[Split] = ()
    """For each outer fold, maps a role to row indices. If the test rows are all answers, scores are compared with
    controls over pairs of answers of one fold.
    """
    controls: Mapping[str, Scores] = field(default_factory=dict)
    """Maps names of controls (`eval.controls`) to their held-out scores (n,); the method is compared with them."""
    calibrated_control: str = ""
    """Name of a control, if the method is only that control after calibration: the two are not compared. Else empty."""
    refit_labels: Callable[[NDArray[np.int64]], Scores] | None = None
    """Returns held-out scores (n,) of the whole recipe for other labels (n,)."""
    refit_features: Callable[[NDArray[np.float32]], Scores] | None = None
    """Returns held-out scores (n,) of the whole recipe for other features."""
    features_shape: tuple[int, ...] | None = None
    """Shape of the features that `refit_features` takes."""
    labels: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)
    """Maps a source to its labels (n,) of 0, 1 and NaN, as from `labels_by_source`."""
    of_pairs: bool = False
    """Whether each row is a pair of answers, and its label says whether both agree. Then one answer has several rows,
    and their labels may differ.
    """
    left_out_domains: LeftOutDomains | None = None
    """Figures of domains that were left out."""
    selection_auroc: NDArray[np.floating] | None = None
    """Selection AUROC of every combination that was tried; any shape."""


@dataclass(frozen=True, slots=True)
class AuditReport:
    """Results of the audits, and names of the audits that were not made."""

    audits: tuple[Finding, ...]
    skipped: tuple[str, ...]
    """Audits that could not be made, each with the input that it needs."""
    controls: ControlComparison | None = None
    """Compares the score with every control; None if the report is not about one score."""
    controls_within: ControlComparison | None = None
    """Compares the score with every control over pairs of answers of one run; None if there is only one run."""

    @property
    def failed(self) -> tuple[Finding, ...]:
        """The audits that did not pass."""
        return tuple(audit for audit in self.audits if not audit.passed)


def run_audits(inputs: AuditInputs, *, seed: int = 0) -> AuditReport:
    """Makes every audit whose input is given.

    `refit_labels` is called 5 times and `refit_features` 3 times, and each call costs a training. The other audits take
    seconds.
    """
    name, table, score, splits = inputs.name, inputs.table, inputs.score, inputs.splits
    y, groups, questions = table.y, table.groups, table.questions
    weights = cluster_weights(groups.tolist(), RESAMPLES, seed)
    fold = _fold_of(splits, len(y))
    metric = auroc_within(fold)
    method_interval = interval(metric, y, score, weights)
    answer_findings, score_findings, skipped = (
        [class_balance(y)],
        [above_chance(method_interval, name=name)],
        list[str](),
    )
    # Audits of the answers.
    if splits:
        answer_findings.append(group_overlap(groups, splits))
    else:
        skipped.append("group overlap: needs the splits")
    if splits and has_questions(table):
        answer_findings += [
            repeated_questions(questions, splits, y=y),
            near_duplicates(questions, splits, y=y, seed=seed),
        ]
        answer_findings.append(reworded_questions(questions, splits, y=y))
    else:
        skipped.append("repeated, nearly repeated and reworded questions: need the splits and the questions' texts")
    if splits and table.measured:
        answer_findings.append(repeated_series(table.logprobs, splits, y=y))
    else:
        skipped.append("answers that occur twice: need the splits and the log-probabilities")
    if inputs.of_pairs:
        skipped.append("twins have one label: an answer has a row for each answer that it was compared with")
    elif twins := twins_disagree(table.logprobs, y):
        answer_findings.append(twins)
    if noise := label_noise(inputs.labels, groups, y=y, seed=seed):
        answer_findings += noise
    else:
        skipped.append(f"label noise: needs {MIN_SHARED_LABELS} answers labelled by two sources")
    # The score against its controls, pooled and within runs.
    controls = against_controls(y, score, inputs.controls, weights, metric=metric) if inputs.controls else None
    if inputs.calibrated_control:
        level_detail = (
            "level, difference 0.000: the order is the same, calibration adds how likely answers are to be right"
        )
        score_findings.append(Finding(f"{name} is {inputs.calibrated_control}, calibrated", True, level_detail))
    elif controls is None:
        score_findings.append(Finding(f"{name} was held against a control", False, NO_CONTROL_DETAIL, "unaudited"))
    within: ControlComparison | None = None
    if inputs.controls and (runs := run_of_answers(table)).any():
        within = against_controls(y, score, inputs.controls, weights, metric=auroc_within(fold, runs))
    if controls is not None:
        score_findings += beats_controls(controls, name=name, within=within)
    if within is not None:
        score_findings.append(beats_controls_within(within, name=name))
    else:
        skipped.append("controls within runs: needs answers of several runs (models, tasks, ways of asking)")
    if PROMPT not in inputs.controls:
        skipped.append(f"{PROMPT}: needs its held-out scores")
    # The recipe on labels or features that hold nothing to learn.
    if inputs.refit_labels is not None:
        score_findings.append(shuffled_labels(inputs.refit_labels, y, score, groups, seed=seed))
    else:
        skipped.append("shuffled labels: needs the recipe")
    if inputs.refit_features is not None and inputs.features_shape is not None:
        score_findings.append(random_features(inputs.refit_features, y, inputs.features_shape, groups, seed=seed))
    else:
        skipped.append("random features: needs the recipe and the features' shape")
    # The score on other domains, and the optimism of having chosen a layer.
    if inputs.left_out_domains is not None:
        score_findings.append(holds_elsewhere(inputs.left_out_domains, name=name, home_auroc=method_interval.estimate))
    else:
        needed_domains = f"two tasks, or two dimensions, with {MIN_DOMAIN_ANSWERS} answers each, and a fit without each"
        skipped.append(f"other domains: needs {needed_domains}")
    if inputs.selection_auroc is not None:
        score_findings.append(layers_tried(inputs.selection_auroc, method_interval, name=name))
    else:
        skipped.append("layers tried: needs the sweep that chose the probe")
    of_method = tuple(dataclasses.replace(finding, method=name) for finding in score_findings)
    return AuditReport((*answer_findings, *of_method), tuple(skipped), controls, within)


def _fold_of(splits: Sequence[Split], n: int) -> Ints | None:
    """Returns the outer fold (n,) whose test rows hold each answer; None if the folds do not hold all answers."""
    if len(splits) < 2 or sum(len(split.get("test", ())) for split in splits) != n:
        return None
    fold = np.zeros(n, dtype=np.int64)
    for number, split in enumerate(splits):
        fold[split["test"]] = number
    return fold


def above_chance(method_auroc: Interval, *, name: str) -> Finding:
    """Checks that the AUROC's interval lies above 0.5. Fails as `invalid` if even its upper end is at most
    `NEGLIGIBLE_AUROC` above 0.5.
    """
    severity: Severity = "invalid" if method_auroc.high < 0.5 + NEGLIGIBLE_AUROC else "weak"
    return Finding(
        f"{name} is above chance", bool(method_auroc.low > 0.5), f"AUROC {format_interval(method_auroc, 3)}", severity
    )


def beats_controls(
    comparison: ControlComparison,
    *,
    name: str,
    within: ControlComparison | None = None,
    metric: str = "AUROC",
    chance: float = 0.5,
) -> list[Finding]:
    """Checks for each control, the strongest first, that the method's AUROC exceeds it on the same answers.

    Passes if the paired interval over groups lies above 0 and the difference stands after Holm's correction over all
    controls. Otherwise the audit fails as `weak`. It fails as `invalid` if the way of collecting explains the numbers:
    the control is in `COLLECTION` and carries information, and the interval's upper end is below `NEGLIGIBLE_AUROC`.
    A method that beats this control within runs is not explained by it.

    Args:
        comparison: the method and its controls.
        name: name of the method.
        within: the same within runs; None if there is one run.
        metric: name of the compared metric, if it is not AUROC.
        chance: the metric's value for a score that knows nothing.
    """
    audits = []
    beaten_within = {control.name for control in within.controls if control.beaten} if within else set()
    for control in comparison.controls:
        gain = control.difference
        detail = (
            f"{metric} {comparison.estimate:.3f} against {control.estimate:.3f}, gain {gain.estimate:+.3f} "
            f"[{gain.low:+.3f}, {gain.high:+.3f}]"
        )
        if len(comparison.controls) > 1:
            detail += _corrected_p_text(control, len(comparison.controls))
        if control is comparison.strongest:
            detail += "; the strongest control"
        is_informative = control.estimate > chance + NEGLIGIBLE_AUROC
        is_of_collection = control.name.removesuffix(REVERSED) in COLLECTION
        is_explained = is_of_collection and is_informative and gain.high < NEGLIGIBLE_AUROC
        is_explained = is_explained and control.name not in beaten_within
        severity: Severity = "invalid" if is_explained else "weak"
        audits.append(Finding(f"{name} beats {control.name}", control.beaten, detail, severity, control=control.name))
    return audits


def beats_controls_within(comparison: ControlComparison, *, name: str) -> Finding:
    """Checks that the AUROC over pairs of answers of one run exceeds each control's, after Holm's correction.

    If runs differ in their share of right answers, a score that only knows the run is good on pooled answers. Here a
    score has to tell answers of one run apart. `comparison` holds a `StratifiedAuroc` over the runs. The one finding
    covers all controls, and its detail names the strongest control.
    """
    best = comparison.strongest
    gain = best.difference
    detail = (
        f"AUROC over pairs of one run {comparison.estimate:.3f}, of the strongest control there, {best.name}, "
        f"{best.estimate:.3f}, gain {gain.estimate:+.3f} [{gain.low:+.3f}, {gain.high:+.3f}]"
        f"{_corrected_p_text(best, len(comparison.controls))}"
    )
    if other_controls := [control.name for control in comparison.standing if control is not best]:
        detail += f"; not clearly beaten either: {', '.join(other_controls)}"
    return Finding(f"{name} beats every control within runs", comparison.beaten, detail)


def _corrected_p_text(control: ControlDifference, count: int) -> str:
    """Returns words for the p-value after correction over `count` controls.

    If the uncorrected interval lies above 0 and the control is still not beaten, the words say why.
    """
    p = control.p_holm
    p_text = "cannot be determined" if np.isnan(p) else "< 0.001" if p < 0.001 else f"= {p:.3f}"
    text = f", p {p_text} after Holm's correction over {count} controls"
    is_beaten_uncorrected = control.difference.low > 0 and not control.beaten
    return f"{text} (the interval is of this one alone, not corrected)" if is_beaten_uncorrected else text


def shuffled_labels(
    refit: Callable[[NDArray[np.int64]], Scores],
    y: NDArray[np.int64],
    score: Scores,
    groups: NDArray[np.str_],
    *,
    permutations: int = 5,
    seed: int = 0,
) -> Finding:
    """Checks that nothing looks at test labels: with labels permuted by group, the whole recipe must be at chance.

    Fails if the interval of the mean AUROC over the permutations lies above 0.5. A value below 0.5 is no fault:
    out-of-fold scores of pure noise fall somewhat under 0.5, because a fold with many ones leaves few ones to learn
    from.

    Args:
        refit: takes labels (n,) and returns held-out scores (n,) of the whole recipe, from feature selection to
            blending.
        y: the true labels.
        score: held-out scores for the true labels.
        groups: the groups (n,).
        permutations: number of permutations.
        seed: seed of the permutations.
    """
    rng = np.random.default_rng(seed)
    shuffled = [permute_by_group(y, groups, rng) for _ in range(permutations)]
    aurocs, mean = _mean_auroc([(labels, refit(labels)) for labels in shuffled], groups, seed)
    true = float(auroc(y, score))
    detail = (
        f"mean AUROC {format_interval(mean, 3)} over {permutations} permutations by group; {true:.3f} with the true "
        f"labels: {_permutation_test_text(aurocs, true, groups)}"
    )
    return Finding("shuffled labels are at chance", not mean.low > 0.5, detail, "invalid")


def _permutation_test_text(aurocs: Scores, true: float, groups: NDArray[np.str_]) -> str:
    """Returns words for the p-value of the true AUROC among those of permuted labels, or says that none is possible.

    Args:
        aurocs: AUROC of each permutation.
        true: the AUROC with the true labels.
        groups: the groups (n,).
    """
    group_orders = math.factorial(min(len(np.unique(groups)), 20))
    smallest = 1 / min(len(aurocs) + 1, group_orders)
    if smallest <= SIGNIFICANCE_LEVEL:
        return f"p = {max((1 + int(np.sum(aurocs >= true))) / (len(aurocs) + 1), smallest):.3f}"
    scarce = "groups" if group_orders <= len(aurocs) + 1 else "permutations"
    return (
        f"whether that is chance cannot be tested with so few {scarce}, for the smallest p possible is {smallest:.2f}; "
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
    """Checks that the whole recipe is at chance on held-out answers if its features are Gaussian noise.

    Args:
        refit: takes features and returns held-out scores (n,).
        y: the labels.
        shape: shape (n, ...) of the features.
        groups: the groups (n,).
        draws: number of draws.
        seed: seed of the draws.
    """
    rng = np.random.default_rng(seed)
    _, mean = _mean_auroc([(y, refit(rng.standard_normal(shape, np.float32))) for _ in range(draws)], groups, seed)
    detail = f"mean AUROC {format_interval(mean, 3)} over {draws} draws of noise of shape {shape}"
    return Finding("random features are at chance", not mean.low > 0.5, detail, "invalid")


def permute_by_group(y: NDArray[np.int64], groups: NDArray[np.str_], rng: np.random.Generator) -> NDArray[np.int64]:
    """Returns the labels permuted by group: labels of one group stay together.

    The rows, sorted by group, are filled with the groups' series of labels in random order. If all groups have one
    size, whole groups exchange their labels; otherwise a series may cross the border of two groups. The order inside a
    series is drawn too. Otherwise rows with a fixed place in every group (a stage, a prompt variant) would keep the
    share of right labels of their place.

    Args:
        y: the labels (n,).
        groups: the groups (n,).
        rng: source of random numbers.
    """
    order = np.argsort(groups, kind="stable")
    borders = np.flatnonzero(groups[order][1:] != groups[order][:-1]) + 1
    runs = np.split(y[order], borders)
    out = np.empty_like(y)
    out[order] = np.concatenate([rng.permutation(runs[i]) for i in rng.permutation(len(runs))])
    return out


def layers_tried(selection_auroc: NDArray[np.floating], test: Interval, *, name: str) -> Finding:
    """Checks that the test AUROC keeps what the best combination (layer, position, penalty) promised on selection data.

    `selection_auroc` has any shape, with NaN if nothing was fitted. Fails if the upper end of the test's interval is
    more than `ALLOWED_OPTIMISM` below the promise. The test estimate itself stays valid: nothing was chosen by it.

    Args:
        selection_auroc: the AUROC of every combination on selection data.
        test: the AUROC on test data.
        name: name of the method.
    """
    tried = selection_auroc[np.isfinite(selection_auroc)]
    if tried.size == 0:
        raise ValueError("selection_auroc holds no finite value: the sweep that chose the probe is needed")
    promised = float(tried.max())
    detail = (
        f"best of {tried.size} combinations {promised:.3f} on selection (median {float(np.median(tried)):.3f}), "
        f"{format_interval(test, 3)} on test: optimism {promised - test.estimate:+.3f}"
    )
    return Finding(f"{name} keeps what selection promised", not test.high < promised - ALLOWED_OPTIMISM, detail)


def _mean_auroc(
    labels_and_scores: list[tuple[NDArray[np.int64], Scores]], groups: NDArray[np.str_], seed: int
) -> tuple[Scores, Interval]:
    """Returns the AUROC of each run, and their mean with its interval by a bootstrap over groups.

    Args:
        labels_and_scores: labels and scores of each run.
        groups: the groups (n,).
        seed: seed of the bootstrap.
    """
    weights = cluster_weights(groups.tolist(), RESAMPLES, seed)
    values = [metric_values(auroc, y, score, weights) for y, score in labels_and_scores]
    estimates = np.array([refit_values.estimate for refit_values in values])
    means = np.mean([refit_values.resamples for refit_values in values], axis=0)
    return estimates, resampled_interval(float(estimates.mean()), means, weights, level=CHANCE_INTERVAL_LEVEL)


def domains_of(table: AnswerTable) -> tuple[str, dict[str, Ints]]:
    """Returns the kind of domain, and the rows of each domain that is large enough: tasks, or dimensions of one task.

    Both are empty if there are not at least two domains.
    """
    for by, names in (("task", table.tasks), ("dimension", table.dimensions)):
        rows = {str(name): np.flatnonzero(names == name) for name in np.unique(names)}
        large = {
            name: domain_rows
            for name, domain_rows in rows.items()
            if len(domain_rows) >= MIN_DOMAIN_ANSWERS
            and np.bincount(table.y[domain_rows], minlength=2).min() >= MIN_DOMAIN_ANSWERS / 10
        }
        if len(large) > 1:
            largest = sorted(large, key=lambda name: -len(large[name]))[:MAX_DOMAINS]
            return by, {name: large[name] for name in sorted(largest)}
    return "", {}


def judge_left_out(
    table: AnswerTable,
    fit: Callable[[Ints], tuple[Scores, Scores]],
    baseline: Scores,
    *,
    resamples: int = 1000,
    seed: int = 0,
) -> LeftOutDomains | None:
    """Judges each domain by a fit on the others. Returns None if there are not at least two domains.

    Args:
        table: the n answers.
        fit: takes the rows of a domain, learns from the other rows, and returns scores and probabilities of the
            domain's rows.
        baseline: scores (n,) that were not fitted, for the comparison.
        resamples: number of bootstrap resamples.
        seed: seed of the bootstrap.
    """
    kind_of_domain, domains = domains_of(table)
    if not domains:
        return None
    weights = cluster_weights(table.groups.tolist(), resamples, seed)
    by_domain: dict[str, Interval] = {}
    fitted_values, baseline_values = [], []
    probability = np.full(len(table), np.nan)
    for name, rows in domains.items():
        scores, probability[rows] = fit(rows)
        domain_weights = weights[:, rows]
        fitted_values.append(metric_values(auroc, table.y[rows], scores, domain_weights))
        baseline_values.append(metric_values(auroc, table.y[rows], baseline[rows], domain_weights))
        by_domain[name] = resampled_interval(fitted_values[-1].estimate, fitted_values[-1].resamples, domain_weights)
    fitted_mean, baseline_mean = (
        MetricValues(float(np.mean([v.estimate for v in values])), np.mean([v.resamples for v in values], axis=0))
        for values in (fitted_values, baseline_values)
    )
    judged = np.flatnonzero(np.isfinite(probability))
    calibration_error = None
    if len(judged) >= ENOUGH_FOR_ECE:
        calibration_error = ece_interval(table.y[judged], probability[judged], weights[:, judged])
    mean = resampled_interval(fitted_mean.estimate, fitted_mean.resamples, weights)
    return LeftOutDomains(
        kind_of_domain, by_domain, mean, paired_interval(fitted_mean, baseline_mean, weights), calibration_error
    )


def holds_elsewhere(left_out: LeftOutDomains, *, name: str, home_auroc: float) -> Finding:
    """Checks that the mean AUROC on domains that were left out is above chance.

    Args:
        left_out: figures on domains that were left out.
        name: name of the method.
        home_auroc: AUROC on the domains that the method has seen.
    """
    worst_domain = min(left_out.auroc, key=lambda domain: left_out.auroc[domain].estimate)
    detail = (
        f"mean AUROC {format_interval(left_out.mean, 3)} on each {left_out.by} by a fit without it, {home_auroc:.3f} "
        f"at home; lowest {left_out.auroc[worst_domain].estimate:.3f} on {worst_domain}; over mean log-probability "
        f"{left_out.gain.estimate:+.3f} [{left_out.gain.low:+.3f}, {left_out.gain.high:+.3f}]"
    )
    return Finding(f"{name} is above chance on a {left_out.by} it has not seen", bool(left_out.mean.low > 0.5), detail)
