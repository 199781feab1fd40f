"""Refuses ONNX files that could do more than compute, before ONNX Runtime sees a byte, without the onnx package.

A guard, not a sandbox: it knows which operators our exporters write, and how large what they make can get. Bugs of ONNX
Runtime are not its matter, and for these there is the digest of an author one trusts.
"""

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metaprobe.checkpoints.errors import UnsafeModel
from metaprobe.checkpoints.graph_nodes import Graph, read_graph
from metaprobe.checkpoints.graph_sizes import check_operators
from metaprobe.checkpoints.onnx_wire import WireMessage, read_model

ALLOWED_DOMAINS = frozenset({"", "ai.onnx", "ai.onnx.ml"})
MAX_ELEMENTS = 10**9

_REFUSED_FIELDS = {
    "ModelProto": {
        "functions": "model-local functions; inline them (onnx.inliner) before exporting",
        "training_info": "training information",
        "configuration": "device configurations",
    },
    "GraphProto": {"sparse_initializer": "sparse weights, which become dense ones of any size; store them dense"},
    "AttributeProto": {
        "g": "control flow (Loop, If, Scan), which may not end; export without it",
        "graphs": "control flow",
        "sparse_tensor": "sparse weights; store them dense",
        "sparse_tensors": "sparse weights; store them dense",
        "ref_attr_name": "references to attributes of functions; inline them (onnx.inliner) before exporting",
    },
    "NodeProto": {"device_configurations": "device configurations", "overload": "overloaded functions"},
    "TensorProto": {
        "external_data": "data outside the file; save the model with its weights inside",
        "segment": "segmented tensors",
    },
    "TypeProto": {"opaque_type": "opaque types"},
}

# Of TensorProto.DataType. Integers and strings are always finite; complex numbers and 8-bit floats are not read here.
_FLOAT, _FLOAT16, _DOUBLE, _BFLOAT16 = 1, 10, 11, 16
_FINITE_BY_NATURE = frozenset({2, 3, 4, 5, 6, 7, 8, 9, 12, 13, 21, 22})
_DATA = {
    "float_data": {_FLOAT},
    "double_data": {_DOUBLE},
    "int32_data": {2, 3, 4, 5, 6, 9, 21, 22},
    "int64_data": {7},
    "uint64_data": {12, 13},
    "string_data": {8},
}
"""Where the numbers of which element types may stand, other than in raw_data; half floats nowhere else."""
_ELEMENT_BYTES = {1: 4, 2: 1, 3: 1, 4: 2, 5: 2, 6: 4, 7: 8, 9: 1, 10: 2, 11: 8, 12: 4, 13: 8, 16: 2}
_HALF_BYTES = frozenset({21, 22})
_RAW_DTYPES = {_FLOAT: "<f4", _FLOAT16: "<f2", _DOUBLE: "<f8", _BFLOAT16: "<u2"}

_MAY_BE_INFINITE = {
    # A split at infinity asks only whether the value is missing, and NaN delimits sets of members.
    # The leaves' weights stay checked.
    "TreeEnsemble": {"nodes_splits", "membership_values"},
    "TreeEnsembleRegressor": {"nodes_values", "nodes_values_as_tensor"},
    "TreeEnsembleClassifier": {"nodes_values", "nodes_values_as_tensor"},
    # NaN is what these look for.
    "Imputer": {"replaced_value_float"},
    "LabelEncoder": {"keys_floats", "keys_tensor"},
}
"""Attributes of ai.onnx.ml operators in which NaN and infinities mean something."""


def check_model(data: bytes, kind: str | None = None) -> None:
    """None where `data` is an ONNX model that may be opened; raises `UnsafeModel`, saying why, where it is not.

    Refused: bytes that are not exactly a `ModelProto` (`onnx_wire`), ONNX Runtime's own format, data outside the file,
    operators, attributes and types that no exporter writes (`onnx_operators`; those of a `kind` of checkpoint, by
    default of any), a graph that has two readings (`graph_nodes`), model-local functions, control flow, training
    information, device configurations, sparse tensors, tensors of more than 1e9 elements, of unknown element type or of
    another number of elements than they state, and NaN or infinite weights (except where they mean something:
    thresholds of trees, `Imputer`).
    """
    checked_graph(data, kind)


def checked_graph(data: bytes, kind: str | None = None) -> Graph:
    """Returns the graph that `check_model` finds nothing wrong with. How large it gets is for
    `graph_sizes` to say."""
    if data[4:8] == b"ORTM":  # read as a FlatBuffer by default, whatever a protobuf parser makes of the same bytes
        raise UnsafeModel("the model is in ONNX Runtime's own format; expected ONNX")
    model = read_model(data)
    if absent := {"ir_version", "graph", "opset_import"} - model.fields.keys():
        raise UnsafeModel(f"not an ONNX model: it has no {', '.join(sorted(absent))}")
    domains = [_domain(one) or "ai.onnx" for one in model.fields["opset_import"]]
    if len(set(domains)) < len(domains):
        raise UnsafeModel(f"the model states {len(domains)} versions of {len(set(domains))} domains; expected one each")
    _check(model, finite=True)
    graph = read_graph(model)
    check_operators(graph, kind)
    return graph


