"""Stored hidden states by layer and position, and the choice of those that a probe learns from.

States are kept in memory if they fit, else read from the stores one block at a time.
"""

import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, combinations
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from metaprobe.records.activations import ActivationFile, Activations, Layout, join_activations
from metaprobe.records.canaries import CANARIES_FILE, CanaryStates, compare_canaries
from metaprobe.records.errors import RecordError, StoreMismatch
from metaprobe.records.store import RunStore
from metaprobe.records.types import LOOK_POSITIONS, POSITIONS

MAX_BYTES_IN_MEMORY = 2 << 30
"""Most bytes of hidden states in memory at once."""

Block = NDArray[np.floating]
"""States (n, D) of all answers at one layer and position, in the order of their table."""


@dataclass(frozen=True, slots=True, eq=False)
class InMemory:
    """States that are loaded: float16 from stores, float32 from arrays of the caller."""

    activations: Activations
    model: str = ""
    """Model that read the states (`NAME@REVISION`); empty if it is the model that answered."""
    canaries: CanaryStates | None = None
    """Canary states read by the same program that read these states; None if unknown."""

    @property
    def layers(self) -> tuple[int, ...]:
        return self.activations.layers

    @property
    def positions(self) -> tuple[str, ...]:
        return self.activations.positions

    def read(self, layer: int, position: str) -> Block:
        check_captured(self, (layer,), (position,))
        values = self.activations.values[:, self.layers.index(layer), self.positions.index(position)]
        return _check_finite(values, layer, position)


@dataclass(frozen=True, slots=True, eq=False)
class OnDisk:
    """States of the given calls that are read block by block, so memory does not grow with layers and positions."""

    stores: tuple[RunStore, ...]
    """Stores, in the order of `call_ids`."""
    call_ids: tuple[tuple[str, ...], ...]
    """Ids of the calls of each store."""
    order: NDArray[np.intp]
    """Row i of a block is row order[i] of the stores' calls, one store after the other."""
    layers: tuple[int, ...]
    positions: tuple[str, ...]
    model: str = ""
    """Model that read the states (`NAME@REVISION`); empty if it is the model that answered."""
    canaries: CanaryStates | None = None
    """Canary states read by the same program that read these states; None if unknown."""

    def load(self) -> InMemory:
        """Returns the states, loaded into memory."""
        values = np.concatenate(
            [self._read_states(store, ids, self.layers, self.positions) for store, ids in self._stores_with_ids()]
        )
        ids = tuple(chain.from_iterable(self.call_ids))
        ordered = Activations(tuple(ids[i] for i in self.order), values[self.order], self.layers, self.positions)
        return InMemory(ordered, self.model, self.canaries)

    def check_finite(self) -> None:
        """Raises `RecordError` naming the files in which one of these states is NaN or infinity.

        Reads everything once, a file at a time.
        """
        bad_ids: set[str] = set()
        broken_files: list[Path] = []
        for file, requested_ids in (
            (file, set(ids)) for store, ids in self._stores_with_ids() for file in self._files(store, ids)
        ):
            layer_indices = [i for i, layer in enumerate(file.layout.layers) if layer in self.layers]
            position_indices = [i for i, position in enumerate(file.layout.positions) if position in self.positions]
            rows = np.array(
                [row for row, call_id in enumerate(file.call_ids) if call_id in requested_ids], dtype=np.intp
            )
            if (
                layer_indices
                and position_indices
                and (broken := ~np.isfinite(file.read(rows, layer_indices, position_indices)).all(axis=(1, 2, 3))).any()
            ):
                bad_ids |= {file.call_ids[row] for row in rows[broken]}
                broken_files.append(file.path)
        if bad_ids:
            more_clause = f" and {len(broken_files) - 5} more" if len(broken_files) > 5 else ""
            raise RecordError(
                f"{len(bad_ids)} of {len(self.order)} answers have hidden states that are NaN or infinite: delete "
                f"{', '.join(map(str, broken_files[:5]))}{more_clause}, and run `metaprobe extract` with a sound "
                "model, in bfloat16 or float32"
            )

    def read(self, layer: int, position: str) -> Block:
        check_captured(self, (layer,), (position,))
        parts = [
            self._read_states(store, ids, (layer,), (position,))[:, 0, 0] for store, ids in self._stores_with_ids()
        ]
        return _check_finite(np.concatenate(parts)[self.order].astype(np.float16, copy=False), layer, position)

    def _stores_with_ids(self) -> Iterator[tuple[RunStore, tuple[str, ...]]]:
        return zip(self.stores, self.call_ids, strict=True)

    def _read_states(
        self, store: RunStore, ids: tuple[str, ...], layers: tuple[int, ...], positions: tuple[str, ...]
    ) -> NDArray[np.float16]:
        return join_activations(self._files(store, ids), ids, layers, positions)

    def _files(self, store: RunStore, ids: tuple[str, ...]) -> list[ActivationFile]:
        requested_ids = set(ids)
        return [
            f for f in store.activation_files() if f.model == self.model and not requested_ids.isdisjoint(f.call_ids)
        ]


