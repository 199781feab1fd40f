"""Hidden states of calls that were answered before: prompt and answer are read once more, and nothing is drawn."""

from collections.abc import Sequence

import torch
from torch import Tensor

from metaprobe.llms.continuations import score
from metaprobe.llms.hidden_capture import layer_hooks
from metaprobe.llms.local import LocalLLM
from metaprobe.llms.readings import Reading, Readings, ReadStates, place_of, span_of
from metaprobe.records.activations import to_float16
from metaprobe.records.types import FloatArray, Hidden


class _DeepEnough(Exception):
    """The deepest layer that is wanted was read: the blocks above it need not be computed."""


class StateReplay(Readings):
    """Reads recorded calls in a loaded model, through transformers."""

    def __init__(
        self, llm: LocalLLM, *, layers: str = "all", positions: Sequence[str] | None = None, tokens: bool = False
    ) -> None:
        """`layers`: `all`, `every:N`, or numbers. `positions`: those of a `Capture` by default. Raises `LLMError`."""
        super().__init__(llm, llm.model.config, layers=layers, positions=positions, tokens=tokens)
        self._model, self._tokenizer = llm.model, llm.tokenizer

    def read(self, readings: Sequence[Reading], *, batch_size: int = 32) -> list[ReadStates]:
        """The states of these calls, in this order. Calls of like length are read together, so that little is padded.

        What is kept of a call depends on who else is in its batch by no more than rounding: in float32 by less than
        float16 shows, in bfloat16 by 0.6 % of its length, at most 1.4 % (SmolLM2-135M, alone against batches of 32).
        """
        order = sorted(range(len(readings)), key=lambda i: readings[i].tokens)
        found: dict[int, ReadStates] = {}
        for start in range(0, len(order), batch_size):
            batch = order[start : start + batch_size]
            found.update(zip(batch, self._batch([readings[i] for i in batch]), strict=True))
        return [found[i] for i in range(len(readings))]

    def said(self, pairs: Sequence[tuple[list[int], list[int]]]) -> list[FloatArray]:
        """See `Readings`."""
        pad = self._tokenizer.pad_token_id
        return [one.logprobs.numpy() for one in score(self._model, pairs, pad=pad, share_prefix=False)]

    @torch.inference_mode()
    def _batch(self, batch: Sequence[Reading]) -> list[ReadStates]:
        longest = max(r.tokens for r in batch)
        pad = self._tokenizer.pad_token_id
        device = self._model.device
        # Padding stands at the end, where no token sees it, and positions count from 0 as they do in the model.
        ids = torch.tensor([r.prompt + r.answer + [pad] * (longest - r.tokens) for r in batch], device=device)
        mask = torch.tensor([[1] * r.tokens + [0] * (longest - r.tokens) for r in batch], device=device)
        singles = [position for position in self.positions if not position.endswith("_mean")]
        places = [[place_of(r, position) for position in singles] for r in batch]
        at = torch.tensor(places, dtype=torch.long, device=device)  # where only means are asked for, it is empty
        rows = torch.arange(len(batch), device=device)[:, None]
        states: list[Tensor] = []  # a layer each: (B, positions, D), float32
        answers: list[list[Tensor]] = []  # a layer each, a row each: (T, D), float32

        def keep(layer: int, hidden: Tensor) -> None:
            read = dict(zip(singles, hidden[rows, at].float().unbind(1), strict=True))
            for position in set(self.positions) - read.keys():
                spans = [hidden[i, span_of(r, position)] for i, r in enumerate(batch)]
                read[position] = torch.stack([span.float().mean(0) for span in spans])
            states.append(torch.stack([read[position] for position in self.positions], dim=1))
            if self._tokens:
                answers.append([hidden[i, len(r.prompt) : r.tokens].float().cpu() for i, r in enumerate(batch)])
            if layer == self.layers[-1]:
                raise _DeepEnough

        try:
            with layer_hooks(self._model, self.layers, keep):
                self._model(input_ids=ids, attention_mask=mask, use_cache=False, logits_to_keep=1)
        except _DeepEnough:
            pass
        values = to_float16(torch.stack(states, dim=1).cpu().numpy())  # (B, L, P, D)
        each = [to_float16(torch.stack(row, dim=1).numpy()) for row in zip(*answers, strict=True)]  # (T, L, D) each
        return [
            ReadStates(Hidden(values[i], self.layers, self.positions), each[i] if self._tokens else None)
            for i in range(len(batch))
        ]
