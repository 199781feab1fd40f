"""Loads a checkpoint: verifies its folder, opens its graph, and replays its golden rows.

`GraphSession` runs guarded bytes of an ONNX graph. Golden rows are recorded inputs with the graph's outputs for them;
every load replays them.
"""

import hashlib
import math
import os
import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from metaprobe.checkpoints.checkpoint_errors import (
    CheckpointError,
    ContractMismatch,
    GoldenMismatch,
    MovingRevision,
    NotACheckpoint,
    TamperedCheckpoint,
    UntrustedCheckpoint,
)
from metaprobe.checkpoints.display import explain_fields
from metaprobe.checkpoints.files import BUNDLED, BUNDLED_FOLDER, Folder, Repository, bundled_names, files_at
from metaprobe.checkpoints.flagging import flag_sentences, label_nouns
from metaprobe.checkpoints.graph_sizes import check_growth, check_sizes
from metaprobe.checkpoints.manifest import (
    GOLDEN,
    MANIFEST,
    MODEL,
    REQUIRED_FILES,
    Manifest,
    TensorSpec,
    Trust,
    build,
    json_bytes,
    json_value,
    parse_manifest,
    printable,
    read_json,
)
from metaprobe.checkpoints.onnx_guard import check_model
from metaprobe.checkpoints.rendered_table import html_table

Arrays = dict[str, NDArray[Any]]

_NUMPY_TYPES = {
    "tensor(float16)": "float16",
    "tensor(float)": "float32",
    "tensor(double)": "float64",
    "tensor(int32)": "int32",
    "tensor(int64)": "int64",
    "tensor(bool)": "bool",
}

MAX_UNFOLDED_BYTES = 64 << 20
"""Size of a graph, in bytes, above which the graph is a language model. The weights of such a graph are folded when it
is opened.
"""


class GraphSession:
    """An ONNX graph that runs on one CPU thread. Several threads of the caller may run it at once.

    It has no threads of its own, so it still works in a forked process. It cannot be pickled: send the `Checkpoint`,
    which the receiving process opens again.
    """

    def __init__(self, model: bytes, *, kind: str | None = None, trial: bool = False) -> None:
        """Raises `UnsafeModel` if the guard refuses the graph, `ContractMismatch` if ONNX Runtime cannot open the
        bytes.

        Before ONNX Runtime sees the bytes, the memory and time for a few rows are bounded, and how both grow with the
        rows.

        Args:
            model: bytes of the ONNX file.
            kind: kind of the checkpoint, whose operators are allowed; by default those of any kind.
            trial: whether the rows passed to `run` are bounded as well, until `end_trial`.
        """
        graph = check_model(model, kind)
        check_growth(graph, kind)
        self._trial_graph, self.kind = graph if trial else None, kind
        onnxruntime = _runtime()
        session_options = onnxruntime.SessionOptions()
        session_options.intra_op_num_threads = session_options.inter_op_num_threads = 1
        session_options.log_severity_level = 4  # what matters is raised
        # Without this, bytes that look like ONNX Runtime's own format would be read as such.
        session_options.add_session_config_entry("session.load_model_format", "ONNX")
        # Constant folding would compute and keep all values that depend on weights alone, however large they are.
        disabled_optimizers = ["ConstantFolding"] if len(model) <= MAX_UNFOLDED_BYTES else []
        try:
            self._session = onnxruntime.InferenceSession(
                model, session_options, providers=["CPUExecutionProvider"], disabled_optimizers=disabled_optimizers
            )
        except _runtime_errors() as error:
            raise ContractMismatch(f"ONNX Runtime {onnxruntime.__version__} cannot open the model: {error}") from error
        self.inputs = tuple(_spec(node) for node in self._session.get_inputs())
        self.outputs = tuple(_spec(node) for node in self._session.get_outputs())
        self._expected_inputs = tuple((s.name, np.dtype(s.type), s.shape) for s in self.inputs)
        self._input_names = frozenset(s.name for s in self.inputs)
        self._output_names = [s.name for s in self.outputs]

    def __reduce__(self) -> str:
        raise TypeError(
            "a GraphSession cannot be pickled; send the Checkpoint, or its path and digest, and load it there"
        )

    def run(self, inputs: Arrays) -> Arrays:
        """Returns the outputs by name. Raises `ContractMismatch` if a name, type or shape is not the graph's."""
        if inputs.keys() != self._input_names:
            raise ContractMismatch(f"got inputs {sorted(inputs)}; expected {sorted(self._input_names)}")
        for name, dtype, shape in self._expected_inputs:
            value = inputs[name]
            # The usual case, a matrix of n rows, is checked first and quickly, because every score comes here.
            if not (type(value) is np.ndarray and value.dtype is dtype and (None, *value.shape[1:]) == shape):
                _check_array(name, value, dtype, shape)
        if self._trial_graph is not None:
            check_sizes(
                self._trial_graph, {name: value.shape for name, value in inputs.items()}, self.kind, "its golden rows"
            )
        try:
            values = self._session.run(self._output_names, inputs)
        except _runtime_errors() as error:
            rows_text = "these inputs" if self._trial_graph is None else "its golden rows"
            raise ContractMismatch(f"ONNX Runtime could not run the model on {rows_text}: {error}") from error
        return dict(zip(self._output_names, values, strict=True))

    def end_trial(self) -> None:
        """Ends the bounds on rows: from now on `run` computes any number of the caller's own rows."""
        self._trial_graph = None


