"""Asking an endpoint: what is sent and what comes back, what is asked again, how it is set up, how faults are told."""

import asyncio
import logging
import traceback
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import asked_endpoint
import httpx
import numpy as np
import openai
import pytest
from asked_endpoint import KEY, Sleep, complete, request, streamed, use
from faulty_server import RETRY_AFTER, FaultyServer, mixed

from metaprobe.llms.base import Capabilities, LLMError, Token
from metaprobe.llms.endpoint import MAX_REASON, EndpointError, Redactor, endpoint_error, retry_after_s
from metaprobe.llms.openai_client import OpenAILLM
from metaprobe.llms.pricing import OPENAI_PRICES, Price
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


def test_log_probabilities_alone_ask_for_one_alternative_and_keep_none(server: FaultyServer) -> None:
    """llama.cpp's server gives no log-probabilities where no alternatives are asked for."""

    async def both(llm: OpenAILLM) -> Any:
        return await llm.complete(request("q: ok")), await streamed(llm, request("q: ok"))

    whole, (_, call) = use(server, both)
    assert [body["top_logprobs"] for body in server.bodies] == [1, 1]
    assert len(whole.logprobs) == len(call.logprobs) == 4
    assert whole.top_logprobs is None is call.top_logprobs


@pytest.mark.parametrize("content", ["q: ok", "q: no-logprobs", "q: bad-logprobs"])
def test_a_stream_gives_the_tokens_and_then_the_call_of_complete_with_or_without_numbers(
    server: FaultyServer, content: str, caplog: pytest.LogCaptureFixture
) -> None:
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
        for one in (whole, call):
            assert (one.text, one.tokens, one.logprobs, one.top_logprobs) == (" w0 w1 w2 w3", (), None, None)
        [told] = [record for record in caplog.records if record.name.startswith("metaprobe")]  # once, for two calls
        assert "without log-probabilities" in told.getMessage()
    assert server.bodies[1] == server.bodies[0] | {"stream": True, "stream_options": {"include_usage": True}}


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


# --- A passing error is retried after a wait, a lasting error is not, and no request is lost


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("429", "answered 429: slow down"),
        ("500", "answered 500: out of memory"),
        ("503", "answered 503"),
        ("reset", "no connection to http://127.0.0.1"),
        ("cut", "no connection to http://127.0.0.1"),
        ("malformed", "not JSON"),
        ("html", "not JSON"),
        ("empty", "0 choices"),
    ],
)
def test_what_may_pass_is_asked_again_and_ends_with_a_reason(server: FaultyServer, fault: str, reason: str) -> None:
    assert complete(server, f"q: {fault} ok").text == " w0 w1 w2 w3"
    assert server.attempts[f"q: {fault} ok"] == 2
    with pytest.raises(LLMError, match=rf"^request r: .*{reason}.*\(asked 3 times\)$"):
        complete(server, f"q: {fault}", attempts=3)
    assert server.attempts[f"q: {fault}"] == 3


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("400", "answered 400: bad temperature"),
        ("401", "answered 401: Incorrect API key.*; check OPENAI_API_KEY"),
        ("403", "answered 403: not yours; check OPENAI_API_KEY and what it may use"),
        ("422", "answered 422: bad field"),
        ("404", "answered 404: no such model; check the address .* and the model's name"),
        ("quota", "answered 429: you have spent all; the account has no credit left"),
    ],
)
def test_what_is_for_good_is_not_asked_again(server: FaultyServer, fault: str, reason: str) -> None:
    with pytest.raises(LLMError, match=reason):
        complete(server, f"q: {fault} ok")
    assert server.attempts[f"q: {fault} ok"] == 1


def test_an_answer_that_does_not_come_is_given_up(server: FaultyServer) -> None:
    with pytest.raises(LLMError, match=r"did not answer within 0\.05 s \(asked 2 times\)"):
        complete(server, "q: silent", timeout_s=0.05, attempts=2)


