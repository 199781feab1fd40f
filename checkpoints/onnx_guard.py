"""Refuses ONNX files that could do more than compute, before ONNX Runtime reads them, without the onnx package.

It is a guard, not a sandbox. It knows which operators our exporters write, and `graph_sizes` bounds the size of their
results. It does not protect against bugs of ONNX Runtime: against these, pin the digest of an author whom you trust.

A test compares the lists of operators with what every exporter really writes. A new operator needs a rule for its sizes
(`graph_sizes.RULES`) first.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metaprobe.checkpoints.checkpoint_errors import UnsafeModel
from metaprobe.checkpoints.onnx_wire import (
    BOOL,
    DOUBLE,
    ELEMENT_BYTES,
    FLOAT,
    FLOAT16,
    INT8,
    INT32,
    INT64,
    UINT8,
    Graph,
    WireMessage,
    read_graph,
    read_model,
)

ADAPTER = "adapter"
"""The kind of checkpoint whose graph is a language model."""

_MODEL_TEXT = """
Add, Cast to, Clip, Concat axis, Div, Exp, Gather axis, Greater, Identity, IsNaN, Log, MatMul, Max, Min, Mul, Neg, Not,
ReduceMax axes keepdims, ReduceMean axes keepdims, ReduceSum axes keepdims, Reshape allowzero, Sigmoid, Softplus,
Split axis, Sub, Sum, Where
"""
"""Operators of model.onnx. Identity, Not, Reshape and ReduceMean are for graphs that users save themselves."""
_CONVERTED_TEXT = """
ai.onnx.ml.Imputer imputed_value_floats replaced_value_float,
ai.onnx.ml.LinearClassifier classlabels_ints coefficients intercepts multi_class post_transform,
ai.onnx.ml.Scaler offset scale,
ai.onnx.ml.TreeEnsembleClassifier base_values class_ids class_nodeids class_treeids class_weights classlabels_int64s
 nodes_falsenodeids nodes_featureids nodes_hitrates nodes_missing_value_tracks_true nodes_modes nodes_nodeids
 nodes_treeids nodes_truenodeids nodes_values post_transform,
ai.onnx.ml.TreeEnsembleRegressor aggregate_function base_values n_targets nodes_falsenodeids nodes_featureids
 nodes_hitrates nodes_missing_value_tracks_true nodes_modes nodes_nodeids nodes_treeids nodes_truenodeids nodes_values
 post_transform target_ids target_nodeids target_treeids target_weights
"""
"""More operators of model.onnx, which onnxmltools and skl2onnx write for trees and for a scaled linear model."""
_ADAPTER_TEXT = """
Abs, And, Constant value, ConstantOfShape value, Cos, Equal, Erf, Expand, GatherElements axis, Gelu approximate, Gemm
alpha beta transA transB, GreaterOrEqual, LayerNormalization axis epsilon stash_type, Less, LessOrEqual,
MatMulInteger, Or, Pow, Range, Reciprocal, ReduceMax keepdims noop_with_empty_axes, ReduceMean keepdims
noop_with_empty_axes, ReduceSum keepdims noop_with_empty_axes, Shape end start, Sin, Slice, Softmax axis, Sqrt,
Squeeze axes, Tanh, Transpose perm, Unsqueeze axes
"""
"""Operators of a language model, which torch's exporter writes for the decoders of transformers."""

Operators = Mapping[str, frozenset[str]]
"""Maps an operator, with its domain if that is ai.onnx.ml, to its allowed attributes."""


def _parse_operators(*texts: str) -> dict[str, frozenset[str]]:
    operators: dict[str, frozenset[str]] = {}
    for text in texts:
        for entry in text.strip().split(","):
            name, *attributes = entry.split()
            operators[name] = operators.get(name, frozenset()) | frozenset(attributes)
    return operators


MODEL_OPERATORS: Operators = _parse_operators(_MODEL_TEXT, _CONVERTED_TEXT)
ADAPTER_OPERATORS: Operators = _parse_operators(_MODEL_TEXT, _ADAPTER_TEXT)
ALL_OPERATORS: Operators = _parse_operators(_MODEL_TEXT, _CONVERTED_TEXT, _ADAPTER_TEXT)
"""Operators of any graph, for a caller that does not name a kind."""


MAX_NODES, MAX_ADAPTER_NODES = 1_000, 30_000
"""Most nodes of a graph, and of a language model. ONNX Runtime takes a millisecond to open each node."""
BYTES_PER_NODE = 4096
"""Bytes of a language model's file that allow one more node, up to `MAX_ADAPTER_NODES`: most nodes have weights."""
MAX_EDGES = 512
"""Most inputs, and most outputs, of a node."""
EDGES_PER_NODE = 8
"""Inputs and outputs allowed for each node, all nodes together, beyond `MAX_EDGES`.

Exporters write three. Every rule takes time for each of them; with integers some 50 microseconds.
"""

