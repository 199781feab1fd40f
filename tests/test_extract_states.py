"""A second reading finds the hidden states that the model had when it answered."""

import asyncio
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import read_again
import torch
from read_again import LAYERS, PROMPTS, answered, bare, close, read, stored

from metaprobe.llms.base import Request, Token
from metaprobe.llms.extract import extract
from metaprobe.llms.local import LocalLLM
from metaprobe.records.types import (
    LIVE_POSITIONS,
    LOOK_POSITIONS,
    LOOK_STATES,
    LOOKS,
    POSITIONS,
    Call,
    Message,
    Sampling,
)

llm = read_again.llm
calls = read_again.calls


def test_layer_i_is_transformers_hidden_state_i_and_the_last_one_stands_before_the_final_norm(llm, calls) -> None:
    net = llm.model
    for call, states in zip(calls, read(llm, calls, tokens=True), strict=True):
        ids = torch.tensor([[*call.prompt_token_ids, *call.token_ids]])
        with torch.inference_mode():
            expected = net(ids, output_hidden_states=True).hidden_states
            normed = net.model.norm(torch.tensor(states.tokens[:, -1].astype(np.float32)))
        start = len(call.prompt_token_ids)
        for layer in LAYERS[:-1]:
            close(states.tokens[:, layer], expected[layer][0, start:])
        close(normed, expected[-1][0, start:])
        assert np.abs(states.tokens[:, -1] - expected[-1][0, start:].numpy()).max() > 0.1  # it is not the normed one


def test_replay_finds_what_the_hooks_kept_while_the_model_answered(llm, calls) -> None:
    for call, states in zip(calls, read(llm, calls, positions=LIVE_POSITIONS), strict=True):
        assert (states.hidden.layers, states.hidden.positions) == (call.hidden.layers, call.hidden.positions)
        close(states.hidden.values, call.hidden.values)


def test_a_streamed_token_brings_the_states_that_a_gate_is_taught_with(llm) -> None:
    async def listen(prompt: str) -> list[Token | Call]:
        sampling = Sampling(max_tokens=24, temperature=1.0, seed=1)
        asked = Request(id="s", messages=(Message("user", prompt),), sampling=sampling, hidden=True)
        return [event async for event in llm.stream(asked)]

    for prompt in PROMPTS[:3]:
        *tokens, call = asyncio.run(listen(prompt))
        assert len(tokens) == len(call.token_ids) == 24
        [states] = read(llm, [bare(call)], positions=LOOK_POSITIONS)
        for place, look in enumerate(LOOKS):
            newest = [token.state for token in tokens[:look][-LOOK_STATES:]]
            close(states.hidden.values[:, place], np.mean(newest, axis=0))
    assert all(token.state is None for token in asyncio.run(unasked(llm)))


async def unasked(llm: LocalLLM) -> list[Token]:
    """Tokens of a request that asks for no states."""
    asked = Request(id="s", messages=(Message("user", "q"),), sampling=Sampling(max_tokens=4))
    return [event async for event in llm.stream(asked) if isinstance(event, Token)]


def test_canaries_of_a_model_that_answers_are_read_once_and_are_those_of_its_answers(llm, calls) -> None:
    found = llm.canaries()
    assert found is llm.canaries()
    assert found is calls[0].hidden.canaries
    assert LocalLLM(llm.model, llm.tokenizer, name="tiny", revision="1").canaries() is None, "it keeps no layers"


def test_the_mean_alone_is_read_as_beside_other_positions(llm, calls) -> None:
    both = read(llm, calls, positions=LIVE_POSITIONS)
    for alone, states in zip(read(llm, calls, positions=("answer_mean",)), both, strict=True):
        close(alone.hidden.values[:, 0], states.hidden.values[:, 3])


