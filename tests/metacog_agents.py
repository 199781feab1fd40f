"""Helpers of `test_metacogagent.py` and `test_metacogagent_runs.py`."""

import asyncio

from scripted import CountingPanel, ScriptedLLM

from metaprobe.collecting.collect import label
from metaprobe.pipelines import Models, Prompts, Session, Setup
from metaprobe.pipelines.metacogagent import AGENTS, SYSTEM
from metaprobe.records.types import Item, Run

ITEM = Item(id="i1", question="Jack has 3 pens and buys 1 more. How many pens?", gold=("4",), check="number", group="g")


PROMPTS = Prompts.load(SYSTEM.name, SYSTEM.prompts)


def model(answers: tuple[str, ...] = ("4", "4", "4"), sure: tuple[object, ...] = (90, 90, 90), kind: str = "math"):
    """Answers and confidences of alpha, beta and gamma."""
    script: dict[str, str] = {"classify": kind, "read": "x"}
    for agent, answer, confidence in zip(AGENTS, answers, sure, strict=True):
        script[f"{agent}:answer"] = answer
        script[f"{agent}:assess"] = confidence if isinstance(confidence, str) else f'{{"confidence": {confidence}}}'
    return ScriptedLLM(script)


def run(llm: ScriptedLLM, variant: str = "algorithm", *, index: int = 0, item: Item = ITEM, **setup: object) -> Run:
    given = Setup(**{"models": Models(llm), "prompts": PROMPTS, "agents": AGENTS, "panel": CountingPanel(), **setup})  # type: ignore[arg-type]
    session = Session(given, item, system=SYSTEM.name, variant=variant, run_id=f"{variant}/{item.id}", index=index)
    return label(asyncio.run(SYSTEM.run(session)), SYSTEM)


def asked(found: Run) -> list[str]:
    return [":".join(filter(None, (call.agent, call.stage))) for call in found.calls]


def actions(found: Run) -> list[str]:
    return [decision.action for decision in found.decisions]
