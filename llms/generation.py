"""The loop around transformers' `generate`: a batch goes on with fewer rows when many have ended."""

from collections.abc import Sequence
from typing import Any

import torch
from transformers import GenerationConfig

from metaprobe.llms.prefix import CACHE, Prefixes, build_group_cache, pad_rows, prefixes
from metaprobe.llms.recorder import BatchRecorder, RowsDone


@torch.inference_mode()
def generate(
    model: Any,
    recorder: BatchRecorder,
    prompts: Sequence[list[int]],
    *,
    eos_ids: Sequence[int],
    pad: int,
    share_prefix: bool = True,
) -> None:
    """Answer every prompt (token ids), until the recorder says that its row has ended.

    A finished row costs as much as any other until it leaves the batch. On SmolLM2-135M with 32 answers of 2 to 363
    tokens, generation takes half the time when finished rows leave.
    """
    nothing = Prefixes((0,) * len(prompts), (0,) * len(prompts), (0,))
    found = prefixes(prompts) if share_prefix else nothing
    ids, mask = pad_rows(prompts, pad, found, model.device)
    past = build_group_cache(model, ids, mask, found)
    while True:
        # A model's own generation defaults (repetition penalty, top-k) would change what is recorded as raw.
        config = GenerationConfig(  # type: ignore[no-untyped-call]
            max_new_tokens=recorder.remaining,
            do_sample=False,
            eos_token_id=list(eos_ids),
            pad_token_id=pad,
            return_dict_in_generate=True,
        )
        generated = model.generate(
            input_ids=ids,
            attention_mask=mask,
            **{CACHE: past},
            generation_config=config,
            logits_processor=[recorder],
            stopping_criteria=[RowsDone(recorder)],
        )
        places = recorder.shrink()
        if not places:
            return
        kept = torch.tensor(places, device=ids.device)
        new = generated.sequences.shape[1] - ids.shape[1]
        ids, past = generated.sequences[kept], getattr(generated, CACHE)
        mask = torch.cat([mask, mask.new_ones(mask.shape[0], new)], dim=1)[kept]
        past.batch_select_indices(kept)
