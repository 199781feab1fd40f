"""Two questions more about the learned router, on router_cascade9: what a limit on waiting costs, what a log is worth.

Jobs of research/routing/measure.py, which keeps their numbers and writes their tables.
"""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

from metaprobe.eval.metrics.bootstrap import Interval, cluster_weights, mean_interval
from metaprobe.eval.routing_controls import always
from metaprobe.routing.learned_budget import BudgetPlan, plan_of
from metaprobe.training.router.data import Outcomes, outcomes_of
from metaprobe.training.router.fit import fit_router
from metaprobe.training.router.words import Words
from research.blocks import markdown
from research.routing.data import DataSet
from research.routing.methods import Fitted, Floats, Result, Split, fitted, planned, plays, result_of, split_of

SEEDS = 5
BUDGET = 0.518
LIMITS = (None, 1.2, 0.8, 0.5)
"""Seconds a question, on average."""
LAMBDAS = (0.05, 0.2)
USUAL = 0.7
"""Share of the questions that the log's policy gives to its usual agent; the others get the rest evenly."""
PRICED, LONGER, ALONE = "price of waiting", "higher lambda only", "best single within both"
FULL, WEIGHTED, NAIVE, SINGLE = "full outcomes", "log, propensities", "log, taken as random", "best single of the log"


def waiting(chosen: DataSet, folder: Path) -> dict[str, Any]:
    """At one budget and falling limits on the wait: accuracy, cost and wait of three ways to keep to them."""
    data = outcomes_of(chosen.load(folder))
    words = Words.of(data.questions)
    found: dict[tuple[float | None, str], list[tuple[Result, Floats]]] = {}
    tests = []
    for seed in range(SEEDS):
        split = split_of(data, words, (BUDGET,), seed)
        tests.append(split.test)
        made = fitted(split)
        for limit in LIMITS:
            for way, plan in _plans(made, limit).items():
                played = planned(split, made.router, plan)
                found.setdefault((limit, way), []).append((played, _waited(split, made, plan)))
    weights = cluster_weights(np.concatenate([np.array(data.groups)[test] for test in tests]))
    rows = []
    for limit in LIMITS:
        mine = _score(found[limit, PRICED])
        for way in (PRICED, LONGER, ALONE):
            if (parts := found.get((limit, way))) is None:
                continue
            columns = [_score(parts), *(np.concatenate(c) for c in zip(*((r[1], s) for r, s in parts), strict=True))]
            rows.append(
                {
                    "limit": limit,
                    "way": way,
                    **{
                        name: _packed(mean_interval(column, weights))
                        for name, column in zip(("accuracy", "cost", "seconds"), columns, strict=True)
                    },
                    "more_accurate_by": _packed(mean_interval(mine - columns[0], weights)),
                }
            )
    return {"budget": BUDGET, "questions": len(data), "seeds": SEEDS, "rows": rows}


def _plans(made: Fitted, limit: float | None) -> dict[str, BudgetPlan]:
    plans = {PRICED: plan_of(made.curve, made.rule, made.alone, budget=BUDGET, seconds=limit)}
    if limit is None:
        return plans
    free = [point for point in made.curve if not point.per_second and (point.seconds or 0) <= limit]
    if any(point.cost <= BUDGET for point in free):
        plans[LONGER] = plan_of(free, [], [], budget=BUDGET, seconds=limit)
    within = [one for one in made.alone if one.cost <= BUDGET and (one.seconds or 0) <= limit]
    best = max(within, key=lambda one: one.accuracy)
    plans[ALONE] = BudgetPlan(1.0, 0.0, best.agent, "")
    return plans


def _waited(split: Split, made: Fitted, plan: BudgetPlan) -> Floats:
    """(n,) seconds on the test questions."""
    asked = np.zeros((len(split.test), len(split.data.agents)), dtype=bool)
    for row, one in enumerate(plays(split, made.router, plan)):
        asked[row, list(one.asked)] = True
    return np.where(asked, split.data.seconds[split.test], 0.0).sum(axis=1)


def _score(parts: list[tuple[Result, Floats]]) -> Floats:
    return np.concatenate([result[0] for result, _ in parts])


