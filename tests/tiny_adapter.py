"""Shared by tests of the adapter probe: a tiny random base, and answers whose texts tell whether they are right."""

from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from metaprobe.records.store import RunStore
from metaprobe.records.types import Call, Item, Label, Message, Run

LETTERS = "abcdefghijklmnopqrstuvwxyz"
WORDS = [
    "<pad>",
    "<eos>",
    "<unk>",
    *LETTERS,
    "good",
    "easy",
    "Answer",
    "Is",
    "Will",
    "the",
    "answer",
    "be",
    "right",
    "?",
    ":",
]


def tiny(*, seed: int = 0, layers: int = 2) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(WORDS),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        initializer_range=0.2,
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=1,
    )
    return LlamaForCausalLM(config)


def tiny_tokenizer() -> Tokenizer:
    made = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return made


def run_of(i: int, rng: np.random.Generator, *, y: int | None = None, text: bool = True) -> Run:
    """Right is what holds the word "good"; that is likely where the question begins with "easy"."""
    question, answer = (rng.choice(list(LETTERS), n).tolist() for n in (6, int(rng.integers(2, 6))))
    easy = bool(rng.integers(0, 2))
    if easy:
        question[0] = "easy"
    label = int(rng.random() < (0.9 if easy else 0.1)) if y is None else y
    if label:
        answer[int(rng.integers(0, len(answer)))] = "good"
    call = Call(
        id=f"c{i:04}",
        stage="answer",
        model="m",
        messages=(Message("system", "q"), Message("user", " ".join(question))) if text else (),
        text=" ".join(answer) if text else "",
        logprobs=-rng.uniform(0.1, 2, len(answer)).astype(np.float32),
    )
    item = Item(f"i{i}", " ".join(question), group=f"g{i // 2}", task="planted")
    return Run(f"r{i}", "direct", "direct", item, (call,), labels=(Label(call.id, "correct", label, "program"),))


def stored(path: Path, n: int = 320, **options: object) -> Path:
    rng = np.random.default_rng(0)
    RunStore(path).append([run_of(i, rng, **options) for i in range(n)])  # type: ignore[arg-type]
    return path


def saved_base(folder: Path, network: LlamaForCausalLM | None = None) -> str:
    """The tiny base, or the given one, as transformers saves a model with its tokenizer."""
    (network or tiny()).save_pretrained(folder)
    PreTrainedTokenizerFast(
        tokenizer_object=tiny_tokenizer(), pad_token="<pad>", eos_token="<eos>", unk_token="<unk>"
    ).save_pretrained(folder)
    return str(folder)
