"""A local model: its figures are those that it computed, also in batches, and answers end where they should."""

import asyncio
import contextlib
import copy
import dataclasses
from threading import Barrier, BrokenBarrierError, Event

import numpy as np
import pytest
import random_model
import torch
from hypothesis import given
from hypothesis import strategies as st
from random_model import LAYERS, PROMPTS, TOLERANCE, WORDS, answers, llm_of, request, teacher_forced
from transformers import GenerationConfig

from metaprobe.llms.base import LLMError, Request, Token
from metaprobe.llms.forward import pad_rows, prefixes
from metaprobe.llms.generation import generate
from metaprobe.llms.hidden_capture import Capture, chosen_layers, decoder_blocks, layer_hooks
from metaprobe.llms.local import LocalLLM
from metaprobe.llms.readings import read_answers
from metaprobe.records.types import Call

network = random_model.network


tokenizer = random_model.tokenizer


def test_logprobs_and_tokens_agree_with_a_plain_forward_pass(network, tokenizer) -> None:
    llm = llm_of(network, tokenizer, top_logprobs=3)
    for call in answers(llm, [request(p, i) for i, p in enumerate(PROMPTS)]):
        expected, _ = teacher_forced(network, call)
        assert call.logprobs is not None
        assert call.top_logprobs is not None
        np.testing.assert_allclose(call.logprobs, expected, atol=TOLERANCE)
        # Greedy: the drawn token is the likeliest one.
        np.testing.assert_allclose(call.top_logprobs[:, 0], call.logprobs, atol=1e-6)
        assert (np.diff(call.top_logprobs, axis=1) <= 0).all()
        assert len(call.tokens) == len(call.logprobs) == call.usage.completion_tokens


def test_greedy_answers_are_those_of_transformers_own_generate(network, tokenizer) -> None:
    llm = llm_of(network, tokenizer)
    for call in answers(llm, [request(p, i) for i, p in enumerate(PROMPTS)]):
        prompt = torch.tensor([call.prompt_token_ids.tolist()])
        plain = network.generate(
            prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=12, do_sample=False, pad_token_id=0
        )
        expected = [int(t) for t in plain[0, prompt.shape[1] :]]
        expected = expected[: expected.index(1)] if 1 in expected else expected
        assert call.token_ids.tolist() == expected


def test_recorded_logprobs_are_raw_whatever_the_temperature(network, tokenizer) -> None:
    call = answers(llm_of(network, tokenizer), [request("a b c", temperature=3.0, seed=5)])[0]
    expected, _ = teacher_forced(network, call)
    np.testing.assert_allclose(call.logprobs, expected, atol=TOLERANCE)
    assert call.logprobs_mode == "raw"


def test_sampling_follows_the_models_distribution(network, tokenizer) -> None:
    n = 600
    llm = llm_of(network, tokenizer, batch_size=200)
    calls = answers(llm, [request("k", i, temperature=1.0, seed=i, max_tokens=1) for i in range(n)])
    prompt = torch.tensor([calls[0].prompt_token_ids.tolist()])
    with torch.inference_mode():
        p = torch.softmax(network(prompt).logits[0, -1].float(), -1).numpy()
    drawn = np.array([call.token_ids[0] if len(call.token_ids) else 1 for call in calls])
    observed = np.bincount(drawn, minlength=len(p)) / n
    # Five standard errors of a multinomial share, for each token.
    assert (np.abs(observed - p) <= 5 * np.sqrt(p * (1 - p) / n) + 1e-9).all()
    assert p.max() < 0.95  # there was something to draw


def test_hidden_states_agree_with_transformers_own(network, tokenizer) -> None:
    positions = ("prompt_last", "answer_first", "answer_last", "answer_mean")
    llm = llm_of(network, tokenizer, capture=Capture(LAYERS, positions))
    for call in answers(llm, [request(p, i, hidden=True) for i, p in enumerate(PROMPTS)]):
        assert call.hidden is not None
        _, states = teacher_forced(network, call)
        P = len(call.prompt_token_ids)
        with torch.inference_mode():
            normed = network.model.norm(torch.tensor(call.hidden.values[-1].astype(np.float32))).numpy()
        for index, layer in enumerate(LAYERS):
            answer = states[layer][P:]
            expected = np.stack([states[layer][P - 1], answer[0], answer[-1], answer.mean(axis=0)])
            got = call.hidden.values[index].astype(np.float32)
            if layer == 3:  # transformers gives the last layer after the final norm, we give the block's own output
                np.testing.assert_allclose(normed[:3], expected[:3], atol=0.02)
            else:
                np.testing.assert_allclose(got, expected, rtol=1e-3, atol=1e-3)  # float16: 11 bits


@pytest.mark.parametrize("choice", ["", "4", "every:0", "-1", "some", "1;2"])
def test_layers_that_do_not_exist_are_refused_with_the_range(network, choice: str) -> None:
    with pytest.raises(LLMError, match="0 to 3"):
        chosen_layers(choice, network.config)


def test_an_own_answer_read_again_has_the_numbers_of_its_generation(network, tokenizer) -> None:
    llm = llm_of(network, tokenizer, top_logprobs=3)
    asked = [
        request("a b c d e f g h i j k l m n o p " * (i % 2) + p, i) for i, p in enumerate([*PROMPTS, *WORDS[3:20]])
    ]
    given = answers(llm, asked)
    whole = [call for call in given if not {"<unk>", "<pad>"} & set(call.tokens)]  # those that their text says whole
    for call, generated in zip((one.call for one in read_answers(llm, whole, top_logprobs=3)), whole, strict=True):
        assert call.tokens == generated.tokens
        assert call.text == generated.text != ""
        assert call.prompt_token_ids.tolist() == generated.prompt_token_ids.tolist()
        np.testing.assert_allclose(call.logprobs, generated.logprobs, atol=TOLERANCE)
        np.testing.assert_allclose(call.top_logprobs, generated.top_logprobs, atol=TOLERANCE)


def test_layers_that_cannot_be_kept_are_refused(network) -> None:
    for layers in ((), (2, 1), (1, 1)):
        with pytest.raises(LLMError, match="layers must be ascending and distinct"):
            Capture(layers)
    with (
        pytest.raises(LLMError, match="layer 4 asked for; this model has layers 0 to 3"),
        layer_hooks(network, (0, 4), lambda *_: None),
    ):
        pass
    with layer_hooks(network, (3,), lambda *_: None):
        pass
    stranger = copy.deepcopy(network)
    stranger.config.num_hidden_layers = 5
    with pytest.raises(LLMError, match="no list of 5 decoder blocks found in LlamaForCausalLM"):
        decoder_blocks(stranger)


# --- Neither a shared beginning, nor the batch, nor another model on the device changes an answer


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
    llm = llm_of(network, tokenizer, capture=Capture(LAYERS, positions), top_logprobs=2)
    answers(llm, requests[:1])  # with the first answer whose states are kept the canaries are read
    handle = network.register_forward_pre_hook(read, with_kwargs=True)
    try:
        together = answers(llm, requests)
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


# --- A local answer ends at its limit, at a stop text or when nobody listens any more, and says which


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
