"""Whether P(success) before asking is calibrated, and whether the cheapest candidate that meets a target meets it.

python -m research.before.choice measure DATA [SET ...]     # docs/measured/before_choice.json, then the page
python -m research.before.choice page

Rates, dimensions and surface, as `metaprobe train success` fits them without `--read-by`. The last set has prompt
states too, of the questions that `research.before.states` has read.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from metaprobe.eval.metrics.bootstrap import cluster_weights
from metaprobe.eval.metrics.calibration import debiased_ece
from metaprobe.records.outcomes import QuestionOutcomes
from metaprobe.routing.success_choice import SuccessChoice, best_at_worth, cheapest_meeting, worth_meeting
from metaprobe.routing.success_estimator import SuccessEstimate, probability
from metaprobe.training.folds import join_groups
from metaprobe.training.recipes.prompt_states import prompt_states, reader_files
from metaprobe.training.success_fit import SuccessData, fit_success, success_data
from metaprobe.training.surface_fit import read_surfaces
from research.before.measure import PAGE
from research.before.tasks import outcomes as task_outcomes
from research.blocks import DOCS, keep_figures, markdown, read_figures, write
from research.routing.data import SETS

KEPT = DOCS / "measured" / "before_choice.json"
OUTCOME_SETS = ("router_cascade9", "router_llmrouter9", "confidence_models11", "mmlu_pro, token")
READ_SET, UNREAD_SET, READ_TASK = "mmlu_pro, prompt states", "mmlu_pro, the same prompts unread", "MMLU-Pro"
"""The models and prices of "mmlu_pro, token" with the prompts of a task of `research.before.tasks`, measured with
prompt states and, on the same splits, without."""
NAMES = (*OUTCOME_SETS, READ_SET, UNREAD_SET)
EQUAL_PRICES = ("confidence_models11",)
"""Sets whose source has no prices: every call costs the same, so that a saving cannot be measured."""
SPLITS = 20
LABELS = 1000
"""Labelled questions of a split; all questions of other groups are tested on."""
TARGET_SHARES = (0.25, 0.5, 0.75)
"""A target lies this far from the lowest labelled rate of a candidate to the highest. Fixed before measuring."""
WITHIN = 0.02
"""A target counts as met where the accuracy on the test questions is at most this far below it."""
MOST_ECE = 0.05
"""Goal for the calibration error freed of noise."""
MOST_SPLITS_MISSED = 2
"""The goal allows a target to be missed in so many of the splits."""
RESAMPLES = 200
Floats = NDArray[np.float64]
States = Mapping[str, NDArray[np.floating[Any]]]


@click.group()
def main() -> None:
    """Measure calibration and targets, and write the page."""


@main.command("measure")
@click.argument("data", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.argument("names", nargs=-1, type=click.Choice(NAMES))
def measure_command(data: Path, names: tuple[str, ...]) -> None:
    """Measure all sets, or those named, and keep their figures beside those of the others."""
    for name in names or NAMES:
        questions, states = (SETS[name].load(data), None) if name in OUTCOME_SETS else read_questions(data)
        found = measured(questions, states if name == READ_SET else None)
        keep_figures(KEPT, {"name": name} | found, "sets", name, sort=False)
    page()


@main.command("page")
def page_command() -> None:
    """Write the blocks from the kept figures."""
    page()


def read_questions(data: Path) -> tuple[list[QuestionOutcomes], States]:
    """Returns the questions of `READ_SET` with their outcomes, and the states (n, D) of their prompts by output."""
    prompts = {question.id: question.question for question in task_outcomes(READ_TASK, data)}
    whole = SETS["mmlu_pro, token"].load(data)
    questions = [replace(one, question=prompts[one.id]) for one in whole if one.id in prompts]
    return questions, prompt_states(reader_files("smollm2-135m", []), [one.question for one in questions])


def measured(outcomes: Sequence[QuestionOutcomes], states: States | None) -> dict[str, Any]:
    """Returns calibration and targets of one set over `SPLITS` splits by group."""
    whole = success_data(outcomes)
    whole = _binary(whole)
    cost = _costs(outcomes, whole)
    groups, note = join_groups(whole.groups, whole.questions)
    names, rows = np.unique(groups), read_surfaces(whole.questions)
    found: dict[str, Any] = {"questions": len(whole.questions), "joined": note, "splits": []}
    found["candidates"] = list(whole.candidates)
    for split in range(SPLITS):
        # The labelled questions are whole groups, in an order drawn anew for each split.
        place = {name: at for at, name in enumerate(np.random.default_rng(split).permutation(names).tolist())}
        order = sorted(range(len(groups)), key=lambda row: place[groups[row]])
        labelled = np.sort(order[:LABELS])
        touched = set(groups[labelled].tolist())
        test = np.array([row for row in order[LABELS:] if groups[row] not in touched])
        train = whole.take(labelled)
        own = None if states is None else {output: values[labelled] for output, values in states.items()}
        fitted = fit_success(train, own, seed=split)
        logit = fitted.prior.log_odds(whole.take(test), rows[test])
        if fitted.heads is not None and states is not None:
            logit = fitted.heads.log_odds(states[fitted.heads.choice.output][test], logit)
        p = probability(logit * fitted.calibration[:, 0] + fitted.calibration[:, 1])
        # Calibration of each candidate, freed of the noise of the bins.
        weights = cluster_weights(groups[test].tolist(), RESAMPLES)
        ece = [
            round(float(debiased_ece(whole.score[test, at].astype(np.int64), p[:, at], weights).estimate), 4)
            for at in range(len(whole.candidates))
        ]
        held = probability(fitted.held.calibrated)
        targets = targets_of(train.score, held, cost[labelled].mean(axis=0), p, whole.score[test], cost[test])
        found["splits"].append({"rung": fitted.rung, "test": len(test), "ece": ece, "targets": targets})
        print(split, fitted.rung, np.mean(ece), targets, flush=True)
    return found


def targets_of(
    labelled: Floats, held: Floats, mean_cost: Floats, p: Floats, score: Floats, cost: Floats
) -> dict[str, dict[str, float]]:
    """Returns for each target what each way to choose reaches on the test questions.

    The ways: `cheapest_meeting` on each request; `best_at_worth` with the worth at which the labelled questions meet
    the target on average; the cheapest single candidate whose labelled rate meets the target.

    Args:
        labelled: (n, A) scores of the labelled questions, from which rates and targets follow.
        held: (n, A) P(success) of the labelled questions by models that have not seen their groups.
        mean_cost: (A,) mean cost on the labelled questions: the prices that the choice is given.
        p: (m, A) P(success) on the test questions.
        score: (m, A) of the test questions.
        cost: (m, A) of the test questions.
    """
    rate = labelled.mean(axis=0)
    names = [str(at) for at in range(len(rate))]
    prices = dict(zip(names, mean_cost.tolist(), strict=True))
    rows = np.arange(len(p))
    found = {}
    for share in TARGET_SHARES:
        target = float(rate.min() + share * (rate.max() - rate.min()))
        worth = worth_meeting(held, labelled, mean_cost.tolist(), target).worth
        requests = [_estimates(names, row) for row in p.tolist()]
        chosen = _asked([cheapest_meeting(one, prices, target) for one in requests])
        average = _asked([best_at_worth(one, prices, worth) for one in requests])
        # The single candidate is chosen by the labels alone, as ours is; equal prices are decided by the rate.
        meeting = [at for at in range(len(rate)) if rate[at] >= target]
        single = min(meeting, key=lambda at: (mean_cost[at], -rate[at]))
        found[str(share)] = {
            "target": round(target, 4),
            "accuracy": round(float(score[rows, chosen].mean()), 4),
            "cost": float(cost[rows, chosen].mean()),
            "average_accuracy": round(float(score[rows, average].mean()), 4),
            "average_cost": float(cost[rows, average].mean()),
            "single_accuracy": round(float(score[:, single].mean()), 4),
            "single_cost": float(cost[:, single].mean()),
        }
    return found


def _estimates(names: Sequence[str], p: Sequence[float]) -> list[SuccessEstimate]:
    return [
        SuccessEstimate(name, one, (one, one), LABELS, "", "", "", "measured", "")
        for name, one in zip(names, p, strict=True)
    ]


def _asked(choices: Sequence[SuccessChoice]) -> NDArray[np.int64]:
    """Returns the place (m,) of the candidate that each choice names."""
    return np.array([int(choice.candidate or 0) for choice in choices])


def _binary(data: SuccessData) -> SuccessData:
    """Returns the data with each score of at least 0.5 as right, and the others as wrong."""
    score = (data.score >= 0.5).astype(np.float64)
    return replace(data, score=score)


def _costs(outcomes: Sequence[QuestionOutcomes], data: SuccessData) -> Floats:
    """Returns the cost (n, A) in US dollars of each candidate's answer to each question."""
    if len(outcomes) != len(data.questions) or not np.isfinite(data.score).all():
        raise ValueError(f"{len(outcomes)} questions came, {len(data.questions)} are labelled; every one must be")
    return np.array([[question.agents[name].cost_usd or 0.0 for name in data.candidates] for question in outcomes])


