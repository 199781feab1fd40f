"""The operators that a checkpoint's graphs may hold: those that the exporters of this project write, and no others.

A test collects what every exporter really writes and holds it against these lists. An operator that is missing here
needs a rule of its sizes (`size_rules`) first.
"""

from collections.abc import Mapping

ADAPTER, RAW_GRAPH = "adapter", "raw"
"""A kind of checkpoint whose graph is a language model, and the name that raw.onnx has here, of whatever kind."""

_MODEL = """
Add, Cast to, Clip, Concat axis, Div, Gather axis, Greater, Identity, IsNaN, Log, MatMul, Max, Min, Mul, Neg, Not,
ReduceMax axes keepdims, ReduceMean axes keepdims, ReduceSum axes keepdims, Reshape allowzero, Sigmoid, Softplus,
Split axis, Sub, Sum, Where
"""
"""Of model.onnx. Identity, Not, Reshape and ReduceMean are for graphs that users save with `save_checkpoint`."""
_CONVERTED = """
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
"""Of model.onnx as well: what onnxmltools and skl2onnx make of trees and of a scaled linear model."""
_RAW = """
And, Equal, Exp, Expand, GatherElements axis, GreaterOrEqual, Less, LessOrEqual, Range, ReduceMin axes keepdims,
Shape end start, Slice, Sqrt, Squeeze axes, TopK axis largest sorted, Transpose perm, Unsqueeze axes
"""
"""Of raw.onnx beyond those."""
_ADAPTER = """
Constant value, ConstantOfShape value, Cos, Erf, Gelu approximate, Gemm alpha beta transA transB,
LayerNormalization axis epsilon stash_type, Or, Pow, Reciprocal, ReduceMax keepdims noop_with_empty_axes,
ReduceMean keepdims noop_with_empty_axes, ReduceSum keepdims noop_with_empty_axes, Sin, Softmax axis, Tanh
"""
"""Of a language model beyond those of raw.onnx, as the exporter of torch writes the decoders of transformers."""

Operators = Mapping[str, frozenset[str]]
"""Operator, with its domain where that is ai.onnx.ml -> the attributes that it may have."""


def _read(*texts: str) -> dict[str, frozenset[str]]:
    found: dict[str, frozenset[str]] = {}
    for text in texts:
        for entry in text.strip().split(","):
            name, *attributes = entry.split()
            found[name] = found.get(name, frozenset()) | frozenset(attributes)
    return found


MODEL_OPERATORS: Operators = _read(_MODEL, _CONVERTED)
RAW_OPERATORS: Operators = _read(_MODEL, _CONVERTED, _RAW)
ADAPTER_OPERATORS: Operators = _read(_MODEL, _RAW, _ADAPTER)
ALL_OPERATORS: Operators = _read(_MODEL, _CONVERTED, _RAW, _ADAPTER)
"""Of any graph: for who does not say what it is."""


def operators_of(kind: str | None) -> Operators:
    """The list for a kind of checkpoint, or `RAW_GRAPH`; all of them for None."""
    if kind is None:
        return ALL_OPERATORS
    return {ADAPTER: ADAPTER_OPERATORS, RAW_GRAPH: RAW_OPERATORS}.get(kind, MODEL_OPERATORS)
