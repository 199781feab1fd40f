"""The features inside the graph: padded log-probabilities in, the heads of a checkpoint out, in any language.

ONNX Runtime computes here, in standard operators and float64, what `metaprobe.probes.features` defines. A window is
the first w tokens of the response or of the response read backwards, w another number for each response, so that
windows are masks on an axis of their own.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from metaprobe.checkpoints import GoldenMismatch
from metaprobe.checkpoints.graph_session import Arrays, GraphSession
from metaprobe.probes.features import TERM_NAMES, Schema, Series, Window, features, schema
from metaprobe.probes.terms import FLOOR, MOST_SURPRISING
from metaprobe.records.errors import InvalidResponse, RecordError
from metaprobe.records.extras import require
from metaprobe.records.logprobs import ROUNDING
from metaprobe.training.graphs import GraphBuilder

LOGPROBS, LENGTHS = "logprobs", "lengths"
"""Inputs: (n, T) float32 and (n,) int64."""
INNER = "scored/"
"""Begins every name of the features-in graph."""
OPSETS = range(15, 18)
"""Opsets in which `Shape` can give a part and `ReduceMax` still has its axes as an attribute."""

_HUGE = float(np.finfo(np.float32).max)
_LAID_OUT = ("mean", "median", "min", "max", "range", "var", "std", "slope")
"""The statistics in the order in which they are computed here; the last step puts them into the schema's."""


def raw_graph(features_graph: bytes, schema_name: str) -> bytes:
    """One ONNX model from `logprobs` (n, T) and `lengths` (n,) to the outputs of `features_graph`.

    `features_graph` takes the features of that schema, float32 (n, d), of finished responses. The log-probabilities are
    in nats; what lies beyond a response's length may be anything.

    A graph cannot refuse: all outputs are NaN for a row that `parse_response` would refuse (no tokens, a length beyond
    T, a log-probability that is NaN, infinite or above 0 by more than rounding), and the other rows are as ever.
    """
    onnx = require("onnx", "fit")
    require("onnx.compose", "fit")
    features = schema(schema_name)
    if features.uses_segments or features.uses_top or features.limit is not None:
        raise RecordError(
            f"the predictor reads {schema_name!r}, and raw.onnx is given a finished answer's log-probabilities, and "
            "neither its thinking nor alternatives; expected the schema terms, full or full+terms: leave raw.onnx out"
        )
    model = onnx.load_from_string(features_graph)
    opset = next(o.version for o in model.opset_import if o.domain in ("", "ai.onnx"))
    widths = [[dim.dim_value for dim in value.type.tensor_type.shape.dim[1:]] for value in model.graph.input]
    if widths != [[len(features.names)]] or opset not in OPSETS:
        raise RecordError(
            f"the graph has inputs of widths {widths} and opset {opset}; expected one of {len(features.names)} features"
            f" (schema {schema_name!r}) and an opset from {OPSETS[0]} to {OPSETS[-1]}"
        )
    outputs = list(model.graph.output)
    inner = onnx.compose.add_prefix(model, INNER).graph
    outer = _Nodes()
    outer.add("Identity", _features(outer, features), name=inner.input[0].name)
    unknown = outer.add("Where", _readable(outer), outer.constant(0, np.float32), outer.nan(np.float32))  # (n, 1)
    closing = [onnx.helper.make_node("Add", [INNER + output.name, unknown], [output.name]) for output in outputs]
    number, info = onnx.TensorProto.FLOAT, onnx.helper.make_tensor_value_info
    inputs = [info(LOGPROBS, number, ["n", "T"]), info(LENGTHS, onnx.TensorProto.INT64, ["n"])]
    graph = onnx.helper.make_graph(
        [*outer.nodes, *inner.node, *closing],
        "metaprobe",
        inputs,
        outputs,
        initializer=[*outer.initializers(), *inner.initializer],
    )
    whole = onnx.helper.make_model(
        graph, opset_imports=model.opset_import, producer_name="metaprobe", ir_version=model.ir_version
    )
    onnx.checker.check_model(whole)
    data: bytes = whole.SerializeToString()
    return data


