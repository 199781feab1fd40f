"""An ONNX graph that can be run: guarded bytes in, one ONNX Runtime session, arrays checked against its inputs."""

import os
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metaprobe.checkpoints.errors import ContractMismatch
from metaprobe.checkpoints.graph_sizes import check_growth, check_sizes
from metaprobe.checkpoints.manifest import TensorSpec
from metaprobe.checkpoints.onnx_guard import checked_graph

Arrays = dict[str, NDArray[Any]]

_TYPES = {
    "tensor(float16)": "float16",
    "tensor(float)": "float32",
    "tensor(double)": "float64",
    "tensor(int32)": "int32",
    "tensor(int64)": "int64",
    "tensor(bool)": "bool",
}


FOLDED_BYTES = 64 << 20
"""Models above this size are language models, whose weights are worth folding when they are opened."""


class GraphSession:
    """A graph on one CPU thread; several threads of the caller may run it at once.

    It holds no threads of its own, so it goes on working in a forked process. It cannot be pickled: send the
    `Checkpoint`, which is opened again on the other side.
    """

    def __init__(self, model: bytes, *, kind: str | None = None, trial: bool = False) -> None:
        """Raises `UnsafeModel` where the guard refuses, `ContractMismatch` where ONNX Runtime cannot open the bytes.

        `kind`: of the checkpoint, whose operators are allowed; by default those of any. How much memory and time a few
        rows take, and how that grows with them, is bounded before ONNX Runtime sees the bytes. With `trial`, until
        `end_trial`, so are the very rows that are handed to `run`.
        """
        graph = checked_graph(model, kind)
        check_growth(graph, kind)
        self._trial, self.kind = graph if trial else None, kind
        onnxruntime = _runtime()
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 4  # what matters is raised
        # Without this, bytes that look like ONNX Runtime's own format would be read as such.
        options.add_session_config_entry("session.load_model_format", "ONNX")
        # It would compute, and keep, what depends on weights alone, however much that is.
        unwanted = ["ConstantFolding"] if len(model) <= FOLDED_BYTES else []
        try:
            self._session = onnxruntime.InferenceSession(
                model, options, providers=["CPUExecutionProvider"], disabled_optimizers=unwanted
            )
        except _runtime_errors() as error:
            raise ContractMismatch(f"ONNX Runtime {onnxruntime.__version__} cannot open the model: {error}") from error
        self.inputs = tuple(_spec(node) for node in self._session.get_inputs())
        self.outputs = tuple(_spec(node) for node in self._session.get_outputs())
        self._checks = tuple((s.name, np.dtype(s.type), s.shape) for s in self.inputs)
        self._names = frozenset(s.name for s in self.inputs)
        self._output_names = [s.name for s in self.outputs]

    def __reduce__(self) -> str:
        raise TypeError("a Session cannot be pickled; send the Checkpoint, or its path and digest, and load it there")

    def run(self, inputs: Arrays) -> Arrays:
        """Outputs by name. Raises `ContractMismatch` where a name, type or shape is not the graph's."""
        if inputs.keys() != self._names:
            raise ContractMismatch(f"got inputs {sorted(inputs)}; expected {sorted(self._names)}")
        for name, dtype, shape in self._checks:
            value = inputs[name]
            # The usual case, a matrix of n rows, is seen at a glance: this is on the way of every score.
            if not (type(value) is np.ndarray and value.dtype is dtype and (None, *value.shape[1:]) == shape):
                _check_array(name, value, dtype, shape)
        if self._trial is not None:
            check_sizes(
                self._trial, {name: value.shape for name, value in inputs.items()}, self.kind, "its golden rows"
            )
        try:
            values = self._session.run(self._output_names, inputs)
        except _runtime_errors() as error:
            rows = "these inputs" if self._trial is None else "its golden rows"
            raise ContractMismatch(f"ONNX Runtime could not run the model on {rows}: {error}") from error
        return dict(zip(self._output_names, values, strict=True))

    def end_trial(self) -> None:
        """From now on `run` computes whatever it is given: the caller's own rows, as many as there are."""
        self._trial = None


@lru_cache(maxsize=1)
def _runtime() -> Any:
    """ONNX Runtime, silent: its official builds report machine and models to their maker unless they are asked not to.

    On Linux and macOS since 1.29, by this variable, which counts only before the first import; on Windows by the call.
    Whoever sets the variable to 0 keeps the reports.
    """
    wanted = os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1") == "0"
    import onnxruntime

    if not wanted:
        onnxruntime.disable_telemetry_events()
    return onnxruntime


def outputs_agree(stated: tuple[TensorSpec, ...], actual: tuple[TensorSpec, ...]) -> bool:
    """Whether names and types are equal and shapes compatible: ONNX Runtime infers more of them in some versions."""
    return len(stated) == len(actual) and all(
        (a.name, a.type) == (b.name, b.type) and _compatible(a.shape, b.shape)
        for a, b in zip(stated, actual, strict=True)
    )


def _compatible(a: tuple[int | None, ...], b: tuple[int | None, ...]) -> bool:
    if not a or not b:
        return True
    return len(a) == len(b) and all(m is None or n is None or m == n for m, n in zip(a, b, strict=True))


def _spec(node: Any) -> TensorSpec:
    if node.type not in _TYPES:
        raise ContractMismatch(
            f"{node.name!r} is a {node.type}; expected one of {', '.join(_TYPES)} (for classifiers of scikit-learn or "
            "LightGBM, export with zipmap=False)"
        )
    shape = tuple(length if isinstance(length, int) and length >= 0 else None for length in node.shape)
    return TensorSpec(node.name, _TYPES[node.type], shape)


def _check_array(name: str, value: Any, dtype: np.dtype[Any], shape: tuple[int | None, ...]) -> None:
    if not isinstance(value, np.ndarray):
        raise ContractMismatch(f"input {name!r} is a {type(value).__name__}; expected a NumPy array")
    if value.dtype != dtype:
        raise ContractMismatch(f"input {name!r} has type {value.dtype}; expected {dtype}")
    if len(value.shape) != len(shape) or any(
        want is not None and got != want for got, want in zip(value.shape, shape, strict=True)
    ):
        expected = ", ".join("any" if length is None else str(length) for length in shape)
        raise ContractMismatch(f"input {name!r} has shape {value.shape}; expected ({expected})")


@lru_cache(maxsize=1)
def _runtime_errors() -> tuple[type[Exception], ...]:
    """Returns the errors that ONNX Runtime raises.

    They share no base but Exception, and newer versions have more of them.
    """
    from onnxruntime.capi import onnxruntime_pybind11_state as binding

    raised = [value for value in vars(binding).values() if isinstance(value, type) and issubclass(value, Exception)]
    return (*raised, RuntimeError, ValueError, TypeError)
