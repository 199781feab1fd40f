"""Bodies read by the typed decoder and by json.loads: the same answer, or the same refusal."""

import copy
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from metaprobe.records import parse
from metaprobe.records.errors import InvalidResponse
from metaprobe.records.parse import parse_response
from metaprobe.records.response import ParsedResponse

pytest.importorskip("msgspec")


def chat(entries: list[Any], **other: Any) -> dict[str, Any]:
    choice = {"index": 0, "message": {"role": "assistant", "content": "é" * len(entries)}, "finish_reason": "stop"}
    return {"id": "c", "model": "m", "choices": [{**choice, "logprobs": {"content": entries}}], **other}


def entry(logprob: object = -0.5, top: object = ((-0.5), (-1.5))) -> dict[str, Any]:
    rows = [{"token": f"b{v}", "logprob": v, "bytes": None} for v in top] if isinstance(top, (list, tuple)) else top
    return {"token": "é", "logprob": logprob, "bytes": None, "top_logprobs": rows}


GOOD = chat([entry(), entry(-2, [])], usage={"prompt_tokens": 3, "completion_tokens": 2, "details": {"x": None}})

odd = st.sampled_from(
    [None, True, False, 0, -1, -0.25, 0.5, 1e30, -1e39, -(2**60) - 1, -(10**30), "", "x", "-1", [], {}, [1], {"a": 1}]
) | st.floats(allow_nan=True, allow_infinity=True)
PLACES = (
    ("choices",),
    ("model",),
    ("usage",),
    ("usage", "prompt_tokens"),
    ("id",),
    ("choices", 0),
    ("choices", 0, "message"),
    ("choices", 0, "message", "content"),
    ("choices", 0, "message", "refusal"),
    ("choices", 0, "finish_reason"),
    ("choices", 0, "logprobs"),
    ("choices", 0, "logprobs", "content"),
    ("choices", 0, "logprobs", "refusal"),
    ("choices", 0, "logprobs", "content", 0),
    ("choices", 0, "logprobs", "content", 1, "token"),
    ("choices", 0, "logprobs", "content", 0, "logprob"),
    ("choices", 0, "logprobs", "content", 1, "logprob"),
    ("choices", 0, "logprobs", "content", 0, "top_logprobs"),
    ("choices", 0, "logprobs", "content", 0, "top_logprobs", 0),
    ("choices", 0, "logprobs", "content", 0, "top_logprobs", 1, "logprob"),
)


def outcome(body: Any, *, top: bool = True, choice: int = 0) -> tuple[Any, ...]:
    """All that was read, or the refusal, in a form that can be compared."""
    try:
        parsed = parse_response(body, top=top, choice=choice)
    except InvalidResponse as error:
        return ("refused", str(error))
    return comparable(parsed)


def comparable(parsed: ParsedResponse) -> tuple[Any, ...]:
    table = None if parsed.top_logprobs is None else parsed.top_logprobs.tolist()
    said = (parsed.text, parsed.tokens, parsed.finish_reason, parsed.model, parsed.usage)
    return (
        *said,
        parsed.logprobs.tolist(),
        repr(table),
        parsed.logprobs_mode,
        parsed.temperature,
        parsed.note,
        parsed.top_fault,
    )


def without_msgspec(body: Any, **options: Any) -> tuple[Any, ...]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parse, "_decoders", lambda top: None)
        return outcome(body, **options)


def changed(places: list[tuple[Any, ...]], values: list[object]) -> str:
    response = json.loads(json.dumps(GOOD))
    for place, value in zip(places, values, strict=False):
        held = response
        try:
            for step in place[:-1]:
                held = held[step]
            held[place[-1]] = copy.deepcopy(value)
        except (TypeError, KeyError, IndexError):
            continue
    return json.dumps(response)


@given(st.lists(st.sampled_from(PLACES), max_size=3), st.lists(odd, min_size=3, max_size=3), st.booleans())
def test_odd_bodies_read_the_same_with_and_without_msgspec(
    places: list[tuple[Any, ...]], values: list[object], top: bool
) -> None:
    body = changed(places, values)
    assert outcome(body, top=top) == without_msgspec(body, top=top) == outcome(body.encode(), top=top)


@given(st.integers(0, 400), st.sampled_from([b"", b"\xff", b"\x00", b"\\", b'"', b"}", b",", b"9", b"\xed\xa0\x80"]))
@example(0, b"\xef\xbb\xbf")
@example(8, b"\xff")
def test_damaged_bodies_read_the_same_with_and_without_msgspec(at: int, damage: bytes) -> None:
    body = json.dumps(GOOD, ensure_ascii=False).encode()
    for damaged in (body[:at] + damage + body[at:], body[:at] + damage):
        assert outcome(damaged, top=False) == without_msgspec(damaged, top=False)


def bodies() -> Iterator[Any]:
    yield json.dumps(GOOD)
    yield json.dumps(GOOD).encode("utf-16")
    yield bytearray(json.dumps(GOOD).encode())
    yield json.dumps(chat([entry(-9999.0, [])]))
    yield json.dumps(chat([{"token": None, "logprob": 5e-5}]))
    yield json.dumps(chat([{"logprob": -1}], usage=None, model=7))
    yield json.dumps({**GOOD, "choices": [*GOOD["choices"], {"message": 3}]})
    yield json.dumps(chat([entry()])).replace("\\u00e9", "\\ud83d\\ude00 \\ud800")
    yield json.dumps(chat([entry()])).replace('"model": "m"', '"model": NaN')
    yield '{"choices": 1, ' + json.dumps(GOOD)[1:]
    yield json.dumps({"error": {"message": "overloaded"}})
    yield json.dumps([-0.5, -1.0])
    yield '{"choices": ' + "[" * 100_000
    refused = json.loads(json.dumps(GOOD))
    refused["choices"][0]["logprobs"] = {"content": None, "refusal": [entry(-0.125)]}
    yield json.dumps(refused)
    text = {"choices": [{"text": "a b", "logprobs": {"tokens": ["a", " b"], "token_logprobs": [-1.0, -2.0]}}]}
    yield json.dumps(text)


@pytest.mark.parametrize("body", list(bodies()))
@pytest.mark.parametrize("choice", [0, 1])
def test_bodies_of_every_kind_read_as_parse_response_reads_them(body: Any, choice: int) -> None:
    try:
        expected = comparable(parse_response(parse.from_json(body), choice=choice))
    except InvalidResponse as error:
        expected = ("refused", str(error))
    assert outcome(body, choice=choice) == without_msgspec(body, choice=choice) == expected


def test_the_typed_decoder_is_what_reads_an_ordinary_body(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parse, "from_json", None)  # the slow way would fail
    parsed = parse_response(json.dumps(GOOD).encode())
    np.testing.assert_array_equal(parsed.logprobs, np.array([-0.5, -2], np.float32))
    assert parsed.top_logprobs is not None
    np.testing.assert_array_equal(parsed.top_logprobs, np.array([[-0.5, -1.5], [np.nan, np.nan]], np.float32))
    assert (parsed.text, parsed.tokens, parsed.model, parsed.usage.prompt_tokens) == ("éé", ("é", "é"), "m", 3)
