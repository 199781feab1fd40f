"""What the learned router is worth beside simple ways of routing; measures, and writes docs/research/routing.md.

    python -m research.routing.measure measure --data DATA [SET ...]
    python -m research.routing.measure page

Five splits by question, 70 % to learn from. Numbers stand in docs/measured/routing.json, so that no number on the page
is typed by hand. One thread; a set takes some minutes, nearly all of them for the router's own fits (`--keep`).
"""

import json
import tempfile
import time
from pathlib import Path
from typing import Any

import click
import numpy as np

from metaprobe.eval.metrics.bootstrap import cluster_weights, mean_interval
from metaprobe.eval.routing_controls import always
from metaprobe.eval.routing_performance import best_single, cheapest, oracle
from metaprobe.routing.learned import LearnedRouter
from metaprobe.routing.learned_play import known_of
from metaprobe.routing.learned_state import Known
from metaprobe.training.folds import group_folds
from metaprobe.training.router.control_policies import ControlFamily, families_of
from metaprobe.training.router.data import Outcomes, outcomes_of
from metaprobe.training.router.evaluate import matrix_of
from metaprobe.training.router.train import write_router
from metaprobe.training.router.words import Words
from research.blocks import markdown, write
from research.routing.data import SETS, DataSet, metacog, metacog_runs, spent
from research.routing.methods import Result, Split, at_lambda, result_of, split_of
from research.routing.router import router_plays, shuffled_labels
from research.routing.standing import (
    MIXED,
    ROUTER,
    RULE_ROW,
    answer,
    packed,
    said,
    section,
    standing,
    table,
    verdict,
)
from research.systems.metacog_replays import Recording

ROOT = Path(__file__).parent.parent.parent
PAGE = ROOT / "docs" / "research" / "routing.md"
GUIDE, README = ROOT / "docs" / "routing.md", ROOT / "README.md"
FIGURES = ROOT / "docs" / "measured" / "routing.json"
SEEDS = 5
RULE = "metacog-every-agent, rule"
OLD: dict[str, Any] = {"rows": [{}]}
LEFT_OUT = "router_cascade9, left out"
Parts = dict[str, list[Result]]
"""Way of routing -> what it came to on each split."""
SPEED = "speed"


@click.group()
def main() -> None:
    """Measure, write the page."""


