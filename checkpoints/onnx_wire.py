"""Reads an ONNX file without the onnx package: protobuf's wire format, then the graph as plain values.

It is deliberately stricter than protobuf, so that no other parser can read the same bytes differently. It refuses
fields that this table does not name, other wire types than the declared one, and a second occurrence of a field that
occurs once. Field numbers are those of onnx.proto (ONNX IR 13); a test compares the table with the onnx package's own
descriptors.

A graph that can be read in two ways is refused as well: a name that is written twice, a value that is read before it is
written, an attribute that is given twice or is of another type than it states.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from metaprobe.checkpoints.checkpoint_errors import UnsafeModel

MAX_DEPTH = 64
"""Most levels of nested messages. A subgraph takes 3; real exports stay below 20."""
MAX_FIELDS = 400_000
"""Most fields in all; a run of one repeated number counts once. 300 trees of 31 leaves take some 20,000."""
MAX_DECLARED_AXES = 64
"""Most axes of a shape, and most values of a short list of integers."""

# Message: number name kind, where kind is a wire type or another message, and * says that the field repeats.
# Fields that the guard refuses outright (external data, functions, ...) are left as opaque bytes.
_TABLE = """
ModelProto: 1 ir_version varint, 2 producer_name bytes, 3 producer_version bytes, 4 domain bytes,
  5 model_version varint, 6 doc_string bytes, 7 graph GraphProto, 8 opset_import OperatorSetIdProto*,
  14 metadata_props bytes*, 20 training_info bytes*, 25 functions bytes*, 26 configuration bytes*
OperatorSetIdProto: 1 domain bytes, 2 version varint
GraphProto: 1 node NodeProto*, 2 name bytes, 5 initializer TensorProto*, 10 doc_string bytes, 11 input ValueInfoProto*,
  12 output ValueInfoProto*, 13 value_info ValueInfoProto*, 14 quantization_annotation bytes*,
  15 sparse_initializer SparseTensorProto*, 16 metadata_props bytes*
NodeProto: 1 input bytes*, 2 output bytes*, 3 name bytes, 4 op_type bytes, 5 attribute AttributeProto*,
  6 doc_string bytes, 7 domain bytes, 8 overload bytes, 9 metadata_props bytes*, 10 device_configurations bytes*
AttributeProto: 1 name bytes, 2 f fixed32, 3 i varint, 4 s bytes, 5 t TensorProto, 6 g GraphProto, 7 floats fixed32*,
  8 ints varint*, 9 strings bytes*, 10 tensors TensorProto*, 11 graphs GraphProto*, 13 doc_string bytes,
  14 tp TypeProto, 15 type_protos TypeProto*, 20 type varint, 21 ref_attr_name bytes,
  22 sparse_tensor SparseTensorProto, 23 sparse_tensors SparseTensorProto*
TensorProto: 1 dims varint*, 2 data_type varint, 3 segment bytes, 4 float_data fixed32*, 5 int32_data varint*,
  6 string_data bytes*, 7 int64_data varint*, 8 name bytes, 9 raw_data bytes, 10 double_data fixed64*,
  11 uint64_data varint*, 12 doc_string bytes, 13 external_data bytes*, 14 data_location varint,
  16 metadata_props bytes*
SparseTensorProto: 1 values TensorProto, 2 indices TensorProto, 3 dims varint*
ValueInfoProto: 1 name bytes, 2 type TypeProto, 3 doc_string bytes, 4 metadata_props bytes*
TypeProto: 1 tensor_type TypeProto.Tensor, 4 sequence_type TypeProto.Sequence, 5 map_type TypeProto.Map,
  6 denotation bytes, 7 opaque_type bytes, 8 sparse_tensor_type TypeProto.SparseTensor,
  9 optional_type TypeProto.Optional
