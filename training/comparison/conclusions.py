"""The sentences at the top of a report: what the numbers of a comparison say."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metaprobe.eval.compare import BEST_BASELINE, STATED
from metaprobe.eval.method_results import MethodResult
from metaprobe.eval.metrics.bootstrap import Interval
from metaprobe.eval.metrics.strongest_control import ControlDifference
from metaprobe.eval.results import Difficulty, Overconfidence, PairTest, TwoChoice
from metaprobe.eval.wording import calibration_words, control_named, format_interval, p_value
from metaprobe.training.crossfit.methods import AFTER, BEFORE, BLEND, LADDER

SIGNIFICANT = 0.05
EXPORTED = {LADDER: "quality", BEFORE: "hidden --when before", AFTER: "hidden --when after"}
"""Methods of which there are checkpoints: what of `metaprobe train` writes them."""


def headline_method(results: Sequence[MethodResult]) -> MethodResult:
    """Returns the method that a report is about, which is named beforehand.

    The best of several would look better than it is. Without log-probabilities it is a probe, else the user's own
    method, else the first of all.
    """
    by_name = {result.name: result for result in results}
    learned = (by_name.get(name) for name in (BLEND, LADDER, AFTER, BEFORE))
    own = (result for result in results if result.family == "own")
    return next((found for found in (*learned, *own) if found is not None), results[0])


def headline_sentences(results: Sequence[MethodResult], *, y: NDArray[Any], baselines: Sequence[str]) -> list[str]:
    """Returns the main result: accuracy, stated confidence, and the headline method beside its controls.

    `y` (n,) is 1 for a right answer; `baselines` are the controls that the folds chose on their selection data.
    """
    by_name = {result.name: result for result in results}
    learned = headline_method(results)
    sentences = [f"{np.mean(y):.0%} of {len(y)} answers are right."]
    if (stated := by_name.get(STATED)) is not None:
        sentences.append(
            f"Asked for its confidence, which it stated for {stated.coverage:.0%} of the answers, the model "
            f"distinguishes right from wrong answers with AUROC {format_interval(stated.auroc)}: "
            f"{_against_chance(stated.auroc)}."
        )
        sentences += calibration_words(stated)
    if learned.family == "explicit":
        return sentences
    kind = "learned method named beforehand" if learned.family == "learned" else "method of your own"
    sentences.append(f"The {kind} ({learned.name}) reaches {format_interval(learned.auroc)}.")
    return sentences + _beside_controls(learned, by_name, Counter(baselines))


def _beside_controls(learned: MethodResult, by_name: Mapping[str, MethodResult], baselines: Counter[str]) -> list[str]:
    sentences = []
    if (over := learned.controls) is not None:
        sentences.append(
            f"The strongest of {len(over.controls)} controls on these answers is "
            f"{control_named(over.strongest.name)} with {format_interval(by_name[over.strongest.name].auroc)}; the "
            f"method's gain over it is {_describe_gain(over.strongest)}; it beats {_count_beaten(over.controls)}."
        )
    if (base := by_name.get(BEST_BASELINE)) is not None:
        chosen = ", ".join(f"{name} in {folds}" for name, folds in baselines.most_common())
        sentences.append(
            f"The control chosen in advance, on selection data in each of {sum(baselines.values())} folds ({chosen}), "
            f"reaches {format_interval(base.auroc)}."
        )
    if learned.within_runs is not None and (inside := learned.controls_within) is not None:
        sentences.append(
            f"Among answers of one run (model, task, way of asking) the learned method reaches "
            f"{format_interval(learned.within_runs)}, its strongest control there, {inside.strongest.name}, "
            f"{inside.strongest.estimate:.2f}; the gain is {_describe_gain(inside.strongest)}."
        )
    return sentences


def _describe_gain(over: ControlDifference) -> str:
    """`+0.03 [+0.01, +0.05] (p < 0.001 after Holm's correction), so it is better`."""
    if over.beaten:
        says = "so it is better"
    else:
        says = "so it is worse" if over.difference.high < 0 else "so this sample does not settle which is better"
    p = p_value(over.p_holm)
    shown = p if p.startswith("<") else f"= {p}"
    return f"{format_interval(over.difference, signed=True)} (p {shown} after Holm's correction), {says}"


def _count_beaten(controls: Sequence[ControlDifference]) -> str:
    beaten = sum(control.beaten for control in controls)
    return f"all {beaten}" if beaten == len(controls) else f"{beaten} of {len(controls)}"


def _against_chance(auroc: Interval) -> str:
    if auroc.low > 0.5:
        return "better than chance"
    return "worse than chance" if auroc.high < 0.5 else "not distinguishable from chance"


def further_sentences(
    results: Sequence[MethodResult],
    pairs: Sequence[PairTest],
    equal: Difficulty | None,
    gaps: Sequence[Overconfidence],
    efficiency: TwoChoice | None,
) -> list[str]:
    """Returns what remains at equal difficulty and after correction, and how far stated confidence is off."""
    learned = headline_method(results).name
    sentences = []
    if equal is not None:
        within = {row.method: row.auroc for row in equal.methods}
        shown = [f"{name} {format_interval(within[name])}" for name in (STATED, learned) if name in within]
        sentences.append(f"At equal difficulty ({equal.by}) the AUROC is: {', '.join(shown)}.")
    if pairs:
        stand = sum(pair.p_holm < SIGNIFICANT for pair in pairs)
        sentences.append(
            f"{stand} of {len(pairs)} differences from stated confidence or the strongest control stand after Holm's "
            f"correction ({pairs[0].test}, p < {SIGNIFICANT})."
        )
    own = [row for row in gaps if row.method == STATED]
    if own:
        levels = ", ".join(f"{row.level} {row.gap.estimate:+.2f}" for row in own[1:])
        sentences.append(
            f"Stated confidence minus accuracy is {format_interval(own[0].gap, signed=True)}"
            f"{f' ({levels})' if levels else ''}."
        )
    if efficiency is not None:
        sentences += _describe_choices(efficiency, learned)
    return sentences


def _describe_choices(found: TwoChoice, learned: str) -> list[str]:
    """The answers as choices between two; those that are none are wrong for another reason than not knowing."""
    methods = [row for row in found.methods if row.method in (STATED, learned)]
    aurocs = ", ".join(f"{row.method} {format_interval(row.type2_auroc)}" for row in methods)
    unreadable = f"{found.unreadable} of {found.n + found.unreadable} answers state neither choice and count as wrong. "
    ratios = ", ".join(f"{row.method} {format_interval(row.m_ratio)}" for row in methods if row.m_ratio is not None)
    reason = next((row.refused for row in methods if row.refused), "")
    return [
        f"{unreadable if found.unreadable else ''}Among answers that choose, the AUROC is: {aurocs}.",
        f"d' of the answers is {format_interval(found.d_prime)}; "
        + (f"M-ratio: {ratios}." if ratios else f"there is no M-ratio, for {reason}."),
    ]


def nearest_checkpoint(results: Sequence[MethodResult]) -> str:
    """Returns a sentence about the checkpoint that comes nearest to the blend, of which there is none.

    Empty where the headline method is not the blend.
    """
    if headline_method(results).name != BLEND:
        return ""
    best = max((result for result in results if result.name in EXPORTED), key=lambda result: result.auroc.estimate)
    beside = ""
    if (over := best.controls) is not None:
        beside = (
            f", {format_interval(over.strongest.difference, signed=True)} against {control_named(over.strongest.name)}"
        )
        if not over.beaten:
            beside += (
                f". It is not shown to beat {control_named(over.standing[0].name)}: where the blend cannot be had, use "
                "that instead"
            )
    return (
        f"There is no checkpoint of the {BLEND}: `metaprobe compare` makes it of several methods. The nearest one is "
        f"that of `metaprobe train {EXPORTED[best.name]}` ({best.name}): AUROC {format_interval(best.auroc)}{beside}."
    )
