"""Every format that a response may come in gives the same answer."""

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from answer_formats import (
    ANSWER,
    CORPUS,
    FORMATS,
    REFUSED,
    Answer,
    chat,
    chat_stream,
    recorded_answers,
    response,
    response_stream,
    vllm,
)
from hypothesis import given
from hypothesis import strategies as st

from metaprobe import QualityPredictor
from metaprobe.records.errors import InvalidResponse
from metaprobe.records.parse import parse_response
from metaprobe.records.types import Usage

MODES = {"llama_cpp": "raw", "vllm": "raw", "generated": "raw", "sglang": "processed"}


MODES |= {"llama_cpp_after_sampling": "processed"}


TEMPERATURES = dict.fromkeys(["response", "response_stream", "llama_cpp", "llama_cpp_after_sampling"], 0.7)


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_every_format_of_an_answer_gives_the_same(name: str) -> None:
    made = FORMATS[name](ANSWER)
    for given_as in (made, json.dumps(made), json.dumps(made).encode()):
        parsed = parse_response(given_as)
        np.testing.assert_allclose(parsed.logprobs, ANSWER.logprobs, atol=1e-6)
        assert parsed.logprobs_mode == MODES.get(name, "unknown")
        assert parsed.temperature == TEMPERATURES.get(name)
        if name in ("plain", "generated"):
            assert (parsed.text, parsed.tokens, parsed.top_logprobs) == ("", (), None)
            continue
        assert parsed.top_logprobs is not None
        np.testing.assert_allclose(parsed.top_logprobs, ANSWER.top, atol=1e-6)
        assert (parsed.text, parsed.tokens, parsed.finish_reason) == ("Paris.", ("Par", "is", "."), "stop")
        assert parsed.usage == Usage(5, 3)
        assert parsed.model == ("" if name in ("vllm", "sglang") else "m")


def test_recorded_answers_come_back_from_every_format(recorded_runs: Path) -> None:
    for answer in recorded_answers(recorded_runs)[::45]:
        for name, make in FORMATS.items():
            got = parse_response(make(answer)).logprobs
            np.testing.assert_allclose(got, answer.logprobs, atol=2e-5, err_msg=name)


@pytest.mark.parametrize(
    ("name", "tokens", "mode", "temperature", "finish", "text"),
    [
        ("openai_chat", 4, "unknown", None, "length", "Hello! How can"),
        ("openai_chat_refusal", 3, "unknown", None, "refusal", ""),
        ("openai_chat_stream", 3, "unknown", None, "stop", "Hello! How"),
        ("openai_response", 3, "unknown", 1.0, "tool_calls", "Hello! How"),
        ("openai_response_cut", 3, "unknown", 1.0, "length", "Hello! How"),
        ("openai_response_stream", 3, "unknown", 1.0, "stop", "Hello! How"),
        ("vllm_completion", 3, "unknown", None, "length", " a city in"),
        ("vllm_completion_echo", 2, "unknown", None, "length", " a city"),
        ("vllm_request_output", 2, "raw", None, "length", " a city"),
        ("sglang_generate", 2, "processed", None, "length", " Paris."),
        ("llama_cpp_completion", 2, "raw", 0.800000011920929, "length", " Paris."),
        ("llama_cpp_completion_older", 2, "processed", 0.800000011920929, "stop", " Paris."),
        ("llama_cpp_chat", 7, "unknown", None, "stop", "The capital of France is Paris."),
        ("llama_cpp_chat_stream", 7, "unknown", None, "stop", "The capital of France is Paris."),
        ("llama_cpp_text_completion", 4, "unknown", None, "length", " Paris.\n\n"),
        ("llama_cpp_python_chat", 4, "unknown", None, "length", "When a user gives"),
        ("llama_cpp_python_chat_stream", 4, "unknown", None, "length", "Hail, F"),
        ("llama_cpp_python_completion", 5, "unknown", None, "length", " the capital of Lond"),
        ("llama_cpp_python_completion_stream", 4, "unknown", None, "length", " Paris.\n\n"),
        ("transformers_generate", 2, "raw", None, "", ""),
    ],
)
def test_the_corpus_says_what_it_should(
    name: str, tokens: int, mode: str, temperature: float | None, finish: str, text: str
) -> None:
    parsed = parse_response(CORPUS[name])
    assert (len(parsed.logprobs), parsed.logprobs_mode, parsed.temperature) == (tokens, mode, temperature)
    assert (parsed.finish_reason, parsed.text) == (finish, text)


def test_no_answer_of_the_corpus_goes_untested() -> None:
    marks = test_the_corpus_says_what_it_should.pytestmark  # type: ignore[attr-defined]
    assert {row[0] for mark in marks for row in mark.args[1]} == CORPUS.keys() - REFUSED
    for name in REFUSED:
        with pytest.raises(InvalidResponse, match=r"echoed, but where it ends is not known.*without echo"):
            parse_response(CORPUS[name])


# ---- what callers state


