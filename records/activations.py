"""Hidden states of recorded calls: safetensors files beside the shards of runs.

`runs-X.safetensors` holds the tensor `hidden`, float16, (calls, layers, positions, width), of those calls of
`runs-X.parquet` whose hidden states were kept while they were answered. It is written before its shard takes its name,
so every run that can be read has its activations. A file without a shard is the leftover of a kill.

`states-REQUEST-CALLS.safetensors` holds the same of calls that were read afterwards (`metaprobe extract`). REQUEST is a
digest of what was asked (layers, positions, model) and CALLS one of the calls in it, so no two requests share a file.

`canaries-DIGEST.json` holds the canaries' states from one source (`metaprobe.records.canaries`). The header of each
file of states names the digest of its source's canaries.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metaprobe.records.canaries import CANARIES_PREFIX, CanaryStates, read_canaries_file
from metaprobe.records.errors import RecordError, StoreMismatch
from metaprobe.records.extras import require
from metaprobe.records.types import FloatArray, Hidden
from metaprobe.records.writing import atomic_write

CONVENTION = "index 0 = embeddings output, index i = output of block i"
STATES_SUFFIX = ".safetensors"
STATES_PREFIX = "states-"


@dataclass(frozen=True, slots=True)
class Layout:
    """The layers and positions whose hidden states are stored. All calls of a store have one layout."""

    layers: tuple[int, ...]
    positions: tuple[str, ...]
    width: int

    def __str__(self) -> str:
        return f"layers {list(self.layers)}, positions {list(self.positions)}, width {self.width}"


@dataclass(frozen=True, slots=True, eq=False)
class Activations:
    """Hidden states of n calls. Layer 0 is the embeddings' output, layer i the output of block i."""

    call_ids: tuple[str, ...]
    values: FloatArray
    """float16, shape (n, layers, positions, width)."""
    layers: tuple[int, ...]
    positions: tuple[str, ...]


def layout_of(hidden: Hidden, call_id: str) -> Layout:
    """Returns the layout of this call's hidden states. Raises `StoreMismatch` if the array's shape does not fit it."""
    expected = (len(hidden.layers), len(hidden.positions))
    if hidden.model:
        raise StoreMismatch(
            f"call {call_id!r} has hidden states of {hidden.model}; expected those of the model that answered: leave "
            "them out, and read the stored calls with `metaprobe extract --other-model`"
        )
    if hidden.values.ndim != 3 or hidden.values.shape[:2] != expected:
        raise StoreMismatch(
            f"call {call_id!r} has hidden states of shape {hidden.values.shape} for {expected[0]} layers and"
            f" {expected[1]} positions; expected (layers, positions, width)"
        )
    return Layout(tuple(hidden.layers), tuple(hidden.positions), hidden.values.shape[2])


def to_float16(values: FloatArray) -> NDArray[np.float16]:
    """Returns the values as float16. Values beyond the largest float16, as a few channels of some models have, are
    clipped.

    An infinity would spoil every mean that includes it.
    """
    largest = np.finfo(np.float16).max
    return np.clip(values, -largest, largest).astype(np.float16)


def common_canaries(hidden: Iterable[Hidden]) -> CanaryStates | None:
    """Returns the canaries' states from the source of these hidden states.

    Returns None if the source is not known, or if there are several sources.
    """
    canaries_by_digest = {
        None if states.canaries is None else states.canaries.digest: states.canaries for states in hidden
    }
    return next(iter(canaries_by_digest.values())) if len(canaries_by_digest) == 1 else None


def write_canaries(folder: Path, hidden: Iterable[Hidden]) -> None:
    """Writes the canaries' states from the source of these hidden states into a store's folder, once.

    Several processes of one extraction may do this at the same time, because all write the same content.
    """
    states = common_canaries(hidden)
    if states is not None and not (path := folder / f"{CANARIES_PREFIX}{states.digest}.json").exists():
        with atomic_write(path, shared=True) as file:
            file.write(states.to_json())
        read_canaries_file.cache_clear()  # it may have been looked for before


def activation_bytes(hidden: dict[str, Hidden], *, model: str = "") -> bytes:
    """Returns the content of an activation file: the hidden states by call id, all of one layout.

    `model` names the model that read the states, if another model gave the answers.
    """
    first_states = next(iter(hidden.values()))
    # safetensors writes the memory as it is, and an array that was cut out by index may be in another order.
    values = np.ascontiguousarray(np.stack([to_float16(states.values) for states in hidden.values()]))
    metadata = {
        "call_ids": json.dumps(list(hidden)),
        "layers": json.dumps([int(layer) for layer in first_states.layers]),
        "positions": json.dumps(list(first_states.positions)),
        "convention": CONVENTION,
        **({"model": model} if model else {}),
        **({"canaries": canaries.digest} if (canaries := common_canaries(hidden.values())) else {}),
    }
    content: bytes = require("safetensors.numpy", "fit").save({"hidden": values}, metadata=metadata)
    return content