ALLOWED_DOMAINS = frozenset({"", "ai.onnx", "ai.onnx.ml"})
MAX_ELEMENTS = 10**9
"""Most elements of a stored tensor or of a declared shape."""

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

_NUMBER_FIELDS = {
    FLOAT: "float_data",
    DOUBLE: "double_data",
    INT64: "int64_data",
    **dict.fromkeys((UINT8, INT8, INT32, BOOL), "int32_data"),
}
"""Maps an element type to the field that may hold its numbers instead of raw_data. Half floats are in raw_data only."""
_DATA_FIELDS = ("float_data", "double_data", "int32_data", "int64_data", "uint64_data", "string_data")
_FLOAT_DTYPES = {FLOAT: "<f4", FLOAT16: "<f2", DOUBLE: "<f8"}

_MAY_BE_INFINITE = {
    # A split at infinity asks only whether the value is missing. The leaves' weights stay checked.
    "TreeEnsembleRegressor": {"nodes_values"},
    "TreeEnsembleClassifier": {"nodes_values"},
    # An imputer may replace NaN.
    "Imputer": {"replaced_value_float"},
}
"""Attributes of ai.onnx.ml operators in which NaN and infinities have a meaning."""


MOST_DOMAINS = 16
"""Most statements of a domain's version in one model; exporters write two or three."""


def check_model(data: bytes, kind: str | None = None) -> Graph:
    """Returns the graph in `data`. Raises `UnsafeModel`, with the reason, if it is no ONNX model that may be opened.

    Refused are: bytes that are not exactly a `ModelProto` (`onnx_wire`); ONNX Runtime's own format; data outside the
    file; operators, attributes and types that no exporter writes for this `kind` of checkpoint (by default for any); a
    graph that can be read in two ways (`read_graph`); model-local functions, control flow, training information, device
    configurations and sparse tensors; tensors of more than 1e9 elements, of an unknown element type, or of another
    number of elements than they state; NaN or infinite weights, except where they have a meaning (thresholds of trees,
    `Imputer`). `graph_sizes` checks how large the graph gets.
    """
    if data[4:8] == b"ORTM":  # ONNX Runtime reads such bytes as a FlatBuffer by default
        raise UnsafeModel("the model is in ONNX Runtime's own format; expected ONNX")
    model = read_model(data)
    if missing_fields := {"ir_version", "graph", "opset_import"} - model.fields.keys():
        raise UnsafeModel(f"not an ONNX model: it has no {', '.join(sorted(missing_fields))}")
    # Converters write the standard domain twice, or under both of its names, "" and "ai.onnx", with one version.
    stated_versions = [
        (opset.text("domain"), tuple(opset.integers("version"))) for opset in model.fields["opset_import"]
    ]
    domain_versions = {(domain or "ai.onnx", version) for domain, version in stated_versions}
    domains = {domain for domain, _ in domain_versions}
    if len(stated_versions) > MOST_DOMAINS or len(domains) < len(domain_versions):
        raise UnsafeModel(
            f"the model states {len(stated_versions)} versions of {len(domains)} domains; expected one each"
        )
    _check_message(model, finite=True)
    graph = read_graph(model)
    check_operators(graph, kind)
    return graph


def _check_message(message: WireMessage, *, finite: bool) -> None:
    """Checks a message of the model's file and all messages within it. With `finite`, weights must be finite too."""
    refused = _REFUSED_FIELDS.get(message.kind, {})
    for name in refused.keys() & message.fields.keys():
        raise UnsafeModel(f"the model has {refused[name]} ({message.kind}.{name})")
    match message.kind:
        case "OperatorSetIdProto" | "NodeProto":
            if (domain := message.text("domain")) not in ALLOWED_DOMAINS:
                operator = f"operator {_format(message, 'op_type')} of " if message.kind == "NodeProto" else ""
                raise UnsafeModel(
                    f"the model uses {operator}domain {domain[:80]!r}; allowed are {sorted(ALLOWED_DOMAINS)}"
                )
        case "AttributeProto" if finite:
            for name in ("f", "floats"):
                _check_finite(message, name, message.array(name, "<f4"))
        case "TensorProto":
            _check_tensor(message)
            if finite and (elem := message.integers("data_type")[0]) in _FLOAT_DTYPES:
                for field, dtype in (("float_data", "<f4"), ("double_data", "<f8"), ("raw_data", _FLOAT_DTYPES[elem])):
                    _check_finite(message, field, message.array(field, dtype))
        case "SparseTensorProto":
            _check_size(message, message.integers("dims"))
        case "TensorShapeProto":
            _check_size(message, [n for dim in message.messages() for n in dim.integers("dim_value") if n > 0])
    infinite_attributes = set[str]()
    if message.kind == "NodeProto" and message.text("domain") == "ai.onnx.ml":
        infinite_attributes = _MAY_BE_INFINITE.get(message.text("op_type"), infinite_attributes)
    for child in message.messages():
        _check_message(
            child, finite=finite and not (child.kind == "AttributeProto" and child.text("name") in infinite_attributes)
        )


