"""Hidden states by layer and position: in memory where they fit, else read from the stores one block at a time."""

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, combinations
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from metaprobe.records.activations import ActivationFile, Activations, Layout, join_activations
from metaprobe.records.errors import RecordError, StoreMismatch
from metaprobe.records.store import RunStore
from metaprobe.records.types import POSITIONS

IN_MEMORY = 2 << 30
"""Bytes of hidden states that are held at once."""


NAMED_FILES = 5
"""Most files that a message names."""

Block = NDArray[np.floating]
"""(n, D): the states of all answers, in the order of their table, at one layer and position."""


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
    """States that are loaded: float16 from stores, float32 from arrays of the caller."""

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
        return _finite(values, layer, position)


@dataclass(frozen=True, slots=True, eq=False)
class OnDisk:
    """States of the given calls, read block by block: memory does not grow with layers and positions."""

    stores: tuple[RunStore, ...]
    """Stores, in the order of `call_ids`."""
    call_ids: tuple[tuple[str, ...], ...]
    """Ids of the calls of each store."""
    order: NDArray[np.intp]
    """Row i of a block is row order[i] of the stores' calls, one store after the other."""
    layers: tuple[int, ...]
    positions: tuple[str, ...]
    model: str = ""
    """Which model read them (`NAME@REVISION`), where it is another than the one that answered."""

    def loaded(self) -> InMemory:
        """Returns the states, loaded into memory."""
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
                broken = _not_finite(file, ids, self.layers, self.positions)
                bad |= broken
                if broken:
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
    """Returns the calls of which the file holds a NaN or an infinity, in these layers at these positions."""
    wanted, kept = set(call_ids), file.layout
    rows = np.array([row for row, call_id in enumerate(file.call_ids) if call_id in wanted], dtype=np.intp)
    at = [i for i, layer in enumerate(kept.layers) if layer in layers]
    where = [i for i, position in enumerate(kept.positions) if position in positions]
    if not (at and where):
        return set()
    broken = ~np.isfinite(file.read(rows, at, where)).all(axis=(1, 2, 3))
    return {file.call_ids[row] for row in rows[broken]}


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


# Which of the stored hidden states a probe learns from: whose reading, which layers, which positions.

