"""Shared by tests of the run store and the call cache: small runs, told apart by their number, and any calls."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st

from metaprobe.records.store import RunStore
from metaprobe.records.types import Call, Decision, Item, Label, Message, Run, Statement, Usage


def example(i: int, **changes: Any) -> Run:
    """A small run, told apart from the others by its number."""
    rng = np.random.default_rng(i)
    call = Call(
        id=f"call-{i}",
        text=f"secret {i}",
        tokens=("secret", f" {i}"),
        token_ids=np.array([5, i], np.int32),
        prompt_token_ids=np.array([1, 2, 3], np.int32),
        messages=(Message("user", "secret question"),),
        logprobs=-rng.exponential(size=2).astype(np.float32),
        top_logprobs=-rng.exponential(size=(2, 3)).astype(np.float32),
        error="secret error",
    )
    run = Run(
        id=f"run-{i:03d}",
        system="test",
        variant="v",
        item=Item(f"item-{i}", "secret question", gold=("secret",), choices=("secret", "b"), group=f"g{i}"),
        calls=(call,),
        statements=(Statement(call.id, "confidence", 0.25),),
        labels=(Label(call.id, "correct", float(i % 2), "program"),),
        decisions=(Decision("d", "assess", "execute", {"execute": 0.5, "ask": 0.25}, {"execute": 1.0}, "why"),),
        final_answer="secret",
        outcome=1.0,
    )
    return dataclasses.replace(run, **changes)


def any_calls(
    text: st.SearchStrategy[str], numbers: st.SearchStrategy[float], counts: st.SearchStrategy[int], **more: Any
) -> st.SearchStrategy[Call]:
    """Calls with any texts, numbers and counts; `more`: the other fields."""
    texts = "id stage agent model model_revision model_dtype text finish_reason".split()
    return st.builds(
        Call,
        **dict.fromkeys(texts, text),
        **dict.fromkeys(("parent", "error"), st.none() | text),
        **dict.fromkeys(("latency_ms", "cost_usd"), st.none() | numbers),
        round=counts,
        messages=st.lists(st.builds(Message, text, text), max_size=3).map(tuple),
        tokens=st.lists(text, max_size=4).map(tuple),
        logprobs_mode=st.sampled_from(["raw", "processed", "unknown"]),
        usage=st.builds(Usage, counts, counts),
        **more,
    )


def filled(path: Path, n: int = 10, shard_runs: int = 4) -> RunStore:
    store = RunStore(path)
    with store.writer(shard_runs=shard_runs) as writer:
        for i in range(n):
            writer.add(example(i))
    return store