# The page.


def page() -> None:
    """Writes the block `targets` of the page, and two tables on its page of further tables."""
    sets = read_figures(KEPT)["sets"]
    ece = {name: np.array([split["ece"] for split in found["splits"]]) for name, found in sets.items()}
    many = {
        (name, share): [split["targets"][str(share)] for split in found["splits"]]
        for name, found in sets.items()
        for share in TARGET_SHARES
    }
    write(PAGE, "calibration-sets", markdown(CALIBRATION_HEAD, [_calibration(sets[name], ece[name]) for name in sets]))
    rows = [_target(name, splits) for (name, _), splits in many.items()]
    write(PAGE, "target-sets", markdown(TARGET_HEAD, rows))
    # The sentences of the page itself.
    means = np.concatenate([ece[name].mean(axis=0) for name in OUTCOME_SETS])
    kept_there = {
        name: _kept_goal([_met(splits, AVERAGE) for (place, _), splits in many.items() if place == name])
        for name in (READ_SET, UNREAD_SET)
    }
    many = {place: splits for place, splits in many.items() if place[0] in OUTCOME_SETS}
    met = {way: [_met(splits, way) for splits in many.values()] for way in WAYS}
    priced = [splits for (name, _), splits in many.items() if name not in EQUAL_PRICES]
    ratios = {way: [_ratio(splits, way).mean() for splits in priced] for way in WAYS}
    told = (
        f"With {LABELS:,} labels the calibration error freed of noise is at most {MOST_ECE} on the mean of {SPLITS} "
        f"splits for {int((means <= MOST_ECE).sum())} of {len(means)} candidates of {len(OUTCOME_SETS)} sets of "
        f"outcomes (mean {means.mean():.3f}, worst {means.max():.3f}). The target is met within 2 points in at least "
        f"{SPLITS - MOST_SPLITS_MISSED} of {SPLITS} splits in {_kept_goal(met[EACH])} of {len(many)} cases where each "
        f"request must meet it (`cheapest_meeting`), at {min(ratios[EACH]):.2f} to {max(ratios[EACH]):.2f} times the "
        f"cost of the cheapest single candidate that meets it, and in {_kept_goal(met[AVERAGE])} of {len(many)} where "
        f"their mean must (`best_at_worth`), at {min(ratios[AVERAGE]):.2f} to {max(ratios[AVERAGE]):.2f} times that "
        f"cost."
    )
    if READ_SET not in sets or UNREAD_SET not in sets:
        write(PAGE, "targets", [told])
        return
    # The gain of reading the prompts, on the same splits.
    changes = [_change(sets[READ_SET]["splits"], sets[UNREAD_SET]["splits"], share) for share in TARGET_SHARES]
    reading = (
        f"On {sets[READ_SET]['questions']:,} questions of MMLU-Pro the error is {ece[READ_SET].mean():.3f} with prompt "
        f"states (worst candidate {ece[READ_SET].mean(axis=0).max():.3f}) and {ece[UNREAD_SET].mean():.3f} without, on "
        f"the same splits. At the three targets the states change what `best_at_worth` reaches by "
        f"{', '.join(f'{points:+.1f}' for points, _ in changes)} points of accuracy, and its cost by "
        f"{', '.join(f'{cost:+.0f}%' for _, cost in changes)}; {kept_there[READ_SET]} of "
        f"{len(TARGET_SHARES)} are met that often, and {kept_there[UNREAD_SET]} without."
    )
    write(PAGE, "targets", [told, "", reading])


