"""Measures what asking by a panel is worth beside every simple way, and writes docs/research/routing.md.

    python -m research.routing.measure measure --data DATA [SET ...]
    python -m research.routing.measure page

Random splits by question, of which so many are learned from. Numbers stand in docs/measured/routing.json, so that no
number on the page is typed by hand. One thread; a split of 200 questions takes a quarter of a minute of processor time,
one of 500 half a minute.
"""

import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from metaprobe.eval.metrics.bootstrap import against_controls, cluster_weights, mean_interval
from metaprobe.eval.metrics.calibration import debiased_ece
from metaprobe.routing.panel.budget import MOST_CORRECTION, BudgetController
from metaprobe.routing.panel.model_rows import JOINT, Floats, Ints
from metaprobe.routing.panel.planner import ASKS, AskPlan, AskSetting, draw_of
from metaprobe.training.panel.after_play import ended, fit_after, plans_of
from metaprobe.training.panel.compared_asks import cross_played
from metaprobe.training.panel.fitted_asks import fit_asks
from metaprobe.training.panel.fitted_panel import cross_fit
from metaprobe.training.panel.labelled_panels import Panels, panels_of_outcomes
from metaprobe.training.panel.played_asks import Played, by_agent, play_setting
from metaprobe.training.panel.question_words import count_words
from research.blocks import ROOT, markdown, packed, points, read_figures, write, write_figures
from research.routing.controls import FIXED, controls_of
from research.routing.data import DEVELOPED, SETS, questions_of
from research.systems.metacog_orders import weighted_mean

PAGE = ROOT / "docs" / "research" / "routing.md"
GUIDE, ANSWERS = ROOT / "docs" / "route.md", ROOT / "docs" / "several-answers.md"
KEPT = ROOT / "docs" / "measured" / "routing.json"
PANEL = "panel"
SPLITS = 5
TEST = 0.3
SIZES = (200, 500, 2000)
"""Questions that are learned from; a set that has too few is left out."""
RESAMPLES = 200
"""Resamples of groups from which the noise of an ECE, and of spending, is taken."""
WELL = 0.03
"""ECE, freed of noise, that is hoped for after the play."""
SHARES = (0.1, 0.25, 0.5, 0.75, 1.0)
"""Budgets as shares of what the agent costs that is right most often."""
SIGNIFICANT = 0.05
"""p after Holm below which the panel is called ahead of the strongest simple way, or behind it."""
AREA = 40
"""Budgets, evenly spread from the cheapest agent's cost to the best agent's, whose mean accuracy is the area (AIQ)."""
LONG = 2000
"""Questions of a long stream, at least."""
NEAR_BUDGET = 0.03
"""Part of a budget by which spending may differ where the budget counts as kept."""
BOUND = 0.98
"""Part of the largest correction from which a stream counts as one that has nothing dearer, or cheaper, to ask."""
ENDS = {
    "kept": "within 3 % of the budget",
    "less": "the panel says so before, or has nothing dearer to ask",
    "more": "it has nothing cheaper to ask",
    "noise": "missed by no more than two standard errors",
    "missed": "missed by more",
}
"""How spending ends, and what that means."""
Came = tuple[Floats, Floats]
"""Score and US dollars for 1,000 questions of every test question."""
Way = Callable[[float], Came]
"""From US dollars for 1,000 test questions to what a way comes to."""


@dataclass(frozen=True, slots=True, eq=False)
class AtBudget:
    """Holds the results of the panel's plan at a budget on the test questions."""

    way: str
    """The way that decides."""
    came: Came
    stated: float
    """US dollars for 1,000 questions that the plan says it spends."""
    learned: Floats
    """US dollars for 1,000 questions of every question learned from, by models that have not seen its group."""


Plan = Callable[[float], AtBudget]
"""From a budget to what the panel comes to."""


@dataclass(frozen=True, slots=True, eq=False)
class Split:
    """Holds the results of the ways of one split."""

    ways: dict[str, Way]
    """Every simple way."""
    plan: Plan
    stream: Callable[[float, int], tuple[Came, BudgetController]]
    """From a budget and a number of questions to the test questions one after another, where spending corrects the
    budget of the next plan. They come again, in new orders, until so many were asked."""
    groups: tuple[list[str], list[str]]
    """Groups of the test questions, and of those learned from in the order of `AtBudget.learned`."""
    after: Callable[[float], dict[str, float]]
    """From a budget to the ECE, freed of noise, of P(right) of the kept answers: as it is said after the play, and
    before its correction."""


