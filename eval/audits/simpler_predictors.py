"""Is what was learned what it seems? Simpler predictors, recipes that learn from nothing, the price of choosing."""

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from metaprobe.checkpoints import Severity
from metaprobe.eval.method_results import Finding
from metaprobe.eval.metrics.bootstrap import Interval, cluster_weights, interval, resampled_interval
from metaprobe.eval.metrics.discrimination import auroc
from metaprobe.eval.metrics.strongest_control import ControlComparison, metric_values
from metaprobe.eval.table import AnswerTable
from metaprobe.probes.baselines import baseline_scores

Scores = NDArray[np.float64]

LEVEL = 0.99
"""Of the intervals around chance: an honest recipe is taken for a leaking one about once in 200 audits."""
OPTIMISM = 0.05
"""AUROC by which the selection may promise more than the test can give."""
RESAMPLES = 1000
REACHED = 0.05
"""The p-value from which chance is no longer taken for an explanation."""
NEGLIGIBLE = 0.02
"""AUROC that does not matter."""
MEAN, SCALED = "mean log-probability", "scaled log-probability"
CUT, LENGTH, IDENTITY = "cut by max_tokens", "length", "run identity"
COLLECTION = frozenset({CUT, LENGTH, IDENTITY})
"""Controls that know how answers were collected, and neither what was asked nor what was answered."""


def above_chance(y: NDArray[np.int64], score: Scores, weights: NDArray[np.integer], *, name: str) -> Finding:
    """The AUROC's interval lies above 0.5. `invalid` where none of it is more than `NEGLIGIBLE` above."""
    found = interval(auroc, y, score, weights)
    severity: Severity = "invalid" if found.high < 0.5 + NEGLIGIBLE else "weak"
    return Finding(f"{name} is above chance", bool(found.low > 0.5), f"AUROC {_format(found)}", severity)


def beats_controls(found: ControlComparison, *, name: str, metric: str = "AUROC", chance: float = 0.5) -> list[Finding]:
    """One line a control, the strongest first: the method's AUROC exceeds the control's on the same answers.

    Passes where the paired interval over groups lies above 0 and the difference stands after Holm's correction over all
    controls. Fails as `weak`; as `invalid` where the control is one of `COLLECTION`, carries information, and the
    method is at most `NEGLIGIBLE` above it by the whole interval: then the way of collecting explains the numbers.
    `metric` is the name of what was compared where that is not AUROC, `chance` its value of a score that knows nothing.
    """
    audits = []
    for control in found.controls:
        gain = control.difference
        detail = (
            f"{metric} {found.estimate:.3f} against {control.estimate:.3f}, gain {gain.estimate:+.3f} "
            f"[{gain.low:+.3f}, {gain.high:+.3f}]"
        )
        if len(found.controls) > 1:
            detail += f", p {format_p(control.p_holm)} after Holm's correction over {len(found.controls)} controls"
        if control is found.strongest:
            detail += "; the strongest control"
        informative = control.estimate > chance + NEGLIGIBLE
        explained = control.name in COLLECTION and informative and gain.high < NEGLIGIBLE
        severity: Severity = "invalid" if explained else "weak"
        audits.append(Finding(f"{name} beats {control.name}", control.beaten, detail, severity))
    return audits


def beats_controls_within(found: ControlComparison, *, name: str) -> Finding:
    """One line for all: over pairs of answers of one run the AUROC exceeds each control's, after Holm's correction.

    Pooled over runs that differ in how many answers are right, a score is good that knows the run; here it has to know
    the answers. `found` compares a `StratifiedAuroc` over the runs. The detail names the strongest control.
    """
    best = found.strongest
    gain = best.difference
    detail = (
        f"AUROC over pairs of one run {found.estimate:.3f}, of the strongest control there, {best.name}, "
        f"{best.estimate:.3f}, gain {gain.estimate:+.3f} [{gain.low:+.3f}, {gain.high:+.3f}], p "
        f"{format_p(best.p_holm)} after Holm's correction over {len(found.controls)} controls"
    )
    if others := [control.name for control in found.standing if control is not best]:
        detail += f"; not clearly beaten either: {', '.join(others)}"
    return Finding(f"{name} beats every control within runs", found.beaten, detail)


def format_p(p: float) -> str:
    """A p-value for a sentence: "= 0.012", "< 0.001", or that it cannot be determined."""
    return "cannot be determined" if np.isnan(p) else "< 0.001" if p < 0.001 else f"= {p:.3f}"


REVERSED = ", reversed"
"""After the name of a control that is higher for answers likelier wrong."""


def free_numbers(table: AnswerTable) -> dict[str, Scores]:
    """Returns what the log-probabilities give without any fit, by the names of comparisons, audits and cards.

    Name -> scores (n,): a surer, a shorter and a whole answer gets the higher score. The scaled log-probability is the
    total over the root of the length. Empty where there are no log-probabilities.
    """
    if not table.measured:
        return {}
    plain = baseline_scores(list(table.logprobs))
    return {
        MEAN: plain["mean_logprob"],
        "minimum log-probability": plain["min_logprob"],
        SCALED: plain["scaled_logprob"],
        "first log-probability": plain["first_logprob"],
        "total log-probability": plain["mean_logprob"] * plain["length"],
        CUT: -table.cut.astype(np.float64),
        LENGTH: -np.log(table.tokens.astype(np.float64)),
    }


def free_controls(table: AnswerTable) -> dict[str, Scores]:
    """Returns the numbers that anybody has without fitting anything, as scores (n,): name -> higher for likelier right.

    They are `free_numbers`, and the length of the question where questions are stored. Which way round they tell is
    read off these same answers: they are given every chance. A log-probability that is higher for answers likelier
    wrong, as of faulty arguments, is named as reversed.
    """
    numbers = free_numbers(table)
    if not table.cut.any() or table.cut.all():
        numbers.pop(CUT, None)
    if has_questions(table):
        numbers["length of the question"] = -np.char.str_len(table.questions).astype(np.float64)
    found = {}
    for name, values in numbers.items():
        falls = auroc(table.y, values) < 0.5
        shown = f"{name}{REVERSED}" if falls and not name.startswith(LENGTH) else name
        found[shown] = -values if falls else values
    return found


def has_questions(table: AnswerTable) -> bool:
    """Whether the questions were stored."""
    return any(question.strip() for question in table.questions.tolist())


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
        f"mean AUROC {_format(mean)} over {permutations} permutations by group; {true:.3f} with the true labels: "
        f"{_permutation_test(aurocs, true, groups)}"
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
    detail = f"mean AUROC {_format(mean)} over {draws} draws of noise of shape {shape}"
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
        f"{_format(test)} on test: optimism {best - test.estimate:+.3f}"
    )
    return Finding(f"{name} keeps what selection promised", not test.high < best - OPTIMISM, detail)


def _mean_auroc(
    runs: list[tuple[NDArray[np.int64], Scores]], groups: NDArray[np.str_], seed: int
) -> tuple[Scores, Interval]:
    """AUROC of each run, and their mean with its interval by a bootstrap over groups."""
    weights = cluster_weights(groups.tolist(), RESAMPLES, seed)
    values = [metric_values(auroc, y, score, weights) for y, score in runs]
    estimates = np.array([found.estimate for found in values])
    means = np.mean([found.resamples for found in values], axis=0)
    return estimates, resampled_interval(float(estimates.mean()), means, weights, level=LEVEL)


def _format(found: Interval) -> str:
    return f"{found.estimate:.3f} [{found.low:.3f}, {found.high:.3f}]"
