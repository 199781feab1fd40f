"""Faults that engines have had with hidden states, planted in a reader of states or in its weights.

Each is planted where an engine has it: between the tokens and what is read of them, or in the weights.
"""

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch

from metaprobe.llms.hidden_capture import decoder_blocks
from metaprobe.llms.local import LocalLLM
from metaprobe.llms.readings import Reading, ReadStates, StateReplay
from metaprobe.records.canaries import CANARY_POSITIONS
from metaprobe.records.types import Hidden


class FaultyReplay(StateReplay):
    """Reads other tokens or layers than it says that it reads."""

    def __init__(
        self, llm: LocalLLM, fault: str, layers: Sequence[int], positions: Sequence[str] = CANARY_POSITIONS
    ) -> None:
        """`fault`: a key of `TOKENS`, one of `ROWS`, `layer +1` or `layer -1`; empty for none."""
        super().__init__(llm, layers=",".join(map(str, layers)), positions=positions)
        self.fault = fault

    def at(self, positions: Sequence[str]) -> "FaultyReplay":
        return FaultyReplay(self._llm, self.fault, self.layers, positions)

    def read(self, readings: Sequence[Reading], *, batch_size: int = 32) -> list[ReadStates]:
        read = super().read([TOKENS.get(self.fault, lambda one: one)(one) for one in readings], batch_size=batch_size)
        if self.fault == "rows exchanged":
            places = [i ^ 1 if i ^ 1 < len(read) else i for i in range(len(read))]
            return [read[place] for place in places]
        if self.fault == "two rows exchanged once":
            read[2], read[3] = read[3], read[2]
        if self.fault.startswith("layer"):
            step = int(self.fault.split()[-1])
            other = StateReplay(self._llm, layers="all", positions=self.positions)
            last = len(decoder_blocks(self._llm.model))
            at = [min(max(layer + step, 0), last) for layer in self.layers]
            states = [one.hidden.values[at] for one in other.read(readings)]
            return [ReadStates(Hidden(values, self.layers, self.positions), None) for values in states]
        return read


def _moved(reading: Reading, prompt: list[int], answer: list[int], shift: int = 0) -> Reading:
    """Returns a reading of these tokens in which the places are those of the right tokens, plus `shift`."""
    at = np.minimum(np.arange(len(answer)) + len(prompt) + shift, len(prompt) + len(answer) - 1)
    return replace(reading, prompt=prompt, answer=answer, answer_at=at)


def _prefix_cut(reading: Reading) -> Reading:
    """The first 32 tokens were in the cache, and their keys are not used."""
    return _moved(reading, reading.prompt[32:] or reading.prompt[-1:], reading.answer)


def _chunk_twice(reading: Reading) -> Reading:
    prompt = reading.prompt
    return _moved(reading, prompt[:16] + prompt[8:], reading.answer)


def _chunk_dropped(reading: Reading) -> Reading:
    prompt = reading.prompt
    return _moved(reading, prompt[:8] + prompt[16:], reading.answer)


def _rows_one_late(reading: Reading) -> Reading:
    """A chunk's last row was written twice, so that every later row stands one place too late."""
    return _moved(reading, reading.prompt, reading.answer, shift=-1)


def _rejected_rows(reading: Reading) -> Reading:
    """Rows of drafted tokens that were rejected stand among the rows of the tokens that were kept."""
    answer = [token for i, kept in enumerate(reading.answer) for token in ([kept] if i % 3 else [5, kept])]
    at = len(reading.prompt) + np.arange(len(reading.answer))  # as if nothing stood between them
    return replace(reading, answer=answer, answer_at=at)


def _padding(reading: Reading) -> Reading:
    """The last places are of padding."""
    return _moved(reading, reading.prompt, [*reading.answer, 0, 0, 0], shift=3)


TOKENS: dict[str, Callable[[Reading], Reading]] = {
    "prefix cache cut": _prefix_cut,
    "chunk captured twice": _chunk_twice,
    "chunk dropped": _chunk_dropped,
    "rows one place late": _rows_one_late,
    "rejected tokens": _rejected_rows,
    "padding on the other side": _padding,
}
"""Fault -> what it does to a reading."""


ROWS = ("rows exchanged", "two rows exchanged once")
"""Faults that give a row of a batch the states of another one."""


def with_adapter(weights: Any, scale: float = 0.1) -> Any:
    """Returns the network with a LoRA of rank 4 on queries and values, merged; `scale`: its size as a share of the
    weights'."""
    torch.manual_seed(1)
    return _changed(weights, partial(_adapted, scale=scale), ("q_proj", "v_proj"))


def quantised(weights: Any, bits: int) -> Any:
    """Returns the network with the blocks' weights rounded to so many bits, symmetrically in groups of 16."""
    return _changed(weights, partial(_rounded, bits=bits), ("proj",))


def _changed(weights: Any, change: Callable[[torch.Tensor], torch.Tensor], names: Sequence[str]) -> Any:
    made = deepcopy(weights)
    for name, module in made.model.named_modules():
        if isinstance(module, torch.nn.Linear) and any(one in name for one in names):
            module.weight.data = change(module.weight.data.float()).to(module.weight.dtype)
    return made


def _adapted(weight: torch.Tensor, scale: float) -> torch.Tensor:
    low = torch.randn(weight.shape[0], 4) @ torch.randn(4, weight.shape[1])
    return weight + low * scale * weight.norm() / low.norm()


def _rounded(weight: torch.Tensor, bits: int) -> torch.Tensor:
    groups = weight.reshape(-1, 16)
    step = groups.abs().amax(1, keepdim=True) / (2 ** (bits - 1) - 1)
    return ((groups / step).round() * step).reshape(weight.shape)
