"""Log-probabilities, hidden states and likelihoods of a local model are those that it really computed."""

import copy

import numpy as np
import pytest
import random_model
import torch
from random_model import LAYERS, PROMPTS, TOLERANCE, WORDS, answers, llm_of, request, teacher_forced

from metaprobe.llms.base import LLMError
from metaprobe.llms.hidden_capture import Capture, chosen_layers, decoder_blocks, layer_hooks
from metaprobe.llms.readings import read_answers

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
