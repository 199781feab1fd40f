"""Neither a shared beginning, nor the batch, nor another model on the device changes an answer."""

import asyncio
import contextlib
from threading import Barrier, BrokenBarrierError

import numpy as np
import pytest
import random_model
import torch
from hypothesis import given
from hypothesis import strategies as st
from random_model import LAYERS, PROMPTS, TOLERANCE, answers, llm_of, request, teacher_forced

from metaprobe.llms.forward import pad_rows, prefixes
from metaprobe.llms.generation import generate
from metaprobe.llms.hidden_capture import Capture

network = random_model.network
tokenizer = random_model.tokenizer


def test_long_beginnings_of_several_groups_are_read_once_each_and_change_nothing(network, tokenizer) -> None:
    texts = ("a b c d e f g h i j k l m n o p q r s t u v ", "v u t s r q p o n m l k j i h g f e d c ")
    asked = [texts[i % 2] + p for i, p in enumerate([*PROMPTS[:4], "a b", "c"])] + ["e f g h"]
    requests = [request(p, i, hidden=True) for i, p in enumerate(asked)]
    together = answers(llm_of(network, tokenizer, capture=Capture(LAYERS)), requests)
    found = prefixes([call.prompt_token_ids.tolist() for call in together])
    assert len(found.first) == 3
    assert max(found.lengths) >= 16
    for call, wanted in zip(together, requests, strict=True):
        alone = answers(llm_of(network, tokenizer, capture=Capture(LAYERS)), [wanted])[0]
        assert call.token_ids.tolist() == alone.token_ids.tolist()
        np.testing.assert_allclose(call.logprobs, teacher_forced(network, call)[0], atol=TOLERANCE)
        np.testing.assert_allclose(call.hidden.values, alone.hidden.values, rtol=1e-2, atol=1e-2)


@given(st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=60), min_size=1, max_size=8))
def test_rows_of_a_group_begin_alike_and_no_more_is_read_than_without(prompts: list[list[int]]) -> None:
    found = prefixes(prompts)
    for row, (prompt, length) in enumerate(zip(prompts, found.lengths, strict=True)):
        first = found.first[found.group[row]]
        assert 0 <= length < len(prompt)
        assert prompt[:length] == prompts[first][:length]
    ids, mask = pad_rows(prompts, 9, found, torch.device("cpu"))
    assert [row[keep == 1].tolist() for row, keep in zip(ids, mask, strict=True)] == prompts
    cost = len(found.first) * max(found.lengths) + len(prompts) * (ids.shape[1] - max(found.lengths))
    assert cost <= len(prompts) * max(map(len, prompts))


def test_a_seeded_answer_does_not_depend_on_its_batch(network, tokenizer) -> None:
    wanted = request("a b c", temperature=1.0, seed=7)
    alone = answers(llm_of(network, tokenizer), [wanted])[0]
    others = [request(p, i + 1, temperature=1.0, seed=i) for i, p in enumerate(PROMPTS)]
    among = answers(llm_of(network, tokenizer), [*others, wanted])[-1]
    assert among.token_ids.tolist() == alone.token_ids.tolist()
    elsewhere = answers(llm_of(network, tokenizer), [request("a b c", temperature=1.0, seed=8)])[0]
    assert elsewhere.token_ids.tolist() != alone.token_ids.tolist()  # the seed is what decides


def test_rows_that_end_leave_the_batch_and_change_nothing(network, tokenizer) -> None:
    sizes: list[int] = []
    positions = ("prompt_last", "answer_first", "answer_last", "answer_mean")

    def read(_: object, __: object, kwargs: dict[str, torch.Tensor]) -> None:
        sizes.append(len(kwargs["input_ids"]))

    requests = [
        request(p, i, max_tokens=limit, temperature=1.0, seed=i, hidden=i % 2 == 0)
        for i, (p, limit) in enumerate(zip(PROMPTS * 2, [17, 18, 20, 24, 30, 31, 32, 40, 41, 44], strict=True))
    ]
    handle = network.register_forward_pre_hook(read, with_kwargs=True)
    try:
        together = answers(llm_of(network, tokenizer, capture=Capture(LAYERS, positions), top_logprobs=2), requests)
    finally:
        handle.remove()
    assert sizes[0] == 10
    assert sizes[-1] < 5
    assert sizes == sorted(sizes, reverse=True)
    alone = answers(
        llm_of(network, tokenizer, capture=Capture(LAYERS, positions), top_logprobs=2, batch_size=1), requests
    )
    for one, other in zip(together, alone, strict=True):
        assert (one.text, one.finish_reason, one.token_ids.tolist()) == (
            other.text,
            other.finish_reason,
            other.token_ids.tolist(),
        )
        np.testing.assert_allclose(one.logprobs, other.logprobs, atol=TOLERANCE)
        np.testing.assert_allclose(one.top_logprobs, other.top_logprobs, atol=TOLERANCE)
        assert (one.hidden is None) == (other.hidden is None)
        if one.hidden is not None:
            np.testing.assert_allclose(one.hidden.values, other.hidden.values, rtol=1e-2, atol=1e-2)


def test_two_models_on_one_device_compute_in_turn(network, tokenizer) -> None:
    inside, most = [0], [0]
    meeting = Barrier(2)

    def enter(*_: object) -> None:
        inside[0] += 1
        most[0] = max(most[0], inside[0])
        with contextlib.suppress(BrokenBarrierError):  # nobody comes, unless two compute at once
            meeting.wait(0.05)

    def leave(*_: object) -> None:
        inside[0] -= 1

    async def ask() -> None:
        await asyncio.gather(*(llm_of(network, tokenizer).complete(request("a", max_tokens=1)) for _ in range(2)))

    handles = [network.register_forward_pre_hook(enter), network.register_forward_hook(leave)]
    try:
        asyncio.run(ask())
    finally:
        for handle in handles:
            handle.remove()
    assert most == [1]


def test_prompts_about_one_text_are_answered_together_before_longer_strangers(
    network, tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches: list[list[list[int]]] = []

    def seen(model, recorder, prompts, **options):
        batches.append(prompts)
        return generate(model, recorder, prompts, **options)

    monkeypatch.setattr("metaprobe.llms.local.generate", seen)
    text = "a b c d e f g h i j k l m n o p q r "
    prompts = [text + "x", "z " * 24, text + "y", "v " * 26]
    answers(llm_of(network, tokenizer, batch_size=2), [request(p, i, max_tokens=1) for i, p in enumerate(prompts)])
    assert [len(batch) for batch in batches] == [2, 2]
    shared = [batch[0][:10] == batch[1][:10] for batch in batches]
    assert shared == [True, False]
    assert all(len(a) <= len(b) for a, b in batches)
