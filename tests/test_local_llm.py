"""A local model, tested with a tiny random one: what is recorded is what the model really computed."""

import asyncio
import contextlib
import dataclasses
from threading import Barrier, BrokenBarrierError, Event

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from metaprobe.llms import grammar
from metaprobe.llms.base import Capabilities, LLMError, Request, Token
from metaprobe.llms.hidden import Capture, chosen_layers
from metaprobe.llms.local import PLAIN_TEMPLATE, LocalLLM
from metaprobe.llms.prefix import companions, padded, prefixes, shared_length
from metaprobe.llms.recorder import BatchRecorder, Cancelled, Row, nucleus
from metaprobe.llms.scoring import score
from metaprobe.records.types import Call, Message, Sampling

WORDS = ["<pad>", "<eos>", "<unk>", *"abcdefghijklmnopqrstuvwxyz", "User", ":", "Assistant"]
LAYERS = (0, 1, 2, 3)
TOLERANCE = 1e-4
"""Of log-probabilities: float32 through three layers, added up in another order; they are off by 3e-5 at most."""


@pytest.fixture(scope="module")
def network() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(WORDS),
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=3,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=64,
        initializer_range=0.6,  # far from uniform, so that a wrong log-probability shows
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=1,
    )
    return LlamaForCausalLM(config).eval()


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    inner = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    made = PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>", padding_side="left"
    )
    made.chat_template = PLAIN_TEMPLATE
    return made


def llm_of(network: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, **options: object) -> LocalLLM:
    return LocalLLM(network, tokenizer, name="tiny", revision="test", **options)  # type: ignore[arg-type]


def request(text: str, number: int = 0, *, hidden: bool = False, **sampling: object) -> Request:
    return Request(
        id=f"r{number}",
        stage="answer",
        hidden=hidden,
        messages=(Message("user", text),),
        sampling=Sampling(**{"max_tokens": 12, **sampling}),  # type: ignore[arg-type]
    )


def answers(llm: LocalLLM, requests: list[Request]) -> list[Call]:
    async def ask() -> list[Call]:
        return list(await asyncio.gather(*(llm.complete(r) for r in requests)))

    return asyncio.run(ask())


def teacher_forced(network: LlamaForCausalLM, call: Call) -> tuple[np.ndarray, list[np.ndarray]]:
    """Log-probabilities of the answer's tokens and all hidden states of the sequence, by one plain forward pass."""
    assert call.prompt_token_ids is not None
    assert call.token_ids is not None
    ids = torch.tensor([[*call.prompt_token_ids.tolist(), *call.token_ids.tolist()]])
    with torch.inference_mode():
        out = network(ids, output_hidden_states=True)
    at = torch.log_softmax(out.logits[0].float(), -1)[len(call.prompt_token_ids) - 1 :]
    return (
        np.array([float(at[i, token]) for i, token in enumerate(call.token_ids)]),
        [h[0].numpy() for h in out.hidden_states],
    )


PROMPTS = ["a b c", "q", "z y x w v u t s", "m n", "e e e e"]


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


