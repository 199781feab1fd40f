"""Measures what asking by a panel is worth beside every simple way, and writes docs/research/routing.md.

    python -m research.routing.measure measure --data DATA [SET ...]
    python -m research.routing.measure page

Random splits by question, of which so many are learned from. Numbers stand in docs/measured/routing.json, so that no
number on the page is typed by hand. One thread; a split of 200 questions takes a quarter of a minute of processor time,
one of 500 half a minute.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from metaprobe.eval.metrics.bootstrap import against_controls, cluster_weights, mean_interval
from metaprobe.routing.panel_asks import ASKS, AskSetting
from metaprobe.routing.panel_rows import JOINT, Floats, Ints
from metaprobe.training.panel_data import Panels, panels_of_outcomes
from metaprobe.training.panel_fit import by_agent, count_words, cross_fit, cross_played, fit_asks, play_setting
from research.blocks import ROOT, ahead, behind, markdown, packed, points, read_figures, write, write_figures
from research.routing.controls import FIXED, controls_of
from research.routing.data import SETS, questions_of
from research.systems.metacog_orders import weighted_mean

PAGE = ROOT / "docs" / "research" / "routing.md"
GUIDE, ANSWERS = ROOT / "docs" / "route.md", ROOT / "docs" / "several-answers.md"
KEPT = ROOT / "docs" / "measured" / "routing.json"
PANEL = "panel"
SPLITS = 5
TEST = 0.3
SIZES = (200, 500, 2000)
"""Questions that are learned from; a set that has too few is left out."""
SHARES = (0.1, 0.25, 0.5, 0.75, 1.0)
"""Budgets as shares of what the agent costs that is right most often."""
SIGNIFICANT = 0.05
"""p after Holm below which the panel is called ahead of the strongest simple way, or behind it."""
AREA = 40
"""Budgets, evenly spread from the cheapest agent's cost to the best agent's, whose mean accuracy is the area (AIQ)."""
Came = tuple[Floats, Floats]
"""Score and US dollars for 1,000 questions of every test question."""
Way = Callable[[float], Came]
"""From US dollars for 1,000 test questions to what a way comes to."""
Plan = Callable[[float], tuple[str, Came]]
"""From a budget to the way that decides there, and what the panel comes to."""


@click.group()
def main() -> None:
    """Measure, write the page."""


@main.command("measure")
@click.argument("names", nargs=-1)
@click.option("--data", type=click.Path(exists=True, file_okay=False, path_type=Path), required=True)
@click.option("--splits", default=SPLITS, show_default=True, help="Random splits of each data set.")
@click.option("--labels", multiple=True, type=int, default=SIZES, show_default=True, help="Questions learned from.")
def measure_command(names: tuple[str, ...], data: Path, splits: int, labels: tuple[int, ...]) -> None:
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
            found = {"about": chosen.about, **measured(panels, chosen.budgets or shares(panels), splits, size)}
            write_figures(KEPT, {**read_figures(KEPT), row: found}, sort=True)


def shares(data: Panels) -> tuple[float, ...]:
    """Shares of what the agent that is right most often costs, of which each buys the cheapest agent at least."""
    cost = 1000 * data.cost.mean(axis=0)
    best = float(cost[int(data.score.mean(axis=0).argmax())])
    return tuple(sorted({float(f"{max(part * best, 1.05 * float(cost.min())):.3g}") for part in SHARES}))


def measured(data: Panels, budgets: tuple[float, ...], splits: int, labels: int) -> dict[str, Any]:
    """Every way at every budget, and its area under the curve, over so many splits and labels."""
    came: dict[float, dict[str, list[Came]]] = {budget: {} for budget in budgets}
    area: dict[str, list[Floats]] = {}
    taken: dict[float, list[str]] = {budget: [] for budget in budgets}
    groups: list[str] = []
    singles: list[list[float]] = []
    for train, test, seed in _draws(data, labels, splits):
        start = time.perf_counter()
        groups += [data.groups[row] for row in test]
        ways, plan = _split(data, train, test, seed)
        cost = 1000 * data.cost[train].mean(axis=0)
        best = int(data.score[train].mean(axis=0).argmax())
        singles.append([float(data.score[test, best].mean()), float(1000 * data.cost[test, best].mean())])
        spread = np.linspace(float(cost.min()), float(cost[best]), AREA) if cost[best] > cost.min() else np.array([])
        for budget in budgets:
            way, each = _at(ways, plan, budget)
            taken[budget].append(way)
            for name, one in each.items():
                came[budget].setdefault(name, []).append(one)
        if len(spread):
            for name, values in _area(ways, plan, spread).items():
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
        "rows": [{"budget": budget, "taken": taken[budget], **_row(came[budget], weights)} for budget in budgets],
        "area": _against({name: np.concatenate(parts) for name, parts in area.items()}, weights) if area else None,
    }


def _split(data: Panels, train: Ints, test: Ints, seed: int) -> tuple[dict[str, Way], Plan]:
    """Every simple way as a function of what it is to spend on the test questions, and the panel's plan at a budget.

    The panel's plan is chosen on the training questions. A simple way mixes two neighbouring settings so that it
    spends the asked sum on the test questions, or all or the least that it can.
    """
    part, held = data.take(train), data.take(test)
    fitted = fit_asks(part, count_words(part.questions), cross_fit(part, seed=seed), JOINT, seed=seed)
    curves, _ = cross_played(part, fitted, lambda rows: cross_fit(part.take(rows), seed=seed), seed=seed)
    view = fitted.view(held, count_words(held.questions))
    played: dict[AskSetting, Came] = {}

    def play(one: AskSetting) -> Came:
        if one not in played:
            result = play_setting(view, one, JOINT)
            played[one] = result.score, result.cost
        return played[one]

    ways = {name: _spending([play(one) for one in settings]) for name, settings in fitted.settings.items()}
    for name, (_, _, settings) in controls_of(data, train, test, seed=seed).items():
        ways[name] = _spending([(score, cost) for score, cost in settings])

    def plan(budget: float) -> tuple[str, Came]:
        one = curves.plan(budget=max(budget, min(way[0].cost for way in fitted.settings.values())))
        return one.first.way, _mix(play(one.first), play(one.second), one.share)

    return ways, plan


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


def _at(ways: dict[str, Way], plan: Plan, budget: float) -> tuple[str, dict[str, Came]]:
    """Returns which way decides at a budget, and what every way comes to where it spends what the panel spends."""
    taken, own = plan(budget)
    spend = float(own[1].mean())
    return taken, {PANEL: own, **{name: at(spend) for name, at in ways.items()}}


def _area(ways: dict[str, Way], plan: Plan, budgets: Floats) -> dict[str, Floats]:
    """Returns the mean score of each question over budgets, by way."""
    each = [_at(ways, plan, float(budget))[1] for budget in budgets]
    return {name: np.mean([one[name][0] for one in each], axis=0) for name in each[0]}


def _mix(first: Came, second: Came, share: float) -> Came:
    return share * first[0] + (1 - share) * second[0], share * first[1] + (1 - share) * second[1]


def _row(came: dict[str, list[Came]], weights: NDArray[np.int32]) -> dict[str, Any]:
    whole = {name: [np.concatenate([one[k] for one in parts]) for k in (0, 1)] for name, parts in came.items()}
    return {
        **_against({name: score for name, (score, _) in whole.items()}, weights),
        "cost": {name: float(cost.mean()) for name, (_, cost) in whole.items()},
    }


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


def _draws(data: Panels, most: int, splits: int) -> list[tuple[Ints, Ints, int]]:
    """Rows to learn from, at most so many, rows to judge on, and the seed, of each split."""
    cut, found = int(TEST * len(data)), []
    for seed in range(splits):
        order = np.random.default_rng(seed).permutation(len(data))
        found.append((np.sort(order[cut : cut + most]), np.sort(order[:cut]), seed))
    return found


@main.command()
def page() -> None:
    """Write docs/research/routing.md, and the sentences about it in the guide, from what was kept."""
    kept = read_figures(KEPT)
    answer = _answer(kept)
    write(PAGE, "answer", answer)
    write(PAGE, "areas", _areas(kept))
    write(GUIDE, "routing", answer)
    write(ANSWERS, "spent", _spent(kept))
    write(PAGE, "sets", [line for name, one in kept.items() for line in _set(name, one)])


def _answer(kept: dict[str, Any]) -> list[str]:
    rows = [row for one in kept.values() for row in one["rows"]]
    count = {word: sum(row["word"] == word for row in rows) for word in ("ahead", "tie", "behind")}
    losses = [-100 * row["over"][row["strongest"]][0] for row in rows if row["word"] == "behind"]
    lost = f" (by {max(losses):.2f} points at most)" if losses else ""
    level = min((100 * row["over"][row["strongest"]][0] for row in rows if row["word"] == "tie"), default=0.0)
    areas = [one["area"]["over"] for one in kept.values() if one["area"]]
    gains = {name: [over[name] for over in areas if name in over] for name in FIXED}
    return [
        f"At equal spending the panel is ahead of the way that is strongest in hindsight, its own ways among them, in "
        f"{count['ahead']} of {len(rows)} comparisons on {len({name.rsplit(', ', 1)[0] for name in kept})} data sets, "
        f"level with it in {count['tie']} ({level:+.2f} at worst), and behind in {count['behind']}{lost}. In the mean "
        f"over budgets, by an interval, it is ahead of "
        f"{', '.join(f'{name} on {ahead(of)} of {len(of)}' for name, of in gains.items())}. "
        f"It is behind one of these in {sum(map(behind, gains.values()))} of {sum(map(len, gains.values()))}.",
        "",
    ]


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


def _spent(kept: dict[str, Any]) -> list[str]:
    """Returns what the panel spent of its budgets on test questions."""
    parts = sorted(row["cost"][PANEL] / row["budget"] for one in kept.values() for row in one["rows"])
    less, more = sum(part < 0.97 for part in parts), sum(part > 1.03 for part in parts)
    return [
        f"On new questions a budget is kept on average, and not exactly: in {len(parts) - less - more} of {len(parts)} "
        f"comparisons the panel spent 97 to 103 % of it, in {more} more, up to {parts[-1]:.0%}, and in {less} less, "
        f"down to {parts[0]:.0%}: what the most accurate way does not take is not spent. Add up `spent`, and correct "
        "the budget where it differs.",
        "",
    ]


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
