"""A panel asks by stream where a client can, so that a server stops writing what is cancelled."""

import asyncio
import time
import urllib.request as http
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import openai
import pytest
from asked_endpoint import KEY, Sleep
from asked_endpoint import environment as environment
from conftest import llama_server_with
from faulty_server import FaultyServer
from made_once import MadeOnce
from openai.types.chat import ChatCompletion
from panel_worlds import biased_vote, completion, trained

from metaprobe.llms.openai_client import OpenAILLM
from metaprobe.records.types import Call
from metaprobe.routing.panel.asking import Panel, PanelAnswered
from metaprobe.routing.panel.planner import FIRST_TO, FIXED, Setting

KINDS = ["openai", "metaprobe"]


@pytest.fixture
def panel(made_once: MadeOnce, monkeypatch: pytest.MonkeyPatch) -> Panel:
    """A panel that keeps the first answer."""
    loaded = Panel.load(trained(biased_vote, made_once))
    monkeypatch.setattr(loaded, "settings", (Setting(FIRST_TO, 1, 1.0, 1.0),))
    return loaded


def use(kind: str, server: FaultyServer, work: Callable[[Any], Awaitable[Any]]) -> Any:
    """Returns the result of `work` with a client of this server."""

    async def main() -> Any:
        async with server:
            if kind == "metaprobe":
                async with OpenAILLM("m", base_url=server.base_url, sleep=Sleep(), top_logprobs=2) as llm:
                    return await work(llm)
            http_client = openai.DefaultAsyncHttpxClient(trust_env=False)
            async with openai.AsyncOpenAI(
                api_key=KEY, base_url=server.base_url, http_client=http_client, max_retries=0
            ) as client:
                return await work(client)

    return asyncio.run(main())