@click.group()
def main() -> None:
    """Measure, write the page."""


@main.command("measure")
@click.argument("names", nargs=-1)
@click.option("--data", type=click.Path(exists=True, file_okay=False, path_type=Path), required=True)
@click.option("--splits", default=SPLITS, show_default=True, help="Random splits of each data set.")
@click.option("--labels", multiple=True, type=int, default=SIZES, show_default=True, help="Questions learned from.")
@click.option("--spending", is_flag=True, help="Only how budgets are kept and P(right) after the play, of kept rows.")
def measure_command(names: tuple[str, ...], data: Path, splits: int, labels: tuple[int, ...], spending: bool) -> None:
    """Every way of asking on every set, or on those named; keeps what was measured before of other rows."""
    for size in labels:
        for name, chosen in SETS.items():
            if names and name not in names:
                continue
            panels = by_agent(panels_of_outcomes(questions_of(name, data)))
            if len(panels) - int(TEST * len(panels)) < size:
                continue
            row = f"{name}, {size} labels"
            click.echo(row, err=True)
            if spending:
                found = with_spending(read_figures(KEPT)[row], panels, splits, size)
            else:
                found = {"about": chosen.about, **measured(panels, chosen.budgets or shares(panels), splits, size)}
            write_figures(KEPT, {**read_figures(KEPT), row: found}, sort=True)


def with_spending(kept: dict[str, Any], data: Panels, splits: int, labels: int) -> dict[str, Any]:
    """Returns the figures of a row with those of how budgets are kept measured anew, on the same splits.

    Raises `ValueError` where a plan does not spend what it did: the ways have changed, and the whole row is to be
    measured.
    """
    made = [_split(data, *draw, controls=False) for draw in group_splits(data, labels, splits)]
    rows = []
    for row in kept["rows"]:
        plans = [split.plan(row["budget"]) for split in made]
        spent = float(np.concatenate([plan.came[1] for plan in plans]).mean())
        if abs(spent / row["cost"][PANEL] - 1) > 1e-6:
            raise ValueError(f"at {row['budget']} the panel spends {spent}, and {row['cost'][PANEL]} was kept")
        rows.append({**row, **_spending_figures(made, plans, row["budget"])})
    return {**kept, "rate_error": rate_errors(data, labels, splits), "rows": rows}


def _spending_figures(made: Sequence[Split], plans: list[AtBudget], budget: float) -> dict[str, Any]:
    """Returns how a budget is kept, and the ECE after the play, by split."""
    after = [split.after(budget) for split in made]
    return {
        **_spending_of(made, plans),
        "stream": _stream_figures([split.stream(budget, 0) for split in made]),
        "long": _stream_figures([split.stream(budget, LONG) for split in made]),
        "after": {name: [one[name] for one in after] for name in ("said", "before")},
    }


def rate_errors(data: Panels, labels: int, splits: int) -> list[float]:
    """Returns, for each split, how far the rates of the agent that is right most often are off on each dimension, in
    the mean over test questions, where they are shrunk as far as their true spread asks.

    A P(right) that is such a rate is off by about as much, whatever it is shrunk to.
    """
    errors = []
    for train, test, _ in group_splits(data, labels, splits):
        agent = int(data.score[train].mean(axis=0).argmax())
        score, others = data.score[:, agent], np.setdiff1d(np.arange(len(data)), train)
        here = np.array(
            [number for number in range(len(data.dimensions) + 1) if (data.dimension[test] == number).any()]
        )
        weight = np.array([(data.dimension[test] == number).mean() for number in here])
        unseen = [score[others][data.dimension[others] == number] for number in here]
        truth, noise = (np.array([of(values) for values in unseen]) for of in (np.mean, np.var))
        centre = float(np.average(truth, weights=weight))
        spread = float(np.average((truth - centre) ** 2, weights=weight))
        seen = [score[train][data.dimension[train] == number] for number in here]
        count = np.array([len(one) for one in seen])
        share = spread / np.maximum(spread + noise / np.maximum(count, 1), 1e-12) * (count > 0)
        rate = np.array([float(one.mean()) if len(one) else 0.0 for one in seen])
        errors.append(float(weight @ np.abs(centre + share * (rate - centre) - truth)))
    return errors


