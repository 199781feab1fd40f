"""Shared by tests of the run store: small runs, told apart by their number, and stores filled with them."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

from metaprobe.records.store import RunStore
from metaprobe.records.types import Call, Decision, Item, Label, Message, Run, Statement


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


def filled(path: Path, n: int = 10, shard_runs: int = 4) -> RunStore:
    store = RunStore(path)
    with store.writer(shard_runs=shard_runs) as writer:
        for i in range(n):
            writer.add(example(i))
    return store
