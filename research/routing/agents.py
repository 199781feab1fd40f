"""MetaCogAgent's rule and its learned replacement, side by side; writes a section of docs/research/routing.md.

    python -m research.routing.agents measure
    python -m research.routing.agents page

700 items of MetaCog-Eval, three local models, every agent's stated confidence and answer recorded. Five folds by group:
whatever is fitted or tuned is so on four of them and judged on the fifth. Two cores, some five minutes.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from metaprobe.eval.metrics.bootstrap import Interval, cluster_weights, interval, mean_interval
from metaprobe.eval.metrics.discrimination import auroc
from metaprobe.eval.routing_performance import share
from metaprobe.routing.learned_policy import AgentPolicy
from metaprobe.routing.paper import PaperRules
from metaprobe.routing.profiles import Profiles
from metaprobe.training.common.roles import group_folds
from research.blocks import markdown, write
from research.routing.agents_play import ByItem, Floats, Played, Table, call_of, check_against_pipeline, mean, play
from research.routing.agents_ways import (
    BEST,
    CHEAPER,
    DRAFTS,
    FREE,
    GAIN_HEAD,
    GRID,
    LEARNED,
    RULE,
    TUNED,
    TUNED_CHEAP,
    VOTES,
    Methods,
    one_fold,
)
from research.routing.data import ASSUMED, metacog_runs

ROOT = Path(__file__).parent.parent.parent
PAGE = ROOT / "docs" / "research" / "routing.md"
FIGURES = ROOT / "docs" / "measured" / "routing_agents.json"
FOLDS = 5


@click.group()
def main() -> None:
    """Measure, write the page."""


@main.command("measure")
def measure_command() -> None:
    """All of it; one thread, some minutes."""
    table = Table.of(metacog_runs())
    n = len(table.runs)
    check_against_pipeline(table, PaperRules(), play(table, PaperRules(), np.arange(n), Profiles()))
    mostly = (table.right.mean(axis=1) > 0.5).astype(np.int64)
    found: dict[str, list[Played | None]] = {}
    by_item: dict[str, AgentPolicy] = {}
    folds, tested = [], []
    for seed, (train, test) in enumerate(group_folds(np.arange(n), table.groups.tolist(), mostly, FOLDS, 0)):
        train, test = np.sort(train), np.sort(test)
        methods, policy, told = one_fold(table, train, test, seed)
        for name, games in methods.items():
            whole = found.setdefault(name, [None] * n)
            for row, game in zip(test.tolist(), games, strict=True):
                whole[row] = game
        by_item |= {table.runs[row].item.id: policy for row in test.tolist()}
        folds.append(told)
        tested.append(test)
        click.echo(f"fold {seed}: " + ", ".join(f"{k} {mean(v, 'right'):.3f}" for k, v in methods.items()), err=True)
    played: Methods = {name: [game for game in games if game is not None] for name, games in found.items()}
    # In one go, as the pipeline has it: where the rule stands in, its profiles have learned from all items before.
    played[LEARNED] = play(table, ByItem(by_item), np.arange(n), Profiles())
    check_against_pipeline(table, ByItem(by_item), played[LEARNED])
    weights = cluster_weights(table.groups.tolist())
    figures = {
        "items": n,
        "groups": len(set(table.groups.tolist())),
        "agents": dict(zip(table.agents, models(table), strict=True)),
        "alone": table.right.mean(axis=0).tolist(),
        "stated_auroc": [stated_auroc(table, c, weights) for c in range(len(table.agents))],
        "assessment": float((table.tokens["assess"] / (table.tokens["assess"] + table.tokens["answer"])).mean()),
        "methods": {name: figures_of(games, played, weights) for name, games in played.items()},
        "tuned": [fold["tuned"] for fold in folds],
        "vote": vote_figures(np.concatenate([fold["votes"] for fold in folds]), table.groups[np.concatenate(tested)]),
    }
    FIGURES.write_text(json.dumps(figures, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def models(table: Table) -> list[str]:
    return [call_of(table.runs[0], "answer", agent).model for agent in table.agents]


def stated_auroc(table: Table, column: int, weights: Any) -> list[float]:
    known = np.isfinite(table.stated[:, column])
    return packed(interval(auroc, table.right[known, column], table.stated[known, column], weights[:, known]))


def figures_of(games: Sequence[Played], played: Methods, weights: Any) -> dict[str, Any]:
    """Of one way of deciding; and its accuracy minus that of the paper's rule, tuned and not, and of the best agent."""
    columns = {name: np.array([getattr(game, name) for game in games], dtype=float) for name in Played.__slots__}
    right, first, asked = columns["right"], columns["first_right"], columns["asked"]
    others = {name: np.array([game.right for game in played[name]]) for name in (RULE, TUNED, TUNED_CHEAP, BEST)}
    return {
        "accuracy": packed(mean_interval(right, weights)),
        "asked": packed(mean_interval(asked, weights)),
        **{name: float(columns[name].mean()) for name in ("collaborated", "fell_back")},
        "precision": packed(interval(share, right * columns["delegated"], columns["delegated"], weights)),
        "improved": packed(interval(share, asked * (right > first), asked, weights)),
        "harmed": packed(interval(share, asked * (right < first), asked, weights)),
        **{name: packed(mean_interval(columns[name], weights)) for name in ("calls", "tokens")},
        "usd_per_1000": packed(mean_interval(1000 * columns["usd"], weights)),
        "over": {name: packed(mean_interval(right - theirs, weights)) for name, theirs in others.items()},
    }


