"""Lets a probe read hidden states only of a source whose states were checked against those of its training.

A checkpoint that was trained on states with canaries holds their golden states. Each source of states brings its own
states of the same canaries (`Hidden.canaries`). The two are compared once, and the result is kept.
"""

import warnings
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from metaprobe.checkpoints import Checkpoint, ContractMismatch
from metaprobe.records.canaries import CANARIES_FILE, CanaryStates, StatesCheck, compare_canaries, golden_canaries
from metaprobe.records.errors import RecordError
from metaprobe.records.types import FloatArray, Hidden

CANNOT_BE_CHECKED = (
    "the checkpoint holds no canaries to check hidden states with; expected golden states: train it again on states of "
    '`metaprobe collect` or `metaprobe extract`, or take on_mismatch "ignore"'
)
"""Fault of checkpoints that were trained on states without canaries: by an older version, or on arrays."""
NOT_CHECKED = (
    "the source of the hidden states was not checked: they came without its states of the canaries; send these as "
    "`canaries`, or move the store's files of states (*.safetensors) away and read its answers by `metaprobe extract`, "
    'or take on_mismatch "ignore"'
)

MOST_WARNINGS = 64
"""Most different faults that one guard warns of. Callers who send canaries may cause any number of faults."""


LONGER = 2.0
"""Factor by which a state may be longer than the longest golden state of its layer, or shorter than the shortest. Of
500 answers, at five layers, it is at most 1.5 (SmolLM2-135M)."""


class CanaryGuard:
    """Decides whether a checkpoint may score the hidden states of a source."""

    def __init__(self, checkpoint: Checkpoint, layers: Sequence[int]) -> None:
        """`layers`: layers that the checkpoint reads. Raises `ContractMismatch` if its canary states cannot be read."""
        self.layers = tuple(sorted(set(layers)))
        self._warned: set[str] = set()
        try:
            self.golden = golden_canaries(checkpoint.extra)
        except RecordError as error:
            raise ContractMismatch(f"{checkpoint.path}: {CANARIES_FILE}: {error}") from error
        self._scales: dict[int, tuple[FloatArray, float, float]] = {}
        """Layer -> one over each channel's usual size, (width,); limits of a state's squared length in these units."""
        if self.golden is not None:
            for place, layer in enumerate(self.golden.layers):
                values = self.golden.values[:, place].astype(np.float64)  # (canaries, positions, width)
                scale = 1 / (np.sqrt((values**2).mean(axis=(0, 1))) + 1e-6)
                squares = _squared_lengths(values.reshape(-1, len(scale)), scale)
                self._scales[layer] = scale, float(squares.min()) / LONGER**2, float(squares.max()) * LONGER**2

    def check(self, seen: CanaryStates) -> StatesCheck:
        """Returns whether this source gives the states that the checkpoint was trained on. Raises `ContractMismatch`
        for a checkpoint without canaries."""
        if self.golden is None:
            raise ContractMismatch(CANNOT_BE_CHECKED)
        return _check_once(self.golden, seen, self.layers)

    def fault(self, hidden: Hidden, model: str = "") -> str:
        """Returns why these states must not be scored; empty if they may be.

        `model`: the model that answered.
        """
        return self.source_fault(hidden.canaries, hidden.model or model) or self.states_fault(
            np.asarray(hidden.values), hidden.layers
        )

    def source_fault(self, canaries: object, model: str = "") -> str:
        """Returns why states of a source with these canaries are refused; empty if they are not refused.

        Args:
            canaries: states that the source gave for the canaries; None if it gave none.
            model: the model of the states, by its name or `NAME@REVISION`; empty if it is not known.
        """
        if self.golden is None:
            return self._warn_once(CANNOT_BE_CHECKED)
        if not isinstance(canaries, CanaryStates):
            return self._warn_once(NOT_CHECKED)
        if model and model not in (canaries.model, f"{canaries.model}@{canaries.revision}"):
            return self._warn_once(
                f"the states are of {model}, and their source's canaries of {canaries.model}: send states and canaries "
                "of one model, under one name"
            )
        checked = _check_once(self.golden, canaries, self.layers)
        if checked.passed:
            return ""
        return self._warn_once(f"the source of the hidden states failed its check: {checked.reason}")

    def states_fault(self, states: FloatArray, layers: Sequence[int]) -> str:
        """Returns why these states cannot be of these layers: their length. Empty if nothing is known against them.

        Sources apply a norm, a scale or another number format to the states of answers alone. Canaries cannot show it.

        Args:
            states: states (layers, positions, width). Another shape or type, and NaN, are left to the reader's check.
            layers: layers of the states.
        """
        if states.ndim != 3 or len(states) != len(layers) or states.dtype.kind != "f":
            return ""
        for layer in self.layers:
            if layer not in layers or layer not in self._scales:
                continue
            scale, least, largest = self._scales[layer]
            if states.shape[-1] != len(scale):
                continue
            squares = _squared_lengths(states[list(layers).index(layer)], scale)
            if (squares < least).any() or (squares > largest).any():
                return self._warn_once(
                    f"states of layer {layer} are not as long as the golden ones: they were normed, rescaled, or read "
                    "in another number format; capture them as the canaries were, before the final norm"
                )
        return ""

    def _warn_once(self, fault: str) -> str:
        """Returns the fault, and warns of it once, because a system that asks a probe for a number gets None without a
        reason.
        """
        if fault not in self._warned and len(self._warned) < MOST_WARNINGS:
            self._warned.add(fault)
            warnings.warn(f"metaprobe: hidden states are not scored: {fault}", stacklevel=5)
        return fault


def _squared_lengths(states: FloatArray, scale: FloatArray) -> FloatArray:
    """Returns the squared length (n,) of each state (n, width) whose channels are multiplied by `scale` (width,)."""
    scaled = states * scale
    return np.asarray(np.einsum("ij,ij->i", scaled, scaled))


class _StatesPair:
    """Golden and seen states, equal to another pair of the same digests and layers."""

    def __init__(self, golden: CanaryStates, seen: CanaryStates, layers: tuple[int, ...]) -> None:
        self.golden, self.seen, self.layers = golden, seen, layers
        self._key = golden.digest, seen.digest, layers

    def __hash__(self) -> int:
        return hash(self._key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _StatesPair) and self._key == other._key


def _check_once(golden: CanaryStates, seen: CanaryStates, layers: tuple[int, ...]) -> StatesCheck:
    return _compare(_StatesPair(golden, seen, layers))


@lru_cache(maxsize=256)
def _compare(pair: _StatesPair) -> StatesCheck:
    return compare_canaries(pair.golden, pair.seen, pair.layers)
