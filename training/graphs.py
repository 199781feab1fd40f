"""ONNX graphs, node by node: a value is the name that it has in the graph."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from metaprobe.records.extras import require

TREE_ENSEMBLE_OPSET = 15
"""The newest that onnxmltools converts to."""
OPSET = {"": TREE_ENSEMBLE_OPSET, "ai.onnx.ml": 1}
IR_VERSION = 8


class GraphBuilder:
    """Nodes and constants of a graph that is being written."""

    def __init__(self, prefix: str = "") -> None:
        """`prefix` begins every name that is made up here."""
        self.onnx: Any = require("onnx", "fit")
        self.nodes: list[Any] = []
        self._prefix = prefix
        self._constants: dict[tuple[str, tuple[int, ...], bytes], tuple[str, NDArray[Any]]] = {}

    def name(self, kind: str) -> str:
        """Returns the name of the next value of that kind."""
        return f"{self._prefix}{kind}_{len(self.nodes)}"

    def add(self, kind: str, *inputs: str, name: str = "", more: int = 0, **attributes: Any) -> str:
        """Returns the first output of a new node, called `name` where that is given.

        `more`: how many other outputs it has, called like the first with _1, _2, ... at their end.
        """
        name = name or self.name(kind)
        outputs = [name, *(f"{name}_{i + 1}" for i in range(more))]
        self.nodes.append(self.onnx.helper.make_node(kind, inputs, outputs, **attributes))
        return name

    def constant(self, value: ArrayLike, dtype: Any = np.int64) -> str:
        """Returns a constant; equal ones are kept once."""
        array = np.asarray(value, dtype)
        key = (array.dtype.str, array.shape, array.tobytes())
        name = f"{self._prefix}constant_{len(self._constants)}"
        return self._constants.setdefault(key, (name, array))[0]

    def number(self, value: ArrayLike) -> str:
        """Returns a constant in float32."""
        return self.constant(value, np.float32)

    def cast(self, value: str, dtype: Any) -> str:
        return self.add("Cast", value, to=self.onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))

    def initializers(self) -> list[Any]:
        """Returns the constants as a graph holds them."""
        return [self.onnx.numpy_helper.from_array(array, name) for name, array in self._constants.values()]

    def model(self, inputs: Mapping[str, int], outputs: Sequence[str]) -> bytes:
        """Returns the whole model: `inputs` by name (n, width) float32 in, each of `outputs` (n, 1) float32 out."""
        return self.whole({name: (np.float32, width) for name, width in inputs.items()}, outputs)

    def whole(self, inputs: Mapping[str, tuple[Any, int | None]], outputs: Sequence[str]) -> bytes:
        """Returns the whole model. `inputs` maps a name to type and width (None for any); each is (n, width)."""
        helper, number = self.onnx.helper, self.onnx.TensorProto.FLOAT
        types = {name: helper.np_dtype_to_tensor_dtype(np.dtype(dtype)) for name, (dtype, _) in inputs.items()}
        graph = helper.make_graph(
            self.nodes,
            "metaprobe",
            [helper.make_tensor_value_info(name, types[name], [None, width]) for name, (_, width) in inputs.items()],
            [helper.make_tensor_value_info(name, number, [None, 1]) for name in outputs],
            initializer=self.initializers(),
        )
        used = {node.domain for node in self.nodes}
        model = helper.make_model(
            graph,
            opset_imports=[helper.make_opsetid(d, v) for d, v in OPSET.items() if d == "" or d in used],
            producer_name="metaprobe",
            ir_version=IR_VERSION,
        )
        self.onnx.checker.check_model(model)
        data: bytes = model.SerializeToString()
        return data