TypeProto.Tensor: 1 elem_type varint, 2 shape TensorShapeProto
TypeProto.SparseTensor: 1 elem_type varint, 2 shape TensorShapeProto
TypeProto.Sequence: 1 elem_type TypeProto
TypeProto.Map: 1 key_type varint, 2 value_type TypeProto
TypeProto.Optional: 1 elem_type TypeProto
TensorShapeProto: 1 dim TensorShapeProto.Dimension*
TensorShapeProto.Dimension: 1 dim_value varint, 2 dim_param bytes, 3 denotation bytes
"""

_WIRE_TYPES = {"varint": 0, "fixed64": 1, "bytes": 2, "fixed32": 5}
_SCALAR_BYTES = {"fixed32": 4, "fixed64": 8}
# Possessive (+), so that a run of millions keeps no state to backtrack to.
_SCALAR_PATTERNS = {"varint": rb"[\x80-\xff]{0,9}+[\x00-\x7f]", "fixed64": rb"[\s\S]{8}", "fixed32": rb"[\s\S]{4}"}


class Field(NamedTuple):
    """One row of the table of fields."""

    name: str
    kind: str
    """A key of `_WIRE_TYPES`, or the name of a message."""
    repeated: bool


class Chunk(NamedTuple):
    """Place of the scalars of one field. `tag` bytes precede each scalar (0 if the scalars are packed)."""

    start: int
    end: int
    tag: int


def _parse_table(text: str) -> dict[str, dict[int, Field]]:
    table: dict[str, dict[int, Field]] = {}
    for entry in re.split(r"\n(?=\S)", text.strip()):
        message, fields = entry.split(": ", 1)
        rows = (row.split() for row in fields.split(","))
        table[message] = {int(n): Field(name, kind.rstrip("*"), kind.endswith("*")) for n, name, kind in rows}
    return table


MESSAGE_FIELDS = _parse_table(_TABLE)


@dataclass(frozen=True, slots=True, eq=False)
class WireMessage:
    """A parsed message. Each field holds sub-messages, integers, or the places of bytes and scalars in `data`."""

    kind: str
    data: bytes
    fields: dict[str, list[Any]]

    def messages(self) -> Iterator["WireMessage"]:
        """Yields the sub-messages of every field."""
        for values in self.fields.values():
            yield from (value for value in values if isinstance(value, WireMessage))

    def texts(self, name: str) -> tuple[str, ...]:
        """Returns the texts of a bytes field."""
        return tuple(self.data[start:end].decode("utf-8", "backslashreplace") for start, end, _ in self.chunks(name))

    def text(self, name: str) -> str:
        """Returns the text of a bytes field that occurs once; empty if it is missing."""
        return "".join(self.texts(name))

    def chunks(self, name: str) -> list[Chunk]:
        return self.fields.get(name, [])

    def array(self, name: str, dtype: str) -> Iterator[NDArray[Any]]:
        """Yields fixed-width scalars, one array a chunk, little-endian as on the wire. Packed scalars are
        not copied.
        """
        size = np.dtype(dtype).itemsize
        for start, end, tag in self.chunks(name):
            if (end - start) % (size + tag):
                raise UnsafeModel(f"{self.kind}.{name}: {end - start} bytes do not divide into values of {size}")
            raw = np.frombuffer(self.data, np.uint8, end - start, start)
            values = raw.reshape(-1, size + tag)[:, tag:] if tag else raw
            yield np.ascontiguousarray(values).reshape(-1).view(dtype)

    def count(self, name: str) -> int:
        """Returns how many values a repeated scalar or bytes field holds, without reading them."""
        kind = next((field.kind for field in MESSAGE_FIELDS[self.kind].values() if field.name == name), "bytes")
        value_count = 0
        for start, end, tag in self.chunks(name):
            if kind in _SCALAR_BYTES:
                value_count += (end - start) // (_SCALAR_BYTES[kind] + tag)
            elif kind == "varint":  # the last byte of each, and of the tag before it, is below 128
                last_byte_count = np.count_nonzero(np.frombuffer(self.data, np.uint8, end - start, start) < 0x80)
                value_count += int(last_byte_count) // 2 if tag else int(last_byte_count)
            else:
                value_count += 1
        return value_count

    def integers(self, name: str) -> list[int]:
        """Returns the signed 64-bit values of a short varint field, repeated or not."""
        values: list[int] = []
        for value in self.fields.get(name, []):
            if isinstance(value, int):
                values.append(_to_signed(value))
                continue
            position = value.start
            while position < value.end:
                if len(values) >= MAX_DECLARED_AXES:
                    raise UnsafeModel(f"{self.kind}.{name} has more than {MAX_DECLARED_AXES} values")
                number, position = _varint(self.data, position + value.tag, value.end)
                values.append(_to_signed(number))
        return values


def read_model(data: bytes) -> WireMessage:
    """Returns the `ModelProto` in `data`. Raises `UnsafeModel` if the bytes are no `ModelProto`, or are ambiguous."""
    return _Reader(data).message("ModelProto", 0, len(data), 0)


class _Reader:
    """Parses messages, and counts the fields of all of them together."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.fields_left = MAX_FIELDS

    def message(self, kind: str, start: int, end: int, depth: int) -> WireMessage:
        """Returns the message of this kind between two positions of the file.

        Raises `UnsafeModel` if the bytes are no such message.
        """
        if depth > MAX_DEPTH:
            raise UnsafeModel(f"messages nest deeper than {MAX_DEPTH}")
        schema, fields, position = MESSAGE_FIELDS[kind], dict[str, list[Any]](), start
        while position < end:
            self.fields_left -= 1
            if self.fields_left < 0:
                raise UnsafeModel(f"more than {MAX_FIELDS} fields")
            tag, position_after_tag = _varint(self.data, position, end)
            field, wire_type = schema.get(tag >> 3), tag & 7
            if field is None:
                raise UnsafeModel(f"not an ONNX model: {kind} has no field {tag >> 3} (byte {position})")
            if field.name in fields and not field.repeated:
                raise UnsafeModel(f"{kind}.{field.name} occurs twice (byte {position})")
            value, position = self._parse_value(
                kind,
                field,
                wire_type=wire_type,
                tag_position=position,
                position=position_after_tag,
                end=end,
                depth=depth,
            )
            fields.setdefault(field.name, []).append(value)
        return WireMessage(kind, self.data, fields)

    def _parse_value(
        self, kind: str, field: Field, *, wire_type: int, tag_position: int, position: int, end: int, depth: int
    ) -> tuple[WireMessage | Chunk | int, int]:
        """Returns the value whose tag is at `tag_position`, and where the next field begins.

        Args:
            kind: name of the message.
            field: the field.
            wire_type: wire type of the tag.
            tag_position: index of the tag in the data.
            position: index after the tag.
            end: end of the message.
            depth: level of nesting.
        """
        is_scalar = field.kind in _SCALAR_PATTERNS
        if wire_type == _WIRE_TYPES["bytes"] and not (is_scalar and not field.repeated):
            length, position = _varint(self.data, position, end)
            if length > end - position:
                raise UnsafeModel(
                    f"{kind}.{field.name} claims {length} bytes and {end - position} are left (byte {tag_position})"
                )
            if field.kind in MESSAGE_FIELDS:
                return self.message(field.kind, position, position + length, depth + 1), position + length
            return Chunk(position, position + length, 0), position + length
        if not is_scalar or wire_type != _WIRE_TYPES[field.kind]:
            raise UnsafeModel(
                f"{kind}.{field.name} has wire type {wire_type} (byte {tag_position}); expected a {field.kind}"
            )
        if field.repeated:
            run = _run_pattern(self.data[tag_position:position], field.kind).match(self.data, tag_position, end)
            if run is None:
                raise UnsafeModel(f"{kind}.{field.name} is cut off or overlong (byte {tag_position})")
            return Chunk(tag_position, run.end(), position - tag_position), run.end()
        if field.kind == "varint":
            return _varint(self.data, position, end)
        if end - position < _SCALAR_BYTES[field.kind]:
            raise UnsafeModel(f"{kind}.{field.name} is cut off (byte {tag_position})")
        return Chunk(position, position + _SCALAR_BYTES[field.kind], 0), position + _SCALAR_BYTES[field.kind]