def shares(data: Panels) -> tuple[float, ...]:
    """Shares of what the agent that is right most often costs, of which each buys the cheapest agent at least."""
    cost = 1000 * data.cost.mean(axis=0)
    best = float(cost[int(data.score.mean(axis=0).argmax())])
    return tuple(sorted({float(f"{max(part * best, 1.05 * float(cost.min())):.3g}") for part in SHARES}))


def measured(data: Panels, budgets: tuple[float, ...], splits: int, labels: int) -> dict[str, Any]:
    """Every way at every budget, and its area under the curve, over so many splits and labels."""
    came: dict[float, dict[str, list[Came]]] = {budget: {} for budget in budgets}
    area: dict[str, list[Floats]] = {}
    plans: dict[float, list[AtBudget]] = {budget: [] for budget in budgets}
    made: list[Split] = []
    groups: list[str] = []
    singles: list[list[float]] = []
    shared: list[float] = []
    for train, test, seed in group_splits(data, labels, splits):
        start = time.perf_counter()
        groups += [data.groups[row] for row in test]
        learned = {data.groups[row] for row in train}
        shared.append(float(np.mean([data.groups[row] in learned for row in test])))
        split = _split(data, train, test, seed)
        made.append(split)
        cost = 1000 * data.cost[train].mean(axis=0)
        best = int(data.score[train].mean(axis=0).argmax())
        singles.append([float(data.score[test, best].mean()), float(1000 * data.cost[test, best].mean())])
        spread = np.linspace(float(cost.min()), float(cost[best]), AREA) if cost[best] > cost.min() else np.array([])
        for budget in budgets:
            own, each = _at(split, budget)
            plans[budget].append(own)
            for name, one in each.items():
                came[budget].setdefault(name, []).append(one)
        if len(spread):
            for name, values in _area(split, spread).items():
                area.setdefault(name, []).append(values)
        click.echo(f"  split {seed}: {time.perf_counter() - start:.0f} s", err=True)
    weights = cluster_weights(groups)
    return {
        "questions": len(data),
        "agents": list(data.agents),
        "dimensions": len(data.dimensions),
        "test": len(test),
        "labels": labels,
        "splits": splits,
        "best_agent": np.mean(singles, axis=0).tolist(),
        "rate_error": rate_errors(data, labels, splits),
        "group_learned": shared,  # share of the test questions of which another one of the group was learned from
        "rows": [
            {
                "budget": budget,
                **_spending_figures(made, plans[budget], budget),
                **_row(came[budget], weights),
            }
            for budget in budgets
        ],
        "area": _against({name: np.concatenate(parts) for name, parts in area.items()}, weights) if area else None,
    }


