"""Estimates confidence while transformers' `generate` writes, and may end a row: hooks and a stopping criterion.

    with watch(model, layers=probe.layers, read=probe.follow, stop_below=0.2, after=10) as watcher:
        model.generate(**inputs, stopping_criteria=[watcher])
    watcher.confidence[row][i]  # once answer token i of that row had been read

Which tokens an estimate has seen: `generate` draws answer token t, appends it, calls the stopping criteria, and reads
token t only in its next forward pass. So the estimate after token t is known one token later. A row that is ended
because of this estimate also holds token t + 1, unread. The last token of an answer that `max_new_tokens` cut is never
read, and has no estimate. An answer that ended by itself has an estimate for each of its tokens, except the
end-of-sequence token.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel, StoppingCriteria

from metaprobe.llms.base import LLMError
from metaprobe.llms.hidden_capture import Capture, StateReader, decoder_blocks
from metaprobe.records.types import FloatArray

Stop = Callable[[int, Sequence[float]], bool]
"""A function of (row, its confidences so far) that returns whether to end the row."""


class TextEstimate(Protocol):
    """Estimates the confidence of one growing answer, as a hidden-state probe does."""

    def push(self, state: FloatArray, /) -> float:
        """Returns the estimate after the next answer token; `state` is the token's hidden state."""
        ...


@dataclass(slots=True, eq=False)
class _WatchedRow:
    """One growing answer."""

    estimate: TextEstimate
    confidence: list[float] = field(default_factory=list)
    length: int = 0
    """Number of answer tokens, without the end-of-sequence token."""
    ended: bool = False
    """Whether the answer has ended, by itself or by the watcher."""
    stopped: bool = False
    """Whether the watcher ended the answer."""


class Watcher(StoppingCriteria):
    """Follows the rows of one `generate` call, greedy or sampling; made by `watch`."""

    def __init__(
        self,
        reader: StateReader,
        layers: Sequence[int],
        read: Callable[[FloatArray], TextEstimate],
        *,
        stop: Stop | None,
        after: int,
        end_ids: Collection[int],
    ) -> None:
        self._reader = reader
        # The reader keeps its layers in ascending order; these indices restore the order of `layers`.
        self._order = [reader.capture.layers.index(layer) for layer in layers]
        self._read = read
        self._stop = stop
        self._after = after
        self._end_ids = frozenset(end_ids)
        self._rows: list[_WatchedRow] = []
        self._seen_length = 0

    @property
    def confidence(self) -> list[list[float]]:
        """Estimates of each row: after answer token 0 was read, after token 1, and so on."""
        return [row.confidence for row in self._rows]

    @property
    def stopped(self) -> list[bool]:
        """Whether each row was ended by this watcher."""
        return [row.stopped for row in self._rows]

    @property
    def lengths(self) -> list[int]:
        """Number of answer tokens of each row, without the end-of-sequence token.

        The result of `generate` is as long as the longest row. After a row that ended there are padding tokens. Without
        an end-of-sequence token `generate` continues to write there until all rows have ended.
        """
        return [row.length for row in self._rows]

    def __call__(self, input_ids: Tensor, scores: Any, **_: Any) -> Tensor:
        """Returns whether each row is to end, bool, (B,). `input_ids`: prompts and answers, (B, S)."""
        states = self._states(input_ids)  # (B, layers * width): of the last token but one
        if not self._rows:
            self._check_finite_states(states, "the last prompt token")
            self._rows = [_WatchedRow(self._read(state)) for state in states]
        else:
            unfinished = [row_index for row_index, row in enumerate(self._rows) if not row.ended]
            if unfinished:
                self._check_finite_states(states[unfinished], f"answer token {self._rows[unfinished[0]].length - 1}")
            for row_index in unfinished:
                row = self._rows[row_index]
                row.confidence.append(float(row.estimate.push(states[row_index])))
        for row_index, (row, token) in enumerate(zip(self._rows, input_ids[:, -1].tolist(), strict=True)):
            if row.ended:
                continue
            if token in self._end_ids:
                row.ended = True
                continue
            row.length += 1
            if self._stop is not None and len(row.confidence) >= self._after:
                row.ended = row.stopped = bool(self._stop(row_index, row.confidence))
        return torch.tensor(self.stopped, device=input_ids.device)

    def _states(self, input_ids: Tensor) -> FloatArray:
        """Returns the states at the last position of the latest forward pass, (B, layers * width)."""
        row_count, length = input_ids.shape
        try:
            latest_states = self._reader.latest()
        except KeyError:
            raise LLMError("the watched model has not run: give the watcher to that model's own generate") from None
        if latest_states.shape[1] != row_count:
            raise LLMError(
                f"{row_count} sequences came from a forward pass of {latest_states.shape[1]}: beams change places and "
                "cannot be watched; use num_beams=1"
            )
        if self._rows and (len(self._rows) != row_count or length != self._seen_length + 1):
            raise LLMError(
                f"expected {len(self._rows)} sequences of {self._seen_length + 1} tokens, got {row_count} of {length}: "
                "a watcher follows one generate, a token at a time; open another `watch`, and use no assistant model"
            )
        self._seen_length = length
        states: FloatArray = latest_states[self._order].transpose(0, 1).flatten(1).cpu().numpy()
        return states

    def _check_finite_states(self, states: FloatArray, where: str) -> None:
        if not np.isfinite(states).all():
            layers = [self._reader.capture.layers[index] for index in self._order]
            raise LLMError(
                f"hidden states of layers {layers} hold NaN or infinity at {where}: load the model in bfloat16 or "
                f"float32, and check its weights"
            )