@dataclass(frozen=True, slots=True, eq=False)
class ChosenRows:
    """Rows of other states, some of them several times; a block is read when it is asked for."""

    whole: "States"
    rows: NDArray[np.intp]
    """Index (n,) of each row in the whole block."""

    @property
    def layers(self) -> tuple[int, ...]:
        return self.whole.layers

    @property
    def positions(self) -> tuple[str, ...]:
        return self.whole.positions

    @property
    def model(self) -> str:
        """Model that read the states (`NAME@REVISION`); empty if it is the model that answered."""
        return self.whole.model

    @property
    def canaries(self) -> CanaryStates | None:
        """Canary states read by the same program that read these states; None if unknown."""
        return self.whole.canaries

    def read(self, layer: int, position: str) -> Block:
        return self.whole.read(layer, position)[self.rows]


def check_captured(states: "States", layers: Sequence[int], positions: Sequence[str]) -> None:
    """Raises `RecordError` if some of these layers or positions were not captured."""
    if absent := [position for position in positions if position not in states.positions]:
        raise RecordError(f"positions {absent} were not captured; there are: {', '.join(states.positions)}")
    if missing := [layer for layer in layers if layer not in states.layers]:
        raise RecordError(f"layers {missing} were not captured; there are: {', '.join(map(str, states.layers))}")


def _check_finite(block: Block, layer: int, position: str) -> Block:
    """Returns the block. Raises `RecordError` if one of its states is not finite."""
    if bad := int((~np.isfinite(block)).any(axis=1).sum()):
        raise RecordError(
            f"layer {layer}, {position}: {bad} of {len(block)} hidden states are not finite: capture or extract them "
            f"again, with a model in bfloat16 or float32"
        )
    return block


States = InMemory | OnDisk | ChosenRows
"""Hidden states of n answers, by layer and position, of width D. `read` raises `RecordError` if a block was not
captured, or is not finite.
"""


# The choice of the stored hidden states that a probe learns from: the reading model, the layers and the positions.

LayerPosition = tuple[int, str]
"""A layer and a position."""


@dataclass(frozen=True, slots=True)
class StatesRequest:
    """The stored states that are asked for. Layers and positions that are not named are chosen by `choose_grid`."""

    layers: str = "all"
    """`all`, `every:N` (layers divisible by N), or numbers such as `8,16`."""
    positions: tuple[str, ...] = ()
    """Names of the positions; if empty, `choose_grid` chooses them, none of them from `LOOK_POSITIONS`."""
    states_of: str = ""
    """Name of the model that read the states, or `NAME@REVISION`; if empty, `choose_reader` chooses the model."""


ANY_STATES = StatesRequest()
"""Request that leaves every choice to this module."""


@dataclass(frozen=True, slots=True)
class ReaderStates:
    """Stored states that one model read for the requested calls."""

    cells: frozenset[LayerPosition]
    """Layers and positions that are stored for every call with states of this model."""
    widths: frozenset[int]
    without: int
    """Number of calls without states of this model."""