def _split(data: Panels, train: Ints, test: Ints, seed: int, *, controls: bool = True) -> Split:
    """Every simple way as a function of what it is to spend on the test questions, and the panel at a budget.

    The panel's plan is chosen on the training questions. A simple way mixes two neighbouring settings so that it
    spends the asked sum on the test questions, or all or the least that it can.
    """
    part, held = data.take(train), data.take(test)
    cross = cross_fit(part, seed=seed)
    fitted = fit_asks(part, count_words(part.questions), cross, JOINT, seed=seed)
    curves, _ = cross_played(part, fitted, lambda rows: cross_fit(part.take(rows), seed=seed), seed=seed)
    after = fit_after([ended(one, plans_of(curves), JOINT) for one in fitted.views])
    view, groups = fitted.view(held, count_words(held.questions)), np.array(held.groups)
    draws = np.array([draw_of(name) for name in held.ids])
    results: dict[AskSetting, Played] = {}

    def result_of(one: AskSetting) -> Played:
        if one not in results:
            results[one] = play_setting(view, one, JOINT)
        return results[one]

    def play(one: AskSetting) -> Came:
        return result_of(one).score, result_of(one).cost

    ways: dict[str, Way] = {}
    if controls:
        ways = {name: _spending([play(one) for one in settings]) for name, settings in curves.settings.items()}
    for name, (_, _, settings) in controls_of(data, train, test, seed=seed).items() if controls else ():
        ways[name] = _spending([(score, cost) for score, cost in settings])

    def plan(budget: float) -> AtBudget:
        one = curves.plan(budget=max(budget, curves.least))
        came = _mix(play(one.first), play(one.second), one.share)
        return AtBudget(one.first.name, came, one.cost, fitted.spent(one))

    def stream(budget: float, questions: int) -> tuple[Came, BudgetController]:
        control, rng = BudgetController(budget, curves.least), np.random.default_rng(seed)
        passes = max(math.ceil(questions / len(held)), 1)
        score, cost = np.zeros((2, passes, len(held)))
        for number in range(passes):
            drawn = rng.random(len(held)) if number else draws
            for row in rng.permutation(len(held)).tolist():
                setting = curves.plan(budget=control.next_budget()).setting(float(drawn[row]))
                score[number, row], cost[number, row] = (values[row] for values in play(setting))
                control.paid(float(cost[number, row]) / 1000)
        return (score.ravel(), cost.ravel()), control

    def after_play(budget: float) -> dict[str, float]:
        one, parts = curves.plan(budget=max(budget, curves.least)), []
        for setting, decides in ((one.first, draws < one.share), (one.second, draws >= one.share)):
            found = ended(view, [AskPlan(setting, setting, 1.0, 0.0)], JOINT)
            columns = np.stack([found.score > 0.5, found.probability(after), found.before, found.question])
            parts.append(columns[:, decides[found.question]])
        right, said, before, question = np.concatenate(parts, axis=1)
        weights = cluster_weights(groups[question.astype(np.int64)].tolist(), RESAMPLES)
        return {name: debiased_ece(right, p, weights).estimate for name, p in (("said", said), ("before", before))}

    by_fold = np.concatenate([np.flatnonzero(cross.fold == number) for number in range(len(fitted.views))])
    learned = [part.groups[row] for row in by_fold]
    return Split(ways, plan, stream, (list(held.groups), learned), after_play)


def _spending(settings: list[Came]) -> Way:
    """Returns what a way comes to as a function of its mean US dollars for 1,000 test questions."""
    in_order = sorted(settings, key=lambda one: float(one[1].mean()))
    cost = np.array([float(one[1].mean()) for one in in_order])

    def at(spend: float) -> Came:
        right = int(np.clip(np.searchsorted(cost, spend), 0, len(cost) - 1))
        left = max(right - 1, 0)
        width = float(cost[right] - cost[left])
        share = 1.0 - float(np.clip((spend - cost[left]) / width, 0, 1)) if width else 0.0
        return _mix(in_order[left], in_order[right], share)

    return at


def _at(split: Split, budget: float) -> tuple[AtBudget, dict[str, Came]]:
    """Returns what the panel's plan comes to at a budget, and every way where it spends what the panel spends."""
    own = split.plan(budget)
    spend = float(own.came[1].mean())
    return own, {PANEL: own.came, **{name: at(spend) for name, at in split.ways.items()}}


def _area(split: Split, budgets: Floats) -> dict[str, Floats]:
    """Returns the mean score of each question over budgets, by way."""
    each = [_at(split, float(budget))[1] for budget in budgets]
    return {name: np.mean([one[name][0] for one in each], axis=0) for name in each[0]}


def _mix(first: Came, second: Came, share: float) -> Came:
    return share * first[0] + (1 - share) * second[0], share * first[1] + (1 - share) * second[1]


def _row(came: dict[str, list[Came]], weights: NDArray[np.int32]) -> dict[str, Any]:
    whole = {name: [np.concatenate([one[k] for one in parts]) for k in (0, 1)] for name, parts in came.items()}
    return {
        **_against({name: score for name, (score, _) in whole.items()}, weights),
        "cost": {name: float(cost.mean()) for name, (_, cost) in whole.items()},
    }


