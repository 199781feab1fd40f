"""What all prompts of a batch begin with is read once: instructions and worked examples are most of a short prompt."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

WORTHWHILE = 16
"""Shared tokens below which a pass of their own does not pay."""


def shareable(model: PreTrainedModel) -> bool:
    """Whether every layer attends to the whole past, so that padding may stand between prefix and rest."""
    config = model.config.get_text_config()
    kinds = getattr(config, "layer_types", None) or ["full_attention"]
    return set(kinds) == {"full_attention"} and not getattr(config, "sliding_window", None)


def shared_length(prompts: Sequence[Sequence[int]]) -> int:
    """Tokens that all prompts begin with, at least one less than the shortest has; 0 where too few to be worth it."""
    if len(prompts) < 2:
        return 0
    first, shortest = prompts[0], min(map(len, prompts))
    differing = (i for i in range(shortest) if any(prompt[i] != first[i] for prompt in prompts))
    length = min(next(differing, shortest), shortest - 1)
    return length if length >= WORTHWHILE else 0


def padded(prompts: Sequence[list[int]], pad: int, shared: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Token ids and attention mask, (B, longest): padding stands after the shared tokens, before the rest."""
    longest = max(map(len, prompts))
    ids = [prompt[:shared] + [pad] * (longest - len(prompt)) + prompt[shared:] for prompt in prompts]
    mask = [[1] * shared + [0] * (longest - len(prompt)) + [1] * (len(prompt) - shared) for prompt in prompts]
    return torch.tensor(ids, device=device), torch.tensor(mask, device=device)


def prefix_cache(model: PreTrainedModel, prefix: Tensor, rows: int) -> Any:
    """Keys and values of the shared tokens (1, shared), computed once and repeated for each row."""
    cache = DynamicCache(config=model.config)
    model(prefix, past_key_values=cache, use_cache=True, logits_to_keep=1)
    cache.batch_repeat_interleave(rows)
    return cache