def _check_tensor(tensor: WireMessage) -> None:
    """Raises `UnsafeModel` for a tensor outside the file, of other types than numbers, or with a wrong
    number of them.
    """
    if tensor.integers("data_location") not in ([], [0]):
        raise UnsafeModel("the model has data outside the file; save the model with its weights inside")
    _check_size(tensor, tensor.integers("dims"))
    data_type = next(iter(tensor.integers("data_type")), 0)
    if data_type not in ELEMENT_BYTES:
        raise UnsafeModel(f"tensor {_format(tensor, 'name')} has element type {data_type}; expected numbers")
    element_count = expected_count = math.prod(tensor.integers("dims"))
    other_fields = {name: count for name in _DATA_FIELDS if (count := tensor.count(name))}
    if raw_chunks := tensor.chunks("raw_data"):
        present_count, expected_count = (
            raw_chunks[0].end - raw_chunks[0].start,
            element_count * ELEMENT_BYTES[data_type],
        )
    else:
        present_count = other_fields.pop(_NUMBER_FIELDS.get(data_type, ""), 0)
    if present_count != expected_count or other_fields:
        raise UnsafeModel(
            f"tensor {_format(tensor, 'name')} of {element_count} elements holds {present_count} values or bytes"
            f" where {expected_count} belong"
        )


def _check_finite(message: WireMessage, field: str, arrays: Iterable[NDArray[Any]]) -> None:
    for values in arrays:
        is_finite = np.isfinite(values)
        if not is_finite.all():
            index = int(np.argmin(is_finite))
            raise UnsafeModel(f"{message.kind} {_format(message, 'name')}: value {index} of {field} is NaN or infinite")


def _check_size(message: WireMessage, dims: list[int]) -> None:
    if any(length < 0 for length in dims) or math.prod(dims) > MAX_ELEMENTS:
        raise UnsafeModel(
            f"{message.kind} {_format(message, 'name')} has shape {dims}; at most {MAX_ELEMENTS} elements"
        )


def _format(message: WireMessage, field: str) -> str:
    return repr(message.text(field)[:80])


def check_operators(graph: Graph, kind: str | None) -> None:
    """Raises `UnsafeModel` for operators, attributes or types that no exporter of this kind writes."""
    allowed_operators = ALL_OPERATORS if kind is None else ADAPTER_OPERATORS if kind == ADAPTER else MODEL_OPERATORS
    max_nodes = (
        MAX_NODES if kind not in (ADAPTER, None) else min(MAX_NODES + graph.bytes // BYTES_PER_NODE, MAX_ADAPTER_NODES)
    )
    if len(graph.nodes) > max_nodes:
        raise UnsafeModel(
            f"the graph has {len(graph.nodes)} nodes; at most {max_nodes} in a file of {graph.bytes} bytes"
        )
    edges = sum(len(node.inputs) + len(node.outputs) for node in graph.nodes)
    graph_edges = (
        len(graph.weights) + len(graph.inputs) + len(graph.outputs)
    )  # ONNX Runtime drops unused ones one by one
    if max(edges, graph_edges) > MAX_EDGES + EDGES_PER_NODE * len(graph.nodes):
        raise UnsafeModel(
            f"the graph has {edges} inputs and outputs of {len(graph.nodes)} nodes, and {graph_edges} weights, inputs "
            f"and outputs of its own; at most {MAX_EDGES} and {EDGES_PER_NODE} a node"
        )
    for node in graph.nodes:
        if node.kind not in allowed_operators:
            raise UnsafeModel(
                f"the model uses operator {node.kind[:80]!r}, which no exporter of this kind of checkpoint writes"
                + ("; export with zipmap=False" if node.kind.endswith("ZipMap") else "")
                + f"; allowed are {', '.join(sorted(allowed_operators))}"
            )
        if max(len(node.inputs), len(node.outputs)) > MAX_EDGES:
            raise UnsafeModel(
                f"{node.kind} has {len(node.inputs)} inputs and {len(node.outputs)} outputs; at most {MAX_EDGES}"
            )
        if odd := sorted(node.attributes.keys() - allowed_operators[node.kind]):
            allowed = ", ".join(sorted(allowed_operators[node.kind])) or "none"
            raise UnsafeModel(f"operator {node.kind} has the attribute {odd[0][:80]!r}; allowed are {allowed}")
    for name, tensor in graph.inputs.items():
        if tensor.elem not in ELEMENT_BYTES:
            raise UnsafeModel(f"{name[:80]!r} has element type {tensor.elem}; expected numbers")