def vote_figures(rows: Floats, groups: NDArray[np.str_]) -> dict[str, Any]:
    """How well P(the vote is right) ranks votes, beside the greatest P(right) of an agent; and both ways' accuracy."""
    right, promised, best, best_right = rows.T
    weights = cluster_weights(groups.tolist())
    return {
        "auroc": packed(interval(auroc, right, promised, weights)),
        "auroc_of_best": packed(interval(auroc, right, best, weights)),
        "accuracy": packed(mean_interval(right, weights)),
        "over_likeliest": packed(mean_interval(right - best_right, weights)),
    }


def packed(value: Interval) -> list[float | None]:
    return [x if np.isfinite(x) else None for x in (value.estimate, value.low, value.high)]


@main.command("page")
def page_command() -> None:
    """Write the section of docs/research/routing.md from the numbers."""
    write(PAGE, "routing-agents", [*section(json.loads(FIGURES.read_text())), ""])


def section(found: dict[str, Any]) -> list[str]:
    methods = found["methods"]
    agents = [
        f"{agent} is {model} ({alone:.1%} alone; AUROC of its stated confidence {number(ranks, 2)})"
        for (agent, model), alone, ranks in zip(
            found["agents"].items(), found["alone"], found["stated_auroc"], strict=True
        )
    ]
    head = ["decided by", "accuracy", "over the tuned rule, points", "over the best agent, points", "asked the others"]
    head += ["precision", "improved", "harmed", "calls", "tokens", "USD per 1,000"]
    rows = [
        [
            name,
            number(one["accuracy"], 3),
            points(one["over"][TUNED]),
            points(one["over"][BEST]),
            f"{one['asked'][0]:.0%}",
            *(number(one[key], 2) for key in ("precision", "improved", "harmed")),
            f"{one['calls'][0]:.2f}",
            f"{one['tokens'][0]:.0f}",
            f"{one['usd_per_1000'][0]:.4f}",
        ]
        for name, one in methods.items()
    ]
    constants = [", ".join(f"{name} {fold[name]:g}" for name in GRID) for fold in found["tuned"]]
    return [
        f"{found['items']} items in {found['groups']} groups; {'; '.join(agents)}. Price assumed: {ASSUMED}. A stated "
        f"confidence takes {found['assessment']:.0%} of what it and the answer take together.",
        "",
        *markdown(head, [rows[list(methods).index(name)] for name in ORDER]),
        "",
        *verdict(methods),
        "",
        f"Tuned constants in the five folds: {'; '.join(constants)} ({', '.join(GRID)} are the paper's theta, lambda "
        f"and gamma). In {sum(fold['weight'] == 0 for fold in found['tuned'])} of them the stated confidence counts "
        f"nothing. For {methods[LEARNED]['fell_back']:.1%} of the items the papers' rule stood in for the learned "
        "policy.",
        "",
        vote_line(found["vote"], methods),
    ]


ORDER = (
    *(LEARNED, FREE, CHEAPER, RULE, TUNED, TUNED_CHEAP, BEST, "weighted vote", "majority vote", "random agent"),
    *("the agent whose turn it is", GAIN_HEAD, VOTES, DRAFTS, "oracle"),
)


def verdict(methods: dict[str, Any]) -> list[str]:
    """Is the paper's rule beaten, and is it worth it? First in short, then each comparison."""
    over, dearer = methods[FREE]["over"], methods[FREE]["usd_per_1000"][0] / methods[BEST]["usd_per_1000"][0]
    short = {True: "better", False: "no better"}
    lines = [
        f"In short: where accuracy is all that counts, the learned policy is {short[over[RULE][1] > 0]} than the "
        f"paper's rule, {short[over[TUNED][1] > 0]} than that rule with tuned constants, and "
        f"{short[over[BEST][1] > 0]} than always asking the best single agent, which costs {1 / dearer:.0%} of it.",
        "",
    ]
    pairs = ((LEARNED, (RULE, TUNED, BEST)), (FREE, (RULE, TUNED, BEST)), (CHEAPER, (RULE, TUNED_CHEAP)))
    return lines + [
        f"- {name}: {'; '.join(against(methods, name, other) for other in others)}." for name, others in pairs
    ]


def against(methods: dict[str, Any], name: str, other: str) -> str:
    gain, prices = methods[name]["over"][other], [methods[n]["usd_per_1000"][0] for n in (name, other)]
    return f"against {other}: {points(gain)} points, {said(gain)}, at {prices[0] / prices[1]:.2f} times the price"


def said(gain: Sequence[float]) -> str:
    return "**better**" if gain[1] > 0 else "**worse**" if gain[2] < 0 else "**no difference shown**"


def vote_line(vote: dict[str, Any], methods: dict[str, Any]) -> str:
    gain = methods[VOTES]["accuracy"][0] - methods[LEARNED]["accuracy"][0]
    return (
        f"P(the vote is right), a logistic head on the sorted P(right) and the past correlation of errors: AUROC "
        f"{number(vote['auroc'], 3)} on held-out groups, where the greatest P(right) of an agent alone has "
        f"{number(vote['auroc_of_best'], 3)}. Votes weighted by P(right) are {number(vote['accuracy'], 3)} accurate, "
        f"{points(vote['over_likeliest'])} points over the likeliest agent's own answer. With the head "
        f"{methods[VOTES]['collaborated']:.1%} of the items are voted on, and accuracy changes by {100 * gain:+.1f} "
        "points."
    )


def number(value: Sequence[float | None], digits: int) -> str:
    if value[0] is None:
        return "-"
    low, high = (f"{x:.{digits}f}" for x in value[1:])
    return f"{value[0]:.{digits}f} [{low}, {high}]"


def points(gain: Sequence[float]) -> str:
    return f"{100 * gain[0]:+.1f} [{100 * gain[1]:+.1f}, {100 * gain[2]:+.1f}]"


if __name__ == "__main__":
    main()