def from_log(chosen: DataSet, folder: Path) -> dict[str, Any]:
    """Fitted on one outcome a question that a biased policy chose, beside all outcomes of the same questions.

    The policy gives long questions mostly to the most accurate agent, short ones mostly to the cheapest good one.
    """
    data = outcomes_of(chosen.load(folder))
    words = Words.of(data.questions)
    usual = {True: data.agents.index("gpt-4o"), False: data.agents.index("gpt-4o-mini")}
    long = data.chars > np.median(data.chars)
    found: dict[tuple[float, str], list[Result]] = {}
    tests = []
    for seed in range(SEEDS):
        split = split_of(data, words, (BUDGET,), seed)
        tests.append(split.test)
        A = len(data.agents)
        p = np.full((len(data), A), (1 - USUAL) / (A - 1))
        p[np.arange(len(data)), np.where(long, usual[True], usual[False])] = USUAL
        rng = np.random.default_rng(seed)
        action = np.array([rng.choice(A, p=row) for row in p])
        seen = _seen(data, split.train, action, p)
        as_random = _seen(data, split.train, action, np.full_like(p, 1 / A))
        routers = {
            FULL: fit_router(data, words, split.train, seed=seed),
            WEIGHTED: fit_router(seen, words, split.train, seed=seed),
            NAIVE: fit_router(as_random, words, split.train, seed=seed),
        }
        for lambda_ in LAMBDAS:
            for way, router in routers.items():
                found.setdefault((lambda_, way), []).append(planned(split, router, BudgetPlan(lambda_)))
            mean = np.nanmean(
                np.where(seen.known, seen.score - 1000 * lambda_ * seen.cost, np.nan)[split.train], axis=0
            )
            alone = always(split.testing, int(mean.argmax()))
            found.setdefault((lambda_, SINGLE), []).append(result_of(split.testing, alone))
    weights = cluster_weights(np.concatenate([np.array(data.groups)[test] for test in tests]))
    rows = []
    for lambda_ in LAMBDAS:
        joined = {
            way: [np.concatenate(column) for column in zip(*found[lambda_, way], strict=True)]
            for way in (WEIGHTED, NAIVE, SINGLE, FULL)
        }
        value = {way: score - lambda_ * cost for way, (score, cost, _) in joined.items()}
        for way, (score, cost, calls) in joined.items():
            rows.append(
                {
                    "lambda": lambda_,
                    "way": way,
                    "accuracy": _packed(mean_interval(score, weights)),
                    "cost": _packed(mean_interval(cost, weights)),
                    "calls": float(calls.mean()),
                    "value": _packed(mean_interval(value[way], weights)),
                    "gain": _packed(mean_interval(value[WEIGHTED] - value[way], weights)),
                }
            )
    return {
        "questions": len(data),
        "learned_from": len(split_of(data, words, (), 0).train),
        "seeds": SEEDS,
        "rows": rows,
    }


def _seen(data: Outcomes, train: np.ndarray[Any, Any], action: np.ndarray[Any, Any], p: Floats) -> Outcomes:
    """The training questions with what was chosen alone; the test questions whole."""
    hidden = np.zeros(data.score.shape, dtype=bool)
    hidden[train] = True
    hidden[train, action[train]] = False
    columns = {
        name: np.where(hidden, np.nan, getattr(data, name)) for name in ("score", "confidence", "cost", "seconds")
    }
    propensity = data.propensity.copy()
    propensity[train] = p[train]
    return dataclasses.replace(data, **columns, propensity=propensity)


def _packed(value: Interval) -> list[float]:
    return [value.estimate, value.low, value.high]


def waiting_lines(found: dict[str, Any]) -> list[str]:
    """The table of `waiting`."""
    head = [
        "limit, seconds",
        "kept by",
        "accuracy",
        "USD per 1,000",
        "seconds",
        "price of waiting more accurate by, points",
    ]
    rows = [
        [
            "" if row["way"] != PRICED else "none" if row["limit"] is None else f"{row['limit']:g}",
            "budget alone" if row["limit"] is None else row["way"],
            _shown(row["accuracy"], ".3f"),
            _shown(row["cost"], ".3g"),
            _shown(row["seconds"], ".3g"),
            "" if row["way"] == PRICED else _points(row["more_accurate_by"]),
        ]
        for row in found["rows"]
    ]
    return [
        f"router_cascade9, budget {found['budget']} USD for 1,000 questions, {found['seeds']} splits; the recorded "
        "times, agents asked one after another.",
        "",
        *markdown(head, rows),
    ]


def from_log_lines(found: dict[str, Any]) -> list[str]:
    """The table of `from_log`."""
    head = [
        "lambda",
        "learned from",
        "accuracy",
        "USD per 1,000",
        "agents asked",
        "log, propensities, is worth more by, points",
    ]
    rows = [
        [
            f"{row['lambda']:g}" if row["way"] == WEIGHTED else "",
            row["way"],
            _shown(row["accuracy"], ".3f"),
            _shown(row["cost"], ".3g"),
            f"{row['calls']:.2f}",
            "" if row["way"] == WEIGHTED else _points(row["gain"]),
        ]
        for row in found["rows"]
    ]
    return [
        f"router_cascade9, {found['learned_from']} questions to learn from, one outcome each ({100 * USUAL:.0f} % of "
        f"long questions went to gpt-4o and of short ones to gpt-4o-mini, the rest to any other), {found['seeds']} "
        "splits. Worth: accuracy - lambda * cost.",
        "",
        *markdown(head, rows),
    ]


def _shown(value: list[float], form: str) -> str:
    return f"{value[0]:{form}} [{value[1]:{form}}, {value[2]:{form}}]"


def _points(value: list[float]) -> str:
    return f"{100 * value[0]:+.1f} [{100 * value[1]:+.1f}, {100 * value[2]:+.1f}]"
