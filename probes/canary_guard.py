"""Lets a probe read hidden states only of a source whose states were checked against those of its training.

A checkpoint that was trained on states with canaries holds their golden states. Each source of states brings its own
states of the same canaries (`Hidden.canaries`). The two are compared once, and the result is kept.
"""

import warnings
from collections.abc import Sequence
from functools import lru_cache

from metaprobe.checkpoints import Checkpoint, ContractMismatch
from metaprobe.records.canaries import CANARIES_FILE, CanaryStates, StatesCheck, compare_canaries, golden_canaries
from metaprobe.records.errors import RecordError
from metaprobe.records.types import Hidden

CANNOT_BE_CHECKED = "hidden states not checked: the checkpoint holds no canaries"
"""Note for checkpoints that were trained on states without canaries: by an older version, or on arrays."""
NOT_CHECKED = (
    "the source of the hidden states was not checked: they came without its states of the canaries; send these as "
    "`canaries`, or move the store's files of states (*.safetensors) away and read its answers by `metaprobe extract`, "
    'or take on_mismatch "ignore"'
)

MOST_WARNINGS = 64
"""Most different faults that one guard warns of. Callers who send canaries may cause any number of faults."""


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

    def check(self, seen: CanaryStates) -> StatesCheck:
        """Returns whether this source gives the states that the checkpoint was trained on. Raises `ContractMismatch`
        for a checkpoint without canaries."""
        if self.golden is None:
            raise ContractMismatch(CANNOT_BE_CHECKED)
        return _check_once(self.golden, seen, self.layers)

    def fault(self, hidden: Hidden) -> str:
        """Returns why these states must not be scored; empty if their source passed the check, or if the checkpoint
        holds no canaries.
        """
        return self.source_fault(hidden.canaries)

    def source_fault(self, canaries: object) -> str:
        """Returns why states of a source with these canaries are refused; empty if they are not refused.

        `canaries`: states that the source gave for the canaries; None if it gave none.
        """
        if self.golden is None:
            return ""
        if not isinstance(canaries, CanaryStates):
            return self._warn_once(NOT_CHECKED)
        checked = _check_once(self.golden, canaries, self.layers)
        if checked.passed:
            return ""
        return self._warn_once(f"the source of the hidden states failed its check: {checked.reason}")

    def _warn_once(self, fault: str) -> str:
        """Returns the fault, and warns of it once, because a system that asks a probe for a number gets None without a
        reason.
        """
        if fault not in self._warned and len(self._warned) < MOST_WARNINGS:
            self._warned.add(fault)
            warnings.warn(f"metaprobe: hidden states are not scored: {fault}", stacklevel=5)
        return fault

    @property
    def note(self) -> str:
        """Sentence that a verdict on hidden states must hold; empty for a checkpoint that holds canaries."""
        return CANNOT_BE_CHECKED if self.golden is None else ""


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