class _Nodes(GraphBuilder):
    """A graph with what the features need."""

    def nan(self, dtype: Any) -> str:
        # A checkpoint's graph may hold no NaN among its weights.
        return self.add("Div", self.constant(0, dtype), self.constant(0, dtype))

    def unsqueeze(self, value: str, *axes: int) -> str:
        return self.add("Unsqueeze", value, self.constant(axes))

    def clip(self, value: str, low: str, high: str) -> str:
        return self.add("Max", self.add("Min", value, high), low)

    def sum(self, value: str) -> str:
        """Over the last axis, which stays, of length 1."""
        return self.add("ReduceSum", value, self.constant([-1]), keepdims=1)

    def first(self, value: str, count: str, axis: int) -> str:
        """The first `count` (1,) along `axis`."""
        return self.add("Slice", value, self.constant([0]), count, self.constant([axis]))

    def split(self, value: str, parts: int) -> list[str]:
        """Returns each element of the last axis, whose length is `parts`, as a value of its own."""
        name = self.add("Split", value, self.constant([1] * parts), more=parts - 1, axis=-1)
        return [name, *(f"{name}_{i}" for i in range(1, parts))]

    def positions(self, count: str) -> str:
        """0, 1, ... below `count` (1,)."""
        return self.add("Range", self.constant(0), self.add("Squeeze", count, self.constant([0])), self.constant(1))


def _readable(g: _Nodes) -> str:
    """Whether `parse_response` would take the response, (n, 1) bool."""
    tokens = g.add("Shape", LOGPROBS, start=1, end=2)
    lengths = g.unsqueeze(LENGTHS, 1)
    inside = g.add("Less", g.positions(tokens), lengths)  # (n, T)
    number = g.add(
        "And",
        g.add("LessOrEqual", LOGPROBS, g.constant(ROUNDING, np.float32)),
        g.add("GreaterOrEqual", LOGPROBS, g.constant(-_HUGE, np.float32)),
    )
    bad = g.sum(g.cast(g.add("And", inside, g.add("Not", number)), np.int64))
    bad = g.add("Reshape", bad, g.constant([0, 1]))  # where n = 0, ONNX Runtime adds up to (0, T)
    fits = g.add("And", g.add("Greater", lengths, g.constant(0)), g.add("LessOrEqual", lengths, tokens))
    return g.add("And", fits, g.add("Equal", bad, g.constant(0)))


def _features(g: _Nodes, schema: Schema) -> str:
    """float32 (n, d), in the schema's order."""
    tokens = g.add("Shape", LOGPROBS, start=1, end=2)
    lengths = g.clip(LENGTHS, g.constant([1]), tokens)  # (n,); of a row that is not readable, something is read
    # All that is padded is computed and left out again: a size must not depend on what is read (`graph_sizes`).
    seen = g.add("Max", tokens, g.constant([1]))
    if not schema.windows:
        return g.cast(_terms(g, lengths, seen), np.float32)
    logprobs = g.add("Min", g.first(LOGPROBS, seen, 1), g.constant(0, np.float32))
    forwards = g.unsqueeze(g.cast(logprobs, np.float64), 1)  # (n, 1, seen)
    both = _both_ways(g, forwards, lengths, seen)  # (n, 2, seen)
    blocks, names = [], []
    for windows, widths, reach in _groups(g, schema, g.unsqueeze(lengths, 1, 2), seen):
        one_way = windows[0].percent == 100
        sides = ["first"] if one_way else ["first", "last"]
        values = g.first(forwards if one_way else both, reach, 2)
        columns = [(side, w, s) for side in sides for w in windows for s in _LAID_OUT]
        statistics = _statistics(g, values, widths, reach, [1, -1][: len(sides)])  # (n, sides, windows, statistics)
        blocks.append(g.add("Reshape", statistics, g.constant([0, len(columns)])))
        names += [f"{w.name.replace('first', side)}.{s}" for side, w, s in columns]
    blocks.append(g.unsqueeze(g.cast(lengths, np.float64), 1))
    names.append("length")
    if schema.uses_terms:
        blocks.append(_terms(g, lengths, seen))
        names += TERM_NAMES
    order = [names.index(name) for name in schema.names]
    return g.add("Gather", g.cast(g.add("Concat", *blocks, axis=1), np.float32), g.constant(order), axis=1)