def _spending_of(made: Sequence[Split], plans: Sequence[AtBudget]) -> dict[str, Any]:
    """Returns which way decided in each split, mean US dollars for 1,000 questions as stated, and how far chance moves
    what is spent.

    Groups of questions are drawn again, those asked and those learned from together, because splits share questions.
    `error` is the standard error of the logarithm of what is spent over what is stated. `attainable` is the share of
    resamples that stay within `NEAR_BUDGET` of the mean: how often a plan without bias keeps the budget. For
    `attainable_asked` the mean price is known, and only the questions asked are drawn.
    """
    number = len(made)
    groups = [group for place in (0, 1) for split in made for group in split.groups[place]]
    sizes = [len(split.groups[place]) for place in (0, 1) for split in made]
    weights = np.split(cluster_weights(groups, RESAMPLES), np.cumsum(sizes)[:-1], axis=1)
    costs = [one.came[1] for one in plans] + [one.learned for one in plans]
    means = np.stack([(drawn @ cost) / drawn.sum(axis=1) for drawn, cost in zip(weights, costs, strict=True)])
    exact = np.array([cost.mean() for cost in costs])[:, None]
    spent = (means[:number] / means[number:]).mean(axis=0)
    asked = (means[:number] / exact[number:]).mean(axis=0)
    ratio = float((exact[:number] / exact[number:]).mean())
    return {
        "taken": [one.way for one in plans],
        "stated": float(np.mean([one.stated for one in plans])),
        "error": float(np.log(spent).std()),
        "attainable": float((np.abs(spent / ratio - 1) <= NEAR_BUDGET).mean()),
        "attainable_asked": float((np.abs(asked / ratio - 1) <= NEAR_BUDGET).mean()),
    }


def _stream_figures(streams: Sequence[tuple[Came, BudgetController]]) -> dict[str, Any]:
    """Returns what the streams of all splits came to, and in which part of them nothing dearer, or nothing cheaper,
    could be asked at the end."""
    scores, costs = ([came[place] for came, _ in streams] for place in (0, 1))
    at_most = [control.correction >= BOUND * MOST_CORRECTION for _, control in streams]
    at_least = [control.next_budget() <= control.least * (1 + 1e-9) for _, control in streams]
    return {
        "cost": float(np.concatenate(costs).mean()),
        "accuracy": float(np.concatenate(scores).mean()),
        "at_most": float(np.mean(at_most)),
        "at_least": float(np.mean(at_least)),
    }


def end_of_plan(row: dict[str, Any]) -> str:
    """Returns how the spending of a plan ends, of `ENDS`. Whether it spends less is decided by what it states."""
    spent = row["cost"][PANEL]
    if row["stated"] < (1 - NEAR_BUDGET) * row["budget"] and spent <= (1 + NEAR_BUDGET) * row["stated"]:
        return "less"
    if abs(spent / row["budget"] - 1) <= NEAR_BUDGET:
        return "kept"
    return "noise" if abs(math.log(spent / row["stated"])) <= 2 * row["error"] else "missed"


def end_of_stream(row: dict[str, Any], length: str = "stream") -> str:
    """Returns how the spending of a corrected stream ends, of `ENDS`. Whether it has nothing dearer or cheaper to ask
    is what most of the splits' controls show at their end. `length`: `stream` or `long`."""
    stream, part = row[length], row[length]["cost"] / row["budget"]
    if abs(part - 1) <= NEAR_BUDGET:
        return "kept"
    if part < 1 and (stream["at_most"] > 0.5 or row["stated"] < (1 - NEAR_BUDGET) * row["budget"]):
        return "less"
    return "more" if part > 1 and stream["at_least"] > 0.5 else "missed"


def _against(score: dict[str, Floats], weights: NDArray[np.int32]) -> dict[str, Any]:
    """The panel against every simple way, the learned one included where it is a rung, by Holm over them."""
    simple = {name: values for name, values in score.items() if name not in (PANEL, ASKS[-1])}
    stands = against_controls(np.zeros(len(score[PANEL])), score[PANEL], simple, weights, metric=weighted_mean)
    first = stands.strongest
    word = "tie" if not first.p_holm < SIGNIFICANT else "ahead" if first.difference.estimate > 0 else "behind"
    return {
        "accuracy": {name: packed(mean_interval(values, weights)) for name, values in score.items()},
        "over": {one.name: [*packed(one.difference), one.p_holm] for one in stands.controls},
        "strongest": first.name,
        "word": word,
    }


