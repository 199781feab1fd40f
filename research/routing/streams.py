"""Measures how near a budget's control comes to the budget on streams of prices with heavy tails.

    python -m research.routing.streams measure --data DATA
    python -m research.routing.streams page

A plan asks the cheapest agent, and the best agent on a share of the questions, by the mean prices that it has learned.
The control (`routing.panel.budget`) corrects it. Prices are those recorded in mmlu_pro, where few answers cost a
hundred times the mean, or are drawn from a Pareto distribution.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import numpy as np

from metaprobe.routing.panel.budget import MOST_OVERSPENT, BudgetController
from metaprobe.routing.panel.model_rows import Floats
from research.blocks import ROOT, read_figures, write, write_figures
from research.routing.data import questions_of
from research.routing.measure import NEAR_BUDGET, PAGE

KEPT = ROOT / "docs" / "measured" / "routing_streams.json"
SET = "mmlu_pro, token"
LABELS = 200
"""Questions whose prices a plan has learned."""
RUNS = 10
"""Random streams of each row."""
SHARES = (0.25, 0.5, 0.75)
"""Shares of the questions on which the budget buys the best agent."""
PASSES = (1, 5, 20)
"""How often the test questions of mmlu_pro are asked one after another, each time in another order."""
TAILS = (1.2, 1.5, 2.0)
"""Exponents of Pareto distributions. Below 2 the variance is infinite."""
LENGTHS = (5_000, 30_000)
"""Questions of a planted stream."""
CHEAP, DEAR = 0.2, 3.0
"""Price of the cheap agent and mean price of the dear one, in budgets of a question."""


def spent(prices: Floats, learned: Floats, budget: float, rng: np.random.Generator) -> Floats:
    """Returns the US dollars for 1,000 that each question of a stream costs, (n,).

    Args:
        prices: (n, 2) price of the cheap and of the dear agent, in US dollars for 1,000 answers.
        learned: (2,) the mean prices that the plan has learned.
        budget: mean US dollars for 1,000 questions.
        rng: draws which questions the dear agent answers.
    """
    cheap, dear = learned
    control, found = BudgetController(budget, least=float(cheap)), np.zeros(len(prices))
    for row, draw in enumerate(rng.random(len(prices)).tolist()):
        share = (control.next_budget() - cheap) / (dear - cheap)
        found[row] = prices[row, int(draw < share)]
        control.paid(found[row] / 1000)
    return found


def recorded(data: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields the figures of streams with recorded prices, by share and number of passes."""
    questions = questions_of(SET, data)
    names = list(questions[0].agents)
    cost = 1000 * np.array([[one.agents[name].cost_usd for name in names] for one in questions])
    score = np.array([[one.agents[name].score for name in names] for one in questions])
    cost = cost[:, [int(cost.mean(axis=0).argmin()), int(score.mean(axis=0).argmax())]]
    for share in SHARES:
        for passes in PASSES:
            parts, asked = [], 0
            for seed in range(RUNS):
                rng = np.random.default_rng(seed)
                order = rng.permutation(len(cost))
                test, train = np.split(order, [int(0.3 * len(cost))])
                learned = cost[train[:LABELS]].mean(axis=0)
                budget = float(learned[0] + share * (learned[1] - learned[0]))
                rows = np.concatenate([rng.permutation(test) for _ in range(passes)])
                parts.append(float(spent(cost[rows], learned, budget, rng).mean() / budget))
                asked = len(rows)
            yield f"{SET}, {share:g}, {passes}", {"questions": asked, "parts": parts}


def planted() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields the figures of streams with drawn prices, by exponent and length."""
    for tail in TAILS:
        least = DEAR * (tail - 1) / tail
        for length in LENGTHS:
            parts = []
            for seed in range(RUNS):
                rng = np.random.default_rng(seed)
                prices = np.full((length, 2), CHEAP)
                prices[:, 1] = least * (1 - rng.random(length)) ** (-1 / tail)
                learned = np.array([CHEAP, (least * (1 - rng.random(LABELS)) ** (-1 / tail)).mean()])
                parts.append(float(spent(prices, learned, 1.0, rng).mean()))
            yield f"Pareto {tail:g}, {length}", {"questions": length, "parts": parts}


@click.group()
def main() -> None:
    """Measure, write the page."""


@main.command()
@click.option("--data", type=click.Path(exists=True, file_okay=False, path_type=Path), required=True)
def measure(data: Path) -> None:
    """All streams; some seconds."""
    write_figures(KEPT, {"recorded": dict(recorded(data)), "planted": dict(planted())})


@main.command()
def page() -> None:
    """Write the sentences of docs/research/routing.md from what was kept."""
    kept = read_figures(KEPT)
    by_length: dict[int, list[float]] = {}
    for one in kept["recorded"].values():
        by_length.setdefault(one["questions"], []).extend(one["parts"])
    lines = [f"{_near(parts)} of {questions:,} questions" for questions, parts in sorted(by_length.items())]
    tails = [
        f"{_near(kept['planted'][f'Pareto {tail:g}, {LENGTHS[-1]}']['parts'])} with exponent {tail:g}" for tail in TAILS
    ]
    text = [
        f"Streams of heavy-tailed prices that end within 3 % of the budget, with two agents of mmlu_pro: "
        f"{', '.join(lines)}. With Pareto prices of one agent, {LENGTHS[-1]:,} questions: {', '.join(tails)}. The "
        f"correction is bounded, and of one answer's cost at most {MOST_OVERSPENT:,.0f} budgets of a question are paid "
        "back.",
        "",
    ]
    write(PAGE, "streams", text)


def _near(parts: list[float]) -> str:
    """Returns how many streams spend their budget within 3 %, and the range."""
    kept = sum(abs(part - 1) <= NEAR_BUDGET for part in parts)
    return f"{kept} of {len(parts)} ({min(parts):.1%} to {max(parts):.1%})"


if __name__ == "__main__":
    main()
