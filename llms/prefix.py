"""What prompts of a batch begin with is read once: instructions, worked examples, a text that several ask about."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast

CACHE = "cache" if "cache" in CausalLMOutputWithPast.__dataclass_fields__ else "past_key_values"
"""What transformers calls the keys and values of the tokens read so far; it was renamed in 5.24."""

WORTHWHILE = 16
"""Shared tokens below which a pass of their own does not pay."""


def shareable(model: PreTrainedModel) -> bool:
    """Whether every layer attends to the whole past, so that padding may stand between prefix and rest."""
    config = model.config.get_text_config()
    kinds = getattr(config, "layer_types", None) or ["full_attention"]
    return set(kinds) == {"full_attention"} and not getattr(config, "sliding_window", None)


def count_shared(prompts: Sequence[Sequence[int]]) -> int:
    """Tokens that all prompts begin with, at least one less than the shortest has; 0 where too few to be worth it."""
    if len(prompts) < 2:
        return 0
    first, shortest = prompts[0], min(map(len, prompts))
    differing = (i for i in range(shortest) if any(prompt[i] != first[i] for prompt in prompts))
    length = min(next(differing, shortest), shortest - 1)
    return length if length >= WORTHWHILE else 0


@dataclass(frozen=True, slots=True)
class Prefixes:
    """What the prompts of a batch begin with, in groups that share a beginning."""

    lengths: tuple[int, ...]
    """Of each prompt: tokens that are read with its group, less than all of it. All 0: nothing is read apart."""
    group: tuple[int, ...]
    """Of each prompt."""
    first: tuple[int, ...]
    """A prompt of each group."""


def prefixes(prompts: Sequence[Sequence[int]]) -> Prefixes:
    """The grouping that leaves fewest tokens to read, padding counted.

    Either one group, of what all prompts begin with, or groups of prompts that share half of their tokens and more:
    questions about one long text, or samples of one prompt.
    """
    whole, rows = count_shared(prompts), len(prompts)
    together = Prefixes((whole,) * rows, (0,) * rows, (0,))
    chains: list[list[int]] = []
    for row in sorted(range(rows), key=lambda row: list(prompts[row])):
        near = chains and _common(prompts[chains[-1][-1]], prompts[row]) >= max(WORTHWHILE, len(prompts[row]) // 2)
        chains[-1].append(row) if near else chains.append([row])
    # In sorted order the first and the last share what all between them share.
    shared = [
        min(_common(prompts[chain[0]], prompts[chain[-1]]), *(len(prompts[row]) - 1 for row in chain))
        for chain in chains
    ]
    several = [(chain, length) for chain, length in zip(chains, shared, strict=True) if len(chain) > 1]
    if not several:
        return together
    rest = max(len(prompts[row]) - length for chain, length in several for row in chain)
    group, lengths = [0] * rows, [0] * rows
    for number, (chain, length) in enumerate(zip(chains, shared, strict=True)):
        for row in chain:
            # A prompt of its own is cut where no other has more left to read.
            lengths[row] = length if len(chain) > 1 else max(len(prompts[row]) - rest, 0)
            group[row] = number
    apart = Prefixes(tuple(lengths), tuple(group), tuple(chain[0] for chain in chains))
    return min(together, apart, key=lambda found: _to_read(prompts, found))


def companions(prompts: Sequence[Sequence[int]], size: int) -> list[int]:
    """Which `size` of these prompts, given in the order of their lengths, to read together.

    The longest, as they need least padding, or the first in the order of their tokens, where prompts about one text
    stand side by side: whichever have more of their tokens read for them by others.
    """
    longest = list(range(len(prompts)))[-size:]
    alike = sorted(range(len(prompts)), key=lambda row: list(prompts[row]))[:size]

    def share_read(rows: Sequence[int]) -> float:
        chosen = [prompts[row] for row in rows]
        return _to_read(chosen, prefixes(chosen)) / sum(map(len, chosen))

    return min(longest, alike, key=share_read)


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """Tokens that both begin with."""
    shortest = min(len(one), len(other))
    return next((i for i in range(shortest) if one[i] != other[i]), shortest)


def _to_read(prompts: Sequence[Sequence[int]], found: Prefixes) -> int:
    rests = max(len(prompt) - length for prompt, length in zip(prompts, found.lengths, strict=True))
    return len(found.first) * max(found.lengths) + len(prompts) * rests


def pad_rows(prompts: Sequence[list[int]], pad: int, found: Prefixes, device: torch.device) -> tuple[Tensor, Tensor]:
    """Token ids and attention mask, (B, longest prefix + longest rest): padding stands before each prefix and rest."""
    before = max(found.lengths)
    after = max(len(prompt) - length for prompt, length in zip(prompts, found.lengths, strict=True))
    ids, mask = [], []
    for prompt, length in zip(prompts, found.lengths, strict=True):
        first, second = before - length, after - (len(prompt) - length)
        ids.append([pad] * first + prompt[:length] + [pad] * second + prompt[length:])
        mask.append([0] * first + [1] * length + [0] * second + [1] * (len(prompt) - length))
    return torch.tensor(ids, device=device), torch.tensor(mask, device=device)


def build_group_cache(model: PreTrainedModel, ids: Tensor, mask: Tensor, found: Prefixes) -> Any:
    """Keys and values of each group's prefix, computed once and copied to its rows; None where there is none."""
    length = max(found.lengths)
    if not length:
        return None
    first = torch.tensor(found.first, device=ids.device)
    read, seen = ids[first, :length], mask[first, :length]
    cache = DynamicCache(config=model.config)
    positions = (seen.cumsum(dim=1) - 1).clamp_min(0)
    model(read, attention_mask=seen, position_ids=positions, **{CACHE: cache}, use_cache=True, logits_to_keep=1)
    cache.batch_select_indices(torch.tensor(found.group, device=ids.device))
    return cache


def prefix_cache(model: PreTrainedModel, prefix: Tensor, rows: int) -> Any:
    """Keys and values of the shared tokens (1, shared), computed once and repeated for each row."""
    cache = DynamicCache(config=model.config)
    model(prefix, **{CACHE: cache}, use_cache=True, logits_to_keep=1)
    cache.batch_repeat_interleave(rows)
    return cache
