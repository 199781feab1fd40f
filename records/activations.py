"""Hidden states of recorded calls: a safetensors file beside each shard of runs.

`runs-X.safetensors` holds the tensor `hidden`, float16, (calls, layers, positions, width), of those calls of
`runs-X.parquet` whose hidden states were kept. It is written before its shard takes its name, so every run that can be
read has its activations, and a file without a shard is the leftover of a kill.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metaprobe.records.errors import RecordError, StoreMismatch
from metaprobe.records.extras import require
from metaprobe.records.types import FloatArray, Hidden

CONVENTION = "index 0 = embeddings output, index i = output of block i"
SUFFIX = ".safetensors"


@dataclass(frozen=True, slots=True)
class Layout:
    """Which hidden states are kept of each call: the same for all calls of a store."""

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
    """What is kept of this call. Raises `StoreMismatch` where the array does not have the shape it says."""
    expected = (len(hidden.layers), len(hidden.positions))
    if hidden.values.ndim != 3 or hidden.values.shape[:2] != expected:
        raise StoreMismatch(
            f"call {call_id!r} has hidden states of shape {hidden.values.shape} for {expected[0]} layers and"
            f" {expected[1]} positions; expected (layers, positions, width)"
        )
    return Layout(tuple(hidden.layers), tuple(hidden.positions), hidden.values.shape[2])


def check_layout(layout: Layout, stored: Layout, whose: str) -> None:
    """Raises `StoreMismatch` where hidden states of one kind are offered to a store of another."""
    if layout != stored:
        raise StoreMismatch(
            f"{whose} has hidden states of {layout}; the store holds {stored}: put them into a store of their own"
        )


def activation_bytes(hidden: dict[str, Hidden]) -> bytes:
    """The content of an activation file: call id -> hidden states, all of one layout.

    Wider numbers are rounded to float16, and held at its largest value where they are beyond it (a few channels of some
    models are): an infinity would spoil every mean it enters.
    """
    largest = np.finfo(np.float16).max
    values = np.stack([np.clip(h.values, -largest, largest).astype(np.float16) for h in hidden.values()])
    first = next(iter(hidden.values()))
    metadata = {
        "call_ids": json.dumps(list(hidden)),
        "layers": json.dumps([int(layer) for layer in first.layers]),
        "positions": json.dumps(list(first.positions)),
        "convention": CONVENTION,
    }
    content: bytes = require("safetensors.numpy", "train").save({"hidden": values}, metadata=metadata)
    return content


class ActivationFile:
    """One activation file. Opening it reads the header only."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with self._open() as file:
            metadata = file.metadata() or {}
            shape = file.get_slice("hidden").get_shape()
        self.call_ids: tuple[str, ...] = tuple(json.loads(metadata["call_ids"]))
        self.layout = Layout(tuple(json.loads(metadata["layers"])), tuple(json.loads(metadata["positions"])), shape[3])
        expected = [len(self.call_ids), len(self.layout.layers), len(self.layout.positions), self.layout.width]
        if shape != expected:
            raise ValueError(f"the tensor has shape {shape}, its header speaks of {expected}")

    def read(self, rows: NDArray[np.intp], layers: Sequence[int], positions: Sequence[int]) -> NDArray[np.float16]:
        """(rows, layers, positions, width), all three by index. Only these layers and positions are read."""
        out = np.empty((len(rows), len(layers), len(positions), self.layout.width), dtype=np.float16)
        with self._open() as file:
            tensor = file.get_slice("hidden")
            if (len(layers), len(positions)) == (len(self.layout.layers), len(self.layout.positions)):
                return np.asarray(tensor[:][rows][:, layers][:, :, positions], dtype=np.float16)
            for i, layer in enumerate(layers):
                for j, position in enumerate(positions):
                    out[:, i, j] = tensor[:, layer, position][rows]
        return out

    def _open(self) -> Any:
        return require("safetensors", "train").safe_open(self.path, framework="numpy")


def gather(
    files: Iterable[ActivationFile],
    call_ids: Sequence[str] | None = None,
    *,
    layers: Sequence[int] | None = None,
    positions: Sequence[str] | None = None,
) -> Activations:
    """The hidden states of these calls, in this order; of every call, of every layer and at every position by default.

    Raises `RecordError` naming the calls, layers or positions that are not stored, `StoreMismatch` where files differ.
    """
    files = list(files)
    if not files:
        raise RecordError("the store holds no hidden states; collect with layers to keep, or run `metaprobe extract`")
    layout = files[0].layout
    where: dict[str, tuple[int, int]] = {}
    for number, file in enumerate(files):
        check_layout(file.layout, layout, str(file.path))
        for row, call_id in enumerate(file.call_ids):
            where.setdefault(call_id, (number, row))  # a call that was stored twice: the first one, as for runs
    wanted = list(where) if call_ids is None else list(call_ids)
    if missing := [call_id for call_id in wanted if call_id not in where]:
        raise RecordError(
            f"no hidden states are stored for {len(missing)} of {len(wanted)} calls, such as {missing[:5]};"
            " leave them out, or run `metaprobe extract`"
        )
    layers = layout.layers if layers is None else tuple(layers)
    positions = layout.positions if positions is None else tuple(positions)
    layer_indices = _indices(layers, layout.layers, "layer")
    position_indices = _indices(positions, layout.positions, "position")
    places = np.array([where[call_id] for call_id in wanted], dtype=np.intp).reshape(-1, 2)
    values = np.empty((len(wanted), len(layers), len(positions), layout.width), dtype=np.float16)
    for number in np.unique(places[:, 0]):
        here = np.flatnonzero(places[:, 0] == number)
        values[here] = files[number].read(places[here, 1], layer_indices, position_indices)
    return Activations(tuple(wanted), values, layers, positions)


def _indices(wanted: Sequence[Any], stored: Sequence[Any], what: str) -> list[int]:
    for name in wanted:
        if name not in stored:
            raise RecordError(f"{what} {name!r} was not kept; the store holds {what}s {list(stored)}")
    return [stored.index(name) for name in wanted]