@contextmanager
def watch(
    model: PreTrainedModel,
    *,
    layers: Sequence[int],
    read: Callable[[FloatArray], TextEstimate],
    stop_below: float | None = None,
    stop: Stop | None = None,
    after: int = 1,
    end_ids: Collection[int] | None = None,
) -> Iterator[Watcher]:
    """Yields a stopping criterion for one `generate` call of this model. Its hooks are removed at the end of the block.

    If no row is ended, the output equals that of a `generate` without a watcher. Batches are padded on the left, as
    `generate` requires. Raises `LLMError` for a layer that the model does not have. Within `generate` it is raised for
    beam search, an assistant model, a second `generate`, and states that are NaN or infinite.

    Args:
        model: the model.
        layers: layers to read, with the indices of `Capture`; the states of several layers are joined in this order.
            Only the latest states are kept.
        read: called for each row with the state of its last prompt token; returns the row's estimator, such as
            `probe.follow`.
        stop_below: ends a row whose confidence is below it.
        stop: a function that decides whether to end a row, instead of `stop_below`; without either no row is ended.
        after: number of tokens of a row that need an estimate before it may end.
        end_ids: tokens that end an answer, and the padding token; by default those of the model's generation settings.
            Give them if `generate` has others.
    """
    last_layer = len(decoder_blocks(model))
    if not layers or len(set(layers)) != len(layers) or not all(0 <= layer <= last_layer for layer in layers):
        raise LLMError(
            f"layers {list(layers)}: expected different numbers from 0 to {last_layer}, the layers of this model"
        )
    if after < 1:
        raise LLMError(
            f"after is {after}: expected at least 1, for nothing is known of an answer before its first token"
        )
    if stop_below is not None and stop is not None:
        raise LLMError("stop_below and stop were both given: give one of them")
    if stop_below is not None and not 0 <= stop_below <= 1:
        raise LLMError(f"stop_below is {stop_below}: expected a probability")
    reader = StateReader(Capture(tuple(sorted(layers))))
    end_token_ids = _end_ids(model) if end_ids is None else end_ids
    stop = stop if stop_below is None else _stops_below(stop_below)
    with reader.hooks(model):
        yield Watcher(reader, layers, read, stop=stop, after=after, end_ids=end_token_ids)


def _stops_below(threshold: float) -> Stop:
    return lambda _, confidence: confidence[-1] < threshold


def _end_ids(model: PreTrainedModel) -> set[int]:
    """Returns end-of-sequence and padding tokens: `generate` writes padding after a row that has ended."""
    config: Any = model.generation_config
    if config is None:
        return set()
    eos_ids = config.eos_token_id if isinstance(config.eos_token_id, list) else [config.eos_token_id]
    return {int(token) for token in [*eos_ids, config.pad_token_id] if token is not None}
