"""How large each listed operator's outputs can get: one rule an operator, on bounds of lengths and of integers.

What no rule can bound is refused.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np

from metaprobe.checkpoints.errors import UnsafeModel
from metaprobe.checkpoints.graph_nodes import BOOL, ELEMENT_BYTES, FLOAT, INT32, INT64, KNOWN_VALUES, Node, read_tensor
from metaprobe.checkpoints.shape_rules import (
    expand_rule,
    filled_rule,
    reshape_rule,
    slice_rule,
    split_rule,
    squeeze_rule,
    unsqueeze_rule,
)
from metaprobe.checkpoints.size_bounds import (
    FREE,
    LARGEST,
    Bounds,
    Lengths,
    Sized,
    Unbounded,
    axis_of,
    broadcast,
    broadcast_least,
    certain,
    integers,
    length_of,
    needed,
    plain,
    stored,
)

HEAVY, SORTED = 4, 10
"""What one number takes of an operator such as `Exp`, and of a sort, in units of a sum."""

Rule = Callable[[Node, list[Sized | None]], list[Sized]]


def _same(node: Node, inputs: list[Sized | None]) -> list[Sized]:
    return [needed(node, inputs, 0)] * max(1, len(node.outputs))


def _number(node: Node, inputs: list[Sized | None]) -> list[Sized]:
    """Elementwise, of one value; integers become anything."""
    one = needed(node, inputs, 0)
    if node.kind == "Neg" and one.low is not None and one.high is not None:
        return [integers(one.shape, *_not_wrapped(-one.high, -one.low), elem=one.elem, least=one.least)]
    return [plain(one.elem, one.shape, one.least)]


def _truth(node: Node, inputs: list[Sized | None]) -> list[Sized]:
    given = [one for one in inputs if one is not None]
    return [Sized(BOOL, broadcast(*(one.shape for one in given)), broadcast_least(*(one.least for one in given)))]


def _together(node: Node, inputs: list[Sized | None]) -> list[Sized]:
    """Elementwise, of several values that are broadcast; bounds of integers by the operator."""
    given = [one for one in inputs if one is not None]
    shape, least = broadcast(*(one.shape for one in given)), broadcast_least(*(one.least for one in given))
    first = needed(node, inputs, int(node.kind == "Where"))
    given = given[int(node.kind == "Where") :]
    if first.low is None or node.kind == "Pow":
        return [plain(first.elem, shape, least)]
    if node.kind == "Clip":
        lows, highs = zip(*(one.span for one in given), strict=True)
        return [integers(shape, min(lows), max(highs), elem=first.elem, least=least)]
    if node.kind == "Div" and not needed(node, inputs, 1).span[0] >= 1:
        raise UnsafeModel("Div of integers by what may be 0 or below, which ends the process; expected 1 or more")
    fits = least == shape and math.prod(shape) <= KNOWN_VALUES
    parts = [one.each if fits and one.each else tuple(map(np.asarray, one.span)) for one in given]
    low, high = parts[0]
    with np.errstate(all="ignore"):
        for other, top in parts[1:]:
            low, high = _combined(node.kind, (low, high), (other, top))
    return [integers(shape, low, high, elem=first.elem, least=least)]


def _combined(kind: str, a: tuple[Bounds, Bounds], b: tuple[Bounds, Bounds]) -> tuple[Bounds, Bounds]:
    """Bounds of integers that an operator makes of two within bounds."""
    match kind:
        case "Add" | "Sum":
            return _not_wrapped(a[0] + b[0], a[1] + b[1])
        case "Sub":
            return _not_wrapped(a[0] - b[1], a[1] - b[0])
        case "Min":
            return np.minimum(a[0], b[0]), np.minimum(a[1], b[1])
        case "Max":
            return np.maximum(a[0], b[0]), np.maximum(a[1], b[1])
        case "Where":
            return np.minimum(a[0], b[0]), np.maximum(a[1], b[1])
        case "Mul":
            corners = np.stack(np.broadcast_arrays(*(x * y for x in a for y in b)))
            return _not_wrapped(corners.min(axis=0), corners.max(axis=0))  # NaN where any corner is
        case "Div":
            corners = np.stack(np.broadcast_arrays(*(np.trunc(x / y) for x in a for y in b)))
            return corners.min(axis=0), corners.max(axis=0)
        case _:
            return np.asarray(-np.inf), np.asarray(np.inf)


def _not_wrapped(low: Bounds, high: Bounds) -> tuple[Bounds, Bounds]:
    """The bounds, or none where a sum or product may leave the range of integers and begin again at its other end."""
    sure = (low >= -LARGEST) & (high <= LARGEST)
    return np.where(sure, low, -np.inf), np.where(sure, high, np.inf)


def _cast(node: Node, inputs: list[Sized | None]) -> list[Sized]:
    one, to = needed(node, inputs, 0), node.integer("to", 0)
    if to not in ELEMENT_BYTES:
        raise UnsafeModel(f"Cast to element type {to}; expected a number")
    if to in (INT64, INT32) and one.low is not None and one.high is not None:
        limit = 2.0**31 - 1
        fits = to == INT64 or (-limit <= one.span[0] and one.span[1] <= limit)  # else it wraps
        return [integers(one.shape, *((one.low, one.high) if fits else FREE), elem=to, least=one.least)]
    return [plain(to, one.shape, one.least, (0.0, 1.0) if one.elem == BOOL else FREE)]


def _shape(node: Node, inputs: list[Sized | None]) -> list[Sized]:
    one = needed(node, inputs, 0)
    rank = len(one.shape)
    start, end = (node.integer(name, otherwise) for name, otherwise in (("start", 0), ("end", rank)))
    start, end = (min(max(at + rank if at < 0 else at, 0), rank) for at in (start, end))
    return [integers((max(end - start, 0),), one.least[start:end], one.shape[start:end])]


def _range(node: Node, inputs: list[Sized | None]) -> list[Sized]:
    start, limit, step = (needed(node, inputs, place) for place in range(3))
    if start.low is None:
        raise Unbounded("Range of numbers that are no integers; expected integers")
    (low, _), (_, high), (least, _) = start.span, limit.span, step.span
    if least < 1:
        raise Unbounded("Range with a step that may be below 1")
    length = length_of(node, max(0.0, (high - low) / least))
    sure = all(one.known is not None for one in (start, limit, step))
    return [integers((length,), low, max(high, low), elem=start.elem, least=(length if sure else 0,))]


def _concat(node: Node, inputs: list[Sized | None]) -> list[Sized]:
    given = [needed(node, inputs, place) for place in range(len(inputs))]
    first = needed(node, inputs, 0)
    rank = len(first.shape)
    if any(len(one.shape) != rank for one in given) or not node.has("axis") or not rank:
        raise UnsafeModel("Concat of values with different numbers of axes, or without an axis")
    axis = axis_of(node, node.integer("axis", 0), rank)
    shape, least = ([max(dims) for dims in zip(*of, strict=True)] for of in _lengths(given))
    shape[axis], least[axis] = (sum(lengths[axis] for lengths in of) for of in _lengths(given))
    if first.low is None:
        return [plain(first.elem, shape, least)]
    bounds = [one.each for one in given]
    if rank == 1 and all(bounds):
        low, high = (np.concatenate(parts) for parts in zip(*filter(None, bounds), strict=True))
        return [integers(tuple(shape), low, high, elem=first.elem)]
    spans = [one.span for one in given if one.count] or [(0.0, 0.0)]
    return [plain(first.elem, shape, least, (min(s[0] for s in spans), max(s[1] for s in spans)))]


def _lengths(given: Sequence[Sized]) -> tuple[list[Lengths], list[Lengths]]:
    return [one.shape for one in given], [one.least for one in given]


def _gather(node: Node, inputs: list[Sized | None]) -> list[Sized]:
    one, at = needed(node, inputs, 0), needed(node, inputs, 1)
    axis = axis_of(node, node.integer("axis", 0), len(one.shape))
    each, places = one.each, at.known
    if each and places is not None and len(one.shape) == 1:
        if not all(-len(each[0]) <= place < len(each[0]) for place in places):
            raise UnsafeModel(f"Gather of {places.tolist()} from {len(each[0])} values")
        low, high = (bound[places].reshape(at.shape) for bound in each)
        return [integers(at.shape, low, high, elem=one.elem)]
    shape, least = (
        (*whole[:axis], *chosen, *whole[axis + 1 :]) for whole, chosen in ((one.shape, at.shape), (one.least, at.least))
    )
    return [plain(one.elem, shape, least, one.span)]


def _gather_elements(node: Node, inputs: list[Sized | None]) -> list[Sized]:
    one, at = needed(node, inputs, 0), needed(node, inputs, 1)
    return [plain(one.elem, at.shape, at.least, one.span)]


def _reduce(node: Node, inputs: list[Sized | None]) -> list[Sized]:
    one = needed(node, inputs, 0)
    axes = certain(node, inputs, 1, "axes")
    rank, kept = len(one.shape), node.integer("keepdims", 1)
    if not axes and node.integer("noop_with_empty_axes", 0):
        return [one]
    gone = {axis_of(node, axis, rank) for axis in axes} if axes else set(range(rank))
    shape, least = (
        [1 if place in gone else length for place, length in enumerate(of) if kept or place not in gone]
        for of in (one.shape, one.least)
    )
    low, high = one.span
    if node.kind == "ReduceSum":
        times = math.prod(one.shape[place] for place in gone)
        low, high = min(low * times, 0.0), max(high * times, 0.0)
        low, high = (low, high) if low >= -LARGEST and high <= LARGEST else FREE
    elif node.kind == "ReduceMean":
        low, high = FREE
    return [plain(one.elem, shape, least, (low, high))]


def _top(node: Node, inputs: list[Sized | None]) -> list[Sized]:
    one, wanted = needed(node, inputs, 0), needed(node, inputs, 1)
    axis = axis_of(node, node.integer("axis", -1), len(one.shape))
    if not one.shape:
        raise UnsafeModel("TopK of a single number")
    length, shape, least = one.shape[axis], list(one.shape), list(one.least)
    shape[axis] = int(max(0.0, min(length, wanted.span[1])))
    least[axis] = min(shape[axis], least[axis]) if wanted.known is not None else 0
    return [plain(one.elem, shape, least, one.span), plain(INT64, shape, least, (0, length))]


def _transpose(node: Node, inputs: list[Sized | None]) -> list[Sized]:
    one = needed(node, inputs, 0)
    order = certain(node, inputs, len(inputs), "perm") or list(range(len(one.shape)))[::-1]
    if sorted(order) != list(range(len(one.shape))):
        raise UnsafeModel(f"Transpose of {len(one.shape)} axes by {order}")
    shape, least = ([of[place] for place in order] for of in (one.shape, one.least))
    return [plain(one.elem, shape, least, one.span)]


def _product(node: Node, inputs: list[Sized | None]) -> list[Sized]:
    a, b = needed(node, inputs, 0), needed(node, inputs, 1)
    if not a.shape or not b.shape:
        raise UnsafeModel("MatMul of a single number")
    made = []
    for one, other, widest in ((a.shape, b.shape, broadcast), (a.least, b.least, broadcast_least)):
        left, right = (1, *one) if len(one) == 1 else one, (*other, 1) if len(other) == 1 else other
        ends = left[-2:-1] * (len(one) > 1) + right[-1:] * (len(other) > 1)
        made.append((*widest(left[:-2], right[:-2]), *ends))
    return [plain(a.elem, made[0], made[1])]


def _gemm(node: Node, inputs: list[Sized | None]) -> list[Sized]:
    a, b = needed(node, inputs, 0), needed(node, inputs, 1)
    if len(a.shape) != 2 or len(b.shape) != 2:
        raise UnsafeModel("Gemm of values that are no matrices")
    row, column = int(node.integer("transA", 0) != 0), int(node.integer("transB", 0) == 0)
    return [plain(a.elem, (a.shape[row], b.shape[column]), (a.least[row], b.least[column]))]


def _constant(node: Node, inputs: list[Sized | None]) -> list[Sized]:
    tensor = read_tensor(node.attributes["value"].fields["t"][0]) if node.has("value") else None
    if tensor is None or tensor.elem not in ELEMENT_BYTES:
        raise UnsafeModel("Constant that is no tensor of numbers")
    return [stored(tensor.elem, tuple(int(d or 0) for d in tensor.shape), tensor.values)]


def _linear(node: Node, inputs: list[Sized | None]) -> list[Sized]:
    """`LinearClassifier`: as many weights as columns times classes."""
    rows, many = needed(node, inputs, 0), node.count("intercepts")
    columns = rows.shape[1] if len(rows.shape) == 2 and rows.least[1] == rows.shape[1] else -1
    if many < 1 or node.count("coefficients") != many * columns:
        raise UnsafeModel(f"{node.kind} has {node.count('coefficients')} weights of {many} for rows {list(rows.shape)}")
    labels = len(node.integers("classlabels_ints"))
    if labels != max(many, 2):
        raise UnsafeModel(f"{node.kind} has {labels} labels for {many} classes")
    scores = plain(FLOAT, (rows.shape[0], labels), (rows.least[0], labels))
    return [plain(INT64, rows.shape[:1], rows.least[:1]), scores]


def _scaled(node: Node, inputs: list[Sized | None]) -> list[Sized]:
    """`Scaler` and `Imputer`: one constant, or one a column."""
    one = needed(node, inputs, 0)
    for name in ("offset", "scale", "imputed_value_floats"):
        if node.has(name) and node.count(name) not in (1, one.shape[-1] if one.shape else 1):
            raise UnsafeModel(f"{node.kind}: {node.count(name)} of {name} for rows {list(one.shape)}")
    if one.elem != FLOAT and node.kind.endswith("Imputer"):
        raise UnsafeModel(f"{node.kind} of element type {one.elem}; expected float32")
    return [Sized(FLOAT, one.shape, one.least)]


def work_of(node: Node, inputs: Sequence[Sized | None], outputs: Sequence[Sized]) -> int:
    """Sums of two numbers that an operator takes the time of, about."""
    made = sum(one.count for one in outputs)
    read = sum(one.count for one in inputs if one is not None)
    if node.kind in ("MatMul", "Gemm"):
        return read + made * max(*needed(node, inputs, 0).shape, 1)
    if "Linear" in node.kind:
        return read + made * max(needed(node, inputs, 0).shape[1], 1)
    weight = SORTED if node.kind == "TopK" else HEAVY if node.kind in HEAVY_KINDS else 1
    return read + weight * max(made, read)


HEAVY_KINDS = frozenset("Exp Log Pow Sigmoid Softplus Tanh Erf Sin Cos Sqrt Softmax Div Gelu Cast".split())
_ONE = "Cos Erf Exp Gelu Log Neg Reciprocal Sigmoid Sin Softmax Softplus Sqrt Tanh".split()
_MANY = "Add Clip Div Max Min Mul Pow Sub Sum Where".split()
_TRUTHS = "And Equal Greater GreaterOrEqual IsNaN Less LessOrEqual Not Or".split()
RULES: dict[str, Rule] = {
    **dict.fromkeys(_ONE, _number),
    **dict.fromkeys(_MANY, _together),
    **dict.fromkeys(_TRUTHS, _truth),
    **dict.fromkeys(("ReduceMax", "ReduceMean", "ReduceMin", "ReduceSum"), _reduce),
    "Cast": _cast,
    "Concat": _concat,
    "Constant": _constant,
    "ConstantOfShape": filled_rule,
    "Expand": expand_rule,
    "Gather": _gather,
    "Gemm": _gemm,
    "LayerNormalization": _same,
    "ai.onnx.ml.Imputer": _scaled,
    "ai.onnx.ml.LinearClassifier": _linear,
    "ai.onnx.ml.Scaler": _scaled,
    "GatherElements": _gather_elements,
    "Identity": _same,
    "MatMul": _product,
    "Range": _range,
    "Reshape": reshape_rule,
    "Shape": _shape,
    "Slice": slice_rule,
    "Split": split_rule,
    "Squeeze": squeeze_rule,
    "TopK": _top,
    "Transpose": _transpose,
    "Unsqueeze": unsqueeze_rule,
}
"""Operator -> the rule of its sizes, but for the tree ensembles (`tree_ensembles`)."""
