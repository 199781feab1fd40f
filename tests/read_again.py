"""Shared by tests of extraction: a tiny random model, its recorded calls in a store, and their second reading."""

import asyncio
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from random_model import WORDS, word_tokenizer
from safetensors import safe_open
from transformers import LlamaConfig, LlamaForCausalLM

from metaprobe.llms.base import Request
from metaprobe.llms.hidden_capture import Capture
from metaprobe.llms.local import LocalLLM
from metaprobe.llms.readings import ReadStates, StateReplay
from metaprobe.records.store import RunStore
from metaprobe.records.types import LIVE_POSITIONS, Call, Item, Message, Run, Sampling

LAYERS = (0, 1, 2, 3, 4)
TOLERANCE = 1e-3
"""Tolerance, as a share of the largest value: float32 through four layers, added in another order, then float16
(5e-4)."""
PROMPTS = ["a b c", "q", "z y x w v u t s", "m n", "e e e e", "o p q r s", "f"]


def network(words: int = len(WORDS), seed: int = 0) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=words,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=4,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=64,
        initializer_range=0.4,  # far from uniform, so that another model shows
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=1,
    )
    return LlamaForCausalLM(config).eval()


@pytest.fixture(scope="module")
def llm() -> LocalLLM:
    """Says only letters, and so never ends by itself."""
    net = network()
    net.lm_head.bias = torch.nn.Parameter(torch.tensor([-1000.0] * 3 + [0.0] * 26 + [-1000.0] * 3))
    return LocalLLM(net, word_tokenizer(), name="tiny", revision="1", capture=Capture(LAYERS, LIVE_POSITIONS))


def answered(llm: LocalLLM, prompts: list[str] = PROMPTS) -> list[Call]:
    """Calls with the hidden states of generation, where the model keeps any."""

    async def ask() -> list[Call]:
        requests = [
            Request(
                id=f"c{i}",
                stage="answer" if i % 3 else "difficulty",
                agent="solo",
                hidden=llm.capture is not None,
                messages=(Message("user", prompt),),
                sampling=Sampling(max_tokens=3 + 2 * i, temperature=1.0, seed=i),
            )
            for i, prompt in enumerate(prompts)
        ]
        return list(await asyncio.gather(*(llm.complete(request) for request in requests)))

    return asyncio.run(ask())


@pytest.fixture(scope="module")
def calls(llm: LocalLLM) -> list[Call]:
    return answered(llm)


def bare(call: Call, **changed: object) -> Call:
    return replace(call, hidden=None, **changed)  # type: ignore[arg-type]


def stored(path: Path, calls: list[Call], shard_runs: int = 3) -> RunStore:
    """A run each; the final answer is the second word of what was said."""
    store = RunStore(path)
    with store.writer(shard_runs=shard_runs) as writer:
        for i, call in enumerate(calls):
            final = " ".join(call.text.split()[1:2])
            writer.add(Run(f"r{i}", "s", "v", Item(f"i{i}", "?"), (call,), final_answer=final))
    return store


@pytest.fixture
def store(tmp_path: Path, calls: list[Call]) -> RunStore:
    return stored(tmp_path / "runs", [bare(call) for call in calls])


def read(
    llm: LocalLLM, calls: list[Call], exact: str = "", batch_size: int = 32, **options: object
) -> list[ReadStates]:
    replay = StateReplay(llm, **options)  # type: ignore[arg-type]
    return replay.read([replay.reading(call, exact) for call in calls], batch_size=batch_size)


def close(found: object, expected: object) -> None:
    expected = np.asarray(expected, dtype=np.float32)
    np.testing.assert_allclose(
        np.asarray(found, dtype=np.float32), expected, rtol=TOLERANCE, atol=TOLERANCE * np.abs(expected).max()
    )


def files(store: RunStore) -> dict[str, object]:
    """Everything in the files. Not their bytes: safetensors writes the header's metadata in any order."""
    found: dict[str, object] = {}
    for path in store.path.glob("*.safetensors"):
        with safe_open(path, framework="numpy") as file:
            found[path.name] = (file.metadata(), {key: file.get_tensor(key).tobytes() for key in file.keys()})  # noqa: SIM118
    return found
