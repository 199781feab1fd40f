"""Every server's shape of an answer after thinking comes to the same answer; damaged ones to that, or to none."""

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from answer_formats import places

from metaprobe.records.errors import InvalidResponse
from metaprobe.records.openai_format import TOOL_CALL
from metaprobe.records.parse import parse_response
from metaprobe.records.response import ParsedResponse, cut_to_answer
from metaprobe.records.types import Segment

_FOLDER = Path(__file__).parent / "responses" / "reasoning"
SHAPES = {path.stem: json.loads(path.read_text("utf-8")) for path in sorted(_FOLDER.glob("*.json"))}
ANSWER = "17 + 28 = 45."
THINKING = "We need 17 + 28.\n17 + 20 = 37, 37 + 8 = 45."
BOTH, ALONE, PLAIN = 18, 0, None
"""How many of the thinking's tokens have a log-probability; None where there was no thinking."""
REFUSED = {"misaligned_chat": "are of other words", "sglang_generate_without_text": "name no tokens"}
CASES = 60
"""Damaged copies of each shape."""
JUNK = [None, True, 0, -1, "", "x", [], {}, [None], {"a": 1}, "</think>", "<think>", -0.5, ANSWER, float("nan")]
UNTOLD = ("message", "delta", "content", "reasoning", "reasoning_content", "tool_calls", "function_call")
"""A chunk or message without its texts tells nothing, and a tool call has no score."""

EXPECTED = {
    "deepseek_chat": (BOTH, 0),
    "llama_cpp_chat": (BOTH, 1),
    "llama_cpp_completion": (BOTH, 1),
    "ollama_chat": (BOTH, 0),
    "openai_response": (ALONE, 0),
    "openrouter_chat": (ALONE, 0),
    "sglang_chat": (BOTH, 1),
    "sglang_chat_stream": (BOTH, 1),
    "sglang_chat_stream_older": (ALONE, 0),
    "sglang_generate": (BOTH, 1),
    "tgi_chat_end_token": (PLAIN, 1),
    "vllm_chat": (BOTH, 1),
    "vllm_chat_end_token": (PLAIN, 1),
    "vllm_chat_stop_text": (PLAIN, 2),
    "vllm_chat_stream": (BOTH, 1),
    "vllm_chat_without_parser": (BOTH, 1),
    "vllm_request_output": (BOTH, 1),
    "vllm_request_output_end_token": (PLAIN, 1),
    "vllm_request_output_harmony": (BOTH, 1),
    "vllm_request_output_split_markers": (BOTH, 1),
    "vllm_response": (BOTH, 1),
}
"""For each shape: tokens of the thinking with a log-probability, and tokens left out at the end."""


def said(parsed: ParsedResponse, kind: str) -> str:
    return "".join("".join(parsed.tokens[s.start : s.end]) for s in parsed.segments if s.kind == kind)


def entries_of(value: Any) -> dict[float, str]:
    """Log-probability -> token, of every drawn token; no two are equal."""
    found: dict[float, str] = {}
    for container, key in places(value):
        if key == "top_logprobs":
            continue
        held = container[key]
        if isinstance(held, dict) and "logprob" in held and "token" in held:
            found[float(np.float32(held["logprob"]))] = held["token"]
        elif isinstance(held, dict) and held.get("rank") == 1:
            found[float(np.float32(held["logprob"]))] = held["decoded_token"]
        elif isinstance(held, list) and len(held) == 3 and isinstance(held[0], float):
            found[float(np.float32(held[0]))] = held[2]
    return found


def test_no_shape_goes_untested() -> None:
    assert EXPECTED.keys() | REFUSED.keys() | {"vllm_chat_cut_while_thinking"} == SHAPES.keys()


@pytest.mark.parametrize("name", EXPECTED)
@pytest.mark.parametrize("as_body", [False, True])
def test_every_server_comes_to_the_same_answer(name: str, as_body: bool) -> None:
    body = json.dumps(SHAPES[name]).encode()
    parsed = parse_response(body) if as_body else parse_response(SHAPES[name])
    thinking, left_out = EXPECTED[name]
    answer = cut_to_answer(parsed)
    assert "".join(answer.tokens).strip() == ANSWER
    assert parsed.left_out == left_out
    own = entries_of(SHAPES[name])
    assert [own[float(x)] for x in answer.logprobs] == list(answer.tokens)
    assert (None if answer.thinking is None else len(answer.thinking)) == thinking
    if thinking:
        assert said(parsed, "thinking") == THINKING
        assert f"not the {thinking} of the thinking before it" in answer.note
    if thinking == ALONE:
        assert "came without log-probabilities" in answer.note


@pytest.mark.parametrize(("name", "why"), REFUSED.items())
def test_where_the_boundary_cannot_be_known_it_is_not_guessed(name: str, why: str) -> None:
    with pytest.raises(InvalidResponse, match=why):
        parse_response(SHAPES[name])


def test_an_answer_that_never_began_has_no_score() -> None:
    parsed = parse_response(SHAPES["vllm_chat_cut_while_thinking"])
    assert [s.kind for s in parsed.segments] == ["thinking"]
    with pytest.raises(InvalidResponse, match=r"all 12 tokens are of the thinking.*give it more tokens"):
        cut_to_answer(parsed)


THOUGHT = [name for name, (thinking, _) in EXPECTED.items() if thinking]


def count_scored(name: str, cases: int) -> int:
    """How many of so many damaged copies have an answer to score, none of which holds a token of the thinking."""
    rng = np.random.default_rng(0)
    whole = SHAPES[name]
    answer = {float(x) for x in cut_to_answer(parse_response(whole)).logprobs}
    others = entries_of(whole).keys() - answer
    scored = 0
    for _ in range(cases):
        damaged = copy.deepcopy(whole)
        inside = list(places(damaged))
        container, key = inside[rng.integers(len(inside))]
        if key in UNTOLD:
            continue
        if rng.random() < 0.4:
            del container[key]
        else:
            container[key] = copy.deepcopy(JUNK[rng.integers(len(JUNK))])
        try:
            parsed = parse_response(damaged)
            answered = cut_to_answer(parsed)
        except InvalidResponse:
            continue
        if parsed.finish_reason != TOOL_CALL:  # which has no score
            scored += 1
            assert answered.note or not {float(x) for x in answered.logprobs} & others, (key, damaged)
    return scored


@pytest.mark.parametrize("name", THOUGHT)
def test_damage_never_brings_a_token_of_the_thinking_into_the_answer(name: str) -> None:
    assert count_scored(name, CASES) > CASES // 4


# ---- transformers, whose output has ids and no texts


def generated(*ids: int, **told: object) -> ParsedResponse:
    logits = [[[0.0] * 10] for _ in ids]
    return parse_response({"sequences": [[8, *ids]], "logits": logits, "eos_token_id": 9, **told})


def test_ids_of_the_markers_separate_what_transformers_generated() -> None:
    told = {"thinking_end_token_id": 2, "thinking_start_token_id": 1}
    assert generated(1, 5, 6, 2, 7, 7, 9, **told).segments == (Segment("thinking", 1, 3), Segment("answer", 4, 6))
    assert generated(5, 2, 7, thinking_end_token_id=[2, 3]).segments == (
        Segment("thinking", 0, 1),
        Segment("answer", 2, 3),
    )
    assert generated(1, 5, 6, **told).segments == (Segment("thinking", 1, 3),)
    assert generated(5, 6, 7, **told).segments == ()
    assert generated(1, 5, 2, 7).segments == ()
