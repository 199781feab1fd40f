"""Reading OpenAI chat completions, and refusing what cannot be scored."""

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaprobe.records.errors import InvalidResponse
from metaprobe.records.parse import parse_response
from metaprobe.records.response import check_logprobs
from metaprobe.records.types import Call, Usage


def completion(logprobs: list[Any], *, top: list[list[float]] | None = None, **message: Any) -> dict[str, Any]:
    entries = [
        {"token": f"t{i}", "bytes": None, "logprob": value, "top_logprobs": []} for i, value in enumerate(logprobs)
    ]
    for entry, alternatives in zip(entries, top or [], strict=False):
        entry["top_logprobs"] = [{"token": f"x{j}", "logprob": value} for j, value in enumerate(alternatives)]
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "model": "gpt-test",
        "choices": [
            {
                "index": 0,
                "finish_reason": "stop",
                "message": {"role": "assistant", "content": "".join(entry["token"] for entry in entries), **message},
                "logprobs": {"content": entries, "refusal": None},
            }
        ],
        "usage": {"prompt_tokens": 12, "completion_tokens": len(logprobs), "total_tokens": 12 + len(logprobs)},
    }


class Client:
    """Looks like the object of a client library."""

    def __init__(self, response: dict[str, Any]) -> None:
        self.response = response

    def model_dump(self) -> dict[str, Any]:
        return self.response


@pytest.mark.parametrize("form", [lambda r: r, json.dumps, lambda r: json.dumps(r).encode(), Client])
def test_every_form_of_a_completion_gives_the_same(form: Any) -> None:
    parsed = parse_response(form(completion([-0.1, -2.5], top=[[-0.1, -3.0], [-2.5, -1.0]])))
    assert parsed.text == "t0t1"
    assert parsed.tokens == ("t0", "t1")
    assert parsed.logprobs.dtype == np.float32
    np.testing.assert_array_equal(parsed.logprobs, np.float32([-0.1, -2.5]))
    np.testing.assert_array_equal(parsed.top_logprobs, np.float32([[-0.1, -3.0], [-1.0, -2.5]]))
    assert (parsed.finish_reason, parsed.model, parsed.usage) == ("stop", "gpt-test", Usage(12, 2))


@pytest.mark.parametrize("form", [list, tuple, np.array, lambda v: np.array(v, np.float16), lambda v: (x for x in v)])
def test_plain_log_probabilities_are_a_response(form: Any) -> None:
    parsed = parse_response(form([-0.5, -1.0, 0.0]))
    np.testing.assert_array_equal(parsed.logprobs, [-0.5, -1.0, 0.0])
    assert (parsed.text, parsed.tokens, parsed.top_logprobs, parsed.usage) == ("", (), None, Usage())


def test_a_call_and_what_was_parsed_before_are_responses() -> None:
    call = Call(
        id="c", text="a b", tokens=("a", " b"), logprobs=np.float32([-1, -2]), model="m", finish_reason="length"
    )
    parsed = parse_response(call)
    assert (parsed.text, parsed.tokens, parsed.finish_reason, parsed.model) == ("a b", ("a", " b"), "length", "m")
    assert parse_response(parsed) is parsed
    for other in (replace(call, tokens=("a",)), replace(call, top_logprobs=np.zeros((1, 2), np.float32))):
        with pytest.raises(InvalidResponse, match=r"2 log-probabilities and the .* of 1 tokens"):
            parse_response(other)
    with pytest.raises(InvalidResponse, match="call 'd' was recorded without log-probabilities"):
        parse_response(Call(id="d"))


def test_alternatives_that_rounding_put_above_0_count_as_0_and_higher_ones_are_left_out() -> None:
    top = parse_response(completion([-20.0], top=[[5e-5, -9.0]])).top_logprobs
    assert top is not None
    assert top.tolist() == [[0.0, -9.0]]
    parsed = parse_response(completion([-20.0], top=[[2e-4, -9.0]]))
    assert parsed.top_logprobs is None
    assert "token 0 has an alternative with a log-probability above 0" in parsed.top_fault


@given(st.lists(st.lists(st.floats(-50, -2, width=32), max_size=4), min_size=1, max_size=6))
def test_ragged_alternatives_are_padded_with_nan_and_sorted(rows: list[list[float]]) -> None:
    top = parse_response(completion([-60.0 - i for i in range(len(rows))], top=rows)).top_logprobs
    width = max(map(len, rows))
    if not width:
        assert top is None
        return
    assert top is not None
    assert top.shape == (len(rows), width)
    for got, row in zip(top, rows, strict=True):
        assert got[: len(row)].tolist() == sorted(row, reverse=True)
        assert np.isnan(got[len(row) :]).all()


def test_alternatives_that_the_sampler_ruled_out_count_as_not_given() -> None:
    for ruled_out in (float("-inf"), None):  # JSON has no -inf
        response = completion([-1.0], top=[[ruled_out, -1.0]])  # type: ignore[list-item]
        for read in (parse_response, lambda r: parse_response(json.dumps(r))):
            np.testing.assert_array_equal(read(response).top_logprobs, np.float32([[-1.0, np.nan]]))