@lru_cache(maxsize=1)
def _runtime() -> Any:
    """Returns ONNX Runtime without telemetry, which its official builds send to their maker by default.

    On Linux and macOS, since version 1.29, this environment variable turns it off, if it is set before the first
    import. On Windows the function call does. A user who sets the variable to 0 keeps the telemetry.
    """
    telemetry_wanted = os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1") == "0"
    import onnxruntime

    if not telemetry_wanted:
        onnxruntime.disable_telemetry_events()
    return onnxruntime


def _spec(node: Any) -> TensorSpec:
    if node.type not in _NUMPY_TYPES:
        raise ContractMismatch(
            f"{node.name!r} is a {node.type}; expected one of {', '.join(_NUMPY_TYPES)} (for classifiers of "
            "scikit-learn or LightGBM, export with zipmap=False)"
        )
    shape = tuple(length if isinstance(length, int) and length >= 0 else None for length in node.shape)
    return TensorSpec(node.name, _NUMPY_TYPES[node.type], shape)


def _check_array(name: str, value: Any, dtype: np.dtype[Any], shape: tuple[int | None, ...]) -> None:
    if not isinstance(value, np.ndarray):
        raise ContractMismatch(f"input {name!r} is a {type(value).__name__}; expected a NumPy array")
    if value.dtype != dtype:
        raise ContractMismatch(f"input {name!r} has type {value.dtype}; expected {dtype}")
    if len(value.shape) != len(shape) or any(
        expected_length is not None and length != expected_length
        for length, expected_length in zip(value.shape, shape, strict=True)
    ):
        expected = ", ".join("any" if length is None else str(length) for length in shape)
        raise ContractMismatch(f"input {name!r} has shape {value.shape}; expected ({expected})")


@lru_cache(maxsize=1)
def _runtime_errors() -> tuple[type[Exception], ...]:
    """Returns the errors that ONNX Runtime raises.

    They share no base but Exception, and newer versions have more of them.
    """
    from onnxruntime.capi import onnxruntime_pybind11_state as binding

    error_types = [
        value for value in vars(binding).values() if isinstance(value, type) and issubclass(value, Exception)
    ]
    return (*error_types, RuntimeError, ValueError, TypeError)


# Golden rows: recorded inputs, and what the graph gave for them.

EXTRA_GOLDEN = ".golden.json"
"""Ending of the file with the golden rows of an additional graph, after the graph's own name."""
MAX_GOLDEN_ROWS = 16
"""Most golden rows that are recorded."""
MAX_INPUT_AXES = 8
"""Most axes of an array in golden.json."""
MAX_TOLERANCE = 1e-4
"""Largest tolerance that a checkpoint may state for its golden rows. Processors differ by about 1e-6."""
ROUNDED_KIND, ROUNDED_TOLERANCE = "adapter", 5e-2
"""The kind of checkpoint whose graph may round its states to integers, and its largest tolerance.

If a state lies between two integers, a last bit decides which one is used. Differences of 1e-6 moved probabilities by
up to 0.014.
"""