@lru_cache(maxsize=64)
def _run_pattern(tag: bytes, kind: str) -> re.Pattern[bytes]:
    """Returns a pattern that matches consecutive occurrences of one unpacked scalar field. Trees have too many for a
    loop.
    """
    return re.compile(rb"(?:" + re.escape(tag) + _SCALAR_PATTERNS[kind] + rb")++")


def _varint(data: bytes, position: int, end: int) -> tuple[int, int]:
    """Returns an unsigned 64-bit varint, and where it ends.

    Args:
        data: the bytes.
        position: where the number begins.
        end: where the data end.
    """
    value = 0
    for shift in range(0, 70, 7):
        if position >= end:
            break
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFF_FFFF_FFFF_FFFF, position
    raise UnsafeModel(f"not an ONNX model: a number is cut off or overlong (byte {position})")


def _to_signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


FLOAT, UINT8, INT8, INT32, INT64, BOOL, FLOAT16, DOUBLE = 1, 2, 3, 6, 7, 9, 10, 11
"""Numbers of element types in TensorProto.DataType."""
ELEMENT_BYTES = {FLOAT: 4, UINT8: 1, INT8: 1, INT32: 4, INT64: 8, BOOL: 1, FLOAT16: 2, DOUBLE: 8}
"""Bytes of each number type that a graph may compute with. Strings and complex numbers are not allowed."""
KNOWN_VALUES = 64
"""Most elements of an integer tensor whose elements are computed here. Shapes and axes decide how large values get."""

MAX_LIST_BYTES = 2 << 20
"""Most bytes of a list of integers: a tree ensemble of a million nodes. The largest bundled one has 17,000 nodes."""
MAX_VARINT_BYTES = 10
"""Most bytes of one integer: they hold 64 bits."""

