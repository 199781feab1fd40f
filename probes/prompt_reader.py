"""Reads prompts: token ids through the lower layers of a small language model to one state a prompt, without torch.

The graph and the tokenizer are exported once (`metaprobe.training.recipes.prompt_states`). Training and serving run the
same graph, so that a head never meets states of another precision than it was fitted on.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from metaprobe.checkpoints import ContractMismatch
from metaprobe.checkpoints.checkpoint import GraphSession
from metaprobe.checkpoints.onnx_guard import ADAPTER
from metaprobe.probes.adapter import IDS, MASK, padded_batches, read_tokenizer

READER_GRAPH = "reader.onnx"
MEAN, LAST = "mean", "last"
POOLINGS = (MEAN, LAST)
"""Ways to make one state of a prompt: `mean` of the tokens after the prefix, or `last`, the state of the last token."""
HEAD_TOKENS, TAIL_TOKENS = 64, 64
"""Numbers of first and of last tokens that are read of a long prompt. Reading time grows with them."""
MAX_PROMPT_CHARS = 40_000
"""Characters of a prompt that reach the tokenizer: half from its beginning, half from its end. A token is rarely longer
than 100 characters, so that the tokens that are read stay the same."""
MAX_CACHED_PROMPTS = 1024
"""Most prompts whose states a reader keeps, by the prompt's text. A state of 576 numbers takes 2.3 KB."""
PROMPTS_PER_BATCH = 8
"""Number of prompts that are read at once."""


@dataclass(frozen=True, slots=True)
class PromptLayout:
    """The token ids around a prompt, and how much of the prompt is read."""

    prefix: tuple[int, ...]
    suffix: tuple[int, ...]
    head: int = HEAD_TOKENS
    """Number of first tokens that are read of a long prompt."""
    tail: int = TAIL_TOKENS
    """Number of last tokens that are read of a long prompt."""

    def ids(self, tokens: Sequence[int]) -> list[int]:
        """Returns the token ids that the graph reads for the token ids of a prompt. In the middle of a long prompt
        tokens are left out.
        """
        if len(tokens) > self.head + self.tail:
            tokens = [*tokens[: self.head], *tokens[len(tokens) - self.tail :]]
        return [*self.prefix, *tokens, *self.suffix]


class PromptTokens:
    """Turns prompts into the token ids that the graph reads, by the `tokenizers` package."""

    def __init__(self, tokenizer: bytes, layout: PromptLayout) -> None:
        """`tokenizer`: the bytes of a tokenizer.json. Raises `ContractMismatch` if they cannot be read."""
        self._tokenizer = read_tokenizer(tokenizer)
        self._tokenizer.no_truncation()
        self.layout = layout

    def ids(self, prompts: Sequence[str]) -> list[list[int]]:
        """Returns the ids of each prompt, with the layout around them."""
        encoded = self._tokenizer.encode_batch([_shortened(prompt) for prompt in prompts], add_special_tokens=False)
        return [self.layout.ids(encoding.ids) for encoding in encoded]


def _shortened(prompt: str) -> str:
    """Returns the prompt; only its beginning and end if it is longer than `MAX_PROMPT_CHARS`.

    Half surrogates become `?`.
    """
    if len(prompt) > MAX_PROMPT_CHARS:
        prompt = prompt[: MAX_PROMPT_CHARS // 2] + prompt[-MAX_PROMPT_CHARS // 2 :]
    return prompt.encode("utf-8", "replace").decode()


class PromptReader:
    """Reads the states of prompts with an exported language model. Several threads may share one reader."""

    def __init__(self, graph: bytes | GraphSession, tokens: PromptTokens) -> None:
        """Raises `ContractMismatch` or `UnsafeModel` for a graph that does not turn token ids into states.

        `graph`: the bytes of an ONNX graph, or an open session, such as that of a loaded checkpoint. With a session the
        language model is in memory only once.
        """
        self.tokens = tokens
        self.session = graph if isinstance(graph, GraphSession) else GraphSession(graph, kind=ADAPTER)
        inputs = [(node.name, node.type) for node in self.session.inputs]
        if inputs != [(IDS, "int64"), (MASK, "int64")] or any(node.type != "float32" for node in self.session.outputs):
            raise ContractMismatch(f"{READER_GRAPH} reads {inputs}; expected {IDS} and {MASK} of int64, float32 out")
        self._cached_state: Callable[[str], NDArray[np.float32]] = lru_cache(maxsize=MAX_CACHED_PROMPTS)(self._read_one)

    def read(self, prompts: Sequence[str]) -> dict[str, NDArray[np.float32]]:
        """Returns every output of the graph (n, D) for n prompts; nothing is cached."""
        ids = self.tokens.ids(prompts)
        outputs: dict[str, NDArray[np.float32]] = {}
        for row_indices, inputs in padded_batches(ids, PROMPTS_PER_BATCH):
            for name, values in self.session.run(dict(inputs)).items():
                output_rows = outputs.setdefault(name, np.empty((len(ids), values.shape[1]), dtype=np.float32))
                output_rows[row_indices] = values
        return outputs

    def state(self, prompt: str) -> NDArray[np.float32]:
        """Returns the state (D,) of one prompt: the graph's first output.

        The states of the last `MAX_CACHED_PROMPTS` prompts are kept.
        """
        state: NDArray[np.float32] = self._cached_state(prompt)
        return state

    def _read_one(self, prompt: str) -> NDArray[np.float32]:
        state: NDArray[np.float32] = self.read([prompt])[self.session.outputs[0].name][0]
        state.setflags(write=False)
        return state
