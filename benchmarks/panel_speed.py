"""How fast a panel decides: whom to ask next of five agents, and which of 16 samples to keep.

    OMP_NUM_THREADS=1 python -m benchmarks.panel_speed [--out FILE.json]

Outcomes of five agents are made up; the samples are of recorded/gsm8k-samples (extra `train`). One thread. Answers
come as `PanelAnswer`, so that no response is parsed.
"""

import json
import tempfile
from pathlib import Path

import click
import numpy as np

from benchmarks.predict import Call, rounds
from metaprobe.records.outcomes import AgentOutcome, QuestionOutcomes
from metaprobe.records.store import RunStore
from metaprobe.records.types import Item
from metaprobe.routing.panel.asking import Panel
from metaprobe.routing.panel.compared_answers import PanelAnswer, form_of, signals_in
from metaprobe.routing.panel.stored_panels import questions_in_store
from metaprobe.train import train_panel, train_router

SAMPLES = Path(__file__).parent.parent / "recorded" / "gsm8k-samples"
AGENTS, ITEMS = 5, 120


def outcomes(n: int = 300) -> list[QuestionOutcomes]:
    """Five agents, each dearer and better than the one before; how sure they are tells of being right."""
    rng = np.random.default_rng(0)
    made = []
    for i in range(n):
        agents = {}
        for place in range(AGENTS):
            right = rng.random() < 0.5 + 0.1 * place
            sure = float(np.clip(rng.normal(0.4 + 0.3 * right, 0.15), 0, 1))
            agents[f"a{place}"] = AgentOutcome(f"{i if right else place}", float(right), sure, 1e-4 * 2**place)
        made.append(QuestionOutcomes(f"q{i}", f"q{i}", f"What is {i} plus {i + 1}?", "sums", agents))
    return made


@click.command()
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--turns", default=5, show_default=True)
def main(out: Path | None, turns: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        team = Panel(train_router(outcomes(), out=Path(folder) / "team"))
        first = {run.item.id for run in RunStore(SAMPLES).runs(hidden=False)}
        kept = set(sorted(first)[:ITEMS])
        some = RunStore(Path(folder) / "runs")
        some.append([run for run in RunStore(SAMPLES).runs(hidden=False) if run.item.id in kept])
        samples = Panel(train_panel(Path(folder) / "runs", out=Path(folder) / "samples"))
        asked = next(iter(questions_in_store(Path(folder) / "runs").values()))
    one = outcomes(1)[0]
    answers = [PanelAnswer(each.answer, name, stated=each.confidence) for name, each in one.agents.items()]
    calls: dict[str, Call] = {
        f"whom to ask next of {AGENTS} agents, {count} asked": lambda count=count: team.next(  # type: ignore[misc]
            one.question, one.dimension, answers[:count]
        )
        for count in range(AGENTS)
    }
    # At other prices than those of the training a priced cascade decides.
    prices = dict.fromkeys(one.agents, 0.5)
    calls |= {
        f"the same by a priced cascade, {count} asked": lambda count=count: team.next(  # type: ignore[misc]
            one.question, one.dimension, answers[:count], prices=prices
        )
        for count in range(3)
    }
    calls[f"which of {len(asked.answers)} samples to keep"] = lambda: samples.judge(
        asked.answers, question=asked.question, choices=asked.choices
    )
    item = Item("", asked.question, check=samples.same, choices=asked.choices)
    calls["of that to read them: signals, and the answer in each text"] = lambda: [
        (signals_in(one, samples.agents.signals), form_of(one, item, samples.same)) for one in asked.answers
    ]
    figures = dict(zip(calls, rounds(*calls.values(), turns=turns, calls_a_turn=200), strict=True))
    for name, (p50, p99) in figures.items():
        click.echo(f"{name}: p50 {p50:.1f} us, p99 {p99:.1f} us")
    if out is not None:
        out.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
