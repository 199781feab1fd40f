"""Which hidden states are kept while a model answers, and how they are read: by hooks, without keeping the others."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel

from metaprobe.llms.base import LLMError
from metaprobe.records.types import LIVE_POSITIONS, Hidden


@dataclass(frozen=True, slots=True)
class Capture:
    """Which hidden states to keep. Layer 0 is the input of the first block, layer i the output of block i.

    That is transformers' `hidden_states[i]`, except for the last layer: transformers applies the final norm there, and
    we do not. An empty answer has, at the answer positions, the state of the last prompt token.
    """

    layers: tuple[int, ...]
    positions: tuple[str, ...] = ("prompt_last", "answer_last", "answer_mean")

    def __post_init__(self) -> None:
        if unknown := set(self.positions) - set(LIVE_POSITIONS):
            raise LLMError(
                f"positions {sorted(unknown)} are not known while a model answers; there are then "
                f"{', '.join(LIVE_POSITIONS)}"
            )
        if not self.layers or sorted(set(self.layers)) != list(self.layers):
            raise LLMError(f"layers must be ascending and distinct, got {self.layers}")


class StateReader:
    """The states of the chosen layers at the last position of the latest forward pass."""

    def __init__(self, capture: Capture) -> None:
        self.capture = capture
        self._seen: dict[int, Tensor] = {}  # layer -> (B, D)

    def latest(self) -> Tensor:
        """float32, (layers, B, D)."""
        return torch.stack([self._seen[layer] for layer in self.capture.layers])

    @contextmanager
    def hooks(self, model: PreTrainedModel) -> Iterator[None]:
        """While open, every forward pass is read."""
        with layer_hooks(model, self.capture.layers, self._keep):
            yield

    def _keep(self, layer: int, hidden: Tensor) -> None:
        # (B, D): left padding puts every row's newest token last. A view would keep the whole prompt's states alive.
        self._seen[layer] = hidden[:, -1].to(torch.float32, copy=True)


@contextmanager
def layer_hooks(
    model: PreTrainedModel, layers: Sequence[int], on_layer: Callable[[int, Tensor], None]
) -> Iterator[None]:
    """While open, every forward pass calls `on_layer` for these layers, ascending, with their states (B, S, D)."""
    blocks = decoder_blocks(model)
    if layers[-1] > len(blocks):
        raise LLMError(f"layer {layers[-1]} asked for; this model has layers 0 to {len(blocks)}")

    def before_first(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        on_layer(0, args[0] if args else kwargs["hidden_states"])

    def after(layer: int) -> Callable[[nn.Module, Any, Any], None]:
        return lambda _, __, output: on_layer(layer, output[0] if isinstance(output, tuple) else output)

    handles = [
        blocks[0].register_forward_pre_hook(before_first, with_kwargs=True)
        if layer == 0
        else blocks[layer - 1].register_forward_hook(after(layer))
        for layer in layers
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


class RowStates:
    """The states of one answer: each token's is added, and what is kept of all of them is small."""

    def __init__(self, capture: Capture, *, revocable: int = 0) -> None:
        """`revocable`: how many of the newest tokens `trim` may still take away."""
        self._capture = capture
        self._prompt: Tensor | None = None  # each (L, D)
        self._first: Tensor | None = None
        self._sum: Tensor | None = None
        self._latest: deque[Tensor] = deque(maxlen=revocable + 1)
        self._count = 0

    def add(self, state: Tensor) -> None:
        """The state at the last prompt token, (L, D), then at each answer token."""
        if self._prompt is None:
            self._prompt = state.clone()
            return
        self._count += 1
        if self._first is None or self._sum is None:
            self._first, self._sum = state.clone(), state.clone()
        else:
            self._sum += state
        self._latest.append(state)

    def trim(self, count: int) -> None:
        """Forget what came after the first `count` answer tokens."""
        while self._count > count:
            self._count -= 1
            assert self._sum is not None
            self._sum -= self._latest.pop()

    def hidden(self) -> Hidden:
        """The positions asked for, float16, (layers, positions, width)."""
        assert self._prompt is not None
        values = dict.fromkeys(LIVE_POSITIONS, self._prompt)
        if self._count:
            assert self._first is not None
            assert self._sum is not None
            values |= {
                "answer_first": self._first,
                "answer_last": self._latest[-1],
                "answer_mean": self._sum / self._count,
            }
        kept = torch.stack([values[position] for position in self._capture.positions], dim=1)  # (L, P, D)
        return Hidden(
            values=kept.to(torch.float16).cpu().numpy(), layers=self._capture.layers, positions=self._capture.positions
        )


def decoder_blocks(model: PreTrainedModel) -> nn.ModuleList:
    """The transformer blocks, in order: the module list as long as the configuration's number of layers."""
    count = model.config.get_text_config().num_hidden_layers
    found = [m for m in model.modules() if isinstance(m, nn.ModuleList) and len(m) == count]
    if not found:
        raise LLMError(f"no list of {count} decoder blocks found in {type(model).__name__}: hidden states unavailable")
    return found[0]


def chosen_layers(choice: str, config: PretrainedConfig) -> tuple[int, ...]:
    """The layers that `all`, `every:N` or a list such as `0,8,16` means for this model. Raises `LLMError`."""
    last = int(config.get_text_config().num_hidden_layers)
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
