"""Joined again, the chunks of a streamed completion are the whole completion, with tool calls and unknown fields."""

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaprobe.records.answer_stream import AnswerStream
from metaprobe.records.errors import InvalidResponse

AROUND = {"id": "c", "created": 7, "model": "m", "system_fingerprint": "fp", "service_tier": "default"}
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
entry = st.fixed_dictionaries(
    {"token": texts, "logprob": st.floats(-9, 0), "bytes": st.lists(st.integers(0, 255), max_size=3)}
)
call = st.fixed_dictionaries(
    {
        "id": st.sampled_from(["call_1", "call_2"]),
        "type": st.just("function"),
        "function": st.fixed_dictionaries({"name": st.sampled_from(["add", "look_up"]), "arguments": texts}),
    }
)


def pieces(data: st.DataObject, text: str) -> list[str]:
    cut = data.draw(st.integers(0, len(text)))
    return [text[:cut], text[cut:]]


@given(data=st.data(), content=texts, thought=texts, calls=st.lists(call, max_size=3), tokens=st.lists(entry))
def test_chunks_make_up_the_whole_completion(
    data: st.DataObject, content: str, thought: str, calls: list[Any], tokens: list[Any]
) -> None:
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    deltas += [{"reasoning_content": part} for part in pieces(data, thought)]
    deltas += [{"content": part} for part in pieces(data, content)]
    for place, one in enumerate(calls):
        first, rest = pieces(data, one["function"]["arguments"])
        begun = {**one, "function": {**one["function"], "arguments": first}}
        deltas += [{"tool_calls": [{"index": place, **begun}]}]
        deltas += [{"tool_calls": [{"index": place, "function": {"arguments": rest}}]}]
    choices = [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": None} for delta in deltas]
    for choice, one in zip(choices, tokens, strict=False):
        choice["logprobs"] = {"content": [one], "refusal": None}
    left = tokens[len(choices) :]
    last = {"logprobs": {"content": left}, "finish_reason": "stop", "stop_reason": 5, "filter": {"hate": False}}
    choices.append({"index": 0, "delta": {}, **last})
    chunks: list[dict[str, Any]] = [{**AROUND, "object": "chat.completion.chunk", "choices": [one]} for one in choices]
    chunks.append({**AROUND, "object": "chat.completion.chunk", "choices": [], "usage": {"completion_tokens": 3}})

    stream, given_chunks = AnswerStream(keeps_all=True), copy.deepcopy(chunks)
    for chunk in chunks:
        stream.add(chunk)
    message = {"role": "assistant", "content": content, "reasoning_content": thought}
    message |= {"tool_calls": calls} if calls else {}
    choice = {"index": 0, "message": message, "logprobs": {"content": tokens}, **last}
    choice["logprobs"] = {"content": tokens}
    expected = {**AROUND, "object": "chat.completion", "choices": [choice], "usage": {"completion_tokens": 3}}
    assert stream.response() == expected
    assert chunks == given_chunks, "the chunks themselves are left as they came"


def chunk(**choice: Any) -> dict[str, Any]:
    return {"object": "chat.completion.chunk", "choices": [{"index": 0, "finish_reason": None, **choice}]}


def test_a_message_that_is_sent_once_more_at_the_end_is_not_doubled() -> None:
    stream = AnswerStream(keeps_all=True)
    for content in ("It is", " 12"):
        stream.add(chunk(delta={"content": content}))
    stream.add(chunk(message={"role": "assistant", "content": "It is 12"}, finish_reason="stop"))
    assert stream.response()["choices"][0]["message"] == {"role": "assistant", "content": "It is 12"}


def test_chunks_of_several_answers_are_refused() -> None:
    stream = AnswerStream(keeps_all=True)
    with pytest.raises(InvalidResponse, match="index"):
        stream.add(chunk(index=1, delta={"content": "7"}))


def called(*parts: dict[str, Any], content: str | None = None) -> AnswerStream:
    stream = AnswerStream(keeps_all=True)
    if content is not None:
        stream.add(chunk(delta={"content": content}))
    for part in parts:
        stream.add(chunk(delta={"tool_calls": [part]}))
    stream.add(chunk(delta={}, finish_reason="tool_calls"))
    return stream


def part_of(arguments: str, **about: Any) -> dict[str, Any]:
    name = about.pop("name", None)
    return about | {"function": {"arguments": arguments} | ({} if name is None else {"name": name})}


CALL = {"id": "c1", "type": "function", "function": {"arguments": '{"a": 1}', "name": "add"}}
FIRST = {"index": 0, "id": "c1", "type": "function", "name": "add"}


def calls_in(stream: AnswerStream) -> Any:
    return stream.response()["choices"][0]["message"]["tool_calls"]


def test_what_a_server_leaves_empty_in_a_later_part_takes_nothing_away() -> None:
    empty = part_of(": 1}", index=0, id="", type="", name="")
    stream = called(part_of('{"a"', **FIRST), empty)
    stream.add(chunk(delta={"tool_calls": [], "role": ""}, finish_reason=""))
    assert calls_in(stream) == [CALL]
    assert stream.response()["choices"][0]["message"]["role"] == "assistant"
    assert stream.response()["choices"][0]["finish_reason"] == "tool_calls"


@pytest.mark.parametrize(
    "parts",
    [
        (part_of("{}", **FIRST), part_of("{}", **(FIRST | {"id": "c2", "name": "see"}))),
        (part_of("{}", **FIRST), part_of("{}", id="c2", type="function", name="see")),
        (part_of("{}", id="c2", type="function", name="see"), part_of("{}", **FIRST)),
        (part_of("{", id="c1", type="function", name="add"), part_of("}")),
        (part_of("", **(FIRST | {"name": "get_"})), part_of("{}", index=0, name="weather")),
        (part_of("{}", index=0, id="c1", type="function"),),
    ],
    ids=["two of one index", "index, none", "none, index", "no index", "a name in parts", "no name"],
)
def test_tool_calls_whose_parts_cannot_be_put_together_are_refused(parts: tuple[dict[str, Any], ...]) -> None:
    with pytest.raises(InvalidResponse):
        called(*parts).response()


def test_tool_calls_that_only_the_whole_message_at_the_end_has_are_kept() -> None:
    message = {"role": "assistant", "content": "Let me", "tool_calls": [CALL]}
    for contents in (("Let ", "me"), ()):
        stream = AnswerStream(keeps_all=True)
        for content in contents:
            stream.add(chunk(delta={"content": content}))
        stream.add(chunk(message=message, finish_reason="tool_calls"))
        assert stream.response()["choices"][0]["message"] == message
    again = called(part_of('{"a": 1}', **FIRST), content="Let me")
    again.add(chunk(message=message))
    assert calls_in(again) == [CALL]


def test_a_retry_in_mid_stream_is_refused_also_where_it_calls_a_tool() -> None:
    stream = AnswerStream(keeps_all=True)
    for _ in range(2):
        stream.add(chunk(delta={"role": "assistant", "content": ""}))
        stream.add(chunk(delta={"content": "Let me"}))
        stream.add(chunk(delta={"tool_calls": [part_of('{"a":', **FIRST)]}))
    stream.add(chunk(delta={}, finish_reason="tool_calls"))
    with pytest.raises(InvalidResponse):
        stream.response()


def test_other_lists_keep_their_indexes() -> None:
    stream = AnswerStream(keeps_all=True)
    for text in ("so", " it"):
        stream.add(chunk(delta={"reasoning_details": [{"index": 0, "format": "x", "text": text}]}))
    stream.add(chunk(delta={"content": "12"}, finish_reason="stop"))
    [detail] = stream.response()["choices"][0]["message"]["reasoning_details"]
    assert detail == {"index": 0, "format": "x", "text": "so it"}