def test_before_exact_is_the_token_before_the_exact_answer(llm, calls) -> None:
    call = replace(calls[2], text="h i j h", token_ids=np.array([10, 11, 12, 10]), tokens=(), logprobs=None)
    options = {"positions": ("prompt_last", "answer_last", "before_exact"), "tokens": True}
    for exact, expected in (("j", 1), ("i", 0), ("h", 2), ("i j", 0)):
        [states] = read(llm, [call], exact, **options)
        np.testing.assert_array_equal(states.hidden.values[:, 2], states.tokens[expected])
    [states] = read(llm, [call], "h i", **options)
    np.testing.assert_array_equal(states.hidden.values[:, 2], states.hidden.values[:, 0])
    for nowhere in ("k", ""):
        [states] = read(llm, [call], nowhere, **options)
        np.testing.assert_array_equal(states.hidden.values[:, 2], states.hidden.values[:, 1])


def test_the_exact_answer_is_read_at_its_last_token_and_as_the_mean_of_its_tokens(llm, calls) -> None:
    call = replace(calls[2], text="h i j h", token_ids=np.array([10, 11, 12, 10]), tokens=(), logprobs=None)
    options = {"positions": ("exact_last", "exact_mean"), "tokens": True}
    for exact, first, last in (("j", 2, 2), ("i j", 1, 2), ("h", 3, 3), ("h i", 0, 1), ("k", 0, 3), ("", 0, 3)):
        [states] = read(llm, [call], exact, **options)
        np.testing.assert_array_equal(states.hidden.values[:, 0], states.tokens[last])
        close(states.hidden.values[:, 1], states.tokens[first : last + 1].astype(np.float32).mean(axis=0))


def test_an_empty_answer_has_the_state_of_the_prompt_everywhere(llm, calls) -> None:
    empty = bare(calls[0], text="", tokens=(), token_ids=np.array([], np.int32), logprobs=np.array([], np.float32))
    alone, other = read(llm, [empty, calls[3]], "x", positions=POSITIONS, tokens=True)
    for position in range(1, len(POSITIONS)):
        np.testing.assert_array_equal(alone.hidden.values[:, position], alone.hidden.values[:, 0])
    assert (alone.tokens.shape, other.tokens.shape) == ((0, 5, 32), (len(calls[3].token_ids), 5, 32))


def test_states_do_not_depend_on_who_else_is_in_the_batch(llm, calls) -> None:
    together = read(llm, calls, positions=POSITIONS, tokens=True)
    for one, other in zip(read(llm, calls, positions=POSITIONS, tokens=True, batch_size=1), together, strict=True):
        close(one.hidden.values, other.hidden.values)
        close(one.tokens, other.tokens)


def test_nothing_above_the_deepest_layer_is_computed(llm, calls) -> None:
    def never(*_: object) -> None:
        raise AssertionError("not wanted")

    handles = [module.register_forward_hook(never) for module in (llm.model.model.layers[2], llm.model.lm_head)]
    try:
        shallow = read(llm, calls, layers="0,2")
    finally:
        for handle in handles:
            handle.remove()
    everything = read(llm, calls)
    for few, all_of_them in zip(shallow, everything, strict=True):
        np.testing.assert_array_equal(few.hidden.values, all_of_them.hidden.values[[0, 2]])


@pytest.mark.slow
def test_replay_agrees_with_generation_of_a_real_model(tmp_path: Path) -> None:
    """SmolLM2-135M in bfloat16, whose kernels round otherwise for other batches: by angle, and by log-probability."""
    llm = LocalLLM.load(layers="0,8,16,30")
    calls = answered(llm, ["What is the capital of France?", "Count to ten.", "Say yes.", "Why is the sky blue?"])
    store = stored(tmp_path, [bare(call) for call in calls])
    report = extract(store, llm, layers="0,8,16,30")
    assert report.disagreement < 0.1
    found = store.activations([call.id for call in calls]).values.astype(np.float32)
    kept = np.stack([call.hidden.values for call in calls]).astype(np.float32)
    cosine = (found * kept).sum(-1) / np.linalg.norm(found, axis=-1) / np.linalg.norm(kept, axis=-1)
    np.testing.assert_array_equal(found[:, 0, :2], kept[:, 0, :2])  # embeddings are looked up
    assert cosine.min() > 0.99
