"""Hidden states of a model that thinks: the answer's positions are the answer's, live, read again, and in a probe."""

import asyncio
from pathlib import Path

import numpy as np
import pytest
from random_model import word_tokenizer
from read_again import LAYERS, close, network

from metaprobe.llms.base import Request
from metaprobe.llms.hidden_capture import Capture
from metaprobe.llms.local import LocalLLM
from metaprobe.llms.readings import StateReplay
from metaprobe.records.segments import marked, spoken_text
from metaprobe.records.store import RunStore
from metaprobe.records.types import LIVE_POSITIONS, Call, Message, Sampling, Segment

OPENED, CLOSED = 0, 4
"""Which tokens of the answer are the markers."""


@pytest.fixture(scope="module")
def thought() -> tuple[LocalLLM, Call]:
    """A model, two tokens of which read as markers, and its answer with the states of generation."""
    llm = LocalLLM(network(), word_tokenizer(), name="tiny", revision="1", capture=Capture(LAYERS, LIVE_POSITIONS))
    for seed in range(200):
        call = ask(llm, seed)
        ids = call.token_ids.tolist() if call.token_ids is not None else []
        if len(ids) == 10 and ids.count(ids[OPENED]) == ids.count(ids[CLOSED]) == 1:
            name_markers(llm, {ids[OPENED]: "<think>", ids[CLOSED]: "</think>"})
            return llm, ask(llm, seed)
    raise AssertionError("no seed gives such an answer")


def name_markers(llm: LocalLLM, names: dict[int, str]) -> None:
    plain = llm.piece
    llm.piece = lambda token: names.get(token) or f"{plain(token)} "  # type: ignore[assignment]


def ask(llm: LocalLLM, seed: int) -> Call:
    sampling = Sampling(temperature=1.5, seed=seed, max_tokens=10)
    return asyncio.run(
        llm.complete(Request(id="c", messages=(Message("user", "a b"),), sampling=sampling, hidden=True))
    )


def states(llm: LocalLLM, call: Call) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """(position -> (layers, width), every token's (T, layers, width)), read again."""
    replay = StateReplay(llm, positions=LIVE_POSITIONS, tokens=True)
    [found] = replay.read([replay.reading(call, "")])
    assert found.tokens is not None
    at = dict(zip(found.hidden.positions, found.hidden.values.transpose(1, 0, 2), strict=True))
    return at, found.tokens


def test_thinking_and_answer_have_positions_of_their_own_live_and_read_again(thought: tuple[LocalLLM, Call]) -> None:
    llm, call = thought
    assert call.segments == (Segment("thinking", 1, 4), Segment("answer", 5, 10))
    again, tokens = states(llm, call)
    expected = {
        "answer_first": tokens[5],
        "answer_last": tokens[9],
        "answer_mean": tokens[5:].astype(np.float32).mean(axis=0),
        "thinking_first": tokens[1],
        "thinking_last": tokens[3],
        "thinking_mean": tokens[1:4].astype(np.float32).mean(axis=0),
    }
    assert call.hidden is not None
    for position, value in expected.items():
        close(again[position], value)
        close(call.hidden.values[:, call.hidden.positions.index(position)], value)


# ---- what a real model said when it was asked to think first


def recorded() -> list[Call]:
    folder = Path(__file__).parent.parent / "recorded" / "qwen-coder-0.5b-thinking"
    return [run.calls[0] for run in RunStore(folder)]


def test_a_models_own_tokens_have_the_segments_that_their_text_has() -> None:
    calls = recorded()
    for call in calls:
        assert marked(call.tokens) == call.segments
        for segment in call.segments:
            words = "".join(call.tokens[segment.start : segment.end])
            assert words.strip() in call.text
            assert "think" not in words
        spoken = "".join("".join(call.tokens[s.start : s.end]) for s in call.segments if s.kind == "answer")
        assert spoken.strip() == spoken_text(call.text).strip()
    answered = [call for call in calls if call.segments[-1].kind == "answer"]
    assert (len(calls), len(answered)) == (36, 33)
    assert {call.finish_reason for call in calls if call not in answered} == {"length"}