@dataclass(frozen=True, slots=True)
class RecordedArray:
    """One array in JSON, in C order, with NaN as null."""

    shape: tuple[int, ...]
    values: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Golden:
    """Recorded inputs and outputs that are replayed at every load, and the accepted difference: golden.json."""

    tolerance: float
    """Largest accepted difference; relative to the recorded number if that exceeds 1."""
    inputs: dict[str, RecordedArray]
    outputs: dict[str, RecordedArray]

    def __post_init__(self) -> None:
        if not self.inputs or not self.outputs:
            raise ContractMismatch("there are no rows; expected at least one")


class Difference(NamedTuple):
    """The largest difference between two sets of arrays, with its output and row. Compares by `size`."""

    size: float
    output: str
    row: int


KIND_OF_LANGUAGE_MODEL = {("success", "reader.onnx"): ROUNDED_KIND}
"""Maps (kind of a checkpoint, name of an additional graph) to the kind whose operators and tolerance that graph has."""


def check_tolerance(tolerance: float, kind: str | None) -> None:
    """Raises `ContractMismatch` if a checkpoint of this kind may not have this tolerance."""
    max_tolerance = ROUNDED_TOLERANCE if kind == ROUNDED_KIND else MAX_TOLERANCE
    if not 0 < tolerance <= max_tolerance:
        raise ContractMismatch(f"tolerance is {tolerance}; expected more than 0 and at most {max_tolerance}")


def record_rows(session: GraphSession, inputs: Arrays, tolerance: float) -> bytes:
    """Returns the bytes of golden.json: the first rows of `inputs`, and the session's outputs for exactly these rows.

    Args:
        session: the graph.
        inputs: arrays by input name.
        tolerance: largest accepted difference when the rows are replayed.
    """
    recorded_inputs = {
        s.name: inputs[s.name][:MAX_GOLDEN_ROWS] if s.shape and s.shape[0] is None else inputs[s.name]
        for s in session.inputs
    }
    recorded_arrays: tuple[dict[str, RecordedArray], dict[str, RecordedArray]] = ({}, {})
    for arrays_in_json, arrays in zip(recorded_arrays, (recorded_inputs, session.run(recorded_inputs)), strict=True):
        for name, array in arrays.items():
            if array.dtype.kind == "f" and np.isinf(array).any():
                raise ContractMismatch(f"{name!r} is infinite in a golden row; expected finite numbers or NaN")
            values = array.ravel().tolist()
            arrays_in_json[name] = RecordedArray(
                array.shape, tuple(None if value != value else value for value in values)
            )
    return json_bytes(json_value(Golden(tolerance, *recorded_arrays), GOLDEN))


def replay_rows(data: bytes, session: GraphSession) -> None:
    """Runs the rows of golden.json. Raises `GoldenMismatch` if the outputs differ from the recorded ones."""
    largest, tolerance = difference_from_rows(data, session)
    if not largest.size <= tolerance:
        raise GoldenMismatch(
            f"{GOLDEN}: output {largest.output!r} of row {largest.row} differs by {largest.size:.3g} from "
            f"what was recorded; at most {tolerance:g} is accepted. Upgrade or pin onnxruntime, or export again"
        )


def trial_rows(session: GraphSession) -> Arrays:
    """Returns rows for an additional graph, for which no training rows are stored: zeros, and fixed random numbers.

    The first free dimension has `MAX_GOLDEN_ROWS` rows, any other free dimension one.
    """
    rng, rows = np.random.default_rng(0), {}
    for spec in session.inputs:
        free_lengths = (MAX_GOLDEN_ROWS, *[1] * len(spec.shape))
        shape = tuple(free_lengths[axis] if length is None else length for axis, length in enumerate(spec.shape))
        values = rng.normal(size=shape) if spec.type.startswith("float") else np.zeros(shape)
        values[:1] = 0
        rows[spec.name] = values.astype(spec.type)
    return rows


def record_extra(name: str, data: bytes, kind: str, tolerance: float) -> bytes:
    """Returns the bytes of the file with an additional graph's golden rows; empty if the graph reads no numbers.

    Raises `ContractMismatch` if an output of the graph is not a finite number.

    Args:
        name: file name of the graph.
        data: bytes of the graph.
        kind: kind of the checkpoint.
        tolerance: largest accepted difference when the rows are replayed.
    """
    kind = KIND_OF_LANGUAGE_MODEL.get((kind, name), kind)
    tolerance = ROUNDED_TOLERANCE if kind == ROUNDED_KIND else tolerance
    session = GraphSession(data, kind=kind, trial=True)
    rows = trial_rows(session)
    _check_finite(session.run(rows))
    return record_rows(session, rows, tolerance) if all(array.size for array in rows.values()) else b""