def test_a_refusal_is_read_from_its_own_key() -> None:
    response = completion([-0.3, -0.4], content=None, refusal="I cannot.")
    logprobs = response["choices"][0]["logprobs"]
    logprobs["refusal"], logprobs["content"] = logprobs["content"], None
    parsed = parse_response(response)
    assert (len(parsed.logprobs), parsed.text, parsed.finish_reason) == (2, "", "refusal")


@pytest.mark.parametrize("calls", [{"tool_calls": [{"id": "call_1"}]}, {"function_call": {"name": "f"}}])
@pytest.mark.parametrize("content", [None, "Let me look."])
def test_a_call_is_known_as_one_though_the_server_says_stop(calls: dict[str, Any], content: str | None) -> None:
    whole = completion([-0.3], content=content, **calls)
    assert parse_response(whole).finish_reason == parse_response(json.dumps(whole)).finish_reason == "tool_calls"
    chunks: list[Any] = [{"choices": [{"index": 0, "delta": {"content": content}}]}] * 2
    chunks += [{"choices": [{"index": 0, "delta": calls, "logprobs": whole["choices"][0]["logprobs"]}]}]
    chunks += [{"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}]
    assert parse_response(chunks).finish_reason == "tool_calls"


def test_another_choice_can_be_asked_for() -> None:
    response = completion([-1.0])
    response["choices"].append(completion([-7.0])["choices"][0])
    assert parse_response(response, choice=1).logprobs.tolist() == [-7.0]
    assert "is of the first: parse_response(response, choice=1) is the next" in parse_response(response).note
    assert parse_response(response, choice=1).note == parse_response(completion([-1.0])).note == ""
    with pytest.raises(InvalidResponse, match=r"2 choices; expected .* choices\[2\]"):
        parse_response(response, choice=2)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (None, "no log-probabilities; request the completion with logprobs=True"),
        ([], "holds no tokens"),
        ([-1.0, float("nan")], r"token 1 \(of 2\) is NaN.*bfloat16"),
        ([-1.0, -2.0, float("-inf")], r"token 2 \(of 3\) is -inf.*raw log-probabilities"),
        ([-1e300], r"token 0 .* is -1e\+300; expected a number of nats that 32 bits hold"),
        ([0.5, 0.9], "is 0.5; expected at most 0: take the logarithm"),
        ([[-1.0]], "nested"),
        (np.zeros((2, 3)), r"shape \(2, 3\)"),
        (-1.0, "came as float"),
        ([-1.0, "-0.5"], r"token 1 is '-0.5' \(str\)"),
        ([-1.0, None], r"token 1 is None \(NoneType\)"),
        ([-1.0, True], r"token 1 is True \(bool\)"),
        (np.array(["a"]), "array of <U1"),
        ({"a": 1}, "came as dict"),
    ],
)
def test_what_is_no_log_probability_is_refused_with_its_place(values: object, message: str) -> None:
    with pytest.raises(InvalidResponse, match=message):
        check_logprobs(values)


def broken(change: Any) -> dict[str, Any]:
    response = completion([-1.0])
    change(response)
    return response


@pytest.mark.parametrize(
    ("response", "message"),
    [
        (broken(lambda r: r["choices"][0].update(logprobs=None)), "no log-probabilities.*logprobs=True"),
        (broken(lambda r: r["choices"][0]["logprobs"].update(content=None)), "no log-probabilities.*logprobs=True"),
        (broken(lambda r: r["choices"][0]["logprobs"].update(content=[])), "holds no tokens"),
        (broken(lambda r: r["choices"][0]["logprobs"].update(content=[-1.0])), "not a list of objects"),
        (broken(lambda r: r["choices"][0]["logprobs"].update(content=[{"token": "a"}])), "token 0 is None"),
        (broken(lambda r: r["choices"].clear()), "has 0 choices"),
        ({"error": {"message": "overloaded"}}, r"is an error message \('overloaded'\).* leave it out"),
        ({"object": "error", "message": "too long"}, r"is an error message \('too long'\)"),
        ({"choices": None, "error": {"message": "overloaded"}}, "the error 'overloaded'"),
        ('data: {"choices": []}\n\ndata: [DONE]\n', "the text of a stream .* the list of its chunks"),
        (b": PROCESSING\n\ndata: {}\n", "the text of a stream"),
        (broken(lambda r: r["choices"][0].update(delta=r["choices"][0].pop("message"))), "join the chunks"),
        ('{"choices": [{"mess', "not JSON .*was it cut off"),
        (b"\xff\xfe", "not JSON"),
        ("[" * 100_000, "not JSON"),
    ],
)
def test_what_is_no_scorable_completion_is_refused_with_the_remedy(response: object, message: str) -> None:
    with pytest.raises(InvalidResponse, match=message):
        parse_response(response)