def test_a_shared_beginning_read_once_changes_nothing(network, tokenizer) -> None:
    begin = "a b c d e f g h i j k l m n o p "
    requests = [request(begin + p, i, hidden=True) for i, p in enumerate(PROMPTS)]
    together = answers(llm_of(network, tokenizer, capture=Capture(LAYERS)), requests)
    assert shared_length([call.prompt_token_ids.tolist() for call in together]) >= 16
    for call, asked in zip(together, requests, strict=True):
        alone = answers(llm_of(network, tokenizer, capture=Capture(LAYERS)), [asked])[0]
        assert call.token_ids.tolist() == alone.token_ids.tolist()
        np.testing.assert_allclose(call.logprobs, teacher_forced(network, call)[0], atol=TOLERANCE)
        np.testing.assert_allclose(call.hidden.values, alone.hidden.values, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize(
    ("prompts", "shared"),
    [
        ([[1] * 20 + [2], [1] * 20 + [3]], 20),
        ([[1] * 20, [1] * 20], 19),  # something must be left to read
        ([[1] * 10 + [2], [1] * 10 + [3]], 0),
        ([[1] * 30], 0),
    ],
)
def test_the_shared_beginning_leaves_every_prompt_a_token(prompts: list[list[int]], shared: int) -> None:
    assert shared_length(prompts) == shared


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
@settings(deadline=None)
def test_rows_of_a_group_begin_alike_and_no_more_is_read_than_without(prompts: list[list[int]]) -> None:
    found = prefixes(prompts)
    for row, (prompt, length) in enumerate(zip(prompts, found.lengths, strict=True)):
        first = found.first[found.group[row]]
        assert 0 <= length < len(prompt)
        assert prompt[:length] == prompts[first][:length]
    ids, mask = padded(prompts, 9, found, torch.device("cpu"))
    assert [row[keep == 1].tolist() for row, keep in zip(ids, mask, strict=True)] == prompts
    cost = len(found.first) * max(found.lengths) + len(prompts) * (ids.shape[1] - max(found.lengths))
    assert cost <= len(prompts) * max(map(len, prompts))


def test_questions_about_one_text_are_read_together_and_strangers_by_length() -> None:
    texts = [[100 + i] * 40 for i in range(4)]
    about = [texts[i % 4] + [j] * (3 + i) for i, j in zip(range(16), range(16), strict=True)]
    prompts = sorted(about, key=len)
    chosen = companions(prompts, 8)
    assert sorted({prompts[row][0] for row in chosen}) == [100, 101], "two whole texts, not four halves"
    strangers = [[i] * (5 + i) for i in range(16)]
    assert companions(strangers, 4) == [12, 13, 14, 15]


def test_recorded_logprobs_are_raw_whatever_the_temperature(network, tokenizer) -> None:
    call = answers(llm_of(network, tokenizer), [request("a b c", temperature=3.0, seed=5)])[0]
    expected, _ = teacher_forced(network, call)
    np.testing.assert_allclose(call.logprobs, expected, atol=TOLERANCE)
    assert call.logprobs_mode == "raw"


def test_a_seeded_answer_does_not_depend_on_its_batch(network, tokenizer) -> None:
    wanted = request("a b c", temperature=1.0, seed=7)
    alone = answers(llm_of(network, tokenizer), [wanted])[0]
    others = [request(p, i + 1, temperature=1.0, seed=i) for i, p in enumerate(PROMPTS)]
    among = answers(llm_of(network, tokenizer), [*others, wanted])[-1]
    assert among.token_ids.tolist() == alone.token_ids.tolist()
    elsewhere = answers(llm_of(network, tokenizer), [request("a b c", temperature=1.0, seed=8)])[0]
    assert elsewhere.token_ids.tolist() != alone.token_ids.tolist()  # the seed is what decides


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


def test_only_requests_that_ask_for_hidden_states_are_captured(network, tokenizer) -> None:
    llm = llm_of(network, tokenizer, capture=Capture((1,), ("prompt_last",)))
    captured, plain = answers(llm, [request("a", hidden=True), request("q", 1)])
    assert captured.hidden is not None
    assert captured.hidden.values.shape == (1, 1, 16)
    assert plain.hidden is None


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
    recorder = BatchRecorder([Row(Sampling())], eos_ids=[1], device=torch.device("cpu"), cancel=cancel)
    recorder(torch.zeros(1, 1), torch.zeros(1, 5))
    cancel.set()
    with pytest.raises(Cancelled):
        recorder(torch.zeros(1, 1), torch.zeros(1, 5))


@pytest.mark.parametrize(("choice", "layers"), [("all", (0, 1, 2, 3)), ("every:2", (0, 2)), ("3, 1", (1, 3))])
def test_layers_are_chosen_by_name_step_or_number(network, choice: str, layers: tuple[int, ...]) -> None:
    assert chosen_layers(choice, network) == layers


@pytest.mark.parametrize("choice", ["", "4", "every:0", "-1", "some", "1;2"])
def test_layers_that_do_not_exist_are_refused_with_the_range(network, choice: str) -> None:
    with pytest.raises(LLMError, match="0 to 3"):
        chosen_layers(choice, network)


def test_the_nucleus_is_the_smallest_set_that_reaches_top_p() -> None:
    p = torch.tensor([0.1, 0.5, 0.3, 0.1])
    assert torch.isfinite(nucleus(p.log(), 0.7)).tolist() == [False, True, True, False]
    assert torch.isfinite(nucleus(p.log(), 0.5)).tolist() == [False, True, False, False]
    assert torch.isfinite(nucleus(p.log(), 1.0)).all()


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


def test_loglikelihood_of_an_own_answer_is_that_of_its_generation(network, tokenizer) -> None:
    llm = llm_of(network, tokenizer, top_logprobs=3)
    asked = [
        request("a b c d e f g h i j k l m n o p " * (i % 2) + p, i) for i, p in enumerate([*PROMPTS, *WORDS[3:20]])
    ]
    given = answers(llm, asked)
    asked, given = zip(
        *((r, c) for r, c in zip(asked, given, strict=True) if "<unk>" not in c.tokens and "<pad>" not in c.tokens),
        strict=True,
    )  # those that their text says whole

    async def ask() -> list[Call]:
        return list(await asyncio.gather(*(llm.loglikelihood(r, c.text) for r, c in zip(asked, given, strict=True))))

    for call, generated in zip(asyncio.run(ask()), given, strict=True):
        assert call.tokens == generated.tokens
        assert call.text == generated.text != ""
        assert call.prompt_token_ids.tolist() == generated.prompt_token_ids.tolist()
        np.testing.assert_allclose(call.logprobs, generated.logprobs, atol=TOLERANCE)
        np.testing.assert_allclose(call.top_logprobs, generated.top_logprobs, atol=TOLERANCE)


@pytest.mark.parametrize("shared", ["", "a b c d e f g h i j k l m n o p q r "])
def test_loglikelihood_is_that_of_a_plain_forward_pass(network, tokenizer, shared: str) -> None:
    llm = llm_of(network, tokenizer)
    texts = [shared + text for text in ("x", "y z", "z z z a q", "m n o", "")]

    async def ask(asked: Request) -> list[Call]:
        return list(await asyncio.gather(*(llm.loglikelihood(asked, text) for text in texts)))

    for asked in (request("c b a"), dataclasses.replace(request(""), messages=())):
        for call, text in zip(asyncio.run(ask(asked)), texts, strict=True):
            expected, _ = teacher_forced(network, call)
            np.testing.assert_allclose(call.logprobs, expected, atol=TOLERANCE)
            assert (call.text, list(call.tokens)) == (text, text.split())
            assert call.usage.completion_tokens == 0
            if not asked.messages:
                assert call.prompt_token_ids.tolist() == [
                    1
                ]  # no beginning-of-sequence token: the end's takes its place


def test_many_logits_are_computed_a_part_at_a_time(network, monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = [([5, 6, 7][: 1 + i % 3], [8] * (i % 4)) for i in range(12)]
    whole = score(network, pairs, pad=0)
    monkeypatch.setattr("metaprobe.llms.scoring.LOGITS_AT_ONCE", 600)
    for one, other in zip(whole, score(network, pairs, pad=0), strict=True):
        torch.testing.assert_close(one.logprobs, other.logprobs, atol=TOLERANCE, rtol=0)


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


def test_it_says_what_it_can_do(network, tokenizer) -> None:
    can = llm_of(network, tokenizer, top_logprobs=4, capture=Capture((1,))).capabilities
    assert can == Capabilities(
        logprobs=True, top_logprobs=4, hidden=True, json_schema=grammar.available(), stream=True, loglikelihood=True
    )
    assert not llm_of(network, tokenizer).capabilities.hidden
