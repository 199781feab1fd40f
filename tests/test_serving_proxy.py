"""The proxy hands the upstream's answer on unchanged but for its verdict, whole or streamed."""

import asyncio
import json
from typing import Any

import openai
import pytest
import serving_clients
from hypothesis import given
from hypothesis import strategies as st
from served import TOKENS, Upstream, completion
from serving_clients import LOGPROBS, TEXT, Served, verdict_in, verdict_of

from metaprobe.probes.quality import QualityPredictor
from metaprobe.production.http.completion_json import hide_logprobs, read_chat
from metaprobe.production.http.streamed_answer import EventSplitter, data_of, with_data

checkpoint = serving_clients.checkpoint
predictor = serving_clients.predictor
upstream = serving_clients.upstream
callers_keys = serving_clients.callers_keys
served = serving_clients.served


# The proxy


def test_an_answer_carries_its_verdict_and_no_logprobs_that_were_not_asked_for(
    served: Served, upstream: tuple[Upstream, str], predictor: QualityPredictor
) -> None:
    answer = served.chat()
    assert answer.choices[0].message.content == TEXT
    assert answer.choices[0].logprobs is None
    assert upstream[0].bodies[-1]["logprobs"] is True
    expected = predictor.predict(LOGPROBS)
    verdict = verdict_of(answer)
    assert verdict["score"] == pytest.approx(expected.score)
    assert set(verdict) == {"score", "heads", "critical", "flagged", "reason", "checkpoint"}
    assert verdict["checkpoint"] == predictor.checkpoint.digest


def test_the_upstream_answer_passes_unchanged_but_for_the_verdict(served: Served) -> None:
    request = {"model": "m", "messages": [{"role": "user", "content": "plain"}], "logprobs": True, "top_logprobs": 2}
    answer = served.post("/v1/chat/completions", request)
    body = answer.json()
    del body["metaprobe"]
    assert body == completion(request)
    assert answer.headers["x-request-id"] == "up-1"
    assert answer.headers["x-ratelimit-limit-requests"] == "9"
    assert "set-cookie" not in answer.headers


def test_the_request_passes_unchanged_but_for_the_logprobs(served: Served, upstream: tuple[Upstream, str]) -> None:
    request = {"model": "m", "messages": [{"role": "user", "content": "plain"}], "temperature": 0.3}
    request["x_vendor"] = {"deep": [1, None, 12345678901234567890123]}
    for asked_for, top in (({}, 1), ({"logprobs": True, "top_logprobs": 4}, 4), ({"logprobs": True}, 1)):
        served.post("/v1/chat/completions", request | asked_for)
        assert upstream[0].bodies[-1] == request | {"logprobs": True, "top_logprobs": top}


@pytest.mark.parametrize("said", ["needs-top", "refuses-top"])
def test_who_asked_for_logprobs_alone_gets_them_alone_and_a_verdict(
    served: Served, predictor: QualityPredictor, said: str
) -> None:
    """Covers llama.cpp's server, which gives none without alternatives, and one that has no alternatives to give."""
    expected = pytest.approx(predictor.predict(LOGPROBS).score)
    entries = [{"token": token, "logprob": logprob, "bytes": None, "top_logprobs": []} for token, logprob in TOKENS]
    whole = served.chat(said, logprobs=True)
    assert verdict_of(whole)["score"] == expected
    assert whole.choices[0].logprobs.to_dict()["content"] == entries
    *before, last = served.chat(said, logprobs=True, stream=True)
    assert verdict_of(last)["score"] == expected
    held = [chunk.choices[0].logprobs for chunk in before]
    assert [entry for logprobs in held if logprobs for entry in logprobs.to_dict()["content"]] == entries


def test_the_usage_of_a_stream_stays_its_last_chunk(served: Served) -> None:
    usage = {"prompt_tokens": 3, "completion_tokens": len(TOKENS), "total_tokens": 3 + len(TOKENS)}
    options: Any = {"include_usage": True}
    chunks = list(served.chat(stream=True, stream_options=options))
    assert (chunks[-1].choices, chunks[-1].usage.to_dict()) == ([], usage)
    assert verdict_of(chunks[-2])["score"] is not None
    assert sum("metaprobe" in chunk.model_extra for chunk in chunks) == 1
    messages: Any = [{"role": "user", "content": "plain"}]
    with served.client.chat.completions.stream(model="m", messages=messages, stream_options=options) as stream:
        assert stream.get_final_completion().usage.to_dict() == usage


def test_every_choice_has_a_verdict_of_its_own(served: Served, predictor: QualityPredictor) -> None:
    expected = [predictor.predict(LOGPROBS[: len(LOGPROBS) - i]).score for i in range(3)]
    whole = verdict_of(served.chat(n=3))
    assert [v["score"] for v in whole["choices"]] == pytest.approx(expected)
    assert whole["score"] == pytest.approx(expected[0])
    *_, last = served.chat(n=3, stream=True)
    assert verdict_of(last) == whole


def test_a_stream_ends_with_the_verdict_that_the_whole_answer_has(served: Served) -> None:
    whole = verdict_of(served.chat())
    for said in ("plain", "comments", "torn"):
        *before, last = served.chat(said, stream=True)
        assert "".join(chunk.choices[0].delta.content or "" for chunk in before) == TEXT
        assert all(chunk.choices[0].logprobs is None for chunk in before)
        assert [chunk.choices[0].finish_reason for chunk in before].count("stop") == 1
        assert verdict_of(last) == whole
        assert (last.id, last.choices[0].delta.content) == ("c-1", None)