def test_what_the_caller_states_counts_for_more_than_what_is_assumed() -> None:
    assert parse_response(vllm(ANSWER), logprobs_mode="processed").logprobs_mode == "processed"
    assert parse_response(response(ANSWER), temperature=0).temperature == 0.0
    parsed = parse_response([-1.0], logprobs_mode="raw", temperature=0.3)
    assert (parsed.logprobs_mode, parsed.temperature) == ("raw", 0.3)
    assert parse_response(parsed) is parsed
    with pytest.raises(ValueError, match="logprobs_mode is 'logits'; expected one of raw, processed, unknown"):
        parse_response([-1.0], logprobs_mode="logits")  # type: ignore[arg-type]
    for wrong in (-1, float("nan"), True, "1"):
        with pytest.raises(ValueError, match="expected a number of at least 0"):
            parse_response([-1.0], temperature=wrong)  # type: ignore[arg-type]


# ---- the client's own objects


def test_the_clients_objects_are_read_as_their_dictionaries() -> None:
    chats, responses = pytest.importorskip("openai.types.chat"), pytest.importorskip("openai.types.responses")
    adapter = pytest.importorskip("pydantic").TypeAdapter(responses.ResponseStreamEvent)
    completion = pytest.importorskip("openai.types").Completion
    objects = {
        "chat": chats.ChatCompletion.model_validate(chat(ANSWER)),
        "response": responses.Response.model_validate(response(ANSWER)),
        "completion": completion.model_validate(FORMATS["completion"](ANSWER)),
        "completion_stream": [completion.construct(**c) for c in FORMATS["completion_stream"](ANSWER)],
        "chat_stream": (chats.ChatCompletionChunk.model_validate(c) for c in chat_stream(ANSWER)),
        "response_stream": [adapter.validate_python(event) for event in response_stream(ANSWER)],
    }
    for name, value in objects.items():
        parsed, expected = parse_response(value), parse_response(FORMATS[name](ANSWER))
        np.testing.assert_array_equal(parsed.logprobs, expected.logprobs)
        np.testing.assert_array_equal(parsed.top_logprobs, expected.top_logprobs)
        names = ("text", "tokens", "finish_reason", "model", "usage", "logprobs_mode", "temperature")
        assert [getattr(parsed, n) for n in names] == [getattr(expected, n) for n in names], name


# ---- streams


def test_a_stream_that_was_cut_gives_what_came() -> None:
    for make in (chat_stream, response_stream):
        parsed = parse_response(make(ANSWER)[:3])
        np.testing.assert_array_equal(parsed.logprobs, ANSWER.logprobs[: len(parsed.logprobs)])
        assert 1 <= len(parsed.logprobs) < 3
        assert parsed.finish_reason == ""
        assert "cut" in QualityPredictor.load(on_mismatch="ignore").predict(parsed).reason
        assert "cut" not in QualityPredictor.load(on_mismatch="ignore").predict(make(ANSWER)).reason


@given(st.permutations(range(6)))
def test_the_order_of_numbered_events_does_not_matter(order: list[int]) -> None:
    events = response_stream(ANSWER)
    parsed = parse_response([events[number] for number in order])
    assert (parsed.text, parsed.logprobs.tolist()) == ("Paris.", ANSWER.logprobs)


def test_one_answer_of_several_that_stream_at_once_is_followed() -> None:
    mixed = []
    for number, answer in enumerate([ANSWER, Answer(["No"], [-2.0], [[-0.5]])]):
        for chunk in chat_stream(answer):
            for choice in chunk["choices"]:
                choice["index"] = number
            mixed.append(chunk)
    assert parse_response(mixed[::2] + mixed[1::2], choice=1).logprobs.tolist() == [-2.0]
    assert parse_response(mixed, choice=0).logprobs.tolist() == ANSWER.logprobs
    assert [bool(parse_response(mixed, choice=number).note) for number in (0, 1)] == [True, False]
    with pytest.raises(InvalidResponse, match="no log-probabilities"):
        parse_response(mixed, choice=2)


# ---- Responses


def test_all_messages_of_a_response_count_and_refusals_do_not() -> None:
    whole = response(ANSWER)
    message = whole["output"][1]
    message["content"].append({"type": "refusal", "refusal": "No more."})
    whole["output"] += [{"type": "function_call", "name": "f", "arguments": "{}"}, copy.deepcopy(message)]
    parsed = parse_response(whole)
    assert (parsed.text, parsed.logprobs.tolist()) == ("Paris.Paris.", ANSWER.logprobs * 2)
    assert parsed.finish_reason == "tool_calls"
    whole["output"][-2]["type"] = "web_search_call"  # a tool that the server uses by itself
    assert parse_response(whole).finish_reason == "stop"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda r: r["output"].pop(1), r"came with reasoning\); expected a message"),
        (
            lambda r: r["output"][1].update(content=[{"type": "refusal", "refusal": "No."}]),
            r"with reasoning, refusal\)",
        ),
        (lambda r: r["output"][1]["content"][0].update(logprobs=[]), r"text without .* include=\["),
        (lambda r: r["output"][1]["content"][0].pop("logprobs"), r"text without .* include=\["),
        (lambda r: r.update(output=[], error={"code": "server_error", "message": "m"}), "the error 'server_error: m'"),
    ],
)
def test_a_response_without_scorable_text_says_what_it_holds(change: Any, message: str) -> None:
    whole = response(ANSWER)
    change(whole)
    with pytest.raises(InvalidResponse, match=message):
        parse_response(whole)