def group_splits(data: Panels, most: int, splits: int) -> list[tuple[Ints, Ints, int]]:
    """Returns rows to learn from, rows to judge on, and the seed of each split. No group has rows of both kinds.

    Groups are drawn whole into the test until it holds `TEST` of the questions. Of the rest at most `most` questions
    are learned from.
    """
    number = {group: place for place, group in enumerate(dict.fromkeys(data.groups))}
    member, found = np.array([number[group] for group in data.groups]), []
    for seed in range(splits):
        turn = np.argsort(np.random.default_rng(seed).permutation(len(number)))[member]
        order = np.argsort(turn, kind="stable")
        cut = int(np.searchsorted(turn[order], turn[order[int(TEST * len(data))]]))
        found.append((np.sort(order[cut : cut + most]), np.sort(order[:cut]), seed))
    return found


@main.command()
def page() -> None:
    """Write docs/research/routing.md, and the sentences about it in the guide, from what was kept."""
    kept = read_figures(KEPT)
    answer = _answer(kept)
    write(PAGE, "answer", answer)
    write(PAGE, "areas", _areas(kept))
    write(PAGE, "shared", _shared(kept))
    write(GUIDE, "routing", answer)
    streamed = {name: one for name, one in kept.items() if all("stream" in row for row in one["rows"])}
    write(ANSWERS, "spent", _spent(streamed))
    write(PAGE, "budgets", _budgets(streamed))
    write(PAGE, "spending", _spending_table(streamed))
    write(PAGE, "sets", [line for name, one in kept.items() for line in _set(name, one)])


def _answer(kept: dict[str, Any]) -> list[str]:
    rows = [row for one in kept.values() for row in one["rows"]]
    count = {word: sum(row["word"] == word for row in rows) for word in ("ahead", "tie", "behind")}
    losses = [-100 * row["over"][row["strongest"]][0] for row in rows if row["word"] == "behind"]
    lost = f" (by {max(losses):.2f} points at most)" if losses else ""
    level = min((100 * row["over"][row["strongest"]][0] for row in rows if row["word"] == "tie"), default=0.0)
    words = over_fixed(kept)
    of_way = {name: [word for (_, way), word in words.items() if way == name] for name in FIXED}
    gains = {name: (found.count("ahead"), len(found)) for name, found in of_way.items()}
    developed = sum(name.rsplit(", ", 1)[0] in DEVELOPED for name, _ in words)
    every = list(words.values())
    return [
        f"At equal spending ({len(rows)} comparisons, {len({name.rsplit(', ', 1)[0] for name in kept})} data sets) "
        f"the panel is ahead of the way that is strongest in hindsight, its own ways among them, in {count['ahead']}, "
        f"level in {count['tie']} ({level:+.2f} at worst), behind in {count['behind']}{lost}. In the mean "
        f"over budgets it is ahead, by Holm, of "
        f"{', '.join(f'{name} on {won} of {pairs}' for name, (won, pairs) in gains.items())}. "
        f"Of these {len(every)} it is ahead in {every.count('ahead')}, behind in {every.count('behind')}; {developed} "
        "are on development sets.",
        "",
    ]


def over_fixed(kept: dict[str, Any]) -> dict[tuple[str, str], str]:
    """Returns (row, way of `FIXED`) -> whether the panel is ahead, tie or behind in the mean over budgets."""
    areas = {name: one["area"]["over"] for name, one in kept.items() if one["area"]}
    return {(name, way): _stands(over[way]) for name, over in areas.items() for way in FIXED if way in over}


def _stands(over: Sequence[float]) -> str:
    """Returns how the panel stands by Holm: `over` is its gain, the gain's interval, and p after Holm's correction."""
    gain, _, _, p_holm = over
    if p_holm >= SIGNIFICANT:
        return "tie"
    return "ahead" if gain > 0 else "behind"


def _shared(kept: dict[str, Any]) -> list[str]:
    """Returns a sentence on the rows whose splits were drawn by question, though some questions share a group."""
    shares = {name: one["group_learned"] for name, one in kept.items() if any(one.get("group_learned", []))}
    return [
        f"The row {name}, is older than splits by group: for {min(of):.0%} to {max(of):.0%} of its test questions "
        "another question of the group is learned from, which flatters the row by an unknown amount."
        for name, of in shares.items()
    ] + [""]