def states_by_reader(
    stores: Sequence[RunStore], call_ids: Sequence[str], positions: Collection[str] = ()
) -> dict[str, ReaderStates]:
    """Maps each reading model to its stored states of these calls; `""` is the model that answered.

    Args:
        stores: the run stores.
        call_ids: ids of the calls.
        positions: positions that are asked for. If empty, those of whole answers count, not those along an answer.
    """
    requested_ids = set(call_ids)
    layouts: dict[str, dict[str, set[Layout]]] = {}
    for store in stores:
        for file in store.activation_files():
            if not positions and set(file.layout.positions) <= set(LOOK_POSITIONS):
                continue
            calls = layouts.setdefault(file.model, {})
            for call_id in requested_ids.intersection(file.call_ids):
                calls.setdefault(call_id, set()).add(file.layout)
    by_reader = {}
    for reader, calls in layouts.items():
        kinds = {frozenset(layouts_of_call) for layouts_of_call in calls.values()}  # few, however many calls
        cells = [
            {
                (layer, position)
                for layout in kind
                for layer in layout.layers
                for position in layout.positions
                if positions or position not in LOOK_POSITIONS
            }
            for kind in kinds
        ]
        widths = frozenset(layout.width for kind in kinds for layout in kind)
        by_reader[reader] = ReaderStates(
            frozenset(set.intersection(*cells) if cells else ()), widths, len(requested_ids) - len(calls)
        )
    return by_reader


def choose_reader(
    by_reader: Mapping[str, ReaderStates], calls: int, request: StatesRequest, models: Collection[str]
) -> str | None:
    """Returns the model whose stored states the probe trains on; `""` is the model that answered.

    Returns None if no model is asked for and no model read all calls. Raises `RecordError` if the model asked for did
    not read all calls, and `StoreMismatch` if the choice is not clear or the states do not fit together.

    Args:
        by_reader: maps each reading model to its stored states.
        calls: number of calls.
        request: the states that are asked for.
        models: names of the models that answered.
    """
    answered = sorted(filter(None, models))
    if request.states_of:
        reader = _key_of_reader(by_reader, request.states_of, answered)
        if missing_count := by_reader[reader].without:
            raise RecordError(
                f"{request.states_of} read {calls - missing_count} of {calls} of these answers: run `metaprobe "
                "extract` on the rest"
            )
    else:
        complete = [reader for reader, states in by_reader.items() if not states.without]
        if not complete:
            return None
        if len(complete) > 1 and "" not in complete:
            raise StoreMismatch(f"{' and '.join(complete)} read these answers: give one of them as --states-of")
        reader = "" if "" in complete else complete[0]
    if not reader and len(answered) > 1:
        others = [other for other, states in by_reader.items() if other and not states.without]
        raise StoreMismatch(
            f"{' and '.join(answered)} each read their own answers, and hidden states of several models have no "
            "direction in common: choose one model's answers with --agent, or train on its runs alone"
            + (f", or give --states-of {others[0]}, which read all of them" if others else "")
        )
    if len(by_reader[reader].widths) > 1:
        widths = " and ".join(map(str, sorted(by_reader[reader].widths)))
        raise StoreMismatch(f"the hidden states are of width {widths}, so of several models: train on one model's runs")
    if not by_reader[reader].cells:
        raise StoreMismatch(
            "the answers have no layer and position in common of which hidden states are stored: run `metaprobe "
            "extract` on all of them alike"
        )
    return reader


def _key_of_reader(by_reader: Mapping[str, ReaderStates], states_of: str, answered: Sequence[str]) -> str:
    """Returns the key in `by_reader` of the model `states_of`.

    Raises `RecordError` if this model has no stored states, or if several of its revisions have.
    """
    if "" in by_reader and states_of in answered:
        return ""
    # Keys are NAME@REVISION; `states_of` may lack the revision.
    readers = [
        reader_name
        for reader_name in by_reader
        if reader_name and states_of in (reader_name, reader_name.rpartition("@")[0] or reader_name)
    ]
    if len(readers) > 1:
        raise RecordError(f"{states_of} read these answers in several revisions; give one of {', '.join(readers)}")
    if not readers:
        answering_model = f"{' and '.join(answered) or 'the model'} (which answered)"
        stored_readers = ", ".join(reader or answering_model for reader in by_reader) or "none at all"
        raise RecordError(f"no hidden states that {states_of} read are stored; there are those of {stored_readers}")
    return readers[0]