def _check(message: WireMessage, *, finite: bool) -> None:
    refused = _REFUSED_FIELDS.get(message.kind, {})
    for name in refused.keys() & message.fields.keys():
        raise UnsafeModel(f"the model has {refused[name]} ({message.kind}.{name})")
    match message.kind:
        case "OperatorSetIdProto" | "NodeProto":
            _check_domain(message)
        case "AttributeProto" if finite:
            for name in ("f", "floats"):
                _check_finite(message, name, message.array(name, "<f4"))
        case "TensorProto":
            _check_tensor(message, finite=finite)
        case "SparseTensorProto":
            _check_size(message, message.integers("dims"))
        case "TensorShapeProto":
            _check_size(message, [n for dim in message.messages() for n in dim.integers("dim_value") if n > 0])
    for child in message.messages():
        _check(child, finite=finite and not _may_be_infinite(message, child))


def _domain(message: WireMessage) -> str:
    return message.text("domain").decode("utf-8", "backslashreplace")


def _check_domain(message: WireMessage) -> None:
    if (domain := _domain(message)) not in ALLOWED_DOMAINS:
        operator = f"operator {_format(message, 'op_type')} of " if message.kind == "NodeProto" else ""
        raise UnsafeModel(f"the model uses {operator}domain {domain[:80]!r}; allowed are {sorted(ALLOWED_DOMAINS)}")


def _may_be_infinite(parent: WireMessage, child: WireMessage) -> bool:
    if child.kind != "AttributeProto" or parent.kind != "NodeProto" or _domain(parent) != "ai.onnx.ml":
        return False
    allowed = _MAY_BE_INFINITE.get(parent.text("op_type").decode("utf-8", "replace"), set())
    return child.text("name").decode("utf-8", "replace") in allowed


def _check_tensor(tensor: WireMessage, *, finite: bool) -> None:
    if tensor.integers("data_location") not in ([], [0]):
        raise UnsafeModel("the model has data outside the file; save the model with its weights inside")
    _check_size(tensor, tensor.integers("dims"))
    data_type = next(iter(tensor.integers("data_type")), 0)
    if data_type not in _FINITE_BY_NATURE and data_type not in _RAW_DTYPES:
        raise UnsafeModel(f"tensor {_format(tensor, 'name')} has element type {data_type}, which cannot be checked")
    _check_count(tensor, data_type)
    if finite and data_type in _RAW_DTYPES:
        _check_finite(tensor, "float_data", tensor.array("float_data", "<f4"))
        _check_finite(tensor, "double_data", tensor.array("double_data", "<f8"))
        _check_finite(
            tensor, "raw_data", tensor.array("raw_data", _RAW_DTYPES[data_type]), bfloat=data_type == _BFLOAT16
        )


def _check_count(tensor: WireMessage, data_type: int) -> None:
    """Raises `UnsafeModel` where a tensor holds another number of elements than its shape says."""
    stated = math.prod(tensor.integers("dims"))
    held = stored = (stated + 1) // 2 if data_type in _HALF_BYTES else stated
    if tensor.chunks("raw_data"):
        start, end, _ = tensor.chunks("raw_data")[0]
        held, stored = end - start, stored * _ELEMENT_BYTES.get(data_type, 1)
    else:
        held = sum(tensor.count(name) for name, types in _DATA.items() if data_type in types)
    misplaced = [name for name, types in _DATA.items() if data_type not in types and tensor.count(name)]
    both = tensor.chunks("raw_data") and any(tensor.count(name) for name in _DATA)
    if held != stored or misplaced or both:
        raise UnsafeModel(
            f"tensor {_format(tensor, 'name')} of {stated} elements holds {held} values or bytes where {stored} belong"
        )


def _check_finite(message: WireMessage, field: str, arrays: Iterable[NDArray[Any]], *, bfloat: bool = False) -> None:
    for values in arrays:
        good = (values & 0x7F80) != 0x7F80 if bfloat else np.isfinite(values)  # all exponent bits set: NaN or infinity
        if not good.all():
            at = int(np.argmin(good))
            raise UnsafeModel(f"{message.kind} {_format(message, 'name')}: value {at} of {field} is NaN or infinite")


def _check_size(message: WireMessage, dims: list[int]) -> None:
    if any(length < 0 for length in dims) or math.prod(dims) > MAX_ELEMENTS:
        raise UnsafeModel(
            f"{message.kind} {_format(message, 'name')} has shape {dims}; at most {MAX_ELEMENTS} elements"
        )


def _format(message: WireMessage, field: str) -> str:
    return repr(message.text(field)[:80].decode("utf-8", "backslashreplace"))
