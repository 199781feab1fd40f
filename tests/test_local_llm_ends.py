"""A local answer ends at its limit, at a stop text or when nobody listens any more, and says which."""

import asyncio
import contextlib
import dataclasses
from threading import Event

import numpy as np
import pytest
import random_model
from random_model import LAYERS, PROMPTS, TOLERANCE, answers, llm_of, request
from transformers import GenerationConfig

from metaprobe.llms.base import LLMError, Request, Token
from metaprobe.llms.hidden_capture import Capture
from metaprobe.llms.local import LocalLLM
from metaprobe.records.types import Call

network = random_model.network
tokenizer = random_model.tokenizer


def test_an_answer_that_ends_at_the_limit_is_not_called_cut(network, tokenizer) -> None:
    sampled = [request("a b", seed, max_tokens=40, temperature=1.0, seed=seed) for seed in range(40)]
    whole = next(
        call
        for call in answers(llm_of(network, tokenizer), sampled)
        if call.finish_reason == "stop" and len(call.token_ids) > 1
    )
    length = len(whole.token_ids)
    exact, short = (
        answers(llm_of(network, tokenizer), [request("a b", max_tokens=n, temperature=1.0, seed=whole.sampling.seed)])[
            0
        ]
        for n in (length, length - 1)
    )
    assert (exact.finish_reason, exact.token_ids.tolist()) == ("stop", whole.token_ids.tolist())
    assert (short.finish_reason, short.token_ids.tolist()) == ("length", whole.token_ids.tolist()[:-1])


def test_an_answer_ends_before_a_stop_text(network, tokenizer) -> None:
    """Against the same seeded answer without the stop text, cut by hand."""
    positions = ("prompt_last", "answer_first", "answer_last", "answer_mean")
    llm = llm_of(network, tokenizer, capture=Capture(LAYERS, positions), top_logprobs=2)
    requests = [request(p, i, max_tokens=30, temperature=1.0, seed=i, hidden=True) for i, p in enumerate(PROMPTS * 2)]
    free = answers(llm, requests)
    # Within the answer, or at its very beginning.
    stops = [
        " " * (i % 3 > 0) + " ".join(call.tokens[4 * (i % 3 > 0) :][:2]) if len(call.tokens) > 6 else "never"
        for i, call in enumerate(free)
    ]
    held = answers(
        llm,
        [
            dataclasses.replace(r, sampling=dataclasses.replace(r.sampling, stop=("never", stop)))
            for r, stop in zip(requests, stops, strict=True)
        ],
    )
    assert sum(stop in call.text for call, stop in zip(free, stops, strict=True)) > 3
    assert sum(not call.tokens for call in held) > 1
    for whole, call, stop in zip(free, held, stops, strict=True):
        expected = whole.text.split(stop)[0] if stop != "never" else whole.text
        assert call.text == expected
        assert call.finish_reason == ("stop" if stop in whole.text else whole.finish_reason)
        kept = len(call.tokens)
        assert call.tokens == whole.tokens[:kept]
        assert kept == 0 or tokenizer.decode(call.token_ids, skip_special_tokens=True) == call.text
        assert len(call.logprobs) == len(call.top_logprobs) == call.usage.completion_tokens == kept
        np.testing.assert_allclose(call.logprobs, whole.logprobs[:kept], atol=TOLERANCE)
        # The states are those of the kept tokens only, though the model went on for some.
        limited = dataclasses.replace(whole.sampling, max_tokens=max(kept, 1))
        again = answers(llm, [dataclasses.replace(requests[int(call.id[1:])], sampling=limited)])[0]
        if kept:
            np.testing.assert_allclose(call.hidden.values, again.hidden.values, rtol=1e-2, atol=1e-2)
        else:
            assert (call.hidden.values[:, 1:] == call.hidden.values[:, :1]).all()


def test_a_stop_text_that_the_limit_cuts_off_is_no_stop(network, tokenizer) -> None:
    whole = answers(llm_of(network, tokenizer), [request("a b c", max_tokens=8, temperature=1.0, seed=3)])[0]
    assert whole.finish_reason == "length"
    stop = " ".join(whole.tokens[6:8])

    def ended(limit: int) -> tuple[str, str]:
        asked = request("a b c", max_tokens=limit, temperature=1.0, seed=3, stop=(stop,))
        call = answers(llm_of(network, tokenizer), [asked])[0]
        return call.finish_reason, call.text.rstrip()

    before = " ".join(whole.tokens[:6])
    assert ended(8) == ended(7) == ("stop", before)  # as an end-of-sequence token just after the limit is a stop
    assert ended(6) == ("length", before)


def streamed(llm: LocalLLM, asked: Request) -> tuple[list[Token], Call]:
    async def listen() -> list[Token | Call]:
        return [event async for event in llm.stream(asked)]

    *tokens, call = asyncio.run(listen())
    assert isinstance(call, Call)
    return [token for token in tokens if isinstance(token, Token)], call


