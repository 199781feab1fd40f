"""What the learned router is worth beside simple ways of routing; measures, and writes docs/routing.md.

    python benchmarks/routing.py measure --data DATA [SET ...]
    python benchmarks/routing.py page

Five splits by question, 70 % to learn from. Figures stand in docs/measured/routing.json, so that no number on the page
is typed by hand. One thread; a set takes some minutes.
"""

import json
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np
from demo_results import markdown, write
from metacog_replays import Recording
from routing_data import SETS, DataSet, metacog, metacog_runs, spent
from routing_methods import METHODS, ROUTER, Result, Split, at_lambda, result_of, shuffled_labels, split_of
from routing_waiting import from_log, from_log_lines, waiting, waiting_lines

from metaprobe.eval.metrics import Interval, cluster_weights, mean_interval
from metaprobe.eval.routing import best_single, oracle
from metaprobe.eval.routing_controls import always
from metaprobe.routing.learned import LearnedRouter
from metaprobe.routing.learned_state import Asked, Known
from metaprobe.training.roles import group_folds
from metaprobe.training.router import train_router
from metaprobe.training.router_data import Outcomes, Words, outcomes_of
from metaprobe.training.router_evaluate import matrix_of

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "routing.md"
FIGURES = ROOT / "docs" / "measured" / "routing.json"
SEEDS = 5
RULE = "metacog-every-agent, rule"
LEFT_OUT = "router_cascade9, left out"
SPEED = "speed"
WAITING, FROM_LOG = "router_cascade9, waiting", "router_cascade9, from a log"
ENOUGH = 100


@click.group()
def main() -> None:
    """Measure, write the page."""


