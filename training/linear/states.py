"""Hidden states by layer and position: in memory where they fit, else read from the stores one block at a time."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from metaprobe.records.activations import ActivationFile, Activations, join_activations
from metaprobe.records.errors import RecordError
from metaprobe.records.store import RunStore

NAMED_FILES = 5
"""So many files are named in a message."""

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
    model: str = ""
    """Which model read them (`NAME@REVISION`), where it is another than the one that answered."""

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
    """Which model read them (`NAME@REVISION`), where it is another than the one that answered."""

    def loaded(self) -> InMemory:
        """The same, in memory."""
        values = np.concatenate([self._of(store, ids, self.layers, self.positions) for store, ids in self._each()])
        ids = tuple(itertools.chain.from_iterable(self.call_ids))
        ordered = Activations(tuple(ids[i] for i in self.order), values[self.order], self.layers, self.positions)
        return InMemory(ordered, self.model)

    def check_finite(self) -> None:
        """Raises `RecordError` naming the files in which one of these states is NaN or infinity.

        Reads everything once, a file at a time.
        """
        bad: set[str] = set()
        spoilt: list[Path] = []
        for store, ids in self._each():
            for file in self._files(store, ids):
                found = _not_finite(file, ids, self.layers, self.positions)
                bad |= found
                if found:
                    spoilt.append(file.path)
        if bad:
            named = ", ".join(map(str, spoilt[:NAMED_FILES]))
            more = f" and {len(spoilt) - NAMED_FILES} more" if len(spoilt) > NAMED_FILES else ""
            raise RecordError(
                f"{len(bad)} of {len(self.order)} answers have hidden states that are NaN or infinite: delete {named}"
                f"{more}, and run `metaprobe extract` with a sound model, in bfloat16 or float32"
            )

    def read(self, layer: int, position: str) -> Block:
        check_captured(self, (layer,), (position,))
        parts = [self._of(store, ids, (layer,), (position,))[:, 0, 0] for store, ids in self._each()]
        return _finite(np.concatenate(parts)[self.order].astype(np.float16, copy=False), layer, position)

    def _each(self) -> Iterator[tuple[RunStore, tuple[str, ...]]]:
        return zip(self.stores, self.call_ids, strict=True)

    def _of(
        self, store: RunStore, ids: tuple[str, ...], layers: tuple[int, ...], positions: tuple[str, ...]
    ) -> NDArray[np.float16]:
        return join_activations(self._files(store, ids), ids, layers, positions)

    def _files(self, store: RunStore, ids: tuple[str, ...]) -> list[ActivationFile]:
        wanted = set(ids)
        return [f for f in store.activation_files() if f.model == self.model and not wanted.isdisjoint(f.call_ids)]


def _not_finite(
    file: ActivationFile, call_ids: Sequence[str], layers: Sequence[int], positions: Sequence[str]
) -> set[str]:
    """Those of the calls of which the file holds a NaN or an infinity, in these layers at these positions."""
    wanted, kept = set(call_ids), file.layout
    rows = np.array([row for row, call_id in enumerate(file.call_ids) if call_id in wanted], dtype=np.intp)
    at = [i for i, layer in enumerate(kept.layers) if layer in layers]
    where = [i for i, position in enumerate(kept.positions) if position in positions]
    if not (at and where):
        return set()
    broken = ~np.isfinite(file.read(rows, at, where)).all(axis=(1, 2, 3))
    return {file.call_ids[row] for row in rows[broken]}


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
            f"layer {layer}, {position}: {bad} of {len(block)} hidden states are not finite: capture or extract them "
            f"again, with a model in bfloat16 or float32"
        )
    return block