def replay_extra(name: str, data: bytes, golden: bytes | None, kind: str) -> GraphSession:
    """Returns an additional graph after running it on its golden rows, or on `trial_rows` if none were recorded.

    Raises `UnsafeModel` if the guard refuses it, `GoldenMismatch` if the outputs differ from the recorded ones, and
    `ContractMismatch` if an output is not a finite number: a graph that overflows would load, but never give a verdict.

    Args:
        name: file name of the graph.
        data: bytes of the graph.
        golden: bytes of its golden rows; None if none were recorded.
        kind: kind of the checkpoint.
    """
    try:
        session = GraphSession(data, kind=kind, trial=True)
        _check_finite(session.run(trial_rows(session)))
        if golden is not None:
            replay_rows(golden, session)
    except CheckpointError as error:
        raise type(error)(f"{name}: {error}") from error
    session.end_trial()
    return session


def _check_finite(outputs: Arrays) -> None:
    for name, array in outputs.items():
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise ContractMismatch(f"output {name!r} is no finite number for one of {len(array)} rows; train it again")


def difference_from_rows(data: bytes, session: GraphSession) -> tuple[Difference, float]:
    """Returns how far a session's outputs are from the rows of golden.json, and the tolerance.

    The session may be that of another graph.
    """
    golden = build(Golden, read_json(data, GOLDEN), GOLDEN)
    check_tolerance(golden.tolerance, session.kind)
    if any(0 in array.shape for array in (*golden.inputs.values(), *golden.outputs.values())):
        raise ContractMismatch(f"{GOLDEN}: there are no rows; expected at least one")
    largest = largest_difference(
        _arrays_of(golden.outputs, session.outputs, f"{GOLDEN}: outputs"),
        session.run(_arrays_of(golden.inputs, session.inputs, f"{GOLDEN}: inputs")),
    )
    return largest, golden.tolerance


def largest_difference(expected: Arrays, actual: Arrays) -> Difference:
    """Returns the largest |actual - expected| / max(1, |expected|) over all outputs; infinite if either is NaN.

    Raises `ContractMismatch` if names or shapes differ.
    """
    if expected.keys() != actual.keys():
        raise ContractMismatch(f"expected outputs {sorted(expected)}; the model gives {sorted(actual)}")
    largest = Difference(0.0, "", 0)
    for name, expected_array in expected.items():
        if expected_array.shape != actual[name].shape:
            raise ContractMismatch(
                f"output {name!r}: expected shape {expected_array.shape}; the model gives {actual[name].shape}"
            )
        if not expected_array.size:
            continue
        actual_values, expected_values = actual[name].astype(np.float64), expected_array.astype(np.float64)
        with np.errstate(invalid="ignore"):  # inf - inf is NaN, and then infinite, as it should be
            sizes = np.abs(actual_values - expected_values) / np.maximum(1.0, np.abs(expected_values))
        sizes = np.where(np.isnan(sizes), math.inf, sizes)
        rows = sizes.reshape(len(sizes), -1).max(axis=1) if sizes.ndim else sizes.reshape(1)
        largest = max(largest, Difference(float(rows.max()), name, int(rows.argmax())))
    return largest


def _arrays_of(recorded_arrays: dict[str, RecordedArray], specs: Sequence[TensorSpec], name: str) -> Arrays:
    """Returns recorded inputs or outputs as arrays of the model's types and shapes.

    Raises `ContractMismatch` if names, types or shapes differ from the model's.

    Args:
        recorded_arrays: arrays of golden.json by name.
        specs: inputs or outputs of the model.
        name: what the arrays are, for errors, such as `golden.json: inputs`.
    """
    names = [spec.name for spec in specs]
    if sorted(recorded_arrays) != sorted(names):
        raise ContractMismatch(f"{name} are {sorted(recorded_arrays)}; the model has {sorted(names)}")
    arrays: Arrays = {}
    for spec in specs:
        json_path, dtype = f"{name}.{spec.name}", np.dtype(spec.type)
        shape, values = recorded_arrays[spec.name].shape, recorded_arrays[spec.name].values
        allowed_types = {"f": (int, float, type(None)), "i": (int,), "b": (bool,)}[dtype.kind]
        if wrong_values := [
            v for v in values if not isinstance(v, allowed_types) or (isinstance(v, bool) and dtype.kind != "b")
        ]:
            raise ContractMismatch(f"{json_path}: {wrong_values[0]!r} is not a {spec.type}")
        # Lengths are bounded before they are multiplied: integers of JSON have up to 4,300 digits.
        fits = len(shape) <= MAX_INPUT_AXES and all(0 <= length <= len(values) for length in shape)
        if not fits or math.prod(shape) != len(values):
            raise ContractMismatch(f"{json_path}: {len(values)} values do not fill shape {list(shape)}")
        try:
            arrays[spec.name] = np.array(values, dtype=dtype).reshape(shape)
        except OverflowError as error:
            raise ContractMismatch(f"{json_path}: a number does not fit a {spec.type}") from error
    return arrays