def test_retry_after_is_waited_for_and_other_waits_grow_at_random(server: FaultyServer) -> None:
    named, grown = Sleep(), Sleep()
    complete(server, "q: 429 429 ok", sleep=named)
    assert all(RETRY_AFTER <= wait <= 1.25 * RETRY_AFTER for wait in named.waits)
    assert len(named.waits) == 2

    async def many(llm: OpenAILLM) -> None:
        await asyncio.gather(*[llm.complete(request(f"{i}: 500 500 500 ok")) for i in range(40)])

    use(server, many, sleep=grown, concurrency=1)
    waits = np.reshape(grown.waits, (40, 3))
    assert (waits <= [1, 2, 4]).all()
    assert (waits.max(axis=0) > [0.5, 1, 2]).all()
    assert len(np.unique(waits)) > 100
    with pytest.raises(LLMError, match=r"asks to wait 0\.25 s, more than the 0\.1 s allowed"):
        complete(server, "q: 429 ok", max_wait_s=0.1)
    assert server.attempts["q: 429 ok"] == 1


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after": "7", "retry-after-ms": "1500"}, 1.5),
        ({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}, 0.0),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "-3"}, None),
        ({"retry-after": "soon"}, None),
    ],
)
def test_retry_after_is_seconds_or_a_date(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after_s(headers) == seconds


@pytest.mark.slow
def test_a_thousand_requests_are_all_accounted_for_and_never_too_many_at_once() -> None:
    async def thousand(llm: OpenAILLM) -> list[Call | BaseException]:
        asked = [request(f"question {i}") for i in range(1000)]
        return await asyncio.gather(*map(llm.complete, asked), return_exceptions=True)

    server = FaultyServer(mixed)
    ends = use(server, thousand, concurrency=20, attempts=3)
    kinds = Counter(type(end).__name__ for end in ends)
    assert kinds["Call"] + kinds["EndpointError"] == 1000
    expected = {i: mixed(f"question {i}", 2) in ("ok", "no-logprobs", "bad-logprobs") for i in range(1000)}
    assert [isinstance(end, Call) for end in ends] == list(expected.values())
    for end in ends:
        if isinstance(end, Call):
            assert end.text == " w0 w1 w2 w3"
        else:
            assert isinstance(end, LLMError)
            assert str(end).startswith(f"request r: {server.base_url} ") or "no connection" in str(end)
    assert 10 < server.peak <= 20


@pytest.mark.parametrize("fault", ["reset", "500", "malformed", "cut", "ends-early"])
def test_a_stream_is_asked_again_only_before_its_first_token(server: FaultyServer, fault: str) -> None:
    asked = request(f"q: {fault} ok")
    if fault in ("reset", "500"):
        tokens, _ = use(server, lambda llm: streamed(llm, asked))
        assert len(tokens) == 4
        return
    seen: list[Token] = []

    async def read(llm: OpenAILLM) -> None:
        async for event in llm.stream(asked):
            assert isinstance(event, Token)
            seen.append(event)

    with pytest.raises(LLMError, match=rf"^request r: .*\(after {1 if fault == 'malformed' else 2} tokens\)$"):
        use(server, read)
    assert [token.text for token in seen] == [" w0", " w1"][: 1 if fault == "malformed" else 2]
    assert server.attempts[f"q: {fault} ok"] == 1


def test_a_stream_that_is_left_gives_its_place_to_the_next(server: FaultyServer) -> None:
    async def leave(llm: OpenAILLM) -> Call:
        stream = llm.stream(request("q: ok"))
        await anext(stream)
        await stream.aclose()  # type: ignore[attr-defined]
        return await llm.complete(request("q: ok"))

    assert use(server, leave, concurrency=1).text


# --- Models, keys, addresses, options and prices are checked before anything is asked, and a key shows up nowhere


def test_the_key_stays_in_no_error_record_log_or_repr(server: FaultyServer, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    told: list[str] = []

    async def everything(llm: OpenAILLM) -> None:
        told.append(repr(llm) + str(vars(llm)))
        told.append(repr(await llm.complete(request("q: ok"))))
        for content in ("q: 401", "q: 500", "q: 429", "q: malformed", "q: reset"):
            for attempt in (llm.complete, lambda asked: streamed(llm, asked)):
                with pytest.raises(LLMError) as error:
                    await attempt(request(content))
                told.append("".join(traceback.format_exception(error.value)))
                cause: BaseException | None = error.value
                while cause is not None:  # also what a traceback leaves out
                    told.append(repr(cause) + str(vars(cause)))
                    cause = cause.__cause__ or cause.__context__

    use(server, everything, attempts=2)
    assert any("Incorrect API key provided: Bearer [secret]. Try another." in text for text in told)
    assert KEY not in "".join(told)
    assert KEY not in caplog.text
    assert caplog.records  # the client does log


def test_a_part_of_another_key_is_taken_out_as_well(server: FaultyServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("faulty_server._BAD", {"400": "wrong key sk-proj-abc***xyz, wrong hf_abcdefgh1"})
    with pytest.raises(LLMError, match=r"answered 400: wrong key \[secret\], wrong \[secret\]$"):
        complete(server, "q: 400")


def test_one_model_serves_several_event_loops() -> None:
    async def two() -> list[Call]:
        calls = await asyncio.gather(*[llm.complete(request("q: ok")) for _ in range(2)])
        await llm.aclose()
        return calls

    with FaultyServer() as server:
        llm = OpenAILLM("m", base_url=server.base_url, concurrency=1)
        assert [call.text for _ in range(2) for call in asyncio.run(two())] == [" w0 w1 w2 w3"] * 4


def test_a_spec_names_the_model_and_maybe_the_address(monkeypatch: pytest.MonkeyPatch) -> None:
    assert OpenAILLM.parse("openai:gpt-4o").endpoint == "https://api.openai.com/v1"
    monkeypatch.setenv("OPENAI_BASE_URL", "http://here:1/v1/")
    assert OpenAILLM.parse("openai:gpt-4o").endpoint == "http://here:1/v1"
    llm = OpenAILLM.parse("openai:org/model@2@https://there/v1", top_logprobs=5)
    assert (llm.name, llm.endpoint, llm.capabilities.top_logprobs) == ("org/model@2", "https://there/v1", 5)
    assert OpenAILLM.parse("openai:m@http://[::1]:80/v1/?key=x").endpoint == "http://[::1]:80/v1"  # nothing secret


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ("openai:", "expected openai:MODEL"),
        ("gpt-4o", "expected openai:MODEL"),
        ("openai:m@http://", "is no address"),
        ("openai:m@http://host:port/v1", "is no address"),
        ("openai:m@http://me:hunter2@host/v1", "holds a user or password"),
        ("openai:m@ftp://me:hunter2@host/v1?key=hunter2", "model 'host/v1': expected openai:MODEL"),
        ("openai:m@http://:hunter2@host/v1", "address of host holds a user or password"),
    ],
)
def test_a_spec_that_cannot_be_used_is_refused(spec: str, reason: str) -> None:
    with pytest.raises(LLMError, match=reason) as error:
        OpenAILLM.parse(spec)
    with pytest.raises(LLMError, match="'host/v1' is no address") as other:
        OpenAILLM("m", base_url="ftp://me:hunter2@host/v1?key=hunter2")
    assert "hunter2" not in f"{error.value}{other.value}"


def test_a_missing_or_broken_key_is_told_before_anything_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-\N{HORIZONTAL ELLIPSIS}")
    with pytest.raises(LLMError, match="characters that no key has"):
        OpenAILLM("m")
    monkeypatch.delenv("OPENAI_API_KEY")
    with pytest.raises(LLMError, match="OPENAI_API_KEY is not set"):
        OpenAILLM("m")
    OpenAILLM("m", base_url="http://127.0.0.1:1/v1")  # needs none


@pytest.mark.parametrize(
    "options",
    [
        {"concurrency": 0},
        {"attempts": 0},
        {"timeout_s": 0},
        {"top_logprobs": -1},
        {"extra_body": {"temperature": 1}},
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(LLMError, match=r"expected|extra_body holds temperature"):
        OpenAILLM("m", base_url="http://here/v1", **options)


def test_prices_are_known_where_they_are_billed(tmp_path: Path) -> None:
    assert Price.of_model("gpt-4o-2024-08-06", "api.openai.com") == OPENAI_PRICES["gpt-4o"]
    assert Price.of_model("gpt-4o-2024-05-13", "api.openai.com") == Price(5.0, 15.0)
    assert Price.of_model("gpt-4.1-nano", "api.openai.com") == Price(0.1, 0.4)
    assert Price.of_model("gpt-4o", "127.0.0.1") is None
    assert Price.of_model("gpt-99", "api.openai.com") is None
    assert Price(2.0, 8.0).cost_usd(Usage(1_000_000, 500_000)) == 6.0
    table = tmp_path / "prices.json"
    table.write_text('{"m": {"prompt": 1, "completion": 2}}')
    assert Price.of_model("m", "127.0.0.1", Price.read(table)) == Price(1.0, 2.0)
    wrong = ('{"m": 3}', "[]", "{", '{"m": {"prompt": -1, "completion": 2}}', '{"m": {"prompt": 1}}')
    for text in (*wrong, '{"m": {"prompt": 1e999, "completion": 2}}', "[" * 100_000):
        table.write_text(text)
        with pytest.raises(LLMError, match=r"prices"):
            Price.read(table)


def test_this_machines_own_names_are_reached_without_a_proxy(server: FaultyServer) -> None:
    async def ask(_: OpenAILLM) -> str:
        url = server.base_url.replace("127.0.0.1", "localhost")
        async with OpenAILLM("m", base_url=url, attempts=1) as llm:
            return (await llm.complete(request("q: ok"))).text

    assert use(server, ask) == " w0 w1 w2 w3"
    for host in ("elsewhere.example", "localhost.example", "10.0.0.1"):

        async def lost(llm: OpenAILLM) -> str:
            with pytest.raises(LLMError, match="no connection to"):
                await llm.complete(request("q: ok"))
            return "asked the proxy of the environment, which leads nowhere"

        assert use(server, lost, base_url=f"http://{host}/v1", attempts=1)


def test_what_it_is_asked_for_by_default_and_what_it_can_do() -> None:
    llm = OpenAILLM("m", base_url="http://here/v1")
    assert llm.capabilities == Capabilities(logprobs=True, stream=True)
    without = OpenAILLM("m", base_url="http://here/v1", logprobs=False, top_logprobs=5, schema_form="none")
    assert without.capabilities == Capabilities(stream=True)
    same = OpenAILLM("m", base_url="http://here/v1/")
    others = (
        OpenAILLM("m", base_url="http://there/v1"),
        OpenAILLM("m", base_url="http://here/v1", extra_body={"top_k": 1}),
        OpenAILLM("m", base_url="http://here/v1", logprobs=False),
        OpenAILLM("m", base_url="http://here/v1", logprobs_mode="raw"),
        OpenAILLM("m", base_url="http://here/v1", schema_form="json_object"),
    )
    assert same.asked_how == llm.asked_how
    assert len({other.asked_how for other in (llm, *others)}) == 6


# --- An endpoint's errors decide whether to ask again; some parts of them are shown, and some never are


ASKED = httpx.Request("POST", "http://here/v1/chat/completions")


CLIENT = openai.AsyncOpenAI(api_key=KEY, base_url="http://here/v1", default_headers={"x-proxy-token": "planted-too"})
asyncio.run(CLIENT.close())  # it asks nothing; what it was set up with stays


def meant(error: Exception) -> EndpointError:
    return endpoint_error(
        error, address="http://here/v1", timeout_s=7, max_wait_s=60, redact=Redactor(CLIENT, harmless=["plain"])
    )


def answered(status: int, body: object = None, headers: Mapping[str, str] | None = None) -> EndpointError:
    response = httpx.Response(status, request=ASKED, headers=headers)
    return meant(openai.APIStatusError("", response=response, body=body))


@pytest.mark.parametrize(
    ("status", "said", "passing", "refused"),
    [
        (400, "", False, True),
        (422, "", False, True),
        (401, "", False, False),
        (404, "", False, False),
        (408, "", True, False),
        (409, "", True, False),
        (425, "", True, False),
        (429, "", True, False),
        (499, "", False, False),
        (500, "", True, False),
        (500, "1 validation error for Body", False, True),  # as llama-cpp-python answers what it cannot accept
        (502, "1 validation error for Body", True, False),
        (503, "", True, False),
    ],
)
def test_what_a_status_means(status: int, said: str, passing: bool, refused: bool) -> None:
    error = answered(status, {"message": said})
    assert (error.passing, error.refused) == (passing, refused)
    assert str(error).startswith(f"http://here/v1 answered {status}: {said}")


def test_openais_own_word_on_asking_again_counts_for_more_than_the_status() -> None:
    assert answered(404, headers={"x-should-retry": "true"}).passing
    assert not answered(503, headers={"x-should-retry": "false"}).passing
    assert answered(503, headers={"x-should-retry": "maybe"}).passing
    assert not answered(429, {"code": "insufficient_quota"}, {"x-should-retry": "true"}).passing
    assert not answered(429, {"code": "billing_hard_limit_reached"}).passing


def test_a_wait_is_told_only_of_what_passes_and_up_to_what_is_allowed() -> None:
    wait = {"retry-after": "60"}
    assert (answered(429, headers=wait).retry_after_s, answered(429, headers=wait).passing) == (60, True)
    assert answered(400, headers=wait).retry_after_s is None
    assert answered(429).retry_after_s is None
    long = answered(503, {"message": "busy"}, {"retry-after": "61"})
    assert not long.passing
    assert str(long).endswith("answered 503: busy; it asks to wait 61 s, more than the 60 s allowed here: try later")
    assert retry_after_s({"retry-after": "0"}) == 0


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"message": "slow down", "detail": "more"}, "slow down"),
        ({"detail": "not here"}, "not here"),
        ({"error": "no model"}, "no model"),
        ({"code": 7}, "{'code': 7}"),
        ({"detail": [{"loc": ["body", "n"], "msg": "too large"}, {"msg": "odd"}, 3]}, "body.n: too large; : odd"),
        ({"detail": [3]}, "[3]"),
        ("  plain\n  text ", "plain text"),
        (None, "Too Many Requests"),
    ],
)
def test_the_servers_own_words_are_passed_on(body: object, said: str) -> None:
    assert str(answered(429, body)) == f"http://here/v1 answered 429: {said}"


def test_long_words_are_cut_and_secrets_taken_out() -> None:
    exact = MAX_REASON - len("http://here/v1 answered 429: ")
    assert str(answered(429, "x" * exact)).endswith("x" * exact)
    cut = str(answered(429, "x" * (exact + 1)))
    assert len(cut) == MAX_REASON
    assert cut.endswith("xx…")
    told = str(answered(429, f"{KEY} planted-too sk-abcdefgh hf_abcdef Bearer abc= sk-short plain"))
    assert told.endswith("429: [secret] [secret] [secret] [secret] [secret] sk-short plain")


def test_of_two_secrets_that_begin_alike_the_longer_one_goes_whole() -> None:
    client = openai.AsyncOpenAI(
        api_key="abc", default_headers={"x-first-token": "abcdef", "x-second-token": "abcdefghi"}
    )
    asyncio.run(client.close())
    assert Redactor(client)("sent abcdefghi and abcdef and abc.") == "sent [secret] and [secret] and [secret]."
