"""A passing error is retried after a wait, a lasting error is not, and no request is lost."""

import asyncio
from collections import Counter

import asked_endpoint
import numpy as np
import pytest
from asked_endpoint import Sleep, complete, request, streamed, use
from faulty_server import RETRY_AFTER, FaultyServer, mixed

from metaprobe.llms.base import LLMError, Token
from metaprobe.llms.endpoint import retry_after_s
from metaprobe.llms.openai_client import OpenAILLM
from metaprobe.records.types import Call

environment = asked_endpoint.environment
server = asked_endpoint.server


@pytest.mark.parametrize("fault", ["429", "500", "503", "reset", "cut", "malformed", "html", "empty"])
def test_what_may_pass_is_asked_again(server: FaultyServer, fault: str) -> None:
    assert complete(server, f"q: {fault} ok").text == " w0 w1 w2 w3"
    assert server.attempts[f"q: {fault} ok"] == 2


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("429", "answered 429: slow down"),
        ("500", "answered 500: out of memory"),
        ("reset", "no connection to http://127.0.0.1"),
        ("cut", "no connection to http://127.0.0.1"),
        ("malformed", "not JSON"),
        ("html", "not JSON"),
        ("empty", "0 choices"),
    ],
)
def test_what_does_not_pass_ends_with_a_reason(server: FaultyServer, fault: str, reason: str) -> None:
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


def test_a_longer_wait_than_allowed_is_an_error_at_once(server: FaultyServer) -> None:
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
