"""Log-probabilities of given continuations, by forward passes over each batch; nothing is drawn."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from metaprobe.llms.prefix import CACHE, count_shared, prefix_cache

LOGITS_AT_ONCE = 1 << 27
"""Most logits held at a time: half a gigabyte in float32."""


@dataclass(frozen=True, slots=True, eq=False)
class ScoredText:
    """What the model says of one continuation of T tokens."""

    logprobs: Tensor
    """float32, (T,), nats, raw."""
    top: Tensor | None
    """float32, (T, k), descending."""


@torch.inference_mode()
def score(
    model: PreTrainedModel,
    pairs: Sequence[tuple[list[int], list[int]]],
    *,
    pad: int,
    top_logprobs: int = 0,
    share_prefix: bool = True,
) -> list[ScoredText]:
    """Each continuation after its prompt. `pairs`: token ids of prompt (at least one) and continuation.

    No more than `LOGITS_AT_ONCE` logits are held at a time: batches are cut where they would be more, and the tokens of
    one long continuation are read a slice after the other.
    """
    vocabulary = model.config.get_text_config().vocab_size
    # Positions at which logits are needed: from the end of the shortest prompt to the end of the longest sequence.
    spread = max(len(prompt) + len(rest) for prompt, rest in pairs) - min(len(prompt) for prompt, _ in pairs) + 1
    size = max(LOGITS_AT_ONCE // (spread * vocabulary), 1)
    tokens = max(LOGITS_AT_ONCE // vocabulary, 1)  # of one continuation, where even that is too much at once
    return [
        scored
        for start in range(0, len(pairs), size)
        for scored in _read(model, pairs[start : start + size], pad, top_logprobs, share_prefix, tokens)
    ]


def _read(
    model: PreTrainedModel,
    pairs: Sequence[tuple[list[int], list[int]]],
    pad: int,
    k: int,
    share_prefix: bool,
    tokens: int,
) -> list[ScoredText]:
    sequences = [prompt + rest for prompt, rest in pairs]
    first, longest = min(len(prompt) for prompt, _ in pairs) - 1, max(map(len, sequences))
    # The logits after the last shared token are needed where a prompt ends there, so one token less is shared.
    shared = min(count_shared(sequences), first) if share_prefix else 0
    past: Any = None
    if shared:
        past = prefix_cache(model, torch.tensor([sequences[0][:shared]], device=model.device), len(pairs))
    elif longest - first > tokens:
        past = DynamicCache(config=model.config)
    # Padding stands at the end, where no token sees it.
    ids = torch.tensor([s + [pad] * (longest - len(s)) for s in sequences], device=model.device)
    mask = torch.tensor([[1] * len(s) + [0] * (longest - len(s)) for s in sequences], device=model.device)
    said: list[list[ScoredText]] = [[] for _ in pairs]
    begun = shared
    for start in range(first, longest, tokens):
        end = min(start + tokens, longest)
        logits = model(
            input_ids=ids[:, begun:end],
            attention_mask=mask[:, :end],
            **{CACHE: past},
            use_cache=past is not None,
            logits_to_keep=torch.arange(start - begun, end - begun, device=model.device),
        ).logits  # (B, end - start, V)
        for row, (prompt, rest) in enumerate(pairs):
            # The logits at a place are of the token after it.
            low, high = max(len(prompt) - 1, start), min(len(prompt) + len(rest) - 1, end)
            if low < high:
                targets = rest[low + 1 - len(prompt) : high + 1 - len(prompt)]
                said[row].append(_scored(logits[row, low - start : high - start], targets, k))
        begun = end
    return [_joined(parts, k) for parts in said]


def _scored(logits: Tensor, targets: list[int], k: int) -> ScoredText:
    at = torch.log_softmax(logits.float(), dim=-1)  # (T, V)
    chosen = at.gather(1, torch.tensor(targets, dtype=torch.long, device=at.device)[:, None])[:, 0]
    return ScoredText(logprobs=chosen.cpu(), top=at.topk(k, dim=-1).values.cpu() if k else None)


def _joined(parts: list[ScoredText], k: int) -> ScoredText:
    if len(parts) == 1:
        return parts[0]
    if not parts:
        return ScoredText(torch.empty(0), torch.empty(0, k) if k else None)
    top = torch.cat([part.top for part in parts if part.top is not None]) if k else None
    return ScoredText(torch.cat([part.logprobs for part in parts]), top)