def _areas(kept: dict[str, Any]) -> list[str]:
    """Returns the one table of the measured page: a row a data set."""
    body = []
    for name, one in kept.items():
        words = [row["word"] for row in one["rows"]]
        area = one["area"]
        over = _over(area) if area else "-"
        counts = [str(words.count(word)) for word in ("ahead", "tie", "behind")]
        body.append([name, f"{one['questions']:,}", str(len(one["agents"])), *counts, over])
    head = ["data set", "questions", "agents", "budgets ahead", "level", "behind", "area over the strongest, points"]
    return markdown(head, body)


def _ends(kept: dict[str, Any], end: Callable[[dict[str, Any]], str]) -> Counter[str]:
    return Counter(end(row) for one in kept.values() for row in one["rows"])


def _sizes(kept: dict[str, Any]) -> str:
    """Returns the numbers of labels that were measured, in words."""
    *most, last = (f"{size:,}" for size in sorted({one["labels"] for one in kept.values()}))
    return f"{', '.join(most)} or {last}" if most else last


def _spent(kept: dict[str, Any]) -> list[str]:
    """Returns what the panel spent of its budgets on test questions."""
    plans, streams = _ends(kept, end_of_plan), _ends(kept, end_of_stream)
    labels = _sizes(kept)
    return [
        f"Of {plans.total()} budgets ({labels} labels) a plan alone keeps {plans['kept']} within 3 % on new questions; "
        f"{plans['less']} are underspent, as nothing more helps; the rest miss. Where spending corrects the "
        f"next plans, as in `serve`, {streams['kept']} are kept, {streams['less']} not spent. In Python: `control = "
        "team.budget_control(0.5)`, `budget=control.next_budget()`, `control.paid(dollars)` with the sum of "
        "`answered.spent`.",
        "",
    ]


def _budgets(kept: dict[str, Any]) -> list[str]:
    """Returns the sentences about spending and P(right) after the play."""
    plans = _ends(kept, end_of_plan)
    rows = [row for one in kept.values() for row in one["rows"]]
    gains = [row["stream"]["accuracy"] - row["accuracy"][PANEL][0] for row in rows]
    anew = {name: one for name, one in kept.items() if all("long" in row for row in one["rows"])}
    binding = [row for one in anew.values() for row in one["rows"] if end_of_plan(row) != "less"]
    lines = [
        f"With {_sizes(kept)} labels a plan alone keeps {plans['kept']} of {len(rows)} budgets within 3 %, and "
        f"{plans['less']} more are not spent, as it states before. {plans['noise']} differ by no more than two "
        f"standard errors, {plans['missed']} by more. Of {len(binding)} that bind it keeps "
        f"{sum(end_of_plan(row) == 'kept' for row in binding)}; chance lets a plan without bias keep "
        f"{sum(row['attainable'] for row in binding):.0f} in the mean, and one that knows the true mean prices "
        f"{sum(row['attainable_asked'] for row in binding):.0f}.",
        "",
        f"On a stream whose spending corrects the next plans {_streamed(kept, 'stream')}. Its accuracy differs from "
        f"the plan's by {100 * min(gains):+.1f} to {100 * max(gains):+.1f} points. On streams of at least {LONG:,} "
        f"questions, of {sum(len(one['rows']) for one in anew.values())} budgets {_streamed(anew, 'long')}.",
        "",
    ]
    after = []
    for labels in sorted({one["labels"] for one in kept.values()}):
        here = [row["after"] for one in kept.values() if one["labels"] == labels for row in one["rows"]]
        said, before = ([float(np.mean(one[name])) for one in here] for name in ("said", "before"))
        after.append(
            f"{np.mean(said):.3f} with {labels:,} labels ({min(said):.3f} to {max(said):.3f}; at most {WELL} in "
            f"{sum(value <= WELL for value in said)} of {len(said)} rows; uncorrected {np.mean(before):.3f})"
        )
    lines.append(f"P(right) after the play has a mean ECE, freed of noise, of {', '.join(after)}. {_worst_ece(kept)}")
    return [*lines, ""]


def _streamed(kept: dict[str, Any], length: str) -> str:
    """Returns how the spending of the streams of a length ends, in words."""
    ends = _ends(kept, lambda row: end_of_stream(row, length))
    parts = sorted(row[length]["cost"] / row["budget"] for one in kept.values() for row in one["rows"])
    words = {"kept": "are kept", "less": "not spent", "more": "without anything cheaper to ask", "missed": "missed"}
    counts = ", ".join(f"{ends[end]} {word}" for end, word in words.items() if ends[end])
    return f"{counts} ({parts[0]:.0%} to {parts[-1]:.0%} in all)"


