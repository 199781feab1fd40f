"""Runs forward passes over a batch: shared prefixes are read once, and given continuations are scored without sampling.

Prompts share instructions, worked examples, or a text that several of them ask about.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast

CACHE = "cache" if "cache" in CausalLMOutputWithPast.__dataclass_fields__ else "past_key_values"
"""Name that transformers gives to the cache of keys and values; it changed in 5.24."""

MIN_SHARED_TOKENS = 16
"""Fewest shared tokens for which a separate pass over the prefix pays."""


def attends_to_whole_past(model: PreTrainedModel) -> bool:
    """Returns whether every layer attends to the whole past, so that padding may stand between prefix and rest."""
    config = model.config.get_text_config()
    kinds = getattr(config, "layer_types", None) or ["full_attention"]
    return set(kinds) == {"full_attention"} and not getattr(config, "sliding_window", None)


@dataclass(frozen=True, slots=True)
class Prefixes:
    """Groups of a batch's prompts that share a prefix."""

    lengths: tuple[int, ...]
    """Number of tokens of each prompt that are read with its group, fewer than the prompt has. All 0: there is no
    shared prefix.
    """
    group: tuple[int, ...]
    """Number of each prompt's group."""
    first: tuple[int, ...]
    """Index of one prompt of each group."""


def prefixes(prompts: Sequence[Sequence[int]]) -> Prefixes:
    """Returns the grouping that leaves fewest tokens to read, with padding.

    It is either one group with the prefix of all prompts, or groups of prompts that share at least half of their
    tokens: questions about one long text, or samples of one prompt.
    """
    rows = len(prompts)
    # Tokens that all prompts begin with, at least one less than the shortest has.
    shared_by_all = min(
        [*(_common_prefix_length(prompts[0], prompt) for prompt in prompts[1:]), min(map(len, prompts)) - 1]
    )
    shared_by_all = shared_by_all if shared_by_all >= MIN_SHARED_TOKENS and rows > 1 else 0
    one_group = Prefixes((shared_by_all,) * rows, (0,) * rows, (0,))
    chains: list[list[int]] = []
    for row in sorted(range(rows), key=lambda row: list(prompts[row])):
        shares_half = chains and _common_prefix_length(prompts[chains[-1][-1]], prompts[row]) >= max(
            MIN_SHARED_TOKENS, len(prompts[row]) // 2
        )
        chains[-1].append(row) if shares_half else chains.append([row])
    # In sorted order, tokens shared by the first and the last prompt of a chain are shared by the whole chain.
    shared_lengths = [
        min(_common_prefix_length(prompts[chain[0]], prompts[chain[-1]]), *(len(prompts[row]) - 1 for row in chain))
        for chain in chains
    ]
    larger_groups = [(chain, length) for chain, length in zip(chains, shared_lengths, strict=True) if len(chain) > 1]
    if not larger_groups:
        return one_group
    longest_rest = max(len(prompts[row]) - length for chain, length in larger_groups for row in chain)
    group_of_prompt, prefix_lengths = [0] * rows, [0] * rows
    for group_number, (chain, length) in enumerate(zip(chains, shared_lengths, strict=True)):
        for row in chain:
            # A prompt that shares nothing is split too, so that its rest is no longer than the longest rest.
            prefix_lengths[row] = length if len(chain) > 1 else max(len(prompts[row]) - longest_rest, 0)
            group_of_prompt[row] = group_number
    chain_groups = Prefixes(tuple(prefix_lengths), tuple(group_of_prompt), tuple(chain[0] for chain in chains))
    return min(one_group, chain_groups, key=lambda grouping: _tokens_to_read(prompts, grouping))


def choose_batch(prompts: Sequence[Sequence[int]], size: int) -> list[int]:
    """Returns the indices of `size` prompts to read together; the prompts are given in the order of their lengths.

    Candidates are the longest prompts, which need least padding, and the first prompts in token order, where prompts
    about one text are neighbours. The candidate with the larger share of shared tokens is chosen.
    """
    longest = list(range(len(prompts)))[-size:]
    neighbours = sorted(range(len(prompts)), key=lambda row: list(prompts[row]))[:size]

    def unshared_part(rows: Sequence[int]) -> float:
        chosen_prompts = [prompts[row] for row in rows]
        return _tokens_to_read(chosen_prompts, prefixes(chosen_prompts)) / sum(map(len, chosen_prompts))

    return min(longest, neighbours, key=unshared_part)


def _common_prefix_length(first: Sequence[int], second: Sequence[int]) -> int:
    """Returns how many tokens both begin with."""
    shorter_length = min(len(first), len(second))
    return next((i for i in range(shorter_length) if first[i] != second[i]), shorter_length)


def _tokens_to_read(prompts: Sequence[Sequence[int]], grouping: Prefixes) -> int:
    rests = max(len(prompt) - length for prompt, length in zip(prompts, grouping.lengths, strict=True))
    return len(grouping.first) * max(grouping.lengths) + len(prompts) * rests


def pad_rows(prompts: Sequence[list[int]], pad: int, grouping: Prefixes, device: torch.device) -> tuple[Tensor, Tensor]:
    """Returns token ids and attention mask, (B, longest prefix + longest rest). Padding precedes each prefix and each
    rest.

    Args:
        prompts: token ids of the prompts.
        pad: id of the padding token.
        grouping: the shared prefixes.
        device: device of the tensors.
    """
    prefix_width = max(grouping.lengths)
    rest_width = max(len(prompt) - length for prompt, length in zip(prompts, grouping.lengths, strict=True))
    ids, mask = [], []
    for prompt, length in zip(prompts, grouping.lengths, strict=True):
        first, second = prefix_width - length, rest_width - (len(prompt) - length)
        ids.append([pad] * first + prompt[:length] + [pad] * second + prompt[length:])
        mask.append([0] * first + [1] * length + [0] * second + [1] * (len(prompt) - length))
    return torch.tensor(ids, device=device), torch.tensor(mask, device=device)