@dataclass(frozen=True, slots=True)
class Limits:
    """Largest file sizes that are read, in bytes."""

    manifest_bytes: int = 1 << 20
    model_bytes: int = 256 << 20
    """Limit for model.onnx."""
    golden_bytes: int = 8 << 20
    """Limit for golden.json. It is parsed, and its objects take many times its size."""
    file_bytes: int = 8 << 20
    """Limit for README.md and any other listed file."""

    def of(self, name: str) -> int:
        """Returns the limit for the file of this name."""
        if name == GOLDEN or name.endswith(EXTRA_GOLDEN):
            return min(self.golden_bytes, self.file_bytes)
        return {MANIFEST: self.manifest_bytes, MODEL: self.model_bytes}.get(name, self.file_bytes)


LIMITS_OF_KIND = {
    "adapter": Limits(model_bytes=(1 << 31) - 1, file_bytes=64 << 20),
    "success": Limits(file_bytes=1 << 30),
}
"""Limits of kinds that hold a language model. One ONNX file can hold 2 GB; tokenizers have up to 40 MB.

The reader of `success` is an additional graph, whose weights take one byte each.
"""


MAX_TABLE_METRICS = 8
"""Number of held-out metrics in the table for notebooks: the first ones of the card."""


LEARNED_UNTIL = "learned_until"
"""Key of the contract: time of the newest labelled answer used to train, adapt or recalibrate this predictor or its
ancestors, in seconds since 1970.
"""


