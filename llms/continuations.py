"""Log-probabilities of given continuations, by one forward pass over each batch; nothing is drawn."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from metaprobe.llms.prefix import count_shared, prefix_cache

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
    """Each continuation after its prompt. `pairs`: token ids of prompt (at least one) and continuation."""
    vocabulary = model.config.get_text_config().vocab_size
    # Positions at which logits are needed: from the end of the shortest prompt to the end of the longest sequence.
    spread = max(len(prompt) + len(rest) for prompt, rest in pairs) - min(len(prompt) for prompt, _ in pairs) + 1
    size = max(LOGITS_AT_ONCE // (spread * vocabulary), 1)
    return [
        scored
        for start in range(0, len(pairs), size)
        for scored in _pass(model, pairs[start : start + size], pad, top_logprobs, share_prefix)
    ]


def _pass(
    model: PreTrainedModel, pairs: Sequence[tuple[list[int], list[int]]], pad: int, k: int, share_prefix: bool
) -> list[ScoredText]:
    sequences = [prompt + rest for prompt, rest in pairs]
    first, longest = min(len(prompt) for prompt, _ in pairs) - 1, max(map(len, sequences))
    # The logits after the last shared token are needed where a prompt ends there, so one token less is shared.
    shared = min(count_shared(sequences), first) if share_prefix else 0
    past = (
        prefix_cache(model, torch.tensor([sequences[0][:shared]], device=model.device), len(pairs)) if shared else None
    )
    # Padding stands at the end, where no token sees it.
    ids = [sequence[shared:] + [pad] * (longest - len(sequence)) for sequence in sequences]
    mask = [[1] * len(sequence) + [0] * (longest - len(sequence)) for sequence in sequences]
    logits = model(
        input_ids=torch.tensor(ids, device=model.device),
        attention_mask=torch.tensor(mask, device=model.device),
        past_key_values=past,
        use_cache=past is not None,
        logits_to_keep=torch.arange(first - shared, longest - shared, device=model.device),
    ).logits  # (B, longest - first, V)
    results = []
    for row, (prompt, rest) in enumerate(pairs):
        start = len(prompt) - 1 - first
        at = torch.log_softmax(logits[row, start : start + len(rest)].float(), dim=-1)  # (T, V)
        chosen = at.gather(1, torch.tensor(rest, dtype=torch.long, device=at.device)[:, None])[:, 0]
        results.append(ScoredText(logprobs=chosen.cpu(), top=at.topk(k, dim=-1).values.cpu() if k else None))
    return results
