"""Hidden states by layer and position: in memory where they fit, else read from the stores one block at a time."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from metaprobe.records.activations import Activations
from metaprobe.records.errors import RecordError
from metaprobe.records.store import RunStore

Block = NDArray[np.floating]
"""float16, (n, D): the states of all answers, in the order of their table, at one layer and position."""


class States(Protocol):
    """n answers x layers x positions, of width D."""

    @property
    def layers(self) -> tuple[int, ...]: ...

    @property
    def positions(self) -> tuple[str, ...]: ...

    def read(self, layer: int, position: str) -> Block:
        """One block. Raises `RecordError` where it was not captured, or holds NaN or infinity."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class InMemory:
    """States that are loaded."""

    activations: Activations

    @property
    def layers(self) -> tuple[int, ...]:
        return self.activations.layers

    @property
    def positions(self) -> tuple[str, ...]:
        return self.activations.positions

    def read(self, layer: int, position: str) -> Block:
        check_captured(self, (layer,), (position,))
        values = self.activations.values[:, self.layers.index(layer), self.positions.index(position)]
        return _finite(np.asarray(values, dtype=np.float16), layer, position)


@dataclass(frozen=True, slots=True, eq=False)
class OnDisk:
    """States of the given calls, read block by block: memory does not grow with layers and positions."""

    stores: tuple[RunStore, ...]
    """In the order in which `call_ids` follow each other."""
    call_ids: tuple[tuple[str, ...], ...]
    """Of each store."""
    order: NDArray[np.intp]
    """Row i of a block is row order[i] of the stores' calls, one store after the other."""
    layers: tuple[int, ...]
    positions: tuple[str, ...]
    model: str = ""
    """Which model read them, where it is another than the one that answered."""

    def loaded(self) -> InMemory:
        """The same, in memory."""
        values = np.concatenate([self._of(store, ids, self.layers, self.positions) for store, ids in self._each()])
        ids = tuple(itertools.chain.from_iterable(self.call_ids))
        return InMemory(Activations(tuple(ids[i] for i in self.order), values[self.order], self.layers, self.positions))

    def read(self, layer: int, position: str) -> Block:
        check_captured(self, (layer,), (position,))
        parts = [self._of(store, ids, (layer,), (position,))[:, 0, 0] for store, ids in self._each()]
        return _finite(np.concatenate(parts)[self.order].astype(np.float16, copy=False), layer, position)

    def _each(self) -> Iterator[tuple[RunStore, tuple[str, ...]]]:
        return zip(self.stores, self.call_ids, strict=True)

    def _of(
        self, store: RunStore, ids: tuple[str, ...], layers: tuple[int, ...], positions: tuple[str, ...]
    ) -> NDArray[np.floating]:
        return store.activations(ids, layers=layers, positions=positions, model=self.model).values


def chunks(block: Block, rows: int = 8192) -> Iterator[tuple[slice, NDArray[np.float64]]]:
    """A block in float64, `rows` rows at a time."""
    for start in range(0, len(block), rows):
        part = slice(start, start + rows)
        yield part, block[part].astype(np.float64)


def check_captured(states: States, layers: Sequence[int], positions: Sequence[str]) -> None:
    """Raises `RecordError` where some of them were not captured."""
    if absent := [position for position in positions if position not in states.positions]:
        raise RecordError(f"positions {absent} were not captured; there are: {', '.join(states.positions)}")
    if missing := [layer for layer in layers if layer not in states.layers]:
        raise RecordError(f"layers {missing} were not captured; there are: {', '.join(map(str, states.layers))}")


def _finite(block: Block, layer: int, position: str) -> Block:
    if bad := int((~np.isfinite(block)).any(axis=1).sum()):
        raise RecordError(
            f"layer {layer}, {position}: {bad} of {len(block)} hidden states are not finite: capture again, in "
            f"bfloat16 or float32"
        )
    return block
