"""Shared by tests of the local model: a tiny random network, and its results in one plain forward pass."""

import asyncio

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from metaprobe.llms.base import Request
from metaprobe.llms.local import LocalLLM
from metaprobe.llms.weights import PLAIN_TEMPLATE
from metaprobe.records.types import Call, Message, Sampling

WORDS = ["<pad>", "<eos>", "<unk>", *"abcdefghijklmnopqrstuvwxyz", "User", ":", "Assistant"]
LAYERS = (0, 1, 2, 3)
TOLERANCE = 1e-4
"""Largest difference of log-probabilities: float32 through three layers, added up in another order; at most 3e-5
seen."""


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


def word_tokenizer() -> PreTrainedTokenizerFast:
    """A token for each of `WORDS`."""
    inner = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    made = PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>", padding_side="left"
    )
    made.chat_template = PLAIN_TEMPLATE
    return made


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return word_tokenizer()


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