@explain_fields
@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Checkpoint:
    """A verified checkpoint, ready to run. Several threads may share it, and it may be sent to other processes.

    A process that receives it reads the files again, and compares them with the digest.

        >>> checkpoint = load_checkpoint("bundled:quality")
        >>> checkpoint.trust, checkpoint.manifest.kind, [output.name for output in checkpoint.manifest.outputs]
        ('weak', 'quality', ['correct'])
    """

    path: Path
    """Folder from which its files were read."""
    manifest: Manifest
    """The contents of manifest.json: contract, thresholds, held-out metrics, audits, training data."""
    digest: str
    """SHA-256 of manifest.json, which pins every other file. Give it to those who should trust this checkpoint."""
    session: GraphSession
    """The ONNX graph, ready to run."""
    extra: dict[str, bytes]
    """Other files that the manifest lists, such as a tokenizer, by name, as verified bytes."""
    graphs: dict[str, GraphSession]
    """Additional ONNX graphs by file name, ready to run."""

    @staticmethod
    def kind_at(path: str | os.PathLike[str]) -> str:
        """Returns the kind that the manifest of the checkpoint at `path` states. Nothing else is read or verified."""
        return parse_manifest(_manifest_at(files_at(path), None)).kind

    @staticmethod
    def digest_at(path: str | os.PathLike[str], *, sha256: str | None = None) -> str:
        """Returns the digest of the checkpoint at `path`, after verifying it as `load_checkpoint` does."""
        return load_checkpoint(path, sha256=sha256).digest

    @staticmethod
    @cache
    def bundled_digests() -> dict[str, str]:
        """Maps the digest of each bundled checkpoint to its name, `bundled:NAME`."""
        manifests = {name: (BUNDLED_FOLDER / name / "manifest.json").read_bytes() for name in bundled_names()}
        return {hashlib.sha256(content).hexdigest(): f"{BUNDLED}{name}" for name, content in manifests.items()}

    @property
    def learned_until(self) -> float:
        """Time of the newest labelled answer that the checkpoint or its ancestors learned from, in seconds since 1970.

        If the contract does not state the time, returns the creation time of an adapted checkpoint, and -1 for others.
        """
        contract = self.manifest.contract
        if LEARNED_UNTIL in contract:
            return float(contract[LEARNED_UNTIL])
        return datetime.fromisoformat(self.manifest.created).timestamp() if "adapted_from" in contract else -1.0

    def __repr__(self) -> str:
        return f"Checkpoint({str(self.path)!r}, kind {self.manifest.kind!r}, {self.trust}, digest {self.digest[:12]})"

    def _repr_html_(self) -> str:
        """Returns a table for notebooks."""
        return self.as_html("Checkpoint")

    def as_html(self, title: str) -> str:
        """Returns a small HTML table: folder, training data, trust and held-out metrics."""
        generator, training = self.manifest.generator, self.manifest.training
        figures = [
            (name, f"{m.estimate:.3f} [{m.low:.3f}, {m.high:.3f}], n = {m.n}")
            for name, m in list(self.manifest.metrics.items())[:MAX_TABLE_METRICS]
        ]
        rows = [
            ("folder", self.path),
            ("kind", self.manifest.kind),
            ("digest", f"{self.digest[:12]}..."),
            ("trust", self.trust + (f": {', '.join(self.weaknesses)}" if self.weaknesses else "")),
            ("answers of", ", ".join(generator.models) if generator else "any model"),
            *([("trained on", f"{training.n} rows in {training.groups} groups")] if training else []),
            *((f"threshold {name}", f"{value:.4g}") for name, value in list(self.manifest.thresholds.items())[:4]),
            *(
                ("flagging", sentence)
                for sentence in flag_sentences(
                    self.manifest, self.manifest.metrics, label_nouns(self.manifest.contract)
                )
            ),
            *figures,
        ]
        return html_table(title, rows)

    def to_dict(self) -> dict[str, Any]:
        """Returns folder, digest, trust and all fields of the manifest, as types of JSON."""
        manifest = json_value(self.manifest, MANIFEST)
        return {"path": str(self.path), "digest": self.digest, "trust": self.trust, "manifest": manifest}

    @property
    def trust(self) -> Trust:
        """How reliable its numbers are.

        "sound": no audit failed. "weak": the numbers are true, but something simpler may do as well, or too little was
        measured to decide. "invalid": the numbers cannot be believed. "unaudited": there was no audit, or none against
        a control.
        """
        return self.manifest.trust

    @property
    def weaknesses(self) -> tuple[str, ...]:
        """Names of the audits that failed, weak or invalid; `manifest.audits` has their details."""
        return tuple(map(printable, self.manifest.failed))

    def run(self, inputs: Arrays) -> Arrays:
        """Returns the outputs by name, for arrays with exactly the manifest's input names, types and shapes.

        Raises `ContractMismatch` for other arrays, with what came and what was expected.
        """
        return self.session.run(inputs)

    def files(self) -> dict[str, bytes]:
        """Returns its files by name, the manifest first. They are read again; raises `TamperedCheckpoint` if they
        changed.
        """
        folder, limits = Folder(self.path, links=True), _limits_of_kind(self.manifest.kind)
        manifest = folder.read(MANIFEST, limits.manifest_bytes)
        _check_digest(str(self.path), hashlib.sha256(manifest).hexdigest(), self.digest)
        return {
            MANIFEST: manifest,
            **{name: _read_verified(folder, name, self.manifest, limits) for name in self.manifest.files},
        }

    def __reduce__(self) -> tuple[Callable[[Folder, str], "Checkpoint"], tuple[Folder, str]]:
        """Pickles path and digest. The receiving process opens the checkpoint again."""
        return _verified_at, (Folder(self.path.resolve(), links=True), self.digest)


