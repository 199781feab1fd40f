"""Calibrators: monotone maps from scores to probabilities, for NumPy and for ONNX graphs alike."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from metaprobe.records.extras import require

Floats = NDArray[np.float64]
Onnx = tuple[list[Any], list[Any]]
"""Nodes, and the initializers that they read."""

PARITY = 1e-5
"""What an exported graph may differ by: thresholds lie that much on the safe side, so that ties stay together."""


class Calibrator(Protocol):
    """A monotone map from scores to probabilities."""

    name: ClassVar[str]

    def logit(self, score: Floats) -> Floats:
        """Calibrated log-odds, finite, the same shape as `score`."""
        ...

    def probability(self, score: Floats) -> Floats:
        """Calibrated probability in (0, 1)."""
        ...

    def onnx_nodes(self, input_name: str, output_name: str, prefix: str) -> Onnx:
        """The same map for a graph, in standard operators of opset 15: (n, 1) float32 scores in, probabilities out.

        `prefix` begins every name that is made up here.
        """
        ...


@dataclass(frozen=True, slots=True)
class Platt:
    """P(y = 1 | score) = sigmoid(slope * score + intercept)."""

    slope: float
    intercept: float
    name: ClassVar[str] = "platt"

    def logit(self, score: Floats) -> Floats:
        """Calibrated log-odds, the same shape as `score`."""
        return self.slope * score + self.intercept

    def probability(self, score: Floats) -> Floats:
        """Calibrated probability in (0, 1)."""
        return sigmoid(self.logit(score))

    def onnx_nodes(self, input_name: str, output_name: str, prefix: str) -> Onnx:
        slope, intercept = f"{prefix}_slope", f"{prefix}_intercept"
        nodes = [
            _node("Mul", [input_name, slope], f"{prefix}_scaled"),
            _node("Add", [f"{prefix}_scaled", intercept], f"{prefix}_logit"),
            _node("Sigmoid", [f"{prefix}_logit"], output_name),
        ]
        return nodes, _constants({slope: self.slope, intercept: self.intercept})


@dataclass(frozen=True, slots=True)
class Temperature:
    """P(y = 1 | score) = sigmoid(score / temperature): for scores that are log-odds already, with their zero right."""

    temperature: float
    name: ClassVar[str] = "temperature"

    def logit(self, score: Floats) -> Floats:
        return score / self.temperature

    def probability(self, score: Floats) -> Floats:
        return sigmoid(self.logit(score))

    def onnx_nodes(self, input_name: str, output_name: str, prefix: str) -> Onnx:
        nodes = [
            _node("Div", [input_name, f"{prefix}_temperature"], f"{prefix}_logit"),
            _node("Sigmoid", [f"{prefix}_logit"], output_name),
        ]
        return nodes, _constants({f"{prefix}_temperature": self.temperature})


@dataclass(frozen=True, slots=True)
class Beta:
    """log-odds = a ln p - b ln(1 - p) + c, of p = sigmoid((score - centre) / spread).

    A line that bends at the centre: its slope goes to a far below and to b far above. a = b is Platt.
    """

    centre: float
    spread: float
    a: float
    b: float
    c: float
    name: ClassVar[str] = "beta"

    def logit(self, score: Floats) -> Floats:
        design = beta_design((score - self.centre) / self.spread)
        return np.asarray(design @ np.array([self.a, self.b, self.c]), dtype=np.float64)

    def probability(self, score: Floats) -> Floats:
        return sigmoid(self.logit(score))

    def onnx_nodes(self, input_name: str, output_name: str, prefix: str) -> Onnx:
        def own(name: str) -> str:
            return f"{prefix}_{name}"

        nodes = [
            _node("Sub", [input_name, own("centre")], own("centred")),
            _node("Div", [own("centred"), own("spread")], own("z")),
            _node("Neg", [own("z")], own("negated")),
            _node("Softplus", [own("negated")], own("low")),  # -ln p
            _node("Softplus", [own("z")], own("high")),  # -ln(1 - p)
            _node("Mul", [own("low"), own("a")], own("lowered")),
            _node("Mul", [own("high"), own("b")], own("raised")),
            _node("Sub", [own("raised"), own("lowered")], own("both")),
            _node("Add", [own("both"), own("c")], own("logit")),
            _node("Sigmoid", [own("logit")], output_name),
        ]
        return nodes, _constants({own(name): getattr(self, name) for name in ("centre", "spread", "a", "b", "c")})


@dataclass(frozen=True, slots=True, eq=False)
class Isotonic:
    """Straight lines between knots, flat outside them."""

    scores: Floats
    """(k,) knots, rising, k >= 2. Values that float32 can hold, so that a graph has the same ones."""
    probabilities: Floats
    """(k,) at the knots, never falling, in (0, 1)."""
    name: ClassVar[str] = "isotonic"

    def logit(self, score: Floats) -> Floats:
        p = self.probability(score)
        return np.log(p) - np.log1p(-p)

    def probability(self, score: Floats) -> Floats:
        return np.asarray(np.interp(score, self.scores, self.probabilities), dtype=np.float64)

    def onnx_nodes(self, input_name: str, output_name: str, prefix: str) -> Onnx:
        # The segment is looked up and its line evaluated from its left end. A sum of hinge functions would need fewer
        # operators and lose digits to cancellation.
        def own(name: str) -> str:
            return f"{prefix}_{name}"

        lines = {
            own("left"): self.scores[:-1],
            own("width"): np.diff(self.scores),
            own("base"): self.probabilities[:-1],
            own("rise"): np.diff(self.probabilities),
        }
        ends = {own("right"): self.scores[1:], own("lowest"): self.scores[0], own("highest"): self.scores[-1]}
        onnx = require("onnx", "fit")
        columns = onnx.numpy_helper.from_array(np.array([1], dtype=np.int64), own("columns"))
        nodes = [
            _node("Clip", [input_name, own("lowest"), own("highest")], own("x")),
            _node("Greater", [own("x"), own("right")], own("past")),  # (n, k - 1): segments that lie to the left
            _node("Cast", [own("past")], own("counted"), to=onnx.TensorProto.INT64),
            _node("ReduceSum", [own("counted"), own("columns")], own("segment"), keepdims=1),
            *(_node("Gather", [line, own("segment")], f"{line}_here") for line in lines),
            _node("Sub", [own("x"), own("left_here")], own("along")),
            _node("Div", [own("along"), own("width_here")], own("share")),
            _node("Mul", [own("share"), own("rise_here")], own("gain")),
            _node("Add", [own("base_here"), own("gain")], output_name),
        ]
        return nodes, [columns, *_constants({**lines, **ends})]


def beta_design(logit: Floats) -> Floats:
    """(n, 3): ln p, -ln(1 - p) and 1 from the log-odds of p, what `Beta` weighs by a, b and c."""
    return np.stack([-np.logaddexp(0, -logit), np.logaddexp(0, logit), np.ones_like(logit)], axis=-1)


def _node(kind: str, inputs: Sequence[str], output: str, **attributes: int) -> Any:
    return require("onnx", "fit").helper.make_node(kind, list(inputs), [output], **attributes)


def _constants(values: Mapping[str, ArrayLike]) -> list[Any]:
    numpy_helper = require("onnx", "fit").numpy_helper
    return [numpy_helper.from_array(np.asarray(value, dtype=np.float32), name) for name, value in values.items()]


def sigmoid(logit: Floats) -> Floats:
    """1 / (1 + exp(-x)) without overflow."""
    return np.exp(-np.logaddexp(0, -np.asarray(logit, dtype=np.float64)))