def choose_grid(cells: Collection[LayerPosition], request: StatesRequest) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Returns the requested layers and positions.

    If layers or positions are not named, returns the largest set of layers x positions that is stored for every call.
    Raises `RecordError`, with the stored layers and positions, if a requested one is not stored.

    Args:
        cells: layers and positions that are stored for every call.
        request: the states that are asked for.
    """
    layers, is_exact = _layers_of_choice(sorted({layer for layer, _ in cells}), request.layers)
    stored_positions = sorted({position for _, position in cells}, key=_position_rank)
    if absent := [position for position in request.positions if position not in stored_positions]:
        raise RecordError(f"positions {absent} were not captured; there are: {', '.join(stored_positions)}")
    requested_positions = sorted(set(request.positions), key=_position_rank)
    candidate_positions = (
        [requested_positions]
        if requested_positions
        else chain.from_iterable(combinations(stored_positions, n) for n in range(1, len(stored_positions) + 1))
    )
    best: tuple[tuple[int, ...], tuple[str, ...]] = ((), ())
    for positions in candidate_positions:
        common_layers = tuple(layer for layer in layers if all((layer, position) in cells for position in positions))
        is_larger = len(common_layers) * len(positions) >= len(best[0]) * len(best[1])
        if (not is_exact or common_layers == layers) and is_larger:
            best = common_layers, tuple(positions)
    if not best[0]:
        stored_grid = "; ".join(
            f"{position}: layers {', '.join(str(layer) for layer, p in sorted(cells) if p == position)}"
            for position in stored_positions
        )
        raise RecordError(f"what is asked for is not stored together; there are {stored_grid}")
    return best


def _layers_of_choice(stored_layers: Sequence[int], choice: str) -> tuple[tuple[int, ...], bool]:
    """Returns the layers that a choice means, and whether it names each of them."""
    stored_text = ", ".join(map(str, stored_layers))
    step = choice.removeprefix("every:")
    if choice == "all":
        return tuple(stored_layers), False
    if choice.startswith("every:") and step.isdecimal() and int(step) > 0:
        divided = tuple(layer for layer in stored_layers if layer % int(step) == 0)
        if not divided:
            raise RecordError(f"no layer that {step} divides was captured; there are: {stored_text}")
        return divided, False
    numbers = [part.strip() for part in choice.split(",")]
    if not all(number.isdecimal() for number in numbers):
        raise RecordError(
            f"layers {choice!r}: expected 'all', 'every:N', or numbers such as 8,16; there are: {stored_text}"
        )
    requested_layers = tuple(sorted({int(number) for number in numbers}))
    if missing := [layer for layer in requested_layers if layer not in stored_layers]:
        raise RecordError(f"layers {missing} were not captured; there are: {stored_text}")
    return requested_layers, True


def _position_rank(position: str) -> tuple[int, str]:
    """Returns the place of a position in lists: other names come after `POSITIONS`, in alphabetical order."""
    return (POSITIONS.index(position) if position in POSITIONS else len(POSITIONS), position)


def load_states(
    stores: Sequence[RunStore],
    call_ids: Sequence[str],
    *,
    request: StatesRequest = ANY_STATES,
    models: Collection[str] = (),
) -> tuple[InMemory | OnDisk | None, int]:
    """Returns the hidden states of these calls, and the number of calls without states.

    The states are None if some calls have no states. States that the answering model read are preferred. If some calls
    lack these, the states of one other model are used (`states.model`). `choose_grid` chooses the layers and positions.
    States of at most `MAX_BYTES_IN_MEMORY` bytes are read into memory, larger ones block by block from the disk.

    Raises `RecordError` if requested states are not stored, or if a state is NaN or infinite. Raises `StoreMismatch` if
    the states do not fit together: several answering models, several widths, several readers of which none is named,
    or no layer and position in common.

    Args:
        stores: the run stores.
        call_ids: ids of the calls, in the order of the rows.
        request: the states that are asked for.
        models: names of the models that answered.
    """
    # Whose states, at which layers and positions.
    by_reader = states_by_reader(stores, call_ids, request.positions)
    reader = choose_reader(by_reader, len(call_ids), request, models)
    if reader is None:
        return None, min((states.without for states in by_reader.values()), default=len(call_ids))
    layers, positions = choose_grid(by_reader[reader].cells, request)
    # In which store each call's states lie, and the sources that wrote them.
    ids_left = set(call_ids)
    ids_by_store: dict[RunStore, tuple[str, ...]] = {}
    sources: dict[str, CanaryStates | None] = {}
    for store in stores:
        files = [file for file in store.activation_files() if file.model == reader]
        files_read = [
            f
            for f in files
            if not ids_left.isdisjoint(f.call_ids)
            and not {*layers}.isdisjoint(f.layout.layers)
            and not {*positions}.isdisjoint(f.layout.positions)
        ]
        sources |= {"" if file.canaries is None else file.canaries.digest: file.canaries for file in files_read}
        ids_of_store = tuple(
            dict.fromkeys(call_id for file in files for call_id in file.call_ids if call_id in ids_left)
        )
        ids_left.difference_update(ids_of_store)
        if ids_of_store:
            ids_by_store[store] = ids_of_store
    row_of_call = {call_id: i for i, call_id in enumerate(chain.from_iterable(ids_by_store.values()))}
    order = np.array([row_of_call[call_id] for call_id in call_ids], dtype=np.intp)
    canaries = common_source(list(sources.values()), layers)
    states_on_disk = OnDisk(
        tuple(ids_by_store), tuple(ids_by_store.values()), order, layers, positions, reader, canaries
    )
    [width] = by_reader[reader].widths
    if 2 * len(call_ids) * len(layers) * len(positions) * width > MAX_BYTES_IN_MEMORY:
        states_on_disk.check_finite()
        return states_on_disk, 0
    states_in_memory = states_on_disk.load()
    if not all(np.isfinite(states_in_memory.activations.values[:, i]).all() for i in range(len(layers))):
        states_on_disk.check_finite()  # raises an error that names the files
    return states_in_memory, 0


def common_source(sources: Sequence[CanaryStates | None], layers: Sequence[int]) -> CanaryStates | None:
    """Returns the canary states that all sources of a training share.

    Returns None if a source has none for these layers, with a warning if another source has. Raises `StoreMismatch` if
    two sources gave different canary states.
    """
    first = sources[0] if sources else None
    if first is None or any(source is None or not {*layers} <= {*source.layers} for source in sources):
        if any(source is not None for source in sources):
            warnings.warn(
                f"metaprobe: hidden states of {len(sources)} sources, not all of which read the canaries at layers "
                f"{list(layers)}: they count as not checked, and a checkpoint that is trained on them checks no "
                "source; read all these layers by one `metaprobe extract`",
                stacklevel=2,
            )
        return None
    # Each pair is compared: two sources that are near the first one may still be far from each other.
    for one, other in combinations(filter(None, sources), 2):
        if not (checked := compare_canaries(one, other, layers)).passed:
            raise StoreMismatch(
                f"the hidden states are of two sources that differ ({one.source}, {one.model}, and {other.source}, "
                f"{other.model}): {checked.reason}; train on those of one source"
            )
    return first


def canaries_file(canaries: CanaryStates | None, layers: Sequence[int]) -> dict[str, bytes]:
    """Maps the name of the checkpoint's file of canaries to its contents, for these layers; empty without canaries."""
    return {} if canaries is None else {CANARIES_FILE: canaries.near(layers).to_json()}
