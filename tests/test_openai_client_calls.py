"""A request reaches the endpoint, and a call, a stream, a schema or a likelihood holds the server's answer."""

from typing import Any

import asked_endpoint
import numpy as np
import pytest
from asked_endpoint import complete, request, streamed, use
from faulty_server import FaultyServer

from metaprobe.llms.base import LLMError
from metaprobe.llms.openai_client import OpenAILLM
from metaprobe.llms.pricing import Price
from metaprobe.records.types import Call, Usage

environment = asked_endpoint.environment
server = asked_endpoint.server


def test_a_call_holds_what_the_server_said(server: FaultyServer) -> None:
    call = complete(server, "q: ok", top_logprobs=3, logprobs_mode="raw", prices={"m": Price(2.0, 10.0)})
    expected = server.entries({"messages": [{"role": "user", "content": "q: ok"}], "top_logprobs": 3}, "ok")
    assert (call.id, call.stage, call.agent, call.round, call.parent) == ("r", "s", "a", 2, None)
    assert (call.text, call.tokens, call.finish_reason) == (" w0 w1 w2 w3", (" w0", " w1", " w2", " w3"), "stop")
    assert call.logprobs is not None
    assert call.logprobs.dtype == np.float32
    np.testing.assert_array_equal(call.logprobs, np.float32([entry["logprob"] for entry in expected]))
    assert call.top_logprobs is not None
    assert call.top_logprobs.shape == (4, 3)
    assert (call.usage, call.cost_usd) == (Usage(10, 4), pytest.approx((10 * 2 + 4 * 10) / 1e6))
    assert (call.model, call.model_revision, call.logprobs_mode) == ("m", "m-2026-01-01 fp_7", "raw")
    assert call.latency_ms is not None


def test_what_is_asked_reaches_the_server_and_nothing_else_does(server: FaultyServer) -> None:
    drawn = {"temperature": 0.7, "top_p": 0.9, "seed": 5, "max_tokens": 3, "stop": ("\n", "END")}
    complete(server, "q: ok", sampling=drawn, top_logprobs=2, extra_body={"top_k": -1})
    complete(server, "q: ok", logprobs=False)
    assert server.bodies[0] == {
        "model": "m",
        "messages": [{"role": "user", "content": "q: ok"}],
        "temperature": 0.7,
        "top_p": 0.9,
        "max_tokens": 3,
        "logprobs": True,
        "top_logprobs": 2,
        "seed": 5,
        "stop": ["\n", "END"],
        "top_k": -1,
    }
    assert set(server.bodies[1]) == {"model", "messages", "temperature", "top_p", "max_tokens"}


@pytest.mark.parametrize("content", ["q: ok", "q: no-logprobs", "q: bad-logprobs"])
def test_a_stream_gives_the_tokens_and_then_the_call_of_complete(server: FaultyServer, content: str) -> None:
    async def both(llm: OpenAILLM) -> Any:
        return await llm.complete(request(content)), await streamed(llm, request(content))

    whole, (tokens, call) = use(server, both, top_logprobs=2, extra_body={"top_k": 3})
    for name in ("id", "text", "tokens", "finish_reason", "usage", "model_revision", "sampling", "cost_usd"):
        assert getattr(call, name) == getattr(whole, name)
    assert [token.text for token in tokens] == [" w0", " w1", " w2", " w3"]
    if content == "q: ok":
        np.testing.assert_array_equal(call.logprobs, whole.logprobs)
        np.testing.assert_array_equal(call.top_logprobs, whole.top_logprobs)
        np.testing.assert_array_equal(np.float32([token.logprob for token in tokens]), whole.logprobs)
        np.testing.assert_array_equal([token.top_logprobs for token in tokens], whole.top_logprobs)
    else:
        assert call.logprobs is None
        assert whole.logprobs is None
    assert server.bodies[1] == server.bodies[0] | {"stream": True, "stream_options": {"include_usage": True}}


@pytest.mark.parametrize("content", ["q: no-logprobs", "q: bad-logprobs"])
def test_missing_log_probabilities_are_recorded_and_do_not_fail(
    server: FaultyServer, content: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def twice(llm: OpenAILLM) -> list[Call]:
        return [await llm.complete(request(content)) for _ in range(2)]

    for call in use(server, twice):
        assert (call.text, call.tokens, call.logprobs, call.top_logprobs) == (" w0 w1 w2 w3", (), None, None)
    told = [record for record in caplog.records if record.name.startswith("metaprobe")]
    assert len(told) == 1  # once, and not once a call
    assert "without log-probabilities" in told[0].getMessage()


SCHEMA = '{"type": "object", "properties": {"a": {"type": "integer"}}}'


@pytest.mark.parametrize(
    ("plan", "form", "told"),
    [
        ("ok", "json_schema", None),
        ("no-json-schema", "json_object", "422: body.response_format.type: Input should be"),
        ("no-json-schema-500", "json_object", "500: 1 validation error"),
    ],
)
def test_a_schema_is_sent_as_openai_wants_it_and_otherwise_as_the_server_does(
    server: FaultyServer, caplog: pytest.LogCaptureFixture, plan: str, form: str, told: str | None
) -> None:
    async def ask(llm: OpenAILLM) -> str:
        await llm.complete(request(f"q: {plan}", json_schema=SCHEMA))
        await streamed(llm, request("q: ok", json_schema=SCHEMA))
        return llm.schema_form

    assert use(server, ask) == form
    formats = [body["response_format"] for body in server.bodies]
    assert [format["type"] for format in formats] == ["json_schema"] * (2 if told is None else 1) + ["json_object"] * (
        0 if told is None else 2
    )
    assert formats[0]["json_schema"]["schema"]["type"] == "object"
    said = [record.getMessage() for record in caplog.records if record.name.startswith("metaprobe")]
    assert len(said) == (told is not None)
    if told is not None:
        assert formats[1]["schema"]["type"] == "object"
        assert told in said[0]
        assert "it takes json_object with a schema" in said[0]


def test_a_schema_is_left_out_where_that_is_asked_for(server: FaultyServer) -> None:
    complete(server, "q: ok", sampling={"json_schema": SCHEMA}, schema_form="none")
    assert "response_format" not in server.bodies[0]
    with pytest.raises(LLMError, match="json_schema is not JSON"):
        complete(server, "q: ok", sampling={"json_schema": "{"})
    with pytest.raises(LLMError, match="answered 400: bad temperature"):  # no form makes it welcome
        complete(server, "q: 400", sampling={"json_schema": SCHEMA})


def test_an_answer_without_a_limit_is_not_cut_and_one_of_no_tokens_is_refused(server: FaultyServer) -> None:
    call = complete(server, "q: ok", sampling={"max_tokens": None})
    assert not {"max_tokens", "max_completion_tokens"} & set(server.bodies[0])
    assert call.sampling.max_tokens is None
    complete(server, "q: ok", sampling={"max_tokens": 1})
    assert server.bodies[1]["max_tokens"] == 1
    with pytest.raises(LLMError, match="request r: max_tokens must be at least 1, got 0"):
        complete(server, "q: ok", sampling={"max_tokens": 0})