def _change(
    after: Sequence[Mapping[str, Any]], before: Sequence[Mapping[str, Any]], share: float
) -> tuple[float, float]:
    """Returns by how many points the mean accuracy differs at a target, and by how many per cent the cost does."""
    accuracy, cost = (
        [np.mean([split["targets"][str(share)][key] for split in splits]) for splits in (after, before)]
        for key in ("average_accuracy", "average_cost")
    )
    return 100 * float(accuracy[0] - accuracy[1]), 100 * float(cost[0] / cost[1] - 1)


EACH, AVERAGE, SINGLE = "", "average_", "single_"
WAYS = (EACH, AVERAGE)
"""Prefixes of the figures of `targets_of`: each request at the target, their mean at the target, one candidate."""
CALIBRATION_HEAD = (
    *("outcomes", "test questions", "step", "calibration error", "worst candidate"),
    *(f"candidates at most {MOST_ECE}", "candidates and splits"),
)
TARGET_HEAD = (
    *("outcomes", "target", "each: met", "each: points over", "each: cost", "mean: met", "mean: points over"),
    *("mean: cost", "mean: no dearer", "single: met", "single: points over"),
)


def _calibration(found: dict[str, Any], ece: Floats) -> list[str]:
    rungs = [split["rung"] for split in found["splits"]]
    most = max(sorted(set(rungs)), key=rungs.count)
    means = ece.mean(axis=0)
    return [
        found["name"],
        f"{np.mean([split['test'] for split in found['splits']]):.0f}",
        f"{most} ({rungs.count(most)} of {len(rungs)})",
        f"{means.mean():.3f}",
        f"{means.max():.3f}",
        f"{(means <= MOST_ECE).sum()} of {len(means)}",
        f"{(ece <= MOST_ECE).sum()} of {ece.size}",
    ]


