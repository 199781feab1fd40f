"""Learns from recorded answers of three local models whom to ask, asks on and keeps one answer (extra `fit`).

python examples/choose_among_models.py [--out FOLDER] [--questions N]

Two thirds of the groups are learned from; of the others some are asked again, one by one, by clients that give the
recorded answers. `ask_models` is all that a program of yours needs: its clients may be plain `openai.OpenAI` ones.
"""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

import metaprobe
from metaprobe.eval.systems.metacogagent_figures import metacogagent_outcomes
from metaprobe.records.outcomes import QuestionOutcomes, outcome_of_line
from metaprobe.records.store import RunStore

RUNS = Path(__file__).parent.parent / "recorded" / "metacog-every-agent"
USD_PER_1000 = {"alpha": 0.01, "beta": 0.04, "gamma": 0.12}  # assumed prices of a question, by size of the model


async def ask_models(panel: metaprobe.Panel, clients: Mapping[str, Any], question: str, dimension: str) -> Any:
    """The ten lines: `clients` may be `{"small": OpenAI(base_url=...), "large": OpenAI()}`."""
    messages = [{"role": "user", "content": question}]
    answered = await panel.ask(clients, messages, dimension=dimension, budget=0.06)
    if answered.response is None:
        raise RuntimeError(answered.reason)
    return answered


@click.command()
@click.option("--out", type=click.Path(path_type=Path), default=Path("out/examples/models"))
@click.option("--questions", default=100, help="Questions that are asked again.")
def main(out: Path, questions: int) -> None:
    recorded = []
    for line in metacogagent_outcomes(RunStore(RUNS), by_classifier=True):
        for name, outcome in line["agents"].items():
            outcome["cost_usd"] = USD_PER_1000[name] / 1000
            outcome["confidence"] = None  # a client of an API states none
        recorded.append(outcome_of_line(line))
    kept_apart = set(sorted({question.group for question in recorded})[::3])
    out.mkdir(parents=True, exist_ok=True)
    QuestionOutcomes.write(out / "outcomes.jsonl", [one for one in recorded if one.group not in kept_apart])
    checkpoint = metaprobe.train_panel(out / "outcomes.jsonl", out=out / "panel", replace=True)
    panel = metaprobe.Panel(checkpoint)
    asked = [one for one in recorded if one.group in kept_apart][:questions]
    right, spent, agents = 0.0, 0.0, 0
    for one in asked:
        clients = {name: replaying(outcome.answer) for name, outcome in one.agents.items()}
        answered = asyncio.run(ask_models(panel, clients, one.question, one.dimension))
        kept = answered.agents[answered.responses.index(answered.response)]
        right += one.agents[kept].score or 0.0
        spent += sum(USD_PER_1000[name] for name in answered.asked)
        agents += len(answered.asked)
    n = len(asked)
    print(f"panel: {right / n:.1%} right, {spent / n:.3f} USD per 1,000, {agents / n:.2f} agents asked a question")
    for name, price in USD_PER_1000.items():
        alone = sum(one.agents[name].score or 0.0 for one in asked) / n
        print(f"{name} alone: {alone:.1%} right, {price:.3f} USD per 1,000")


def replaying(answer: str) -> Any:
    """A function that takes what `openai.OpenAI().chat.completions.create` takes, and gives a recorded answer."""

    def create(**_: Any) -> dict[str, Any]:
        message = {"role": "assistant", "content": answer}
        return {"model": "recorded", "choices": [{"message": message, "finish_reason": "stop"}]}

    return create


if __name__ == "__main__":
    main()
