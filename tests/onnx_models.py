"""Helpers of `test_onnx_guard.py` and `test_onnx_guard_weights.py`."""

import numpy as np
from onnx import helper, numpy_helper


def linear_model(weights=((1.0,), (2.0,)), *, dtype=np.float32):
    """y = x W as a ModelProto, to be spoilt by the tests."""
    W = numpy_helper.from_array(np.array(weights, dtype), "W")
    elem = W.data_type
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "W"], ["y"], name="product")],
        "linear",
        [helper.make_tensor_value_info("x", elem, [None, len(weights)])],
        [helper.make_tensor_value_info("y", elem, [None, len(weights[0])])],
        [W],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