_TYPE_OF_FIELD = {"f": 1, "i": 2, "s": 3, "t": 4, "floats": 6, "ints": 7, "strings": 8}
"""Maps a field of AttributeProto to the number of its type."""
_INTEGER_STORAGE = {INT64: ("<i8", "int64_data"), INT32: ("<i4", "int32_data")}


@dataclass(frozen=True, slots=True)
class Node:
    """One operator of a graph."""

    kind: str
    """`OPERATOR`, or `ai.onnx.ml.OPERATOR`."""
    inputs: tuple[str, ...]
    """Names of the inputs; empty for an optional input that is left out."""
    outputs: tuple[str, ...]
    attributes: Mapping[str, WireMessage]

    def has(self, name: str) -> bool:
        return name in self.attributes

    def integer(self, name: str, otherwise: int) -> int:
        return _to_signed(self.attributes[name].fields["i"][0]) if name in self.attributes else otherwise

    def integers(self, name: str) -> NDArray[np.int64]:
        """Returns a list of integers of any length; empty if the attribute is missing."""
        return read_varints(self.attributes[name], "ints") if name in self.attributes else np.zeros(0, np.int64)

    def texts(self, name: str) -> list[bytes]:
        attribute = self.attributes.get(name)
        return [attribute.data[start:end] for start, end, _ in attribute.chunks("strings")] if attribute else []

    def count(self, name: str) -> int:
        """Returns how many numbers a list of floats holds."""
        return self.attributes[name].count("floats") if name in self.attributes else 0


@dataclass(frozen=True, slots=True)
class Tensor:
    """A stored tensor, or an input of the graph."""

    elem: int
    shape: tuple[int | str | None, ...]
    """Lengths. An input's free axis has its name, or None if it has no name."""
    values: tuple[int, ...] | None = None
    """Numbers of a small integer tensor; None for other tensors."""


@dataclass(frozen=True, slots=True)
class Graph:
    """The computation of a model."""

    nodes: tuple[Node, ...]
    weights: Mapping[str, Tensor]
    inputs: Mapping[str, Tensor]
    outputs: tuple[str, ...]
    bytes: int
    """Size of the file."""
    trees: dict[int, Any] = field(default_factory=dict)
    """Maps the place of a tree ensemble among the nodes to its size (`graph_sizes.read_ensemble`)."""


def read_graph(model: WireMessage) -> Graph:
    """Returns the graph of a `ModelProto`. Raises `UnsafeModel` if it can be read in two ways, or not at all."""
    graph: WireMessage = model.fields["graph"][0]
    weights: dict[str, Tensor] = {}
    inputs: dict[str, Tensor] = {}
    names_used: set[str] = set()
    for tensor in graph.fields.get("initializer", []):
        weights[_add_name(names_used, tensor.text("name"))] = read_tensor(tensor)
    for value in graph.fields.get("input", []):
        inputs[_add_name(names_used, value.text("name"))] = _read_input(value)
    nodes = []
    for message in graph.fields.get("node", []):
        node = _read_node(message)
        for name in node.inputs:
            if name and name not in names_used:
                raise UnsafeModel(f"{node.kind} reads {name[:80]!r} before anything made it")
        for name in node.outputs:
            if name:
                _add_name(names_used, name)
        nodes.append(node)
    outputs = tuple(value.text("name") for value in graph.fields.get("output", []))
    if unmade := [name for name in outputs if name not in names_used]:
        raise UnsafeModel(f"output {unmade[0][:80]!r} is made by nothing in the graph")
    return Graph(tuple(nodes), weights, inputs, outputs, len(model.data))


def read_tensor(tensor: WireMessage) -> Tensor:
    """Returns a stored tensor, with its values if it is a small tensor of integers."""
    elem, shape = next(iter(tensor.integers("data_type")), 0), tuple(tensor.integers("dims"))
    values = None
    if elem in _INTEGER_STORAGE and math.prod(shape) <= KNOWN_VALUES:
        dtype, name = _INTEGER_STORAGE[elem]
        if tensor.chunks("raw_data"):
            values = tuple(int(number) for part in tensor.array("raw_data", dtype) for number in part)
        else:
            values = tuple(read_varints(tensor, name).tolist())
    return Tensor(elem, shape, values)