class ActivationFile:
    """One activation file. Opening it reads the header only."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with _open_file(path) as file:
            metadata = file.metadata() or {}
            tensor = file.get_slice("hidden")
            shape: list[int] = tensor.get_shape()
            if tensor.get_dtype() != "F16" or len(shape) != 4:
                raise ValueError(f"'hidden' is {tensor.get_dtype()} of shape {shape}; expected F16 with 4 axes")
        self.call_ids: tuple[str, ...] = _list_in_header(metadata, "call_ids", str)
        self.layout = Layout(
            _list_in_header(metadata, "layers", int), _list_in_header(metadata, "positions", str), shape[3]
        )
        self.canaries = (
            read_canaries_file(path.with_name(f"{CANARIES_PREFIX}{digest}.json"))
            if (digest := metadata.get("canaries", ""))
            else None
        )
        """States of the canaries by the same source, from a file of their own; None if there is no such file."""
        self.model: str = metadata.get("model", "")
        """Name of the model that read the states, if another model gave the answers."""
        expected = [len(self.call_ids), len(self.layout.layers), len(self.layout.positions), self.layout.width]
        if shape != expected:
            raise ValueError(f"the tensor has shape {shape}, its header speaks of {expected}")

    def read(self, rows: NDArray[np.intp], layers: Sequence[int], positions: Sequence[int]) -> NDArray[np.float16]:
        """Returns an array (rows, layers, positions, width); only these layers and positions are read.

        Args:
            rows: indices of the calls in the file.
            layers: indices into the file's layers.
            positions: indices into the file's positions.
        """
        out = np.empty((len(rows), len(layers), len(positions), self.layout.width), dtype=np.float16)
        with _open_file(self.path) as file:
            tensor = file.get_slice("hidden")
            if (len(layers), len(positions)) == (len(self.layout.layers), len(self.layout.positions)):
                return np.asarray(tensor[:][rows][:, layers][:, :, positions], dtype=np.float16)
            for i, layer in enumerate(layers):
                for j, position in enumerate(positions):
                    out[:, i, j] = tensor[:, layer, position][rows]
        return out


def _list_in_header(metadata: dict[str, str], key: str, kind: type) -> tuple[Any, ...]:
    """Returns the list that a header holds under a key. Raises `ValueError` if its elements are not of type `kind`.

    Args:
        metadata: the header of the file.
        key: name of the list.
        kind: type of each element: `str`, or `int` for layer numbers, which may not be negative.
    """
    try:
        values = json.loads(metadata[key])
    except RecursionError as error:
        raise ValueError(f"the header's {key!r} is nested too deeply") from error
    is_list_of_kind = isinstance(values, list) and all(type(value) is kind for value in values)
    if not is_list_of_kind or (kind is int and min(values, default=0) < 0):
        raise ValueError(f"the header's {key!r} is {metadata[key]:.80}; expected a list of {kind.__name__}")
    if key != "call_ids" and len(set(values)) < len(values):
        raise ValueError(f"the header's {key!r} names one twice: {metadata[key]:.80}")
    return tuple(values)


def _open_file(path: Path) -> Any:
    if not path.is_file():
        raise ValueError("it is no regular file")  # a pipe would be waited for
    return require("safetensors", "fit").safe_open(path, framework="numpy")


def gather(
    files: Iterable[ActivationFile],
    call_ids: Sequence[str] | None = None,
    *,
    layers: Sequence[int] | None = None,
    positions: Sequence[str] | None = None,
    model: str | None = None,
) -> Activations:
    """Returns the hidden states of the given calls, in the given order.

    If files hold different layers or positions, only files that hold all requested ones are read. Raises `RecordError`
    with the names of calls, layers or positions that are not stored. Raises `StoreMismatch` if the request is
    ambiguous: several files hold everything requested, but differ in what the request left open.

    Args:
        files: activation files of one store.
        call_ids: calls to read; by default all.
        layers: layers to read; by default all.
        positions: token positions to read; by default all.
        model: model that read the states, if another model gave the answers.
    """
    files = list(files)
    if not files:
        raise RecordError("the store holds no hidden states; collect with layers to keep, or run `metaprobe extract`")
    files = _fitting(files, call_ids, layers, positions, model)
    stored_ids = dict.fromkeys(call_id for file in files for call_id in file.call_ids)
    ids = list(stored_ids) if call_ids is None else list(call_ids)
    if missing := [call_id for call_id in ids if call_id not in stored_ids]:
        raise RecordError(
            f"no hidden states are stored for {len(missing)} of {len(ids)} calls, such as {missing[:5]};"
            " leave them out, or run `metaprobe extract`"
        )
    layers = files[0].layout.layers if layers is None else tuple(layers)
    positions = files[0].layout.positions if positions is None else tuple(positions)
    return Activations(tuple(ids), join_activations(files, ids, layers, positions), layers, positions)


def join_activations(
    files: Sequence[ActivationFile], call_ids: Sequence[str], layers: Sequence[int], positions: Sequence[str]
) -> NDArray[np.float16]:
    """Returns an array (n, layers, positions, width) of these calls, each state from the first file that holds it.

    So states of one call that several extractions kept are joined. Raises `RecordError` if a call lacks a requested
    state, and `StoreMismatch` if the files differ in width.

    Args:
        files: activation files, searched in this order.
        call_ids: n calls, in the order of the result.
        layers: layer numbers to read.
        positions: names of the token positions to read.
    """
    is_missing = np.ones((len(call_ids), len(layers), len(positions)), dtype=bool)
    values = np.empty((*is_missing.shape, files[0].layout.width if files else 0), dtype=np.float16)
    rows_of_call: dict[str, list[int]] = {}
    for row, call_id in enumerate(call_ids):
        rows_of_call.setdefault(call_id, []).append(row)
    for file in files:
        layout = file.layout
        index_in_file: dict[str, int] = {}
        for file_index, call_id in enumerate(file.call_ids):
            index_in_file.setdefault(call_id, file_index)  # a call that was stored twice: the first one, as for runs
        pairs = [
            (row, file_index) for call_id, file_index in index_in_file.items() for row in rows_of_call.get(call_id, ())
        ]
        target_indices = (
            np.array([row for row, _ in pairs], dtype=np.intp),
            np.array([i for i, layer in enumerate(layers) if layer in layout.layers], dtype=np.intp),
            np.array([j for j, position in enumerate(positions) if position in layout.positions], dtype=np.intp),
        )
        cells = np.ix_(*target_indices)
        if not is_missing[cells].any():
            continue
        if layout.width != values.shape[-1]:
            raise StoreMismatch(
                f"{file.path} has hidden states of width {layout.width}; others have {values.shape[-1]}"
            )
        states = file.read(
            np.array([file_index for _, file_index in pairs], dtype=np.intp),
            [layout.layers.index(layers[i]) for i in target_indices[1]],
            [layout.positions.index(positions[j]) for j in target_indices[2]],
        )
        values[cells] = np.where(is_missing[cells][..., None], states, values[cells])
        is_missing[cells] = False
    if is_missing.any():
        incomplete = np.flatnonzero(is_missing.any(axis=(1, 2)))
        raise RecordError(
            f"{len(incomplete)} of {len(call_ids)} calls lack hidden states of layers {list(layers)} at "
            f"{', '.join(positions)}, such as {[call_ids[i] for i in incomplete[:5]]}; run `metaprobe extract`"
        )
    return values


def _fitting(
    files: list[ActivationFile],
    call_ids: Sequence[str] | None,
    layers: Sequence[int] | None,
    positions: Sequence[str] | None,
    model: str | None,
) -> list[ActivationFile]:
    """Returns the files that hold everything requested. These files agree in all that the request left open.

    Args:
        files: the files.
        call_ids: ids of the requested calls; None for any.
        layers: requested layers; None for any.
        positions: requested positions; None for any.
        model: requested model; None for any.
    """
    calls = set(call_ids or ())
    files_of_answer: dict[tuple[Any, ...], list[ActivationFile]] = {}
    for file in files:
        layout = file.layout
        holds = set(layers or ()) <= set(layout.layers) and set(positions or ()) <= set(layout.positions)
        if holds and model in (None, file.model) and (not calls or not calls.isdisjoint(file.call_ids)):
            open_fields = (
                layout.layers if layers is None else None,
                layout.positions if positions is None else None,
                layout.width,
                file.model,
            )
            files_of_answer.setdefault(open_fields, []).append(file)
    if len(files_of_answer) == 1:
        return next(iter(files_of_answer.values()))
    first_file_of_kind: dict[tuple[Layout, str], ActivationFile] = {}
    for file in files:
        first_file_of_kind.setdefault((file.layout, file.model), file)
    if len(first_file_of_kind) == 1:
        [(layout, reader)] = first_file_of_kind
        _check_stored(layers or (), layout.layers, "layer")
        _check_stored(positions or (), layout.positions, "position")
        if model not in (None, reader):
            read_by = reader or "the model that answered"
            raise RecordError(f"no hidden states of the store were read by {model!r}; they were by {read_by}")
        return files  # then the calls are missing
    kinds_text = "; ".join(
        f"{layout}{f', read by {reader_name}' if reader_name else ''} (such as {file.path.name})"
        for (layout, reader_name), file in first_file_of_kind.items()
    )
    raise StoreMismatch(
        f"{'several' if files_of_answer else 'none'} of the kinds of hidden states in the store hold what is asked for:"
        f" {kinds_text}. Say which calls, layers, positions and model"
    )


def _check_stored(names: Sequence[Any], stored: Sequence[Any], kind: str) -> None:
    for name in names:
        if name not in stored:
            raise RecordError(f"{kind} {name!r} was not kept; the store holds {kind}s {list(stored)}")