@main.command("measure")
@click.argument("names", nargs=-1)
@click.option("--data", type=click.Path(exists=True, file_okay=False, path_type=Path), required=True)
def measure_command(names: tuple[str, ...], data: Path) -> None:
    """Every way of routing on every set, or on those named."""
    figures: dict[str, Any] = json.loads(FIGURES.read_text()) if FIGURES.exists() else {}
    jobs: dict[str, Any] = {name: lambda s=name: measured(SETS[s], data) for name in SETS}
    jobs[LEFT_OUT] = lambda: left_out(SETS["router_cascade9"], data)
    jobs[WAITING] = lambda: waiting(SETS["router_cascade9"], data)
    jobs[FROM_LOG] = lambda: from_log(SETS["router_cascade9"], data)
    jobs[RULE] = lambda: side_by_side(data)
    jobs[SPEED] = lambda: speed(SETS["router_cascade9"], data)
    for name, job in jobs.items():
        if not names or name in names:
            click.echo(name, err=True)
            figures[name] = job()
            FIGURES.parent.mkdir(exist_ok=True)
            FIGURES.write_text(json.dumps(figures, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def measured(chosen: DataSet, folder: Path) -> dict[str, Any]:
    """Accuracy and cost of every method at every budget, over five splits; and how far the router is from each."""
    data = outcomes_of(chosen.load(folder))
    words = Words.of(data.questions)
    budgets = chosen.budgets or quarters(data)
    found: dict[str, list[list[Result]]] = {name: [] for name in METHODS}
    ends: dict[str, list[Result]] = {"best single": [], "cheapest": [], "oracle": []}
    tests = []
    for seed in range(SEEDS):
        split = split_of(data, words, budgets, seed)
        tests.append(split.test)
        for name, method in METHODS.items():
            start = time.perf_counter()
            found[name].append(method(split))
            click.echo(f"  seed {seed}, {name}: {time.perf_counter() - start:.0f} s", err=True)
        testing = split.testing
        ends["best single"].append(result_of(testing, always(testing, best_single(split.training))))
        ends["cheapest"].append(result_of(testing, always(testing, int(split.training.cost.mean(axis=0).argmin()))))
        ends["oracle"].append(result_of(testing, oracle(testing)))
    weights = cluster_weights(np.concatenate([np.array(data.groups)[test] for test in tests]))
    shuffled = shuffled_labels(split_of(data, words, budgets, 0))
    rows: list[dict[str, Any]] = []
    for at, budget in enumerate(budgets):
        mine = joined([one[at] for one in found[ROUTER]])
        methods = {name: joined([one[at] for one in results]) for name, results in found.items() if results[0]}
        methods |= {name: joined(results) for name, results in ends.items()}
        rows.append(
            {
                "budget": budget,
                "methods": {name: compared(mine, theirs, weights) for name, theirs in methods.items()},
                "shuffled_labels": [float(shuffled[at][0].mean()), float(shuffled[at][1].mean())],
            }
        )
    return {
        "about": chosen.about,
        "questions": len(data),
        "agents": list(data.agents),
        "dimensions": len(data.dimensions),
        "test_per_seed": len(tests[0]),
        "seeds": SEEDS,
        "rows": rows,
    }


def quarters(data: Outcomes) -> tuple[float, ...]:
    """A quarter, a half and all of what the agent best at price 0 costs."""
    cost = 1000 * float(data.cost[:, best_single(matrix_of(data))].mean())
    return tuple(float(f"{part * cost:.3g}") for part in (0.25, 0.5, 1.0))


def joined(results: Sequence[Result]) -> Result:
    score, cost, calls = (np.concatenate([one[k] for one in results]) for k in range(3))
    return score, cost, calls


def compared(mine: Result, theirs: Result, weights: Any) -> dict[str, Any]:
    return {
        "accuracy": packed(mean_interval(theirs[0], weights)),
        "cost": packed(mean_interval(theirs[1], weights)),
        "calls": float(theirs[2].mean()),
        "router_more_accurate_by": packed(mean_interval(mine[0] - theirs[0], weights)),
        "router_costs_more_by": packed(mean_interval(mine[1] - theirs[1], weights)),
    }


def packed(value: Interval) -> list[float]:
    return [value.estimate, value.low, value.high]


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


def side_by_side(folder: Path) -> dict[str, Any]:
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
    others: dict[str, list[list[np.ndarray]]] = {
        name: [[np.zeros(len(data)) for _ in range(3)] for _ in budgets] for name in METHODS
    }
    for rest, fold in group_folds(np.arange(len(data)), data.groups, y, 5, 0):
        split = Split(data, words, rest, fold, budgets, 0)
        for name, method in METHODS.items():
            for at, result in enumerate(method(split)):
                for k in range(3):
                    others[name][at][k][fold] = result[k]
    mine = others[ROUTER]
    weights = cluster_weights(data.groups)
    rows = []
    for at, budget in enumerate(budgets):
        own: Result = (mine[at][0], mine[at][1], mine[at][2])
        methods = {name: (r[at][0], r[at][1], r[at][2]) for name, r in others.items()}
        rows.append(
            {
                "budget": budget,
                "methods": {
                    name: compared(own, theirs, weights)
                    for name, theirs in {"MetaCogAgent's rule": rule, **methods}.items()
                },
            }
        )
    return {"questions": len(data), "agents": list(data.agents), "rows": rows}


def speed(chosen: DataSet, folder: Path) -> dict[str, Any]:
    """One decision over five agents, features included; the words of the question apart."""
    questions = chosen.load(folder)[:400]
    names = sorted(questions[0].agents)[:5]
    with tempfile.TemporaryDirectory() as place:
        train_router(Path(place) / "c", questions, agents=names, folds=2, states=5000)
        router = LearnedRouter.load(Path(place) / "c")
    question = questions[7]
    found: dict[str, Any] = {"agents": len(names)}
    for count in range(4):
        asked = {n: Asked(question.agents[n].answer, question.agents[n].confidence) for n in names[:count]}
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
    """Write the tables of docs/routing.md from the figures."""
    figures = json.loads(FIGURES.read_text())
    lines: list[str] = []
    for name in SETS:
        if name in figures:
            lines += [f"### {name}", "", *section(figures[name]), ""]
    write(PAGE, "sets", lines)
    write(PAGE, "verdict", [*verdict({name: figures[name] for name in SETS if name in figures}), ""])
    tables = {RULE: ruled, LEFT_OUT: unseen, SPEED: times, WAITING: waiting_lines, FROM_LOG: from_log_lines}
    for key, make in tables.items():
        if key in figures:
            write(PAGE, key.split(", ")[-1].replace(" ", "-"), [*make(figures[key]), ""])


def section(found: dict[str, Any]) -> list[str]:
    lines = [
        f"{found['about']}. {found['questions']} questions, {len(found['agents'])} agents, {found['dimensions']} "
        f"dimensions; {found['seeds']} splits, {found['test_per_seed']} test questions each.",
        "",
    ]
    head = ["budget", "way of routing", "accuracy", "USD per 1,000", "calls", "router more accurate by, points"]
    rows = []
    for row in found["rows"]:
        for name, method in router_first(row["methods"]):
            budget = f"{row['budget']:.3g}" if name == ROUTER else ""
            rows.append([budget, name, *cells(method), "" if name == ROUTER else points(method)])
        accuracy, cost = row["shuffled_labels"]
        rows.append(["", "router, shuffled labels (one split)", f"{accuracy:.3f}", f"{cost:.3g}", "", ""])
    return [*lines, *markdown(head, rows)]


def router_first(methods: dict[str, Any]) -> list[tuple[str, Any]]:
    return sorted(methods.items(), key=lambda named: named[0] != ROUTER)


def cells(method: dict[str, Any]) -> list[str]:
    a, c = method["accuracy"], method["cost"]
    return [f"{a[0]:.3f} [{a[1]:.3f}, {a[2]:.3f}]", f"{c[0]:.3g} [{c[1]:.3g}, {c[2]:.3g}]", f"{method['calls']:.2f}"]


def points(method: dict[str, Any]) -> str:
    d = method["router_more_accurate_by"]
    return f"{100 * d[0]:+.1f} [{100 * d[1]:+.1f}, {100 * d[2]:+.1f}]"


def verdict(sets: dict[str, Any]) -> list[str]:
    """Where no simple way is as good, and where one is: within the interval, at no more cost than 5 % above."""
    lines = []
    for name, found in sets.items():
        for row in found["rows"]:
            router = row["methods"][ROUTER]
            simple = {
                other: method
                for other, method in row["methods"].items()
                if other not in (ROUTER, "oracle") and method["cost"][0] <= 1.05 * router["cost"][0]
            }
            as_good = [o for o, method in simple.items() if method["router_more_accurate_by"][1] <= 0]
            where = f"{name} at {row['budget']:.3g}: {router['accuracy'][0]:.3f} for {router['cost'][0]:.3g}"
            if as_good:
                shown = ", ".join(
                    f"{o} ({simple[o]['accuracy'][0]:.3f} for {simple[o]['cost'][0]:.3g})" for o in as_good
                )
                lines.append(f"- {where}. **No better than** {shown}.")
            else:
                lines.append(f"- {where}. More accurate than every simple way at no more cost.")
    return lines


def ruled(found: dict[str, Any]) -> list[str]:
    head = ["budget", "way of routing", "accuracy", "USD per 1,000", "agents", "router more accurate by, points"]
    rows = [
        [f"{row['budget']:.3g}" if at == 0 else "", name, *cells(m), "" if name == ROUTER else points(m)]
        for row in found["rows"]
        for at, (name, m) in enumerate(router_first(row["methods"]))
    ]
    return markdown(head, rows)


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