def read_varints(message: WireMessage, name: str) -> NDArray[np.int64]:
    """Returns the signed integers of a repeated field of varints, of any length."""
    parts = []
    for chunk in message.fields.get(name, []):
        if chunk.end - chunk.start > MAX_LIST_BYTES:
            raise UnsafeModel(f"{message.kind}.{name} takes {chunk.end - chunk.start} bytes; at most {MAX_LIST_BYTES}")
        raw_bytes = np.frombuffer(message.data, np.uint8, chunk.end - chunk.start, chunk.start)
        ends = np.flatnonzero(raw_bytes < 0x80)
        starts = np.concatenate([[0], ends[:-1] + 1])[: len(ends)]
        values, lengths = np.zeros(len(ends), np.uint64), ends - starts + 1
        longest = int(lengths.max(initial=0))
        if longest > MAX_VARINT_BYTES:
            raise UnsafeModel(f"an integer of {longest} bytes; at most {MAX_VARINT_BYTES}")
        for byte_index in range(longest):
            has_byte = lengths > byte_index
            bits = (raw_bytes[starts[has_byte] + byte_index] & 0x7F).astype(np.uint64)
            values[has_byte] |= bits << np.uint64(7 * byte_index)
        parts.append(values[1::2] if chunk.tag else values)  # a tag of one byte goes before each
    return np.concatenate(parts).view(np.int64) if parts else np.zeros(0, np.int64)


def _read_node(message: WireMessage) -> Node:
    """Returns a node of the graph with its attributes, each of them once and of the type that it states."""
    domain, operator = message.text("domain"), message.text("op_type")
    kind = f"ai.onnx.ml.{operator}" if domain == "ai.onnx.ml" else operator
    attributes: dict[str, WireMessage] = {}
    for attribute in message.fields.get("attribute", []):
        name = attribute.text("name")
        if name in attributes:
            raise UnsafeModel(f"{kind} has the attribute {name[:80]!r} twice")
        value_fields = attribute.fields.keys() & _TYPE_OF_FIELD.keys()
        stated_type = next(iter(attribute.integers("type")), 0)
        # An empty list has no field, and its type alone.
        if (
            len(value_fields) > 1
            or any(_TYPE_OF_FIELD[field_] != stated_type for field_ in value_fields)
            or (not value_fields and stated_type < 6)
        ):
            raise UnsafeModel(f"{kind}: attribute {name[:80]!r} is of another type than it says")
        attributes[name] = attribute
    return Node(kind, message.texts("input"), message.texts("output"), attributes)


def _read_input(value: WireMessage) -> Tensor:
    """Returns the type and shape of an input of the graph; raises `UnsafeModel` if it is no tensor or has no rank."""
    name = value.text("name")
    tensor_types = [
        kind for value_type in value.fields.get("type", []) for kind in value_type.fields.get("tensor_type", [])
    ]
    if not tensor_types:
        raise UnsafeModel(f"input {name[:80]!r} is no tensor")
    dims: list[int | str | None] = []
    for shape in tensor_types[0].fields.get("shape", []):
        for dim in shape.fields.get("dim", []):
            length = next(iter(dim.integers("dim_value")), None)
            dims.append(length if length is not None else dim.text("dim_param") or None)
    if len(dims) > MAX_DECLARED_AXES:
        raise UnsafeModel(f"input {name[:80]!r} has {len(dims)} axes; at most {MAX_DECLARED_AXES}")
    if "shape" not in tensor_types[0].fields:
        raise UnsafeModel(f"input {name[:80]!r} has no rank; expected a shape with a length or a name for each axis")
    return Tensor(next(iter(tensor_types[0].integers("elem_type")), 0), tuple(dims))


def _add_name(names_used: set[str], name: str) -> str:
    if name in names_used:
        raise UnsafeModel(f"the graph makes {name[:80]!r} twice")
    names_used.add(name)
    return name


def dims_for(graph: Graph, sizes: Sequence[int]) -> dict[str, tuple[int, ...]]:
    """Returns shapes of the inputs. The first free axis has the length `sizes[0]`, the second `sizes[1]`, and so on.

    Axes with one name have one length. The last of `sizes` is the length of all further axes. An axis without a name is
    the batch if it comes first, and otherwise a further axis.
    """
    lengths: dict[str, int] = {}
    shapes = {}
    for name, tensor in graph.inputs.items():
        shape = []
        for axis_index, axis in enumerate(tensor.shape):
            if isinstance(axis, int) and axis >= 0:
                shape.append(axis)
                continue
            key = axis if isinstance(axis, str) else "batch" if axis_index == 0 else f"{name}/{axis_index}"
            if key not in lengths:
                lengths[key] = sizes[min(len(lengths), len(sizes) - 1)]
            shape.append(lengths[key])
        shapes[name] = tuple(shape)
    return shapes
