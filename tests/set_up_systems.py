"""Items and runs of every system, for `test_options.py`, `test_options_stored.py` and `test_every_system.py`."""

import asyncio
from pathlib import Path
from typing import Any

from scripted import CountingPanel, ScriptedLLM

from metaprobe.llms.base import Request
from metaprobe.papers.collecting.collect import collect_runs
from metaprobe.papers.collecting.models import call_options
from metaprobe.papers.systems import SYSTEMS, Models, Prompts, Setup
from metaprobe.papers.systems.system_options import Options
from metaprobe.records.store import RunStore
from metaprobe.records.types import Item, Run

SUM = Item(
    id="sum", question="Tom has 3 apples, buys 4 and eats 2 of 9. How many?", gold=("5",), check="number", group="sum"
)


ESSAY = Item(
    id="essay",
    question="Grade the essay.",
    gold=("2",),
    check="number",
    fields={
        "essay": 'Once I had to wait for my friend. "It is late", I said, but I waited @NUM1 hours and was calm.',
        "trait": "ideas",
        "rubric": "0: no story. 1: a story without details. 2: a story with details. 3: rich in details.",
        "essay_prompt": "Write about patience.",
        "low": "0",
        "high": "3",
    },
)


ITEM_OF = {"essay-debate": ESSAY, "caelf": ESSAY}


def disagreeing(request: Request) -> str:
    """Answers that differ, so that there is always something left to do."""
    mine = f"{len(request.id)}{request.round}"
    return f"{mine}\n1. One: a\n2. Two: b\n3. Three: c\nyes. Answer: {mine}. Verdict: IMPROVE"


def setup_of(name: str, options: Options, llm: ScriptedLLM) -> Setup:
    system = SYSTEMS[name]
    prompts = Prompts.load(system.folder or name, system.prompts, optional=system.agents)
    panel: Any = CountingPanel()
    return Setup(Models(llm), prompts, agents=system.agents, options=options, panel=panel)


def run_of(folder: Path, name: str, variant: str = "", *, tokens: tuple[str, ...] = (), constants: str = "") -> Run:
    """One run, with what was asked in it."""
    system = SYSTEMS[name]
    options = call_options(system, tokens, tuple(filter(None, constants.split(","))))
    setup = setup_of(name, options, ScriptedLLM({"*": disagreeing}))
    item = ITEM_OF.get(name, SUM)
    chosen = [variant or system.variants[0]]
    report = asyncio.run(collect_runs(system, [item], setup, RunStore(folder), variants=chosen))
    assert not report.failed
    (run,) = RunStore(folder)
    return run
