"""A model that counts what it is asked, and an empty cache, for the tests of the call cache."""

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from metaprobe.llms.base import Capabilities, LLMError, Request, Token
from metaprobe.llms.cache import CallCache
from metaprobe.records.types import Call, Hidden, Message

QUESTION = Request(id="q1", messages=(Message("user", "six times seven?"),), stage="answer", agent="a", parent="p")


class Counting:
    """Answers with the number of the request, after all tasks have had their turn."""

    name, revision, capabilities = "counting", "1", Capabilities(stream=True, hidden=True)

    def __init__(self, *, failing: int = 0) -> None:
        self.asked: list[Request] = []
        self._failing = failing

    async def complete(self, request: Request) -> Call:
        self.asked.append(request)
        for _ in range(5):
            await asyncio.sleep(0)
        if len(self.asked) <= self._failing:
            raise LLMError("busy")
        return request.call(
            text=f"{len(self.asked)}",
            tokens=("x", "y"),
            logprobs=np.array([-1.5, -0.25], np.float32),
            latency_ms=12.5,
        )

    async def stream(self, request: Request) -> AsyncIterator[Token | Call]:
        call = await self.complete(request)
        for token, logprob in zip(call.tokens, (-1.5, -0.25), strict=True):
            yield Token(token, logprob)
        yield call


@pytest.fixture
def cache(tmp_path: Path) -> Any:
    with CallCache(tmp_path / "calls.db") as opened:
        yield opened


def same(left: Call, right: Call) -> bool:
    """Equal in every field, arrays bit for bit."""

    def equal(a: Any, b: Any) -> bool:
        if isinstance(a, np.ndarray):
            return isinstance(b, np.ndarray) and (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())
        if isinstance(a, Hidden):
            return (
                isinstance(b, Hidden)
                and equal(a.values, b.values)
                and (a.layers, a.positions)
                == (
                    b.layers,
                    b.positions,
                )
            )
        return type(a) is type(b) and a == b

    return all(equal(getattr(left, f.name), getattr(right, f.name)) for f in dataclasses.fields(Call))


async def everything(stream: AsyncIterator[Token | Call]) -> tuple[list[tuple[str, float | None]], Call]:
    events = [event async for event in stream]
    assert isinstance(events[-1], Call)
    return [(event.text, event.logprob) for event in events[:-1] if isinstance(event, Token)], events[-1]
