"""Holds a raw graph against the features-in graph that it was made from, on responses."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metaprobe.checkpoints import GoldenMismatch
from metaprobe.checkpoints.graph_session import Arrays, GraphSession
from metaprobe.probes.features import Series, features, schema
from metaprobe.records.errors import InvalidResponse
from metaprobe.records.extras import require
from metaprobe.records.types import FloatArray
from metaprobe.training.quality.raw_graph import LENGTHS, LOGPROBS, TOP_LOGPROBS, raw_graph

TOLERANCE = 1e-5
"""What two outputs may differ by, relative beyond 1."""
NEAR = 1e-6
"""What two readings of a feature may differ by, relative beyond 1: so near a split they may fall on different sides."""
BATCH = 64


@dataclass(frozen=True, slots=True)
class Parity:
    """How two sets of outputs agree."""

    rows: int
    near_split: int
    """Rows with a feature within 1e-6 of a split."""
    different: int
    """Those among them whose outputs differ by more than the tolerance."""
    largest: float
    """Difference among the other rows."""


def build_raw_graph(
    features_graph: bytes,
    schema_name: str,
    logprobs: Sequence[Series],
    top_logprobs: Sequence[FloatArray | None] | None = None,
) -> bytes:
    """As `raw_graph`, after it gave the same outputs as `features_graph` for the features of these responses.

    Raises `GoldenMismatch` where they differ by more than 1e-5, rows near a split aside.
    """
    if not len(logprobs):
        raise InvalidResponse("there are no responses to hold the raw graph against; expected at least 1")
    graph = raw_graph(features_graph, schema_name)
    wanted = schema(schema_name)
    tops = top_logprobs if wanted.uses_top else None
    X = features(wanted, logprobs, tops)
    inner, whole = GraphSession(features_graph), GraphSession(graph)
    [features_input] = inner.inputs
    # Alike in length, so that little is padded.
    for rows in np.array_split(np.argsort([len(x) for x in logprobs]), math.ceil(len(logprobs) / BATCH)):
        inputs = pad([logprobs[i] for i in rows])
        if wanted.uses_top:
            inputs |= pad_top([tops[i] if tops is not None else None for i in rows], inputs[LOGPROBS].shape[1])
        near = near_split(features_graph, X[rows])
        expected, actual = inner.run({features_input.name: X[rows]}), whole.run(inputs)
        found = parity(expected, actual, near)
        if not found.largest <= TOLERANCE:
            raise GoldenMismatch(
                f"the raw graph differs from the features-in graph by {found.largest:.3g} among {found.rows} responses "
                f"of {schema_name!r} features; at most {TOLERANCE:g} is accepted. Does this version of metaprobe "
                "compute other features in NumPy than in the graph?"
            )
    return graph


def pad(logprobs: Sequence[Series]) -> Arrays:
    """Inputs `logprobs` (n, longest), NaN after the end of each, and `lengths` (n,)."""
    lengths = np.array([len(x) for x in logprobs], dtype=np.int64)
    values = np.full((len(lengths), lengths.max()), np.nan, dtype=np.float32)
    values[np.arange(values.shape[1]) < lengths[:, None]] = np.concatenate(list(logprobs))
    return {LOGPROBS: values, LENGTHS: lengths}


def pad_top(top_logprobs: Sequence[FloatArray | None], tokens: int) -> Arrays:
    """Input `top_logprobs` (n, tokens, k): each (T_i, k_i) widened to the largest k with NaN, all NaN where None."""
    k = max([1, *(top.shape[1] for top in top_logprobs if top is not None)])
    values = np.full((len(top_logprobs), tokens, k), np.nan, dtype=np.float32)
    for row, top in zip(values, top_logprobs, strict=True):
        if top is not None:
            row[: len(top), : top.shape[1]] = top
    return {TOP_LOGPROBS: values}


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