def _worst_ece(kept: dict[str, Any]) -> str:
    """Returns on which set the ECE is highest, and how far the rates there can be known."""
    said = {name: float(np.mean([row["after"]["said"] for row in one["rows"]])) for name, one in kept.items()}
    worst = max(said, key=lambda name: said[name]).rsplit(", ", 1)[0]
    here = {one["labels"]: (said[name], one) for name, one in kept.items() if name.rsplit(", ", 1)[0] == worst}
    others = []
    for labels in sorted(here):
        rest = [said[name] for name, one in kept.items() if one["labels"] == labels and one is not here[labels][1]]
        others.append(f"{np.mean(rest):.3f}")
    errors = [f"{np.mean(here[labels][1]['rate_error']):.3f}" for labels in sorted(here)]
    return (
        f"On {worst} it is {' and '.join(f'{here[labels][0]:.3f}' for labels in sorted(here))}: there P(right) is a "
        f"rate on one of {next(iter(here.values()))[1]['dimensions']} dimensions, and the best shrinkage of such rates "
        f"errs by {' and '.join(errors)}. Without this set the means are {' and '.join(others)}."
    )


def _spending_table(kept: dict[str, Any]) -> list[str]:
    """Returns how spending ends on every set: budgets by plan and by stream."""
    body = []
    for name, one in kept.items():
        plans, streams, long = (
            [end(row) for row in one["rows"]]
            for end in (end_of_plan, end_of_stream, lambda row: end_of_stream(row, "long") if "long" in row else "-")
        )
        parts = [
            " / ".join(f"{spent / row['budget']:.0%}" for spent in (row["cost"][PANEL], *_of_streams(row, "cost")))
            for row in one["rows"]
        ]
        ece = [f"{np.mean(row['after']['said']):.3f}" for row in one["rows"]]
        body.append([name, *(", ".join(column) for column in (parts, plans, streams, long, ece))])
    spent = "spent of each budget, by plan / by stream / by long stream"
    head = ["data set", spent, "plan", "stream", "long stream", "ECE after the play"]
    meanings = [f"*{name}*: {meaning}." for name, meaning in ENDS.items()]
    left = [name for name, one in kept.items() if not all("long" in row for row in one["rows"])]
    not_anew = f" Chance and long streams are not measured of {'; '.join(left)}." if left else ""
    return [*markdown(head, body), "", " ".join(meanings) + not_anew, ""]


def _of_streams(row: dict[str, Any], name: str) -> list[float]:
    return [row[length][name] for length in ("stream", "long") if length in row]


def _over(row: dict[str, Any]) -> str:
    """Returns the panel's gain over the strongest simple way, which one that is, and what the interval says."""
    return f"{points(row['over'][row['strongest']])} ({row['strongest']}, {row['word']})"


def _set(name: str, one: dict[str, Any]) -> list[str]:
    ways = sorted(one["rows"][0]["accuracy"], key=lambda way: (way != PANEL, way))
    head = ["budget", *ways, "spent", "decided by", "over the strongest, points"]
    body = []
    for row in one["rows"]:
        over = _over(row)
        decided = ", ".join(f"{way} {row['taken'].count(way)}" for way in dict.fromkeys(row["taken"]))
        accuracy = [f"{row['accuracy'][way][0]:.3f}" for way in ways]
        spent = f"{row['cost'][PANEL] / row['budget']:.0%}"
        body.append([f"{row['budget']:.3g}", *accuracy, spent, decided, over])
    if one["area"]:
        area = one["area"]
        body.append(["area", *(f"{area['accuracy'][way][0]:.3f}" for way in ways), "", "", _over(area)])
    best = one["best_agent"]
    return [
        f"## {name}",
        "",
        f"{one['about']}. {one['questions']} questions, {len(one['agents'])} agents, {one['dimensions']} dimensions; "
        f"{one['splits']} splits of {one['test']} test questions. The best agent alone: {best[0]:.3f} for "
        f"{best[1]:.3g} US dollars for 1,000 questions.",
        "",
        *markdown(head, body),
        "",
    ]


if __name__ == "__main__":
    main()
