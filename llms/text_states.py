"""Hidden states of one prompt and one answer, read in a transformers model that the caller holds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from metaprobe.llms.base import LLMError
from metaprobe.llms.chat_prompt import PLAIN_TEMPLATE
from metaprobe.llms.hidden_capture import layer_hooks
from metaprobe.records.types import FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class TextStates:
    """What was read of a prompt and an answer of T tokens, float32."""

    tokens: tuple[str, ...]
    """The T tokens of the answer as text."""
    prompt: FloatArray
    """(layers, D): at the last token of the prompt."""
    answer: FloatArray
    """(T, layers, D): at each token of the answer."""


@torch.inference_mode()
def text_states(
    model: Any,
    tokenizer: Any,
    prompt: str | Sequence[Mapping[str, str]],
    answer: str,
    *,
    layers: Sequence[int],
    chat: bool = True,
) -> TextStates:
    """Returns the states of these layers, in one forward pass. Layer 0 is the input of the first block, i the output of
    block i.

    `prompt` is the user's message or a list of `{"role", "content"}`; it is put into the tokenizer's chat template, as
    `collect` does, or with `chat=False` taken as it is. Raises `LLMError` where the model has no such layer, and for an
    empty prompt.
    """
    before = _prompt_ids(tokenizer, prompt, chat=chat)
    after = _ids(tokenizer, answer)
    if not before:
        raise LLMError("the prompt has no tokens: there is no state before the answer; give a prompt")
    found: dict[int, Tensor] = {}

    def keep(layer: int, hidden: Tensor) -> None:
        found[layer] = hidden[0, len(before) - 1 :].float().cpu()

    ids = torch.tensor([[*before, *after]], device=model.device)
    inner = getattr(model, "base_model", model)  # without the head, which would compute logits
    with layer_hooks(model, sorted(layers), keep):
        inner(input_ids=ids, use_cache=False)
    states = torch.stack([found[layer] for layer in layers], dim=1).numpy()  # (1 + T, layers, D)
    tokens = tuple(str(tokenizer.decode([token])) for token in after)
    return TextStates(tokens, np.asarray(states[0]), np.asarray(states[1:]))


def _prompt_ids(tokenizer: Any, prompt: str | Sequence[Mapping[str, str]], *, chat: bool) -> list[int]:
    if not chat:
        if not isinstance(prompt, str):
            raise LLMError("with chat=False the prompt is taken as it is; expected text, not a list of messages")
        return [int(token) for token in tokenizer(prompt).input_ids]
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else [dict(one) for one in prompt]
    template = getattr(tokenizer, "chat_template", None) or PLAIN_TEMPLATE
    text = tokenizer.apply_chat_template(messages, chat_template=template, tokenize=False, add_generation_prompt=True)
    return _ids(tokenizer, text)


def _ids(tokenizer: Any, text: str) -> list[int]:
    return [int(token) for token in tokenizer(text, add_special_tokens=False).input_ids]
