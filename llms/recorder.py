"""What is kept of one batch while it is generated: token log-probabilities, top-k, and hidden states.

The recorder is the last logits processor of `generate`, so it sees the model's own logits. It draws the tokens itself,
row by row, each row with its own temperature, top-p and seed, and hands `generate` logits whose argmax is that choice:
a row's tokens do not depend on the random state of the other rows in its batch.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Event
from typing import Any

import torch
from torch import Tensor, nn
from transformers import LogitsProcessor, PreTrainedModel, StoppingCriteria

from metaprobe.llms.base import LLMError
from metaprobe.records.types import POSITIONS, Hidden, Sampling


@dataclass(frozen=True, slots=True)
class Capture:
    """Which hidden states to keep. Layer 0 is the input of the first block, layer i the output of block i.

    That is transformers' `hidden_states[i]`, except for the last layer: transformers applies the final norm there, and
    we do not. An empty answer has, at the answer positions, the state of the last prompt token.
    """

    layers: tuple[int, ...]
    positions: tuple[str, ...] = ("prompt_last", "answer_last", "answer_mean")
    stages: tuple[str, ...] = ("answer",)
    """Only calls of these stages are captured; empty means all."""

    def __post_init__(self) -> None:
        if unknown := set(self.positions) - set(POSITIONS):
            raise LLMError(f"unknown positions {sorted(unknown)}; known: {', '.join(POSITIONS)}")
        if not self.layers or sorted(set(self.layers)) != list(self.layers):
            raise LLMError(f"layers must be ascending and distinct, got {self.layers}")


class Cancelled(Exception):
    """Generation was told to stop."""


class BatchRecorder(LogitsProcessor):
    """Draws and records the tokens of B left-padded rows; for one batch."""

    def __init__(
        self,
        samplings: Sequence[Sampling],
        *,
        eos_ids: Sequence[int],
        device: torch.device,
        top_logprobs: int = 0,
        capture: Capture | None = None,
        cancel: Event | None = None,
    ) -> None:
        B = len(samplings)
        self._samplings = samplings
        self._generators = [_generator(sampling, device) for sampling in samplings]
        self._limits = torch.tensor([sampling.max_tokens for sampling in samplings], device=device)
        self._eos = torch.tensor(list(eos_ids), device=device)
        self._k = top_logprobs
        self._capture = capture
        self._cancel = cancel
        self._tokens: list[Tensor] = []  # each (B,)
        self._logprobs: list[Tensor] = []  # each (B,)
        self._top: list[Tensor] = []  # each (B, k)
        self._lengths = torch.zeros(B, dtype=torch.long, device=device)
        self._stopped = torch.zeros(B, dtype=torch.bool, device=device)
        self._seen: dict[int, Tensor] = {}  # layer -> (B, D), last token of this forward pass
        self._states: dict[str, Tensor] = {}  # position -> (L, B, D)
        self.done = torch.zeros(B, dtype=torch.bool, device=device)
        """Rows that have ended, shape (B,)."""

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Record one step. `scores`: raw logits (B, V). Returns logits whose argmax is the drawn token."""
        if self._cancel is not None and self._cancel.is_set():
            raise Cancelled
        self._keep_states()
        logprobs = torch.log_softmax(scores.float(), dim=-1)  # (B, V)
        drawn, chosen = self._draw(logprobs)
        self._tokens.append(chosen)
        self._logprobs.append(logprobs.gather(1, chosen[:, None])[:, 0])
        if self._k:
            self._top.append(logprobs.topk(self._k, dim=-1).values)
        ends = torch.isin(chosen, self._eos)
        self._stopped |= ends & ~self.done
        # One token more than the limit is drawn and dropped: it tells an answer that had just ended from one that was
        # cut, and its forward pass gives the hidden state of the last token that counts.
        self.done = self.done | ends | (self._lengths >= self._limits)
        self._lengths += (~self.done).long()
        return drawn

    def tokens(self, row: int) -> list[int]:
        """Token ids of a row, without the end-of-sequence token."""
        return [int(step[row]) for step in self._tokens[: int(self._lengths[row])]]

    def logprobs(self, row: int) -> Tensor:
        """Raw log-probabilities (T,) of those tokens, in nats."""
        return _steps(self._logprobs, row, int(self._lengths[row]))

    def top_logprobs(self, row: int) -> Tensor | None:
        """The k largest log-probabilities at each step, (T, k), descending."""
        return _steps(self._top, row, int(self._lengths[row])) if self._k else None

    def finish_reason(self, row: int) -> str:
        """`stop` for an answer that ended by itself, `length` for one that max_tokens cut."""
        return "stop" if self._stopped[row] else "length"

    def hidden(self, row: int) -> Hidden | None:
        """The captured hidden states of a row, float16 (layers, positions, width)."""
        if self._capture is None:
            return None
        count = max(int(self._lengths[row]), 1)
        states = [
            self._states[p][:, row] / (count if p == "answer_mean" else 1) for p in self._capture.positions
        ]  # each (L, D)
        values = torch.stack(states, dim=1).to(torch.float16).cpu().numpy()
        return Hidden(values=values, layers=self._capture.layers, positions=self._capture.positions)

    @contextmanager
    def hooks(self, model: PreTrainedModel) -> Iterator[None]:
        """While open, copies the states of the layers asked for, at the last position of every forward pass."""
        if self._capture is None:
            yield
            return
        blocks = decoder_blocks(model)
        if self._capture.layers[-1] > len(blocks):
            raise LLMError(f"layer {self._capture.layers[-1]} asked for; this model has layers 0 to {len(blocks)}")
        handles = [
            blocks[0].register_forward_pre_hook(self._before_first_block, with_kwargs=True)
            if layer == 0
            else blocks[layer - 1].register_forward_hook(self._after_block(layer))
            for layer in self._capture.layers
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _before_first_block(self, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._seen[0] = _last_position(args[0] if args else kwargs["hidden_states"])

    def _after_block(self, layer: int) -> Callable[[nn.Module, Any, Any], None]:
        def hook(_: nn.Module, __: Any, output: Any) -> None:
            self._seen[layer] = _last_position(output[0] if isinstance(output, tuple) else output)

        return hook

    def _keep_states(self) -> None:
        """Before step s is drawn, the model has just read answer token s - 1 (at s = 0: the last prompt token)."""
        if self._capture is None:
            return
        now = torch.stack([self._seen[layer] for layer in self._capture.layers])  # (L, B, D)
        if not self._tokens:
            self._states = {position: now.clone() for position in POSITIONS}
            return
        states, alive = self._states, ~self.done[:, None]  # (B, 1)
        first = len(self._tokens) == 1
        if first:
            states["answer_first"] = torch.where(alive, now, states["answer_first"])
        states["answer_last"] = torch.where(alive, now, states["answer_last"])
        states["answer_mean"] = torch.where(alive, now + (0 if first else states["answer_mean"]), states["answer_mean"])

    def _draw(self, logprobs: Tensor) -> tuple[Tensor, Tensor]:
        """Greedy, or by the Gumbel-max trick: argmax(log p + Gumbel noise) is a draw from p."""
        if all(sampling.temperature == 0 for sampling in self._samplings):
            return logprobs, logprobs.argmax(dim=-1)
        rows = []
        for row, sampling, generator in zip(logprobs, self._samplings, self._generators, strict=True):
            if sampling.temperature == 0:
                rows.append(row)
                continue
            kept = _nucleus(row / sampling.temperature, sampling.top_p)
            uniform = torch.rand(row.shape, generator=generator, device=row.device).clamp_(min=1e-20)
            rows.append(kept - torch.log(-torch.log(uniform)))
        drawn = torch.stack(rows)
        return drawn, drawn.argmax(dim=-1)


class RowsDone(StoppingCriteria):
    """Stops each row when its recorder says so."""

    def __init__(self, recorder: BatchRecorder) -> None:
        self._recorder = recorder

    def __call__(self, input_ids: Tensor, scores: Any, **_: Any) -> Tensor:
        return self._recorder.done


def decoder_blocks(model: PreTrainedModel) -> nn.ModuleList:
    """The transformer blocks, in order: the module list as long as the configuration's number of layers."""
    count = model.config.get_text_config().num_hidden_layers
    found = [m for m in model.modules() if isinstance(m, nn.ModuleList) and len(m) == count]
    if not found:
        raise LLMError(f"no list of {count} decoder blocks found in {type(model).__name__}: hidden states unavailable")
    return found[0]


def chosen_layers(choice: str, model: PreTrainedModel) -> tuple[int, ...]:
    """The layers that `all`, `every:N` or a list such as `0,8,16` means for this model. Raises `LLMError`."""
    last = len(decoder_blocks(model))
    step = choice.removeprefix("every:")
    if choice == "all":
        return tuple(range(last + 1))
    if choice.startswith("every:") and step.isdecimal() and int(step) > 0:
        return tuple(range(0, last + 1, int(step)))
    numbers = [part.strip() for part in choice.split(",")]
    if all(number.isdecimal() for number in numbers):
        layers = tuple(sorted({int(number) for number in numbers}))
        if layers[-1] <= last:
            return layers
    raise LLMError(f"layers {choice!r}: expected 'all', 'every:N', or numbers from 0 to {last} such as 0,{last // 2}")


def _generator(sampling: Sampling, device: torch.device) -> torch.Generator:
    generator = torch.Generator(device)
    if sampling.seed is None:
        generator.seed()
    else:
        generator.manual_seed(sampling.seed)
    return generator


def _last_position(hidden: Tensor) -> Tensor:
    return hidden[:, -1].float()  # (B, D): left padding puts every row's newest token last


def _steps(steps: list[Tensor], row: int, count: int) -> Tensor:
    if not count:
        return steps[0].new_zeros((0, *steps[0].shape[1:]))
    return torch.stack([step[row] for step in steps[:count]]).cpu()


def _nucleus(logits: Tensor, top_p: float) -> Tensor:
    """Logits (V,) with everything outside the smallest set of probability `top_p` at -inf."""
    if top_p >= 1:
        return logits
    ordered, order = logits.sort(descending=True)
    before = ordered.softmax(-1).cumsum(-1) - ordered.softmax(-1)
    return logits.clone().index_fill_(0, order[before >= top_p], float("-inf"))
