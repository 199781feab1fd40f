"""A local answer ends at its limit, at a stop text or when nobody listens any more, and says which."""

import asyncio
import contextlib
import dataclasses
from threading import Event

import numpy as np
import pytest
import random_model
import torch
from random_model import LAYERS, PROMPTS, TOLERANCE, answers, llm_of, request

from metaprobe.llms.base import LLMError, Request, Token
from metaprobe.llms.hidden import Capture
from metaprobe.llms.local import LocalLLM
from metaprobe.llms.recorder import BatchRecorder, BatchRow, Cancelled
from metaprobe.records.types import Call, Sampling

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


def test_a_prompt_beyond_the_context_fails_alone_and_says_so(network, tokenizer) -> None:
    llm = llm_of(network, tokenizer)

    async def ask() -> list[Call | BaseException]:
        too_long = request("a " * 70, 1)
        return list(await asyncio.gather(llm.complete(request("a")), llm.complete(too_long), return_exceptions=True))

    good, bad = asyncio.run(ask())
    assert isinstance(good, Call)
    assert isinstance(bad, LLMError)
    assert "context of tiny (64 tokens)" in str(bad)


def test_a_cancelled_batch_stops_at_its_next_token(network) -> None:
    cancel = Event()
    recorder = BatchRecorder([BatchRow(Sampling())], eos_ids=[1], device=torch.device("cpu"), cancel=cancel)
    recorder(torch.zeros(1, 1), torch.zeros(1, 5))
    cancel.set()
    with pytest.raises(Cancelled):
        recorder(torch.zeros(1, 1), torch.zeros(1, 5))


def test_an_answer_ends_before_a_stop_text(network, tokenizer) -> None:
    """Against the same seeded answer without the stop text, cut by hand."""
    positions = ("prompt_last", "answer_first", "answer_last", "answer_mean")
    llm = llm_of(network, tokenizer, capture=Capture(LAYERS, positions), top_logprobs=2)
    requests = [request(p, i, max_tokens=30, temperature=1.0, seed=i, hidden=True) for i, p in enumerate(PROMPTS * 3)]
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
    assert sum(stop in call.text for call, stop in zip(free, stops, strict=True)) > 5
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


def test_an_empty_stop_text_is_refused(network, tokenizer) -> None:
    with pytest.raises(LLMError, match="must not be empty"):
        answers(llm_of(network, tokenizer), [request("a", stop=("",))])


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
    for i, prompt in enumerate(PROMPTS):
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
    assert (dropped > 1) is stopping


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


def test_a_stream_that_fails_says_why(network, tokenizer) -> None:
    with pytest.raises(LLMError, match="context of tiny"):
        streamed(llm_of(network, tokenizer), request("a " * 70))
