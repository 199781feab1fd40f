"""Learns from outcomes of three local models whom to ask and whose answer to keep (extra `train`).

python examples/route_between_agents.py [--out FOLDER] [--states N] [--folds N]

Two thirds of the groups are learned from, the others are played: numbers are of questions that no fit has seen.
"""

from pathlib import Path
from typing import Any

import click

import metaprobe
from metaprobe.eval.systems.metacogagent import outcomes
from metaprobe.records.outcomes import outcome_of_line
from metaprobe.records.store import RunStore
from metaprobe.routing.learned import LearnedRouter
from metaprobe.routing.learned_state import AskedAgent, Known
from metaprobe.training.router.evaluate import evaluate_router

RUNS = Path(__file__).parent.parent / "recorded" / "metacog-every-agent"
USD_PER_1000 = {"alpha": 0.01, "beta": 0.04, "gamma": 0.12}  # assumed prices of a question, by size of the model


@click.command()
@click.option("--out", type=click.Path(path_type=Path), default=Path("out/examples/router"))
@click.option("--states", default=20_000, help="Random states to learn gains from.")
@click.option("--folds", default=5)
def main(out: Path, states: int, folds: int) -> None:
    lines = list(outcomes(RunStore(RUNS), by_classifier=True))
    for line in lines:
        for name, outcome in line["agents"].items():
            outcome["cost_usd"] = USD_PER_1000[name] / 1000
    questions = [outcome_of_line(line) for line in lines]
    groups = sorted({question.group for question in questions})
    kept_apart = set(groups[::3])
    learned_from = [q for q in questions if q.group not in kept_apart]
    metaprobe.train_router(learned_from, states=states, folds=folds, out=out, replace=True)
    router = LearnedRouter.load(out)

    step = router.decide(Known({}, question="What is 17 * 23?", dimension="mathematical computation"))
    print(f"nobody asked: {step.action} {step.agent}, for it is right with {step.expected:.2f} ({step.reason})")
    for told, alpha in ("says 391", AskedAgent("391", 0.7)), ("fails", AskedAgent.failed("timed out")):
        step = router.decide(Known({"alpha": alpha}, question="What is 17 * 23?"))
        print(f"alpha {told}: {step.action} {step.agent} ({step.reason})")

    figures, _ = evaluate_router(router, [q for q in questions if q.group in kept_apart])
    print(f"router: {shown(figures)}")
    for name, control in figures["controls"].items():
        print(f"{name}: {shown(control)}")


def shown(figures: dict[str, Any]) -> str:
    accuracy, cost = figures["accuracy"], figures["cost_per_1000"]["estimate"]
    return f"{accuracy['estimate']:.1%} [{accuracy['low']:.1%}, {accuracy['high']:.1%}] right, {cost:.3f} USD per 1,000"


if __name__ == "__main__":
    main()