def _terms(g: _Nodes, lengths: str, seen: str) -> str:
    """Returns the terms of `metaprobe.probes.terms`, float64 (n, 7), of the first `seen` (1,) tokens."""

    def number(value: ArrayLike) -> str:
        return g.constant(value, np.float64)

    count = g.unsqueeze(g.add("Min", lengths, seen), 1)  # (n, 1)
    places = g.positions(seen)
    inside = g.add("Less", places, count)
    surprise = g.add("Neg", g.cast(g.add("Min", g.first(LOGPROBS, seen, 1), g.constant(0, np.float32)), np.float64))
    half = g.add("Max", g.add("Div", count, g.constant(2)), g.constant(1))

    def mean(where: str, width: str) -> str:
        return g.add("Div", g.sum(g.add("Where", where, surprise, number(0))), g.cast(width, np.float64))

    late = g.add("And", inside, g.add("Not", g.add("Less", places, g.add("Sub", count, half))))
    most = g.add("Min", seen, g.constant([MOST_SURPRISING]))
    largest = g.add("TopK", g.add("Where", inside, surprise, number(-1)), most, more=1, axis=1)
    largest = g.add("Where", g.add("Less", largest, number(0)), number(0), largest)  # of a shorter answer, none
    fewest = g.add("Min", count, g.constant(MOST_SURPRISING))
    average = mean(inside, count)
    raw = (
        g.add("Div", g.sum(largest), g.cast(fewest, np.float64)),
        average,
        g.add("ReduceMax", g.add("Where", inside, surprise, number(-1)), axes=[1], keepdims=1),
        g.add("Mul", average, g.cast(count, np.float64)),
        g.first(surprise, g.constant([1]), 1),
    )
    logs = [g.add("Log", g.add("Add", value, number(FLOOR))) for value in raw]
    early, later = (
        g.add("Log", g.add("Add", mean(side, half), number(FLOOR))) for side in (g.add("Less", places, half), late)
    )
    length = g.add("Log", g.cast(count, np.float64))
    return g.add("Concat", *logs, g.add("Sub", early, later), length, axis=1)


def _both_ways(g: _Nodes, series: str, lengths: str, seen: str) -> str:
    """(n, 1, T) -> (n, 2, T): each response as it is, then from its last token to its first."""
    last = g.add("Sub", g.unsqueeze(lengths, 1), g.constant(1))
    places = g.add("Max", g.add("Sub", last, g.positions(seen)), g.constant(0))  # (n, T)
    places = g.add("Expand", g.unsqueeze(places, 1), g.add("Shape", series))
    return g.add("Concat", series, g.add("GatherElements", series, places, axis=2), axis=1)


def _groups(g: _Nodes, schema: Schema, lengths: str, seen: str) -> Iterator[tuple[list[Window], str, str]]:
    """Windows of like size, their widths (n, windows, 1), 0 where a response is too short, and the most they reach.

    Like size, since each takes as much time and memory as the widest of its group.
    """
    starts = [window for window in schema.windows if not window.from_end]
    if counted := [window for window in starts if window.count]:
        counts = g.constant([[window.count] for window in counted])
        widths = g.add("Where", g.add("Less", lengths, counts), g.constant(0), counts)
        yield counted, widths, g.add("Min", seen, g.constant([max(window.count for window in counted)]))
    for shares in ([w for w in starts if 0 < w.percent < 100], [w for w in starts if w.percent == 100]):
        if shares:
            yield (
                shares,
                _share(g, lengths, [[window.percent] for window in shares]),
                _share(g, seen, [max(window.percent for window in shares)]),
            )


