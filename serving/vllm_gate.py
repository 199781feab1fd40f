"""The streaming gate inside vLLM: a logits processor that ends an answer by forcing its end token.

    METAPROBE_GATE=bundled:gate vllm serve MODEL --logits-processors metaprobe.serving.vllm_gate:GateLogitsProcessor

A request is gated that asks for it: `"vllm_xargs": {"metaprobe_gate": 0.05}`, or `SamplingParams(extra_args=...)`.
`metaprobe_gate_end` names another token to force, which is then given in `stop_token_ids` too: an answer that the gate
ended is the one with that `stop_reason`. The log-probability of a forced token is of a token that the model did not
choose; all readers here leave an end token out.

Name the processor on the command line: vLLM 0.32 hands the drawn tokens to processors that are named there, and not to
those that it finds as plugins. It takes no logits processors together with speculative decoding, and so none together
with the hidden states of `metaprobe extract --via vllm`.
"""

import os
from collections import deque
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch import Tensor
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor
from vllm.v1.sample.logits_processor.builtin import process_dict_updates

from metaprobe.records.errors import InvalidResponse
from metaprobe.routing.gate import Gate, StreamingGate

RATE, END = "metaprobe_gate", "metaprobe_gate_end"
"""Keys of a request's `extra_args`: the share of good answers that may be ended, and the token that ends one."""


@cache
def _loaded(path: str) -> StreamingGate:
    """The gate of the checkpoint, read once in a process, with all its rates and none chosen."""
    return StreamingGate.load(path or None, stop=None, on_mismatch="note")


def _path() -> str:
    return os.environ.get("METAPROBE_GATE", "")


@dataclass(slots=True)
class _Gated:
    """An answer that is being written."""

    gate: Gate
    end: int
    """The token that is forced when the gate has fired."""
    drawn: list[int]
    """The tokens drawn so far: the engine's own list, in which -1 stands for one that is not known yet."""
    pushed: int = 0
    rows: deque[Tensor] = field(default_factory=deque)
    """Log-probabilities (V,) of the places whose tokens the gate has not seen."""


class GateLogitsProcessor(LogitsProcessor):  # type: ignore[misc]  # vLLM has its own environment
    """Pushes each drawn token's raw log-probability into the answer's gate, one step after it was drawn."""

    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:
        """Reads the gate's checkpoint, that in the environment variable METAPROBE_GATE or the one of the package.

        Raises `CheckpointError` for one that cannot be used: the server then does not start.
        """
        self._loaded = _loaded(_path())
        self._gates: dict[float, StreamingGate] = {}
        self._model = str(vllm_config.model_config.served_model_name or vllm_config.model_config.model)
        ends = vllm_config.model_config.try_get_generation_config().get("eos_token_id")
        own = ends[0] if isinstance(ends, list) else ends
        self._end: int = vllm_config.model_config.hf_text_config.eos_token_id if own is None else own
        self._answers: dict[int, _Gated] = {}

    @classmethod
    def validate_params(cls, sampling_params: Any) -> None:
        """Raises `ValueError` for a rate that the gate does not have, and for an end that would not end the answer.

        vLLM calls this before the request goes to the engine, where an error would end the answers of all others too.
        """
        asked = sampling_params.extra_args or {}
        rate, end = asked.get(RATE), asked.get(END)
        if rate is not None and (isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 < rate < 1):
            raise ValueError(f"{RATE} is {rate!r}; expected a false-alarm rate such as 0.05")
        if rate is not None and rate not in (known := _loaded(_path()).alphas):
            raise ValueError(
                f"{RATE} is {rate!r}; expected one of the false-alarm rates of the gate: {', '.join(map(str, known))}"
            )
        if end is not None and (type(end) is not int or end not in (sampling_params.stop_token_ids or ())):
            raise ValueError(f"{END} is {end!r}; expected a token of stop_token_ids {sampling_params.stop_token_ids}")

    def is_argmax_invariant(self) -> bool:
        """False: it forces a token."""
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """Follows the requests that come, go and change places in the batch."""
        process_dict_updates(self._answers, batch_update, self._begin)

    def apply(self, logits: Tensor) -> Tensor:
        """The logits (B, V) of the next tokens; where a gate has fired only its end token is left."""
        for row, answer in self._answers.items():
            own = logits[row]
            if _look(answer) == "continue":
                answer.rows.append(torch.log_softmax(own, dim=-1))
            else:
                own.fill_(-torch.inf)
                own[answer.end] = 0.0
                answer.rows.clear()
        return logits

    def _begin(self, params: Any, prompt: list[int] | None, drawn: list[int]) -> _Gated | None:
        asked = params.extra_args or {}
        rate = asked.get(RATE)
        if rate not in self._loaded.alphas:  # not asked for; of other rates `validate_params` has spoken
            return None
        if drawn:  # one that was put aside and comes back: what it began with is not known here
            return None
        if rate not in self._gates:
            self._gates[rate] = StreamingGate(self._loaded.heads, stop=rate)
        gates = self._gates[rate]
        end = self._end if asked.get(END) is None else asked[END]
        return _Gated(gates.start(model=self._model), end, drawn)


def _look(answer: _Gated) -> str:
    """Returns the gate's action, now that further tokens are known."""
    while answer.pushed < len(answer.drawn) and answer.rows and (token := answer.drawn[answer.pushed]) >= 0:
        row = answer.rows.popleft()
        answer.pushed += 1
        try:
            answer.gate.push(min(float(row[token]), 0.0))
        except InvalidResponse:  # a token that was ruled out by another processor: the gate keeps to what it said
            continue
    return answer.gate.action