@main.command("measure")
@click.argument("names", nargs=-1)
@click.option("--data", type=click.Path(exists=True, file_okay=False, path_type=Path), required=True)
@click.option(
    "--keep",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder of what the router did on each split: taken from there, or fitted and stored there.",
)
@click.option("--splits", default=SEEDS, show_default=True, help="Random splits of each data set.")
def measure_command(names: tuple[str, ...], data: Path, keep: Path | None, splits: int) -> None:
    """Every way of routing on every set, or on those named."""
    figures: dict[str, Any] = json.loads(FIGURES.read_text()) if FIGURES.exists() else {}
    jobs: dict[str, Any] = {
        name: lambda s=name: measured(s, SETS[s], data, keep, splits, figures.get(s)) for name in SETS
    }
    jobs[LEFT_OUT] = lambda: left_out(SETS["router_cascade9"], data)
    jobs[RULE] = lambda: side_by_side(data, keep)
    jobs[SPEED] = lambda: speed(SETS["router_cascade9"], data)
    for name, job in jobs.items():
        if not names or name in names:
            click.echo(name, err=True)
            figures[name] = job()
            FIGURES.parent.mkdir(exist_ok=True)
            FIGURES.write_text(json.dumps(figures, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def measured(
    name: str, chosen: DataSet, folder: Path, keep: Path | None, splits: int, before: dict[str, Any] | None
) -> dict[str, Any]:
    """Every way of routing at every budget of one data set, over so many splits.

    With `keep` the control of shuffled labels is taken from the numbers measured `before`, where they have it: its
    plays are the router's own, and change with the router only.
    """
    data = outcomes_of(chosen.load(folder))
    words = Words.of(data.questions)
    budgets = chosen.budgets or quarters(data)
    found: list[Parts] = [{} for _ in budgets]
    level: list[Parts] = [{} for _ in budgets]
    tests = []
    for seed in range(splits):
        start = time.perf_counter()
        split = split_of(data, words, budgets, seed)
        tests.append(split.test)
        ends = {
            "best single": result_of(split.testing, always(split.testing, best_single(split.training))),
            "cheapest": result_of(split.testing, always(split.testing, cheapest(split.training))),
            "oracle": result_of(split.testing, oracle(split.testing)),
        }
        for at, (results, levelled) in enumerate(ways(split, keep, name)):
            put(found[at], {**results, **ends})
            put(level[at], levelled)
        click.echo(f"  seed {seed}: {time.perf_counter() - start:.0f} s", err=True)
    weights = cluster_weights(np.concatenate([np.array(data.groups)[test] for test in tests]))
    stored = {row["budget"]: row["shuffled_labels"] for row in (before or {}).get("rows", ())} if keep else {}
    if not set(budgets) <= set(stored):
        shuffled = shuffled_labels(split_of(data, words, budgets, 0), keep, name)
        stored = {b: [float(shuffled.shipped_at(at)[k].mean()) for k in (0, 1)] for at, b in enumerate(budgets)}
    rows = []
    for at, budget in enumerate(budgets):
        stands = standing(budget, joined(found[at]), joined(level[at]), weights)
        rows.append({"budget": budget, "shuffled_labels": stored[budget], **stands})
    return {
        "about": chosen.about,
        "questions": len(data),
        "agents": list(data.agents),
        "dimensions": len(data.dimensions),
        "test_per_seed": len(tests[0]),
        "seeds": splits,
        "rows": rows,
    }


def ways(split: Split, keep: Path | None, name: str) -> list[tuple[dict[str, Result], dict[str, Result]]]:
    """For each budget of the split, what the router and every control come to on its test questions; and the controls
    where they spend there what the router does."""
    mine = router_plays(split, keep, name)
    mixed = ControlFamily(mine.cost, mine.accuracy, mine.settings)
    controls = families_of(split.data, split.train, split.test, seed=split.seed)
    alone = controls["random mixture"]
    found = []
    for at, budget in enumerate(split.budgets):
        shipped = mine.shipped_at(at)
        within = {name: family.at(budget) for name, family in controls.items()}
        results = {ROUTER: shipped, MIXED: mixed.at(budget), "best single within budget": alone.below(budget), **within}
        spent = float(shipped[1].mean())
        found.append((results, {name: family.spending(spent) for name, family in controls.items()}))
    return found


def put(parts: Parts, results: dict[str, Result]) -> None:
    """Adds what each way came to on one split to what it came to on those before."""
    for way, result in results.items():
        parts.setdefault(way, []).append(result)


def quarters(data: Outcomes) -> tuple[float, ...]:
    """A quarter, a half and all of what the agent best at price 0 costs."""
    cost = 1000 * float(data.cost[:, best_single(matrix_of(data))].mean())
    return tuple(float(f"{part * cost:.3g}") for part in (0.25, 0.5, 1.0))


def joined(parts: Parts) -> dict[str, Result]:
    """Each way's results of all splits as one."""
    return {
        way: tuple(np.concatenate([one[k] for one in results]) for k in range(3))  # type: ignore[misc]
        for way, results in parts.items()
    }


def compared(mine: Result, theirs: Result, weights: Any) -> dict[str, Any]:
    return {
        "accuracy": packed(mean_interval(theirs[0], weights)),
        "cost": packed(mean_interval(theirs[1], weights)),
        "calls": float(theirs[2].mean()),
        "router_more_accurate_by": packed(mean_interval(mine[0] - theirs[0], weights)),
        "router_costs_more_by": packed(mean_interval(mine[1] - theirs[1], weights)),
    }


def left_out(chosen: DataSet, folder: Path) -> dict[str, Any]:
    """Each dimension played by a router that never saw it, at prices between the budgets of the set."""
    data = outcomes_of(chosen.load(folder))
    words = Words.of(data.questions)
    found: dict[str, Any] = {}
    for d, name in enumerate(data.dimensions):
        held = data.dimension == d
        split = Split(data, words, np.flatnonzero(~held), np.flatnonzero(held), (), 0)
        weights = cluster_weights(np.array(data.groups)[split.test])
        found[name] = {}
        for lambda_ in (0.05, 0.2):
            mine = at_lambda(split, lambda_)
            single = best_single(split.training, price=1000 * lambda_)
            theirs = result_of(split.testing, always(split.testing, single))
            gain = mean_interval(mine[0] - theirs[0] - lambda_ * (mine[1] - theirs[1]), weights)
            found[name][str(lambda_)] = {**compared(mine, theirs, weights), "value_gain": packed(gain)} | {
                "router": [float(mine[0].mean()), float(mine[1].mean()), float(mine[2].mean())]
            }
    return found


def side_by_side(folder: Path, keep: Path | None) -> dict[str, Any]:
    """MetaCogAgent's rule, replayed as the paper has it, and the learned router on the same 700 tasks, held out.

    The rule's cost is that of its own assessments and answers, the classifier's apart: both need the dimension.
    """
    runs = metacog_runs()
    data = outcomes_of(metacog(folder))
    words = Words.of(data.questions)
    ruled = {run.item.id: run for run in Recording(runs).replayed("algorithm")}
    ids = [run.item.id for run in runs]
    final = [ruled[i].outcome for i in ids]
    cost = np.array([1000 * sum(spent(call) for call in ruled[i].calls) for i in ids])
    calls = np.array([len({call.agent for call in ruled[i].calls if call.agent in data.agents}) for i in ids], float)
    rule: Result = (np.array(final, dtype=np.float64), cost, calls)
    budgets = (float(cost.mean()), float(cost.mean()) / 2, float(cost.mean()) * 1.5)
    y = (np.nanmean(data.score, axis=1) > 0.5).astype(np.int64)
    found: list[Parts] = [{} for _ in budgets]
    level: list[Parts] = [{} for _ in budgets]
    folds = []
    for fold, (rest, test) in enumerate(group_folds(np.arange(len(data)), data.groups, y, 5, 0)):
        folds.append(test)
        split = Split(data, words, rest, test, budgets, fold)
        for at, (results, levelled) in enumerate(ways(split, keep, RULE)):
            put(found[at], results)
            put(level[at], levelled)
    order = np.concatenate(folds)
    weights = cluster_weights(np.array(data.groups)[order])
    rule = (rule[0][order], rule[1][order], rule[2][order])
    rows = []
    for at, budget in enumerate(budgets):
        results = {RULE_ROW: rule, **joined(found[at])}
        rows.append({"budget": budget, **standing(budget, results, joined(level[at]), weights)})
    return {"questions": len(data), "agents": list(data.agents), "rows": rows}


def speed(chosen: DataSet, folder: Path) -> dict[str, Any]:
    """One decision over five agents, features included; the words of the question apart."""
    questions = chosen.load(folder)[:400]
    names = sorted(questions[0].agents)[:5]
    with tempfile.TemporaryDirectory() as place:
        write_router(Path(place) / "c", questions, agents=names, folds=2, states=5000)
        router = LearnedRouter.load(Path(place) / "c")
    question = questions[7]
    found: dict[str, Any] = {"agents": len(names)}
    for count in range(4):
        asked = {n: known_of(question.agents[n]) for n in names[:count]}
        known = Known(asked, question.question, question.dimension)
        found[f"{count} asked"] = microseconds(lambda k=known: router.decide(k))
    found["words of the question"] = microseconds(lambda: router.words.of(question.question))
    return found


def microseconds(act: Any, rounds: int = 5000) -> list[float]:
    """p50 and p99."""
    for _ in range(300):
        act()
    times = []
    for _ in range(rounds):
        start = time.perf_counter_ns()
        act()
        times.append((time.perf_counter_ns() - start) / 1000)
    return [float(np.percentile(times, 50)), float(np.percentile(times, 99))]


@main.command("page")
def page_command() -> None:
    """Write the tables of docs/research/routing.md from the numbers."""
    figures = json.loads(FIGURES.read_text())
    lines: list[str] = []
    # Numbers from before the controls were tuned finely and mixed have no words, and are shown no more.
    sets = {name: figures[name] for name in SETS if all("words" in row for row in figures.get(name, OLD)["rows"])}
    missing = [name for name in SETS if name not in sets]
    for name in sets:
        lines += [f"### {name}", "", *section(figures[name]), ""]
    write(PAGE, "sets", lines)
    note = [f"Not measured since the controls are tuned like this: {', '.join(missing)}.", ""] if missing else []
    write(PAGE, "verdict", [*note, *verdict(sets), ""])
    write(PAGE, "answer", [*answer(sets), ""])
    same_budget, _, first = answer(sets)
    for page in (GUIDE, README):
        write(page, "routing", [f"{same_budget} {first}", ""])
    tables = {RULE: ruled, LEFT_OUT: unseen, SPEED: times}
    for key, make in tables.items():
        if key in figures:
            write(PAGE, key.split(", ")[-1].replace(" ", "-"), [*make(figures[key]), ""])


def ruled(found: dict[str, Any]) -> list[str]:
    return [*said(found["rows"], "Budget"), "", *table(found["rows"], "agents")]


def unseen(found: dict[str, Any]) -> list[str]:
    head = ["dimension left out", "lambda", "router: accuracy, cost, calls", "best single at this lambda", "value gain"]
    rows = []
    for name, by_lambda in found.items():
        for lambda_, one in by_lambda.items():
            r, g = one["router"], one["value_gain"]
            mine = f"{r[0]:.3f}, {r[1]:.3g}, {r[2]:.2f}"
            theirs = f"{one['accuracy'][0]:.3f}, {one['cost'][0]:.3g}"
            rows.append([name, lambda_, mine, theirs, f"{g[0]:+.3f} [{g[1]:+.3f}, {g[2]:+.3f}]"])
    return markdown(head, rows)


def times(found: dict[str, Any]) -> list[str]:
    rows = [[key, f"{v[0]:.0f}", f"{v[1]:.0f}"] for key, v in found.items() if isinstance(v, list)]
    return [
        f"One decision over {found['agents']} agents, in Python, features and reason included, one thread:",
        "",
        *markdown(["state", "p50, microseconds", "p99"], rows),
    ]


if __name__ == "__main__":
    main()