def _share(g: _Nodes, lengths: str, percent: ArrayLike) -> str:
    floor = g.add("Div", g.add("Mul", lengths, g.constant(percent)), g.constant(100))
    return g.add("Max", floor, g.constant(1))


def _statistics(g: _Nodes, series: str, widths: str, reach: str, direction: list[int]) -> str:
    """(n, S, reach) and (n, W, 1) -> (n, S, W, statistics), NaN where a width is 0 or a value in the window is NaN.

    `direction` (S): 1 for a series that is read forwards, -1 for one that is read backwards.
    """

    def number(value: ArrayLike) -> str:
        return g.constant(value, np.float64)

    places = g.positions(reach)
    inside = g.unsqueeze(g.add("Less", places, widths), 1)  # (n, 1, W, reach)
    values = g.unsqueeze(series, 2)  # (n, S, 1, reach)
    width = g.unsqueeze(g.cast(widths, np.float64), 1)  # (n, 1, W, 1)
    mean = g.add("Div", g.sum(g.add("Where", inside, values, number(0))), width)  # 0 / 0 is NaN
    centred = g.add("Where", inside, g.add("Sub", values, mean), number(0))
    variance = g.add("Div", g.sum(g.add("Mul", centred, centred)), width)
    middle = g.add("Div", g.add("Sub", width, number(1)), number(2))
    index = g.add("Sub", g.cast(places, np.float64), middle)
    covariance = g.add("Div", g.sum(g.add("Mul", centred, index)), width)
    covariance = g.add("Mul", covariance, number([[[d]] for d in direction]))
    index_variance = g.add("Div", g.add("Sub", g.add("Mul", width, width), number(1)), number(12))
    slope = g.add("Div", covariance, index_variance)  # of one token, again 0 / 0

    filled = g.add("Where", g.add("IsNaN", values), number(0), values)  # NaN has no place in an order
    low = g.add("ReduceMin", g.add("Where", inside, filled, number(_HUGE)), axes=[3], keepdims=1)
    half = g.add("Add", g.add("Div", reach, g.constant(2)), g.constant(1))
    falling = g.add("TopK", g.add("Where", inside, filled, number(-_HUGE)), half, more=1, axis=3)
    w = g.unsqueeze(widths, 1)
    before = g.add("Div", g.add("Sub", w, g.constant(1)), g.constant(2))
    ranks = g.add("Concat", g.add("Mul", w, g.constant(0)), before, g.add("Div", w, g.constant(2)), axis=3)
    shape = g.add("Concat", g.add("Shape", mean, end=3), g.constant([3]), axis=0)
    high, upper, lower = g.split(g.add("GatherElements", falling, g.add("Expand", ranks, shape), axis=3), 3)
    median = g.add("Div", g.add("Add", lower, upper), number(2))
    ordered = g.add("Concat", median, low, high, g.add("Sub", high, low), axis=3)
    ordered = g.add("Where", g.add("IsNaN", mean), mean, ordered)
    return g.add("Concat", mean, ordered, variance, g.add("Sqrt", variance), slope, axis=3)


# Holds a raw graph against the features-in graph that it was made from, on responses.

TOLERANCE = 1e-5
"""Largest accepted difference between two outputs, relative beyond 1."""
NEAR = 1e-6
"""Largest difference between two readings of a feature, relative beyond 1: so near a split they may part."""
BATCH = 64


@dataclass(frozen=True, slots=True)
class Parity:
    """How two sets of outputs agree."""

    rows: int
    near_split: int
    """Rows with a feature within 1e-6 of a split."""
    different: int
    """Rows near a split whose outputs differ by more than the tolerance."""
    largest: float
    """Difference among the other rows."""


