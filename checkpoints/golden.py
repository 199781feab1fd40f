"""Recorded rows: inputs and what the graph gave for them, replayed on every load."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

import metaprobe.checkpoints.strict_json as strict_json
from metaprobe.checkpoints.errors import ContractMismatch, GoldenMismatch
from metaprobe.checkpoints.graph_session import Arrays, GraphSession
from metaprobe.checkpoints.manifest import GOLDEN, TensorSpec

MAX_ROWS = 16
MAX_RANK = 8
MAX_TOLERANCE = 1e-4
"""A checkpoint cannot ask to be believed with less. Processors differ by about 1e-6."""
ROUNDED, ROUNDED_TOLERANCE = "adapter", 5e-2
"""The kind of checkpoint whose graph may round its states to integers, and its largest tolerance. Where a state lies
between two integers a last bit decides which is taken: differences of 1e-6 moved probabilities by up to 0.014."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """One array in JSON: NaN as null, in C order."""

    shape: tuple[int, ...]
    values: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Golden:
    """All of golden.json."""

    tolerance: float
    """Largest accepted difference, relative to the recorded number where that exceeds 1."""
    inputs: dict[str, Recorded]
    outputs: dict[str, Recorded]

    def __post_init__(self) -> None:
        if not self.inputs or not self.outputs:
            raise ContractMismatch("there are no rows; expected at least one")


class Difference(NamedTuple):
    """The largest difference of two sets of arrays, and its place. Compares by `size`."""

    size: float
    output: str
    row: int


def check_tolerance(tolerance: float, kind: str | None) -> None:
    """Raises `ContractMismatch` for a tolerance that a checkpoint of that kind may not have."""
    most = ROUNDED_TOLERANCE if kind == ROUNDED else MAX_TOLERANCE
    if not 0 < tolerance <= most:
        raise ContractMismatch(f"tolerance is {tolerance}; expected more than 0 and at most {most}")


def record(session: GraphSession, inputs: Arrays, tolerance: float) -> bytes:
    """The bytes of golden.json: the first rows of `inputs` and what `session` gives for exactly these."""
    kept = {
        s.name: inputs[s.name][:MAX_ROWS] if s.shape and s.shape[0] is None else inputs[s.name] for s in session.inputs
    }
    arrays = Golden(tolerance, *({n: _record(n, a) for n, a in x.items()} for x in (kept, session.run(kept))))
    return strict_json.dumps(strict_json.plain(arrays, GOLDEN))


def replay(data: bytes, session: GraphSession) -> None:
    """Runs the rows of golden.json; raises `GoldenMismatch` where the outputs are not the recorded ones."""
    largest, tolerance = difference(data, session)
    if not largest.size <= tolerance:
        raise GoldenMismatch(
            f"{GOLDEN}: output {largest.output!r} of row {largest.row} differs by {largest.size:.3g} from "
            f"what was recorded; at most {tolerance:g} is accepted. Upgrade or pin onnxruntime, or export again"
        )


def difference(data: bytes, session: GraphSession) -> tuple[Difference, float]:
    """How far a session, perhaps another checkpoint's, is from the rows of golden.json, and how far it may be."""
    golden = strict_json.build(Golden, strict_json.loads(data, GOLDEN), GOLDEN)
    check_tolerance(golden.tolerance, session.kind)
    if any(0 in one.shape for one in (*golden.inputs.values(), *golden.outputs.values())):
        raise ContractMismatch(f"{GOLDEN}: there are no rows; expected at least one")
    largest = largest_difference(
        _arrays(golden.outputs, session.outputs, f"{GOLDEN}: outputs"),
        session.run(_arrays(golden.inputs, session.inputs, f"{GOLDEN}: inputs")),
    )
    return largest, golden.tolerance


def largest_difference(expected: Arrays, actual: Arrays) -> Difference:
    """The largest |a - b| / max(1, |b|) over all outputs, b expected; infinite where either is NaN.

    Raises `ContractMismatch` where names or shapes differ.
    """
    if expected.keys() != actual.keys():
        raise ContractMismatch(f"expected outputs {sorted(expected)}; the model gives {sorted(actual)}")
    return max(_difference(name, expected[name], actual[name]) for name in expected)


def _difference(name: str, expected: NDArray[Any], actual: NDArray[Any]) -> Difference:
    if expected.shape != actual.shape:
        raise ContractMismatch(f"output {name!r}: expected shape {expected.shape}; the model gives {actual.shape}")
    if not expected.size:
        return Difference(0.0, name, 0)
    a, b = actual.astype(np.float64), expected.astype(np.float64)
    with np.errstate(invalid="ignore"):  # inf - inf is NaN, and then infinite, as it should be
        sizes = np.abs(a - b) / np.maximum(1.0, np.abs(b))
    sizes = np.where(np.isnan(sizes), math.inf, sizes)
    rows = sizes.reshape(len(sizes), -1).max(axis=1) if sizes.ndim else sizes.reshape(1)
    return Difference(float(rows.max()), name, int(rows.argmax()))


def _record(name: str, array: NDArray[Any]) -> Recorded:
    if array.dtype.kind == "f" and np.isinf(array).any():
        raise ContractMismatch(f"{name!r} is infinite in a golden row; expected finite numbers or NaN")
    values = array.ravel().tolist()
    return Recorded(array.shape, tuple(None if value != value else value for value in values))


def _arrays(recorded: dict[str, Recorded], specs: Sequence[TensorSpec], what: str) -> Arrays:
    names = [spec.name for spec in specs]
    if sorted(recorded) != sorted(names):
        raise ContractMismatch(f"{what} are {sorted(recorded)}; the model has {sorted(names)}")
    return {spec.name: _array(recorded[spec.name], spec, f"{what}.{spec.name}") for spec in specs}


def _array(recorded: Recorded, spec: TensorSpec, where: str) -> NDArray[Any]:
    dtype = np.dtype(spec.type)
    legal = {"f": (int, float, type(None)), "i": (int,), "b": (bool,)}[dtype.kind]
    if odd := [v for v in recorded.values if not isinstance(v, legal) or (isinstance(v, bool) and dtype.kind != "b")]:
        raise ContractMismatch(f"{where}: {odd[0]!r} is not a {spec.type}")
    # No length may exceed what there is, before they are multiplied: integers of JSON have up to 4,300 digits.
    fits = len(recorded.shape) <= MAX_RANK and all(0 <= n <= len(recorded.values) for n in recorded.shape)
    if not fits or math.prod(recorded.shape) != len(recorded.values):
        raise ContractMismatch(f"{where}: {len(recorded.values)} values do not fill shape {list(recorded.shape)}")
    try:
        return np.array(recorded.values, dtype=dtype).reshape(recorded.shape)
    except OverflowError as error:
        raise ContractMismatch(f"{where}: a number does not fit a {spec.type}") from error