def _target(name: str, splits: Sequence[dict[str, float]]) -> list[str]:
    row = [name, f"{np.mean([one['target'] for one in splits]):.3f}"]
    for way in (EACH, AVERAGE, SINGLE):
        row += [f"{_met(splits, way)} of {len(splits)}", f"{100 * _over(splits, way).mean():+.1f}"]
        if way != SINGLE:
            row.append("-" if name in EQUAL_PRICES else f"{_ratio(splits, way).mean():.2f}")
        if way == AVERAGE:
            no_dearer = int((_ratio(splits, way) <= 1).sum())
            row.append("-" if name in EQUAL_PRICES else f"{no_dearer} of {len(splits)}")
    return row


def _over(splits: Sequence[dict[str, float]], way: str) -> Floats:
    """Returns accuracy less target of each split."""
    return np.array([one[f"{way}accuracy"] - one["target"] for one in splits])


def _met(splits: Sequence[dict[str, float]], way: str) -> int:
    return int((_over(splits, way) >= -WITHIN).sum())


def _ratio(splits: Sequence[dict[str, float]], way: str) -> Floats:
    """Returns the cost of each split over that of the single candidate."""
    return np.array([one[f"{way}cost"] / one["single_cost"] for one in splits])


def _kept_goal(met: Sequence[int]) -> int:
    return sum(count >= SPLITS - MOST_SPLITS_MISSED for count in met)


if __name__ == "__main__":
    main()
