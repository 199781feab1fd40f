"""An ONNX graph as plain values, without the onnx package: nodes with attributes, named weights, inputs and outputs.

Read from what `onnx_wire` made of the file. Whatever has two readings is refused: a name that is written twice, a value
that is read before it is written, an attribute that is given twice or of another type than it says.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metaprobe.checkpoints.errors import UnsafeModel
from metaprobe.checkpoints.onnx_wire import MAX_RANK, WireMessage

FLOAT, UINT8, INT8, INT32, INT64, BOOL, FLOAT16, DOUBLE = 1, 2, 3, 6, 7, 9, 10, 11
"""Of TensorProto.DataType."""
ELEMENT_BYTES = {FLOAT: 4, UINT8: 1, INT8: 1, INT32: 4, INT64: 8, BOOL: 1, FLOAT16: 2, DOUBLE: 8}
"""Bytes of each type of number that a graph may compute with. Strings and complex numbers are none of them."""
KNOWN_VALUES = 64
"""So many elements of an integer tensor are followed one by one: shapes and axes, which decide how large things get."""

MOST_BYTES = 2 << 20
"""Bytes of a list of integers: a tree ensemble of a million nodes. The largest bundled one has 17,000."""
MOST_BYTES_OF_ONE = 10
"""Bytes of one integer: they hold 64 bits."""

_ATTRIBUTE = {"f": 1, "i": 2, "s": 3, "t": 4, "floats": 6, "ints": 7, "strings": 8}
"""Field of AttributeProto -> the number of its type."""
_INTEGERS = {INT64: ("<i8", "int64_data"), INT32: ("<i4", "int32_data")}


@dataclass(frozen=True, slots=True)
class Node:
    """One operator of a graph."""

    kind: str
    """`OPERATOR`, or `ai.onnx.ml.OPERATOR`."""
    inputs: tuple[str, ...]
    """Names; empty for an optional input that is left out."""
    outputs: tuple[str, ...]
    attributes: Mapping[str, WireMessage]

    def has(self, name: str) -> bool:
        return name in self.attributes

    def integer(self, name: str, otherwise: int) -> int:
        return _signed(self.attributes[name].fields["i"][0]) if name in self.attributes else otherwise

    def integers(self, name: str) -> NDArray[np.int64]:
        """A list of integers of any length; empty where the attribute is absent."""
        return read_varints(self.attributes[name], "ints") if name in self.attributes else np.zeros(0, np.int64)

    def texts(self, name: str) -> list[bytes]:
        one = self.attributes.get(name)
        return [one.data[start:end] for start, end, _ in one.chunks("strings")] if one else []

    def count(self, name: str) -> int:
        """How many numbers a list of floats holds."""
        return self.attributes[name].count("floats") if name in self.attributes else 0


@dataclass(frozen=True, slots=True)
class Tensor:
    """A stored tensor, or an input of the graph."""

    elem: int
    shape: tuple[int | str | None, ...]
    """Lengths; of an input also the name of a free axis, or None for one without a name."""
    values: tuple[int, ...] | None = None
    """Of a small integer tensor."""


@dataclass(frozen=True, slots=True)
class Graph:
    """What a model computes."""

    nodes: tuple[Node, ...]
    weights: Mapping[str, Tensor]
    inputs: Mapping[str, Tensor]
    outputs: tuple[str, ...]
    bytes: int
    """Size of the file."""
    trees: dict[int, Any] = field(default_factory=dict)
    """Place of a tree ensemble among the nodes -> what was found of it (`tree_ensembles`)."""


def read_graph(model: WireMessage) -> Graph:
    """Returns the graph of a `ModelProto`. Raises `UnsafeModel` where it has two readings, or none."""
    graph: WireMessage = model.fields["graph"][0]
    weights: dict[str, Tensor] = {}
    inputs: dict[str, Tensor] = {}
    made: set[str] = set()
    for tensor in graph.fields.get("initializer", []):
        weights[_new(made, _text(tensor, "name"))] = read_tensor(tensor)
    for value in graph.fields.get("input", []):
        inputs[_new(made, _text(value, "name"))] = _input(value)
    nodes = []
    for message in graph.fields.get("node", []):
        node = _node(message)
        for name in node.inputs:
            if name and name not in made:
                raise UnsafeModel(f"{node.kind} reads {name[:80]!r} before anything made it")
        for name in node.outputs:
            if name:
                _new(made, name)
        nodes.append(node)
    outputs = tuple(_text(value, "name") for value in graph.fields.get("output", []))
    if lost := [name for name in outputs if name not in made]:
        raise UnsafeModel(f"output {lost[0][:80]!r} is made by nothing in the graph")
    return Graph(tuple(nodes), weights, inputs, outputs, len(model.data))


def read_tensor(tensor: WireMessage) -> Tensor:
    """A stored tensor; its values where it is a small one of integers."""
    elem, shape = next(iter(tensor.integers("data_type")), 0), tuple(tensor.integers("dims"))
    values = None
    if elem in _INTEGERS and math.prod(shape) <= KNOWN_VALUES:
        dtype, name = _INTEGERS[elem]
        if tensor.chunks("raw_data"):
            values = tuple(int(one) for part in tensor.array("raw_data", dtype) for one in part)
        else:
            values = tuple(read_varints(tensor, name).tolist())
    return Tensor(elem, shape, values)


def read_varints(message: WireMessage, name: str) -> NDArray[np.int64]:
    """Signed integers of a repeated field of varints, however many."""
    found = []
    for chunk in message.fields.get(name, []):
        if chunk.end - chunk.start > MOST_BYTES:
            raise UnsafeModel(f"{message.kind}.{name} takes {chunk.end - chunk.start} bytes; at most {MOST_BYTES}")
        raw = np.frombuffer(message.data, np.uint8, chunk.end - chunk.start, chunk.start)
        values = _decode(raw)
        found.append(values[1::2] if chunk.tag else values)  # a tag of one byte goes before each
    return np.concatenate(found) if found else np.zeros(0, np.int64)


def _decode(raw: NDArray[np.uint8]) -> NDArray[np.int64]:
    ends = np.flatnonzero(raw < 0x80)
    if not len(ends):
        return np.zeros(0, np.int64)
    starts = np.concatenate([[0], ends[:-1] + 1])
    values, lengths = np.zeros(len(ends), np.uint64), ends - starts + 1
    if lengths.max() > MOST_BYTES_OF_ONE:
        raise UnsafeModel(f"an integer of {lengths.max()} bytes; at most {MOST_BYTES_OF_ONE}")
    for place in range(int(lengths.max())):
        here = lengths > place
        part = (raw[starts[here] + place] & 0x7F).astype(np.uint64)
        values[here] |= part << np.uint64(7 * place)
    return values.view(np.int64)


def _node(message: WireMessage) -> Node:
    domain, op = _text(message, "domain"), _text(message, "op_type")
    kind = f"ai.onnx.ml.{op}" if domain == "ai.onnx.ml" else op
    attributes: dict[str, WireMessage] = {}
    for one in message.fields.get("attribute", []):
        name = _text(one, "name")
        if name in attributes:
            raise UnsafeModel(f"{kind} has the attribute {name[:80]!r} twice")
        given = one.fields.keys() & _ATTRIBUTE.keys()
        stated = next(iter(one.integers("type")), 0)
        # An empty list has no field, and its type alone.
        if len(given) > 1 or any(_ATTRIBUTE[field_] != stated for field_ in given) or (not given and stated < 6):
            raise UnsafeModel(f"{kind}: attribute {name[:80]!r} is of another type than it says")
        attributes[name] = one
    return Node(kind, _texts(message, "input"), _texts(message, "output"), attributes)


def _input(value: WireMessage) -> Tensor:
    name = _text(value, "name")
    kinds = [kind for one in value.fields.get("type", []) for kind in one.fields.get("tensor_type", [])]
    if not kinds:
        raise UnsafeModel(f"input {name[:80]!r} is no tensor")
    dims: list[int | str | None] = []
    for shape in kinds[0].fields.get("shape", []):
        for dim in shape.fields.get("dim", []):
            length = next(iter(dim.integers("dim_value")), None)
            dims.append(length if length is not None else _text(dim, "dim_param") or None)
    if len(dims) > MAX_RANK:
        raise UnsafeModel(f"input {name[:80]!r} has {len(dims)} axes; at most {MAX_RANK}")
    if "shape" not in kinds[0].fields:
        raise UnsafeModel(f"input {name[:80]!r} has no rank; expected a shape with a length or a name for each axis")
    return Tensor(next(iter(kinds[0].integers("elem_type")), 0), tuple(dims))


def _new(made: set[str], name: str) -> str:
    if name in made:
        raise UnsafeModel(f"the graph makes {name[:80]!r} twice")
    made.add(name)
    return name


def _texts(message: WireMessage, name: str) -> tuple[str, ...]:
    return tuple(message.data[start:end].decode("utf-8", "backslashreplace") for start, end, _ in message.chunks(name))


def _text(message: WireMessage, name: str) -> str:
    return message.text(name).decode("utf-8", "backslashreplace")


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


def dims_for(graph: Graph, sizes: Sequence[int]) -> dict[str, tuple[int, ...]]:
    """Shapes of the inputs where the first free axis has the length `sizes[0]`, the second `sizes[1]`, and so on.

    Axes of one name have one length; the last of `sizes` is that of all further ones. Axes without a name are the
    batch where they come first, and else each a further one.
    """
    lengths: dict[str, int] = {}
    found = {}
    for name, tensor in graph.inputs.items():
        shape = []
        for place, axis in enumerate(tensor.shape):
            if isinstance(axis, int) and axis >= 0:
                shape.append(axis)
                continue
            key = axis if isinstance(axis, str) else "batch" if place == 0 else f"{name}/{place}"
            if key not in lengths:
                lengths[key] = sizes[min(len(lengths), len(sizes) - 1)]
            shape.append(lengths[key])
        found[name] = tuple(shape)
    return found