def messages(plan: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": f"question: {plan}"}]


async def ask(panel: Panel, client: Any, plan: str, **more: Any) -> PanelAnswered:
    given = {"at_most": 1, "max_tokens": 9, **more}
    if not isinstance(client, OpenAILLM):
        given["top_logprobs"] = 2
    return await panel.ask(client, messages(plan), model="m", **given)


def test_the_response_of_a_stream_is_that_of_a_whole_request(panel: Panel) -> None:
    async def both(client: Any) -> tuple[Any, ...]:
        answered = await ask(panel, client, "ok")
        whole = await client.chat.completions.create(
            model="m", messages=messages("ok"), logprobs=True, top_logprobs=2, max_tokens=9
        )
        return answered, whole

    server = FaultyServer()
    answered, whole = use("openai", server, both)
    assert [body.get("stream") for body in server.bodies] == [True, None]
    assert isinstance(answered.response, ChatCompletion)
    assert answered.response.choices[0].message.content == " w0 w1 w2 w3"
    streamed, expected = (one.model_dump(exclude_none=True) for one in (answered.response, whole))
    assert {name: streamed[name] for name in expected} == expected
    assert "stream" not in answered.reason


def test_a_model_of_metaprobe_gives_by_stream_the_call_that_it_gives_whole(panel: Panel) -> None:
    server = FaultyServer()
    answered = use("metaprobe", server, lambda llm: ask(panel, llm, "ok"))
    assert [body.get("stream") for body in server.bodies] == [True]
    call = answered.response
    assert isinstance(call, Call)
    assert (call.text, len(call.tokens), call.usage.completion_tokens) == (" w0 w1 w2 w3", 4, 4)
    assert call.top_logprobs is not None


@pytest.mark.parametrize("kind", KINDS)
def test_a_server_that_refuses_streams_is_asked_whole_from_there_on_and_the_reason_says_so(
    panel: Panel, kind: str
) -> None:
    async def twice(client: Any) -> tuple[PanelAnswered, PanelAnswered]:
        return await ask(panel, client, "no-stream"), await ask(panel, client, "no-stream", temperature=0.5)

    server = FaultyServer()
    for answered in use(kind, server, twice):
        assert len(answered.responses) == 1
        assert "the stream failed" in answered.reason
        assert "400" in answered.reason
    assert [bool(body.get("stream")) for body in server.bodies] == [True, False, False]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("fault", ["cut", "ends-early", "malformed"])
def test_a_stream_that_breaks_off_is_asked_for_whole(panel: Panel, kind: str, fault: str) -> None:
    answered = use(kind, FaultyServer(), lambda client: ask(panel, client, f"{fault} ok"))
    assert len(answered.responses) == 1
    assert "stream" in answered.reason


def test_a_stream_that_cannot_be_read_is_not_tried_again_though_the_whole_answer_failed_too(panel: Panel) -> None:
    async def twice(client: Any) -> tuple[PanelAnswered, PanelAnswered]:
        return await ask(panel, client, "ends-early 500"), await ask(panel, client, "ok")

    server = FaultyServer()
    failed, answered = use("openai", server, twice)
    assert (len(failed.responses), len(answered.responses)) == (0, 1)
    assert [bool(body.get("stream")) for body in server.bodies] == [True, False, False]


@pytest.mark.parametrize("kind", KINDS)
def test_a_request_that_is_refused_whole_too_costs_its_answer(panel: Panel, kind: str) -> None:
    answered = use(kind, FaultyServer(), lambda client: ask(panel, client, "422"))
    assert answered.response is None
    assert "1 of 1 requests failed" in answered.reason
    assert "bad field" in answered.reason


@pytest.mark.parametrize("kind", KINDS)
def test_a_server_hears_of_a_cancelled_sample_while_it_writes(panel: Panel, kind: str) -> None:
    server = FaultyServer(lambda _, attempt: "endless" if attempt == 0 else "ok")

    async def ask_and_wait(client: Any) -> PanelAnswered:
        answered = await ask(panel, client, "", at_most=2, at_once=2)
        async with asyncio.timeout(60):
            await server.left.wait()
        return answered

    answered = use(kind, server, ask_and_wait)
    assert (len(answered.asked), len(answered.responses)) == (2, 1)


def test_a_function_is_asked_for_a_whole_answer(panel: Panel) -> None:
    asked = []

    async def create(**request: Any) -> Any:
        asked.append(request)
        return completion("It is 12", logprob=-0.03)

    assert asyncio.run(ask(panel, create, "")).response is not None
    assert "stream" not in asked[0]


LONG = 400
"""Tokens of an answer that llama.cpp's server is told to write in full."""


@pytest.mark.slow
def test_llama_cpp_writes_few_tokens_of_a_sample_after_it_is_cancelled(
    panel: Panel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(panel, "settings", (Setting(FIXED, 1, 1.0, 1.0),))
    with llama_server_with(tmp_path / "log", "--parallel", "2") as url:
        metrics = url.removesuffix("/v1") + "/metrics"

        async def first_of_two() -> PanelAnswered:
            """Asks for a short and for a long answer at once, and stops at the first."""
            async with openai.AsyncOpenAI(
                api_key=KEY, base_url=url, http_client=openai.DefaultAsyncHttpxClient(trust_env=False)
            ) as client:
                create, lengths = client.chat.completions.create, iter([8, LONG])

                async def asked(**request: Any) -> Any:
                    extra = {"ignore_eos": True}
                    return await create(**{**request, "max_tokens": next(lengths)}, extra_body=extra)

                with pytest.MonkeyPatch.context() as patch:
                    patch.setattr(client.chat.completions, "create", asked)
                    return await panel.ask(client, messages(""), model="m", at_most=2, at_once=2)

        answered = asyncio.run(first_of_two())
        assert len(answered.responses) == 1
        assert "stream" not in answered.reason
        written = tokens_written(metrics)
    assert 8 < written < LONG / 2


def tokens_written(metrics: str) -> int:
    """Returns how many tokens llama.cpp's server has written, once it writes no more."""
    direct = http.build_opener(http.ProxyHandler({}))
    while True:
        with direct.open(metrics, timeout=30) as answer:
            lines = [line.split() for line in answer.read().decode().splitlines() if not line.startswith("#")]
        count = {name.partition(":")[2]: float(value) for name, value in lines}
        if count["requests_processing"] == 0:
            return int(count["tokens_predicted_total"])
        time.sleep(0.1)