@pytest.mark.parametrize("stopping", [False, True])
def test_what_is_streamed_is_what_complete_gives(network, tokenizer, stopping: bool) -> None:
    llm = llm_of(network, tokenizer, top_logprobs=2)
    dropped = 0
    for i, prompt in enumerate(PROMPTS[:3]):
        asked = request(prompt, i, temperature=1.0, seed=i, max_tokens=20)
        if stopping:  # at a text of two tokens, the first of which must not be streamed before the second is known
            free = answers(llm, [asked])[0]
            asked = request(prompt, i, temperature=1.0, seed=i, max_tokens=20, stop=(" " + " ".join(free.tokens[4:6]),))
            dropped += asked.sampling.stop[0] in free.text
        tokens, call = streamed(llm, asked)
        plain = answers(llm, [asked])[0]
        assert (call.text, call.tokens, call.finish_reason) == (plain.text, plain.tokens, plain.finish_reason)
        assert tuple(token.text for token in tokens) == call.tokens
        assert [token.logprob for token in tokens] == call.logprobs.tolist() == plain.logprobs.tolist()
        assert np.array_equal(np.array([token.top_logprobs for token in tokens]).reshape(-1, 2), call.top_logprobs)
    assert (dropped > 0) is stopping


def test_who_stops_listening_stops_the_generation(network, tokenizer) -> None:
    passes, left = [0], Event()

    def wait(*_: object) -> None:
        passes[0] += 1
        if passes[0] == 4:
            assert left.wait(5)

    llm = llm_of(network, tokenizer)

    async def listen() -> None:
        async with contextlib.aclosing(llm.stream(request("a b c", max_tokens=40, temperature=1.0, seed=3))) as stream:
            await anext(stream)
        for _ in range(5):  # until the cancelled task has had its turn
            await asyncio.sleep(0)
        left.set()
        assert llm._queue._worker is not None
        await llm._queue._worker  # the batch comes to its end, though the loop goes on

    handle = network.register_forward_pre_hook(wait)
    try:
        asyncio.run(listen())
        llm._queue._thread.shutdown()
    finally:
        handle.remove()
    assert 1 <= passes[0] <= 6


def test_what_cannot_be_answered_is_refused_by_the_requests_name(network, tokenizer) -> None:
    llm = llm_of(network, tokenizer)
    for asked, reason in (
        (dataclasses.replace(request("a", 7), messages=()), "request r7: nothing to answer: there are no messages"),
        (request("a", 7, max_tokens=0), "request r7: max_tokens must be at least 1, got 0"),
        (request("a", 7, max_tokens=None), "request r7: max_tokens must be at least 1, got None"),
        (request("a", 7, stop=("",)), "request r7: a stop text must not be empty"),
    ):
        with pytest.raises(LLMError, match=reason):
            answers(llm, [asked])
    with pytest.raises(LLMError, match="context of tiny"):
        streamed(llm, request("a " * 70))


def test_the_context_is_filled_to_the_last_token(network, tokenizer) -> None:
    llm = llm_of(network, tokenizer)
    prompt = len(llm.encode(request("a").messages))
    answers(llm, [request("a", max_tokens=64 - prompt - 1)])
    with pytest.raises(LLMError, match=rf"prompt of {prompt} tokens and max_tokens \+ 1 = {64 - prompt + 1} exceed"):
        answers(llm, [request("a", max_tokens=64 - prompt)])


def test_a_batch_that_fails_says_so_to_each_and_the_next_one_is_answered(network, tokenizer) -> None:
    llm = llm_of(network, tokenizer)

    async def ask() -> list[Call | BaseException]:
        both = (llm.complete(request(text)) for text in ("a", "b"))
        return list(await asyncio.gather(*both, return_exceptions=True))

    def full(*_: object) -> None:
        raise RuntimeError("out of memory")

    handle = network.register_forward_pre_hook(full)
    try:
        failed = asyncio.run(ask())
    finally:
        handle.remove()
    assert [str(error) for error in failed] == ["tiny failed on a batch of 2: out of memory; try a smaller batch"] * 2
    assert all(isinstance(error, LLMError) for error in failed)
    assert all(isinstance(call, Call) for call in asyncio.run(ask()))


def test_every_token_that_ends_an_answer_is_known_by_settings_and_tokenizer(network, tokenizer) -> None:
    free = answers(llm_of(network, tokenizer), [request("a b c", temperature=1.0, seed=3)])[0]
    ends = int(free.token_ids[2])
    settings = network.generation_config
    try:
        for listed in (ends, [ends, 4]):
            network.generation_config = GenerationConfig(eos_token_id=listed)
            [call] = answers(llm_of(network, tokenizer), [request("a b c", temperature=1.0, seed=3)])
            assert (call.finish_reason, call.token_ids.tolist()) == ("stop", free.token_ids.tolist()[:2])
    finally:
        network.generation_config = settings
