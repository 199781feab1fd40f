"""Learns from outcomes of three local models whom to ask and whose answer to keep (extra `train`).

python examples/route_between_agents.py [--out FOLDER]

Two thirds of the groups are learned from, the others are played: numbers are of questions that no fit has seen.
"""

from pathlib import Path

import click

import metaprobe
from metaprobe.eval.systems.metacogagent import outcomes
from metaprobe.records.outcomes import outcome_of_line
from metaprobe.records.store import RunStore
from metaprobe.routing.panel_answers import PanelAnswer
from metaprobe.training.panel_data import panels_of_outcomes
from metaprobe.training.recipes.panel_evaluate import evaluate_panel

RUNS = Path(__file__).parent.parent / "recorded" / "metacog-every-agent"
USD_PER_1000 = {"alpha": 0.01, "beta": 0.04, "gamma": 0.12}  # assumed prices of a question, by size of the model
BUDGET = 0.05  # US dollars for 1,000 questions


@click.command()
@click.option("--out", type=click.Path(path_type=Path), default=Path("out/examples/router"))
def main(out: Path) -> None:
    lines = list(outcomes(RunStore(RUNS), by_classifier=True))
    for line in lines:
        for name, outcome in line["agents"].items():
            outcome["cost_usd"] = USD_PER_1000[name] / 1000
    questions = [outcome_of_line(line) for line in lines]
    groups = sorted({question.group for question in questions})
    kept_apart = set(groups[::3])
    learned_from = [q for q in questions if q.group not in kept_apart]
    panel = metaprobe.Panel(metaprobe.train_router(learned_from, out=out, replace=True))

    question, dimension = "What is 17 * 23?", "mathematical computation"
    step = panel.next(question, dimension, [], budget=BUDGET)
    print(f"nobody asked: ask {step.agent}, for it is right with {step.expected:.2f} ({step.reason})")
    says, fails = PanelAnswer("391", "alpha", stated=0.7), PanelAnswer("", "alpha", cut=True)
    for told, answer in ("says 391", says), ("fails", fails):
        step = panel.next(question, dimension, [answer], budget=BUDGET)
        print(f"alpha {told}: {f'ask {step.agent}' if step.agent else 'keep its answer'} ({step.reason})")

    held_out = panels_of_outcomes([q for q in questions if q.group in kept_apart])
    [figures] = evaluate_panel(panel, held_out, budget=BUDGET)["budgets"].values()
    ways = {f"panel, by {figures['by']}": figures["accuracy"]}
    ways |= {name: one["accuracy"] for name, one in figures["ways"].items()}
    for name, accuracy in ways.items():
        print(f"{name}: {accuracy['estimate']:.1%} [{accuracy['low']:.1%}, {accuracy['high']:.1%}] right")


if __name__ == "__main__":
    main()