def test_the_clients_own_stream_helper_and_the_async_client_read_it(served: Served) -> None:
    messages: Any = [{"role": "user", "content": "plain"}]
    with served.client.chat.completions.stream(model="m", messages=messages) as stream:
        verdict = verdict_in(event.chunk for event in stream if event.type == "chunk")
        final = stream.get_final_completion()
    assert (final.choices[0].message.content, final.choices[0].finish_reason) == (TEXT, "stop")
    assert verdict == verdict_of(served.chat())

    async def main() -> list[Any]:
        async with openai.AsyncOpenAI(**served.options) as client:
            whole = await client.chat.completions.create(model="m", messages=messages)
            stream = await client.chat.completions.create(model="m", messages=messages, stream=True)
            return [whole, *[chunk async for chunk in stream]]

    whole, *_, last = asyncio.run(main())
    assert verdict_of(whole) == verdict_of(last)
    assert verdict_of(whole)["score"] is not None


def test_chunks_pass_as_they_come(served: Served, upstream: tuple[Upstream, str]) -> None:
    told = upstream[0]
    told.begin(1)
    seen = 0
    for chunk in served.chat("steps", stream=True):
        seen += 1
        if "metaprobe" in (chunk.model_extra or {}):
            break
        assert told.sent == seen  # the next one is not even sent before this one has arrived
        told.go_on.release()
    assert seen == len(TOKENS) + 2


def test_a_caller_who_leaves_ends_the_upstream(served: Served, upstream: tuple[Upstream, str]) -> None:
    told = upstream[0]
    told.begin(1)
    stream = served.chat("steps", stream=True)
    next(iter(stream))
    stream.close()
    assert told.closed.wait(timeout=20)


def test_a_redirect_is_not_followed_and_not_passed_on(served: Served) -> None:
    with pytest.raises(openai.InternalServerError, match="redirects") as caught:
        served.chat("redirect")
    assert caught.value.status_code == 502
    assert "location" not in caught.value.response.headers


def test_an_answer_that_is_no_json_passes_as_it_came_and_says_that_it_has_no_verdict(served: Served) -> None:
    answer = served.ask("nan")
    assert answer.content == b'{"choices": [], "x": NaN}'
    assert answer.headers["metaprobe-reason"] == "the upstream's answer is not a JSON object"


@pytest.mark.parametrize("body", [b"", b"[]", b"7", b'{"model"', b"\xff", b'{"a":' * 15_000])
def test_a_malformed_request_never_reaches_the_upstream(
    served: Served, upstream: tuple[Upstream, str], body: bytes
) -> None:
    before = len(upstream[0].bodies)
    answer = served.post("/v1/chat/completions", body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_json")
    assert len(upstream[0].bodies) == before


# The pieces


@given(st.lists(st.sampled_from([b"data: x", b"\n", b"\r\n", b"\n\n", b"\r\n\r\n", b": c", b"\r"])), st.data())
def test_events_are_the_same_however_the_bytes_are_torn(parts: list[bytes], data: st.DataObject) -> None:
    whole = b"".join(parts)
    at = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=5)))
    torn, at_once = EventSplitter(), EventSplitter()
    pieces = [whole[a:b] for a, b in zip([0, *at], [*at, len(whole)], strict=True)]
    events = [event for piece in pieces for event in torn.feed(piece)]
    assert b"".join(events) + torn.rest() == whole
    assert b"".join(at_once.feed(whole)) + at_once.rest() == whole


def test_an_event_keeps_its_other_lines_when_its_data_change() -> None:
    event = b"event: x\r\nid: 7\r\ndata: {}\r\n\r\n"
    assert data_of(event) == b"{}"
    assert with_data(event, b"[]") == b"event: x\nid: 7\ndata: [] \n\n".replace(b" \n", b"\n")
    assert data_of(b": comment\n\n") == b""
    assert data_of(b"data: a\ndata: b\n\n") == b"a\nb"


def test_alternatives_that_the_caller_did_not_ask_for_are_hidden() -> None:
    question = read_chat(b'{"logprobs": true, "n": 1}')
    assert json.loads(question.sent) == {"logprobs": True, "n": 1, "top_logprobs": 1}
    answer = b'{"choices":[{"logprobs":{"content":[{"logprob":-0.10,"top_logprobs":[{"logprob":-0.1}]}]}}],"z":1e400}'
    bare = b'{"choices":[{"logprobs":{"content":[{"logprob":-0.10,"top_logprobs":[]}]}}],"z":1e400}'
    assert hide_logprobs(answer, question) == bare
    assert not read_chat(b'{"logprobs": true, "top_logprobs": 2}').is_changed
    for odd in (b"[7]", *(b'{"choices":%s}' % one for one in (b"7", b'[{"logprobs":7}]'))):
        assert hide_logprobs(odd, question) == odd
    for content in (b"7", b'{"logprob":-0.10}'):  # nothing is put where the upstream gave nothing
        held = b'{"choices":[{"logprobs":{"content":[%s]}}]}' % content
        assert hide_logprobs(held, question) == held
    # A choice that is none does not keep the log-probabilities of the others.
    answer = b'{"choices":[null,{"logprobs":{"content":[{"logprob":-0.1}]}}]}'
    assert hide_logprobs(answer, read_chat(b"{}")) == b'{"choices":[null,{"logprobs":null}]}'