def build_raw_graph(
    features_graph: bytes,
    schema_name: str,
    logprobs: Sequence[Series],
) -> bytes:
    """Returns `raw_graph`, checked to give the same outputs as `features_graph` for the features of these responses.

    Raises `GoldenMismatch` where they differ by more than 1e-5, rows near a split aside.
    """
    if not len(logprobs):
        raise InvalidResponse("there are no responses to hold the raw graph against; expected at least 1")
    graph = raw_graph(features_graph, schema_name)
    wanted = schema(schema_name)
    X = features(wanted, logprobs)
    inner, whole = GraphSession(features_graph), GraphSession(graph)
    [features_input] = inner.inputs
    # Alike in length, so that little is padded.
    for rows in np.array_split(np.argsort([len(x) for x in logprobs]), math.ceil(len(logprobs) / BATCH)):
        inputs = pad([logprobs[i] for i in rows])
        near = near_split(features_graph, X[rows])
        expected, actual = inner.run({features_input.name: X[rows]}), whole.run(inputs)
        agreement = parity(expected, actual, near)
        if not agreement.largest <= TOLERANCE:
            raise GoldenMismatch(
                f"the raw graph differs from the features-in graph by {agreement.largest:.3g} among {agreement.rows} "
                f"responses of {schema_name!r} features; at most {TOLERANCE:g} is accepted. Does this version of "
                "metaprobe compute other features in NumPy than in the graph?"
            )
    return graph


def pad(logprobs: Sequence[Series]) -> Arrays:
    """Inputs `logprobs` (n, longest), NaN after the end of each, and `lengths` (n,)."""
    lengths = np.array([len(x) for x in logprobs], dtype=np.int64)
    values = np.full((len(lengths), lengths.max()), np.nan, dtype=np.float32)
    values[np.arange(values.shape[1]) < lengths[:, None]] = np.concatenate(list(logprobs))
    return {LOGPROBS: values, LENGTHS: lengths}


def parity(expected: Mapping[str, NDArray[Any]], actual: Mapping[str, NDArray[Any]], near: NDArray[np.bool_]) -> Parity:
    """How two sets of outputs (n, 1) agree; `near` (n,) says which rows have a feature near a split."""
    differences = [np.abs(actual[name] - expected[name]) / np.maximum(1, np.abs(expected[name])) for name in expected]
    largest = np.nan_to_num(np.concatenate(differences, axis=1), nan=np.inf).max(axis=1)
    return Parity(
        rows=len(near),
        near_split=int(near.sum()),
        different=int((largest[near] > TOLERANCE).sum()),
        largest=float(largest[~near].max(initial=0.0)),
    )


def near_split(features_graph: bytes, X: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Which rows of the features (n, d) have one within 1e-6 (relative beyond 1) of a threshold in the graph's trees.

    They are many where a model is confident: half of its log-probabilities lie nearer to 0 than that, and so do the
    splits between them. Minimum, maximum and median are read exactly, so hardly any of those rows do differ.
    """
    onnx = require("onnx", "fit")
    near = np.zeros(len(X), dtype=np.bool_)
    for node in onnx.load_from_string(features_graph).graph.node:
        if node.op_type != "TreeEnsembleRegressor":
            continue
        given = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
        inner = np.array(given["nodes_modes"]) != b"LEAF"
        column = np.array(given["nodes_featureids"])[inner]
        threshold = np.array(given["nodes_values"], np.float64)[inner]
        for j in np.unique(column):
            splits, x = np.unique(threshold[column == j]), X[:, j].astype(np.float64)
            after = np.searchsorted(splits, x)
            around = splits[[(after - 1).clip(0), after.clip(max=len(splits) - 1)]]  # (2, n)
            distance = np.abs(x - around).min(axis=0)  # NaN for NaN, and then not near
            near |= distance <= NEAR * np.maximum(1, np.abs(x))
    return near