Cell = tuple[int, str]
"""A layer and a position."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """The stored states that are asked for; what is left open is chosen."""

    layers: str = "all"
    """`all`, `every:N` (those that N divides), or numbers such as `8,16`."""
    positions: tuple[str, ...] = ()
    """Empty for all positions that go with the layers."""
    states_of: str = ""
    """The model that read them: its name, or `NAME@REVISION`."""


ANYTHING = Wanted()


@dataclass(frozen=True, slots=True)
class Held:
    """The states that one model read of the calls asked for."""

    cells: frozenset[Cell]
    """Layers and positions that are stored for each call of which the model read any."""
    widths: frozenset[int]
    without: int
    """Calls of which it read nothing."""


def states_by_reader(stores: Sequence[RunStore], call_ids: Sequence[str]) -> dict[str, Held]:
    """Reader -> what it read of these calls; the reader `""` is the model that answered."""
    wanted = set(call_ids)
    layouts: dict[str, dict[str, set[Layout]]] = {}
    for store in stores:
        for file in store.activation_files():
            calls = layouts.setdefault(file.model, {})
            for call_id in wanted.intersection(file.call_ids):
                calls.setdefault(call_id, set()).add(file.layout)
    by_reader = {}
    for reader, calls in layouts.items():
        kinds = {frozenset(of) for of in calls.values()}  # few, however many calls
        cells = [{(layer, p) for layout in kind for layer in layout.layers for p in layout.positions} for kind in kinds]
        widths = frozenset(layout.width for kind in kinds for layout in kind)
        by_reader[reader] = Held(frozenset(set.intersection(*cells) if cells else ()), widths, len(wanted) - len(calls))
    return by_reader


def chosen_reader(held: Mapping[str, Held], calls: int, wanted: Wanted, models: Collection[str]) -> str | None:
    """Returns whose states are learned from; None where nobody read all calls. `models`: those that answered."""
    answered = sorted(filter(None, models))
    if wanted.states_of:
        reader = _named(held, wanted.states_of, answered)
        if short := held[reader].without:
            raise RecordError(
                f"{wanted.states_of} read {calls - short} of {calls} of these answers: run `metaprobe extract` on the "
                "rest"
            )
    else:
        whole = [reader for reader, of in held.items() if not of.without]
        if not whole:
            return None
        if len(whole) > 1 and "" not in whole:
            raise StoreMismatch(f"{' and '.join(whole)} read these answers: give one of them as --states-of")
        reader = "" if "" in whole else whole[0]
    if not reader and len(answered) > 1:
        others = [other for other, of in held.items() if other and not of.without]
        raise StoreMismatch(
            f"{' and '.join(answered)} each read their own answers, and hidden states of several models have no "
            "direction in common: choose one model's answers with --agent, or train on its runs alone"
            + (f", or give --states-of {others[0]}, which read all of them" if others else "")
        )
    if len(held[reader].widths) > 1:
        widths = " and ".join(map(str, sorted(held[reader].widths)))
        raise StoreMismatch(f"the hidden states are of width {widths}, so of several models: train on one model's runs")
    if not held[reader].cells:
        raise StoreMismatch(
            "the answers have no layer and position in common of which hidden states are stored: run `metaprobe "
            "extract` on all of them alike"
        )
    return reader


def _named(held: Mapping[str, Held], states_of: str, answered: Sequence[str]) -> str:
    """The reader of that name. Raises `RecordError` where there is none, or where several revisions read."""
    if "" in held and states_of in answered:
        return ""
    readers = [reader for reader in held if reader and states_of in (reader, model_of(reader))]
    if len(readers) > 1:
        raise RecordError(f"{states_of} read these answers in several revisions; give one of {', '.join(readers)}")
    if not readers:
        own = f"{' and '.join(answered) or 'the model'} (which answered)"
        there = ", ".join(reader or own for reader in held) or "none at all"
        raise RecordError(f"no hidden states that {states_of} read are stored; there are those of {there}")
    return readers[0]


def model_of(reader: str) -> str:
    """The name in `NAME@REVISION`."""
    return reader.rpartition("@")[0] or reader


def chosen_grid(cells: Collection[Cell], wanted: Wanted) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """(layers, positions): all that are asked for, and of what is left open the largest grid of which all is there.

    Raises `RecordError` naming what there is.
    """
    layers, exact = _layers(sorted({layer for layer, _ in cells}), wanted.layers)
    there = sorted({position for _, position in cells}, key=_rank)
    if absent := [position for position in wanted.positions if position not in there]:
        raise RecordError(f"positions {absent} were not captured; there are: {', '.join(there)}")
    asked = sorted(set(wanted.positions), key=_rank)
    tried = [asked] if asked else chain.from_iterable(combinations(there, n) for n in range(1, len(there) + 1))
    best: tuple[tuple[int, ...], tuple[str, ...]] = ((), ())
    for positions in tried:
        whole = tuple(layer for layer in layers if all((layer, position) in cells for position in positions))
        if (not exact or whole == layers) and len(whole) * len(positions) >= len(best[0]) * len(best[1]):
            best = whole, tuple(positions)
    if not best[0]:
        kept = "; ".join(
            f"{position}: layers {', '.join(str(layer) for layer, of in sorted(cells) if of == position)}"
            for position in there
        )
        raise RecordError(f"what is asked for is not stored together; there are {kept}")
    return best


def _layers(there: Sequence[int], choice: str) -> tuple[tuple[int, ...], bool]:
    """The layers that a choice means, and whether it names each of them."""
    stored = ", ".join(map(str, there))
    step = choice.removeprefix("every:")
    if choice == "all":
        return tuple(there), False
    if choice.startswith("every:") and step.isdecimal() and int(step) > 0:
        divided = tuple(layer for layer in there if layer % int(step) == 0)
        if not divided:
            raise RecordError(f"no layer that {step} divides was captured; there are: {stored}")
        return divided, False
    numbers = [part.strip() for part in choice.split(",")]
    if not all(number.isdecimal() for number in numbers):
        raise RecordError(f"layers {choice!r}: expected 'all', 'every:N', or numbers such as 8,16; there are: {stored}")
    named = tuple(sorted({int(number) for number in numbers}))
    if missing := [layer for layer in named if layer not in there]:
        raise RecordError(f"layers {missing} were not captured; there are: {stored}")
    return named, True


def _rank(position: str) -> tuple[int, str]:
    return (POSITIONS.index(position) if position in POSITIONS else len(POSITIONS), position)


def load_states(
    stores: Sequence[RunStore], call_ids: Sequence[str], *, wanted: Wanted = ANYTHING, models: Collection[str] = ()
) -> tuple[InMemory | OnDisk | None, int]:
    """Hidden states of these calls, None unless every one has them; and how many have none.

    The answering model's own states come first; where not all calls have these, those that one other model read
    (`states.model`). What several requests kept is joined: of the layers and positions that `wanted` leaves open, the
    largest grid that every call has. They are read into memory where they take at most `IN_MEMORY`, else block by block
    from the disk.

    Raises `RecordError` where what is asked for is not stored, and where a state is NaN or infinite; `StoreMismatch`
    where they do not fit together: of several `models` (those that answered), of several widths, by several readers of
    whom none is named, or with no layer and position in common.
    """
    held = states_by_reader(stores, call_ids)
    reader = chosen_reader(held, len(call_ids), wanted, models)
    if reader is None:
        return None, min((of.without for of in held.values()), default=len(call_ids))
    layers, positions = chosen_grid(held[reader].cells, wanted)
    left = set(call_ids)
    parts: dict[RunStore, tuple[str, ...]] = {}
    for store in stores:
        files = [file for file in store.activation_files() if file.model == reader]
        here = tuple(dict.fromkeys(call_id for file in files for call_id in file.call_ids if call_id in left))
        left.difference_update(here)
        if here:
            parts[store] = here
    row = {call_id: i for i, call_id in enumerate(itertools.chain.from_iterable(parts.values()))}
    order = np.array([row[call_id] for call_id in call_ids], dtype=np.intp)
    stored = OnDisk(tuple(parts), tuple(parts.values()), order, layers, positions, reader)
    [width] = held[reader].widths
    if 2 * len(call_ids) * len(layers) * len(positions) * width > IN_MEMORY:
        stored.check_finite()
        return stored, 0
    loaded = stored.loaded()
    if not all(np.isfinite(loaded.activations.values[:, i]).all() for i in range(len(layers))):
        stored.check_finite()  # which says where
    return loaded, 0
