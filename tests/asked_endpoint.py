"""Shared by tests of the OpenAI client: a key, a local server that goes wrong as planned, and ways to ask it."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from faulty_server import FaultyServer

from metaprobe.llms.base import Request, Token
from metaprobe.llms.openai_client import OpenAILLM
from metaprobe.records.types import Call, Message, Sampling

KEY = "sk-planted-7Yq2-secret"


class Sleep:
    """Waits for nothing, and remembers how long it should have."""

    def __init__(self) -> None:
        self.waits: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.waits.append(seconds)
        await asyncio.sleep(0)


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")  # a proxy that leads nowhere: this machine needs none


@pytest.fixture
def server() -> FaultyServer:
    return FaultyServer()


def request(content: str, **sampling: Any) -> Request:
    return Request(
        id="r", messages=(Message("user", content),), sampling=Sampling(**sampling), stage="s", agent="a", round=2
    )


def use(server: FaultyServer, ask: Callable[[OpenAILLM], Coroutine[Any, Any, Any]], **options: Any) -> Any:
    """Returns the result of `ask` with a model of this server."""

    async def main() -> Any:
        async with server, OpenAILLM("m", **{"base_url": server.base_url, "sleep": Sleep()} | options) as llm:
            return await ask(llm)

    return asyncio.run(main())


def complete(server: FaultyServer, content: str, *, sampling: dict[str, Any] | None = None, **options: Any) -> Call:
    return use(server, lambda llm: llm.complete(request(content, **(sampling or {}))), **options)


async def streamed(llm: OpenAILLM, asked: Request) -> tuple[list[Token], Call]:
    *tokens, call = [event async for event in llm.stream(asked)]
    return tokens, call
