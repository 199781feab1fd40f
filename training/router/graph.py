"""The learned router as one ONNX graph: rows are agents, and one call answers for all of them."""

from typing import Any

import numpy as np

from metaprobe.records.extras import require
from metaprobe.routing.learned import GAIN, INPUT, SUCCESS
from metaprobe.routing.learned_state import PRICED, ROW
from metaprobe.training.common.graphs import IR_VERSION, OPSET
from metaprobe.training.common.trees import Trees
from metaprobe.training.router.fit import GAIN_ROW


def router_graph(success: Trees, gain: Trees) -> bytes:
    """(A, len(PRICED)) float32 in; P(right) (A, 1) and gain (A, 1) out.

    The rows are one state: the gain of each depends on the best P(right) among those asked.
    """
    onnx = require("onnx", "fit")
    helper, number = onnx.helper, onnx.TensorProto.FLOAT
    derived, taken = GAIN_ROW[:3], GAIN_ROW[3:]
    assert derived == ("best", "success", "lead"), "these are made here, and come first"
    assert PRICED[: len(ROW)] == ROW
    constants: dict[str, Any] = {
        "gain_columns": np.array([PRICED.index(name) for name in taken], dtype=np.int64),
        "asked_column": np.array([ROW.index("asked")], dtype=np.int64),
    }
    nodes = [
        *success.onnx_nodes(INPUT, "log_odds", len(PRICED))[0],  # its columns come first
        helper.make_node("Sigmoid", ["log_odds"], [SUCCESS]),
        helper.make_node("Gather", [INPUT, "asked_column"], ["asked"], axis=1),
        helper.make_node("Mul", [SUCCESS, "asked"], ["had"]),
        helper.make_node("ReduceMax", ["had"], ["best"], axes=[0], keepdims=1),
        helper.make_node("Sub", [SUCCESS, "best"], ["lead"]),
        helper.make_node("Max", ["had", "best"], ["best_rows"]),  # the best, once for every row
        helper.make_node("Gather", [INPUT, "gain_columns"], ["stated"], axis=1),
        helper.make_node("Concat", ["best_rows", SUCCESS, "lead", "stated"], ["gain_row"], axis=1),
        *gain.onnx_nodes("gain_row", GAIN, len(GAIN_ROW))[0],
    ]
    graph = helper.make_graph(
        nodes,
        "metaprobe",
        [helper.make_tensor_value_info(INPUT, number, [None, len(PRICED)])],
        [helper.make_tensor_value_info(name, number, [None, 1]) for name in (SUCCESS, GAIN)],
        initializer=[onnx.numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    model = helper.make_model(
        graph,
        opset_imports=[helper.make_opsetid(domain, version) for domain, version in OPSET.items()],
        producer_name="metaprobe",
        ir_version=IR_VERSION,
    )
    onnx.checker.check_model(model)
    data: bytes = model.SerializeToString()
    return data
