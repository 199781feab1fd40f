"""Fitted models as ONNX graphs, with scaler and calibrator inside: raw numbers in, probabilities out."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metaprobe.records.extras import require
from metaprobe.training.common.calibrators import Calibrator
from metaprobe.training.common.heads import FittedHead, Probability
from metaprobe.training.common.trees import TREE_ENSEMBLE_OPSET, Trees

OPSET = {"": TREE_ENSEMBLE_OPSET, "ai.onnx.ml": 1}
IR_VERSION = 8


def linear_graph(
    *,
    input_name: str,
    mean: NDArray[np.float64],
    scale: NDArray[np.float64],
    weights: NDArray[np.float64],
    intercept: NDArray[np.float64],
    outputs: Sequence[str],
    calibrator: Calibrator | None = None,
    impute: bool = False,
    probabilities: bool = True,
) -> bytes:
    """sigmoid(((x - mean) / scale) @ weights + intercept): (n, d) float32 in, one (n, 1) probability per output name.

    `weights` is (d, heads), `intercept` (heads,). With a `calibrator`, for one output, its map takes the place of the
    sigmoid; without `probabilities`, for one output, nothing does. With `impute`, NaN inputs take the training mean,
    that is 0 once standardised.
    """
    onnx = require("onnx", "fit")
    helper, numpy_helper = onnx.helper, onnx.numpy_helper
    d = len(weights)
    constants = {
        "mean": mean.astype(np.float32),
        "scale": scale.astype(np.float32),
        "weights": weights.astype(np.float32),
        "intercept": intercept.astype(np.float32),
    }
    nodes = [
        helper.make_node("Sub", [input_name, "mean"], ["centred"]),
        helper.make_node("Div", ["centred", "scale"], ["standardised"]),
    ]
    standardised = "standardised"
    if impute:
        constants["zero"] = np.zeros(1, dtype=np.float32)
        nodes += [
            helper.make_node("IsNaN", [standardised], ["unknown"]),
            helper.make_node("Where", ["unknown", "zero", standardised], ["imputed"]),
        ]
        standardised = "imputed"
    nodes += [
        helper.make_node("MatMul", [standardised, "weights"], ["weighted"]),
        helper.make_node("Add", ["weighted", "intercept"], ["logits"]),
    ]
    calibrated: list[Any] = []
    if not probabilities:
        [nodes[-1].output[0]] = outputs
    elif calibrator is None:
        nodes += _split_and_squash(helper, "logits", outputs, constants)
    else:
        [output] = outputs
        more, calibrated = calibrator.onnx_nodes("logits", output, f"{output}_calibrator")
        nodes += more
    initializers = [*(numpy_helper.from_array(v, k) for k, v in constants.items()), *calibrated]
    return _model(onnx, nodes, input_name, d, outputs, initializers)


def _split_and_squash(helper: Any, logits: str, outputs: Sequence[str], constants: dict[str, Any]) -> list[Any]:
    if len(outputs) == 1:
        return [helper.make_node("Sigmoid", [logits], [outputs[0]])]
    constants["sizes"] = np.ones(len(outputs), dtype=np.int64)
    parts = [f"{name}_logit" for name in outputs]
    return [
        helper.make_node("Split", [logits, "sizes"], parts, axis=1),
        *(helper.make_node("Sigmoid", [part], [name]) for part, name in zip(parts, outputs, strict=True)),
    ]


def trees_graph(
    heads: Mapping[str, FittedHead | tuple[Trees, Calibrator]], *, width: int, input_name: str = "features"
) -> bytes:
    """Fitted heads on one input: (n, width) float32 features in, one (n, 1) value per head.

    A pair is a booster that gives log-odds, then its calibrator. NaN features go the way LightGBM sends them.
    """
    onnx = require("onnx", "fit")
    nodes, constants = [], []
    for name, head in heads.items():
        fitted = Probability(*head) if isinstance(head, tuple) else head
        more, initializers = fitted.onnx_nodes(input_name, name, width)
        nodes += more
        constants += initializers
    return _model(onnx, nodes, input_name, width, list(heads), constants)


def _model(onnx: Any, nodes: list[Any], input_name: str, width: int, outputs: Sequence[str], constants: Any) -> bytes:
    helper, number = onnx.helper, onnx.TensorProto.FLOAT
    graph = helper.make_graph(
        nodes,
        "metaprobe",
        [helper.make_tensor_value_info(input_name, number, [None, width])],
        [helper.make_tensor_value_info(name, number, [None, 1]) for name in outputs],
        initializer=constants,
    )
    used = {node.domain for node in nodes}
    model = helper.make_model(
        graph,
        opset_imports=[helper.make_opsetid(d, v) for d, v in OPSET.items() if d == "" or d in used],
        producer_name="metaprobe",
        ir_version=IR_VERSION,
    )
    onnx.checker.check_model(model)
    data: bytes = model.SerializeToString()
    return data
