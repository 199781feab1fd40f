"""Measures the check that hidden states belong to their tokens, on the embedded model, into docs/measured.

    python -m research.states.check faults      # planted faults: what canaries and head say of each
    python -m research.states.check honest      # 500 requests without a fault: no check may fail

The faults are those of `research.states.faults`.
"""

import asyncio
import sys
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from itertools import islice
from typing import Any

from metaprobe import RunStore
from metaprobe.llms.base import Request
from metaprobe.llms.hidden_capture import Capture
from metaprobe.llms.local import LocalLLM
from metaprobe.llms.readings import StateReplay
from metaprobe.llms.states_check import HEAD_TOLERANCES, check_calls, head_difference
from metaprobe.records.canaries import CANARY_POSITIONS, compare_canaries
from metaprobe.records.types import Call, Sampling
from research.blocks import MEASURED, ROOT, add_figures, keep_figures, read_figures
from research.states.faults import ROWS, TOKENS, FaultyReplay, quantised, with_adapter

MODEL = "smollm2-135m"
LAYERS = (18, 30)
"""The layer of the bundled probe, and the last one, which the head reads."""
FILE = MEASURED / "states_check.json"
REQUESTS, AT_ONCE, TOKENS_EACH = 500, 32, 4
SOURCE = ROOT / "recorded" / "smollm2-135m-places"
"""Store whose prompts are asked."""
HEADED = 8
"""Calls whose states the head reads for each fault."""


def main() -> None:
    """Measures what the argument names."""
    llm = LocalLLM.load(MODEL, batch_size=AT_ONCE)
    llm.capture = Capture(LAYERS, CANARY_POSITIONS)
    {"faults": faults, "honest": honest}[sys.argv[1]](llm)


def answers(llm: LocalLLM, start: int, count: int) -> list[Call]:
    """Returns answers to prompts of the store, from the `start`-th on, with the states that generation kept."""
    asked: list[Request] = []
    for run in islice(RunStore(SOURCE).runs(), start, start + count):
        for call in run.calls[:1]:
            sampling = Sampling(max_tokens=TOKENS_EACH, temperature=1.0, seed=len(asked))
            asked.append(Request(id=call.id, messages=call.messages, hidden=True, sampling=sampling))

    async def ask() -> list[Call]:
        return list(await asyncio.gather(*(llm.complete(request) for request in asked)))

    return asyncio.run(ask())


def faults(llm: LocalLLM) -> None:
    """Keeps, for each fault, how far the canaries' states and the head's log-probabilities are off, and what failed."""
    calls = answers(llm, 0, HEADED)
    golden = StateReplay(llm, layers=",".join(map(str, LAYERS))).canaries()
    assert golden is not None
    for name, model, fault in _planted(llm):
        replay = FaultyReplay(model, fault, LAYERS)
        seen = replay.canaries()
        assert seen is not None
        sound = StateReplay(model, layers="18", positions=CANARY_POSITIONS)
        read = replay.read([sound.reading(call, "") for call in calls])
        stored = [replace(call, hidden=one.hidden) for call, one in zip(calls, read, strict=True)]
        head = head_difference(model, stored)
        found: dict[str, Any] = {"head": head, "head_noticed": head is not None and head > HEAD_TOLERANCES["bfloat16"]}
        for layer in LAYERS:
            checked = compare_canaries(golden, seen, (layer,))
            found[str(layer)] = {"noticed": not checked.passed, "drift": checked.drift, "worst": checked.worst}
        found["reason"] = compare_canaries(golden, seen, LAYERS[:1]).reason
        add_figures(FILE, {name: found}, "faults")
        print(name, found, flush=True)


def _planted(llm: LocalLLM) -> Iterator[tuple[str, LocalLLM, str]]:
    yield "none", llm, ""
    for fault in (*ROWS, "layer +1", "layer -1", *TOKENS):
        yield fault, llm, fault
    sound = llm.model
    for name, weights in (
        ("LoRA, 1 % of the weights", lambda: with_adapter(sound, 0.01)),
        ("LoRA, 3 % of the weights", lambda: with_adapter(sound, 0.03)),
        ("LoRA, 10 % of the weights", lambda: with_adapter(sound, 0.1)),
        ("8-bit weights", lambda: quantised(sound, 8)),
        ("4-bit weights", lambda: quantised(sound, 4)),
        ("float32 in place of bfloat16", lambda: deepcopy(sound).float()),
    ):
        yield name, LocalLLM(weights(), llm.tokenizer, name=MODEL, revision=llm.revision), ""


def honest(llm: LocalLLM) -> None:
    """Keeps how many batches of requests failed a check, and how far off the farthest was; goes on where it stopped."""
    kept: dict[str, Any] = read_figures(FILE).get("honest") or {"requests": 0, "batches": []}
    while kept["requests"] < REQUESTS:
        calls = answers(llm, kept["requests"], min(AT_ONCE, REQUESTS - kept["requests"]))
        checked = check_calls(llm, calls)
        told = {"drift": checked.states.drift, "worst": checked.states.worst, "head": checked.head}
        kept["batches"].append({"failed": not checked.passed, **told})
        kept["requests"] += len(calls)
        keep_figures(FILE, kept, "honest")
        print(kept["requests"], told, flush=True)


if __name__ == "__main__":
    main()
