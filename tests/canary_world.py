"""Shared by tests of the check of hidden states: a tiny network that reads characters, and its answers."""

import asyncio
from collections.abc import Sequence

import torch
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from metaprobe.llms.base import Request
from metaprobe.llms.hidden_capture import Capture
from metaprobe.llms.local import LocalLLM
from metaprobe.llms.weights import PLAIN_TEMPLATE
from metaprobe.records.canaries import CANARIES, CANARY_POSITIONS
from metaprobe.records.types import Call, Message, Sampling

LAYERS = (1, 2, 3, 4)
QUESTIONS = [f"What is {i} plus {i * 7 % 11}? Say it {'very ' * (i % 5)}shortly." for i in range(12)]


def character_tokenizer() -> PreTrainedTokenizerFast:
    """A token for each character of the canaries, and three for others, padding and the end."""
    characters = {c for one in CANARIES for text in (one.answer, *(m.content for m in one.messages)) for c in text}
    vocabulary = ["<pad>", "<eos>", "<unk>", *sorted(characters | set(map(chr, range(32, 127))))]
    inner = Tokenizer(models.WordLevel({token: i for i, token in enumerate(vocabulary)}, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Split(Regex("[\\s\\S]"), "isolated")
    made = PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>", padding_side="left"
    )
    made.chat_template = PLAIN_TEMPLATE
    return made


def network(tokenizer: PreTrainedTokenizerFast, seed: int = 0) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=4,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        initializer_range=0.2,
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=1,
    )
    return LlamaForCausalLM(config).eval()


def tiny(weights: LlamaForCausalLM | None = None, **options: object) -> LocalLLM:
    tokenizer = character_tokenizer()
    net = network(tokenizer) if weights is None else weights
    capture = Capture(LAYERS, CANARY_POSITIONS)
    return LocalLLM(net, tokenizer, name="tiny", revision="1", capture=capture, **options)  # type: ignore[arg-type]


def answered(llm: LocalLLM, questions: Sequence[str] = QUESTIONS) -> list[Call]:
    async def ask() -> list[Call]:
        requests = [
            Request(
                id=f"c{i}",
                hidden=True,
                messages=(Message("user", question),),
                sampling=Sampling(max_tokens=6 + i % 7, temperature=1.0, seed=i),
            )
            for i, question in enumerate(questions)
        ]
        return list(await asyncio.gather(*(llm.complete(request) for request in requests)))

    return asyncio.run(ask())