def build_group_cache(model: PreTrainedModel, ids: Tensor, mask: Tensor, grouping: Prefixes) -> Any:
    """Returns keys and values of each group's prefix, computed once and copied to its rows; None without prefixes.

    Args:
        model: the model.
        ids: token ids, as `pad_rows` returns them.
        mask: attention mask.
        grouping: the shared prefixes.
    """
    length = max(grouping.lengths)
    if not length:
        return None
    first = torch.tensor(grouping.first, device=ids.device)
    prefix_ids, prefix_mask = ids[first, :length], mask[first, :length]
    cache = DynamicCache(config=model.config)
    positions = (prefix_mask.cumsum(dim=1) - 1).clamp_min(0)
    model(
        prefix_ids,
        attention_mask=prefix_mask,
        position_ids=positions,
        **{CACHE: cache},
        use_cache=True,
        logits_to_keep=1,
    )
    cache.batch_select_indices(torch.tensor(grouping.group, device=ids.device))
    return cache


LOGITS_AT_ONCE = 1 << 27
"""Most logits in memory at a time: half a gigabyte in float32."""


@dataclass(frozen=True, slots=True, eq=False)
class ScoredText:
    """Log-probabilities of one continuation of T tokens."""

    logprobs: Tensor
    """Log-probability of each token of the text, before temperature: float32, (T,), nats."""
    top: Tensor | None
    """Log-probabilities of the k likeliest tokens at each place, descending: float32, (T, k), nats."""


@torch.inference_mode()
def score_continuations(
    model: PreTrainedModel,
    pairs: Sequence[tuple[list[int], list[int]]],
    *,
    pad: int,
    top_logprobs: int = 0,
) -> list[ScoredText]:
    """Returns the log-probabilities of each continuation after its prompt.

    At most `LOGITS_AT_ONCE` logits are in memory at a time: larger batches are split, and a long continuation is read
    in slices.

    Args:
        model: the model.
        pairs: token ids of prompt (at least one) and continuation.
        pad: id of the padding token.
        top_logprobs: alternatives kept for each token.
    """
    vocabulary = model.config.get_text_config().vocab_size
    # Positions at which logits are needed: from the end of the shortest prompt to the end of the longest sequence.
    scored_positions = (
        max(len(prompt) + len(continuation) for prompt, continuation in pairs)
        - min(len(prompt) for prompt, _ in pairs)
        + 1
    )
    batch_size = max(LOGITS_AT_ONCE // (scored_positions * vocabulary), 1)
    slice_length = max(LOGITS_AT_ONCE // vocabulary, 1)  # of one continuation, if even one is too long
    return [
        scored
        for start in range(0, len(pairs), batch_size)
        for scored in _score_batch(
            model, pairs[start : start + batch_size], pad=pad, top_logprobs=top_logprobs, slice_length=slice_length
        )
    ]


def _score_batch(
    model: PreTrainedModel,
    pairs: Sequence[tuple[list[int], list[int]]],
    *,
    pad: int,
    top_logprobs: int,
    slice_length: int,
) -> list[ScoredText]:
    """Returns the log-probabilities of continuations that are read in one batch, slice by slice along their length."""
    sequences = [prompt + continuation for prompt, continuation in pairs]
    first_place, longest = min(len(prompt) for prompt, _ in pairs) - 1, max(map(len, sequences))
    cache: Any = DynamicCache(config=model.config) if longest - first_place > slice_length else None
    # Padding stands at the end, where no token sees it.
    ids = torch.tensor([s + [pad] * (longest - len(s)) for s in sequences], device=model.device)
    mask = torch.tensor([[1] * len(s) + [0] * (longest - len(s)) for s in sequences], device=model.device)
    parts_by_row: list[list[ScoredText]] = [[] for _ in pairs]
    cached_length = 0
    for start in range(first_place, longest, slice_length):
        end = min(start + slice_length, longest)
        logits = model(
            input_ids=ids[:, cached_length:end],
            attention_mask=mask[:, :end],
            **{CACHE: cache},
            use_cache=cache is not None,
            logits_to_keep=torch.arange(start - cached_length, end - cached_length, device=model.device),
        ).logits  # (B, end - start, V)
        for row, (prompt, continuation) in enumerate(pairs):
            # The logits at a place are of the token after it.
            low, high = max(len(prompt) - 1, start), min(len(prompt) + len(continuation) - 1, end)
            if low < high:
                targets = torch.tensor(
                    continuation[low + 1 - len(prompt) : high + 1 - len(prompt)], device=logits.device
                )
                token_logprobs = torch.log_softmax(logits[row, low - start : high - start].float(), dim=-1)  # (T, V)
                target_logprobs = token_logprobs.gather(1, targets[:, None])[:, 0]
                parts_by_row[row].append(
                    ScoredText(
                        target_logprobs.cpu(),
                        token_logprobs.topk(top_logprobs, dim=-1).values.cpu() if top_logprobs else None,
                    )
                )
        cached_length = end
    return [_join_scored(parts, top_logprobs) for parts in parts_by_row]


def _join_scored(parts: list[ScoredText], top_logprobs: int) -> ScoredText:
    if len(parts) == 1:
        return parts[0]
    if not parts:
        return ScoredText(torch.empty(0), torch.empty(0, top_logprobs) if top_logprobs else None)
    top = torch.cat([part.top for part in parts if part.top is not None]) if top_logprobs else None
    return ScoredText(torch.cat([part.logprobs for part in parts]), top)