def load_checkpoint(
    path: str | os.PathLike[str], *, sha256: str | None = None, limits: Limits | None = None
) -> Checkpoint:
    """Verifies and returns the checkpoint in the folder `path`, or at `hub:OWNER/NAME@REVISION`.

    Each file is read once, and the hashed bytes are the ones that are used. The order of verification is: sizes and
    file types, the digest if one is given, the manifest and its own digest, the other files' hashes, the ONNX guard,
    inputs and outputs, the golden rows. Files that the manifest does not list are never read, and never fetched from
    the hub.

    The hashes in the manifest show that nothing was damaged. They do not show who made the checkpoint: a person who can
    write the folder can write the hashes too. To verify the author, give `sha256`.

    Warns with `UntrustedCheckpoint` if the numbers cannot be believed (`trust` is "invalid"); the checkpoint still
    runs. A weak checkpoint causes no warning: see `trust` and `weaknesses`. Warns with `MovingRevision` if a revision
    of the hub is no commit, and no `sha256` is given.

    Raises a `CheckpointError`: see `metaprobe.checkpoints.checkpoint_errors` for the kinds.

    Args:
        path: a folder, `bundled:NAME`, or `hub:OWNER/NAME@REVISION`.
        sha256: the `digest` that the author told you.
        limits: largest file sizes; by default those of the checkpoint's kind.
    """
    files = files_at(path)
    checkpoint = _verified_at(files, sha256, limits)
    if files.unpinned_warning and sha256 is None:
        warnings.warn(files.unpinned_warning, MovingRevision, stacklevel=2)
    if checkpoint.trust == "invalid":
        warnings.warn(
            f"the checkpoint {path} is NOT TRUSTWORTHY: {checkpoint.manifest.distrust}. "
            f"`metaprobe inspect {path}` shows the audits",
            UntrustedCheckpoint,
            stacklevel=2,
        )
    return checkpoint


def load_verified(
    path: str | os.PathLike[str], *, sha256: str | None = None, limits: Limits | None = None
) -> Checkpoint:
    """Returns the checkpoint as `load_checkpoint` does, without the warnings. For a caller that has just written it.

    Args:
        path: a folder, `bundled:NAME`, or `hub:OWNER/NAME@REVISION`.
        sha256: the digest that the checkpoint must have.
        limits: largest file sizes; by default those of the checkpoint's kind.
    """
    return _verified_at(files_at(path), sha256, limits)


def _manifest_at(files: Folder | Repository, limits: Limits | None) -> bytes:
    if isinstance(files, Folder) and not files.path.is_dir():
        raise NotACheckpoint(f"{files.path} is not a folder; a checkpoint is a folder that holds {MANIFEST}")
    return files.read(MANIFEST, (limits or Limits()).manifest_bytes)


def _verified_at(files: Folder | Repository, sha256: str | None, limits: Limits | None = None) -> Checkpoint:
    """Returns the checkpoint in a folder or repository, after every check that `load_checkpoint` names.

    Args:
        files: the folder or repository.
        sha256: the digest that the checkpoint must have; None for any.
        limits: largest file sizes; by default those of the checkpoint's kind.
    """
    manifest_data = _manifest_at(files, limits)
    digest = hashlib.sha256(manifest_data).hexdigest()
    _check_digest(files.where(""), digest, sha256)
    manifest = parse_manifest(manifest_data)
    limits = limits or _limits_of_kind(manifest.kind)
    contents = {name: _read_verified(files, name, manifest, limits) for name in manifest.files}
    extra = {name: data for name, data in contents.items() if name not in REQUIRED_FILES}
    graphs = {
        name: replay_extra(
            files.where(name),
            data,
            extra.get(name + EXTRA_GOLDEN),
            KIND_OF_LANGUAGE_MODEL.get((manifest.kind, name), manifest.kind),
        )
        for name, data in extra.items()
        if name.lower().endswith(".onnx")
    }
    session = GraphSession(contents[MODEL], kind=manifest.kind, trial=True)
    _check_contract(manifest, session)
    replay_rows(contents[GOLDEN], session)
    session.end_trial()
    return Checkpoint(files.path, manifest, digest, session, extra, graphs)


def _limits_of_kind(kind: str) -> Limits:
    return LIMITS_OF_KIND.get(kind, Limits())


def _read_verified(files: Folder | Repository, name: str, manifest: Manifest, limits: Limits) -> bytes:
    data, entry = files.read(name, limits.of(name)), manifest.files[name]
    if len(data) != entry.bytes:
        raise TamperedCheckpoint(
            f"{files.where(name)} has {len(data)} bytes, the manifest says {entry.bytes}. Copy it again"
        )
    digest = hashlib.sha256(data).hexdigest()
    if digest != entry.sha256:
        raise TamperedCheckpoint(
            f"{files.where(name)} has SHA-256 {digest}, the manifest says {entry.sha256}. Copy it again"
        )
    return data


def _check_digest(where: str, digest: str, sha256: str | None) -> None:
    if sha256 is None:
        return
    if not re.fullmatch(r"[0-9a-fA-F]{64}", sha256):
        raise ContractMismatch(f"sha256 is {sha256!r}; expected the 64 hex digits of a checkpoint's digest")
    if digest != sha256.lower():
        raise TamperedCheckpoint(
            f"{where} has digest {digest}, not {sha256.lower()}: it is not the checkpoint you asked for"
        )


def _check_contract(manifest: Manifest, session: GraphSession) -> None:
    """Raises `ContractMismatch` if the manifest's inputs or outputs differ from the graph's.

    Shapes of outputs may differ in unknown lengths, because some versions of ONNX Runtime infer more of them.
    """
    stated_outputs, graph_outputs = manifest.outputs, session.outputs
    if manifest.inputs != session.inputs:
        raise ContractMismatch(
            f"{MANIFEST} states inputs {_specs_text(manifest.inputs)}; {MODEL} has {_specs_text(session.inputs)}"
        )
    fits = [(spec.name, spec.type) for spec in stated_outputs] == [(spec.name, spec.type) for spec in graph_outputs]
    for stated_spec, actual_spec in zip(stated_outputs, graph_outputs, strict=False):
        if stated_spec.shape and actual_spec.shape:
            lengths = zip(stated_spec.shape, actual_spec.shape, strict=False)
            fits &= len(stated_spec.shape) == len(actual_spec.shape) and all(
                stated is None or actual is None or stated == actual for stated, actual in lengths
            )
    if not fits:
        raise ContractMismatch(
            f"{MANIFEST} states outputs {_specs_text(stated_outputs)}; {MODEL} has {_specs_text(graph_outputs)}"
        )
    # Every known kind gives one number per row and output. With more, a row would get the numbers of other rows.
    if manifest.kind in PROGRAMS_OF_KIND and any(
        not s.type.startswith("float") or s.shape[1:] != (1,) for s in session.outputs
    ):
        raise ContractMismatch(
            f"{MODEL} of kind {manifest.kind!r} has outputs {_specs_text(session.outputs)}; "
            "expected each to be numbers (n, 1)"
        )


def _specs_text(specs: tuple[TensorSpec, ...]) -> str:
    return ", ".join(f"{s.name}: {s.type}{list(s.shape)}" for s in specs)


PROGRAMS_OF_KIND = {
    "quality": "`metaprobe score`, `metaprobe serve` and QualityPredictor",
    "gate": "`metaprobe serve --gate` and StreamingGate",
    "hidden": "`metaprobe score CHECKPOINT RUNS`, `metaprobe collect --signal`, ConfidenceProbe and DifficultyProbe",
    "blend": "`metaprobe score`, `metaprobe serve`, `metaprobe collect --signal` and QualityPredictor",
    "text": "`metaprobe score`, `metaprobe serve` and TextPredictor",
    "adapter": "`metaprobe collect --signal` and AdapterProbe",
    "panel": "`metaprobe score CHECKPOINT RUNS`, `metaprobe route`, `metaprobe collect --policy learned:` and Panel",
    "success": "`metaprobe.load(CHECKPOINT).estimate(messages)` and `POST /v1/success`",
    "text-classes": "TextClassifier and `metaprobe collect writing-assistant --constant learned=1`",
}
"""Maps a kind to the programs that use its checkpoints, for errors."""
COMMAND_OF_EARLIER_KIND = {"router": "`metaprobe train router`", "choice": "`metaprobe train panel`"}
"""Maps kinds of earlier versions to the command that trains a panel instead."""


def check_kind(path: str | os.PathLike[str], kind: str, *expected: str) -> None:
    """Raises `ContractMismatch` for a checkpoint of an unexpected kind, with the programs that use this kind.

    Args:
        path: location of the checkpoint.
        kind: its kind.
        expected: allowed kinds.
    """
    if kind in expected:
        return
    folder = Path(path)
    shown_path = f"{BUNDLED}{folder.name}" if folder.parent == BUNDLED_FOLDER else path
    hint = f": {PROGRAMS_OF_KIND[kind]} take it" if kind in PROGRAMS_OF_KIND else ""
    if kind in COMMAND_OF_EARLIER_KIND:
        hint = (
            f": it is of an earlier version, and a panel took its place; train one with {COMMAND_OF_EARLIER_KIND[kind]}"
        )
    kinds = " or ".join(map(repr, expected))
    raise ContractMismatch(f"{shown_path} is a checkpoint of kind {kind!r}; expected {kinds}{hint}")
