"""How large each listed operator's outputs can get: one rule an operator, on bounds of lengths and of integers.

What no rule can bound is refused.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np

from metaprobe.checkpoints.errors import UnsafeModel
from metaprobe.checkpoints.graph_nodes import BOOL, ELEMENT_BYTES, FLOAT, INT32, INT64, Node, read_tensor
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
    length = _length(node, max(0.0, (high - low) / least))
    sure = all(one.known is not None for one in (start, limit, step))
    return [integers((length,), low, max(high, low), elem=start.elem, least=(length if sure else 0,))]


def _length(node: Node, count: float) -> int:
    if not math.isfinite(count):
        raise Unbounded(f"{node.kind}: the size depends on what is read, without a bound")
    return math.ceil(count)


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


def _reshaped(one: Sized, shape: Sequence[int], least: Sequence[int]) -> Sized:
    """The same elements in another shape of the same number of elements."""
    if (each := one.each) and tuple(shape) == tuple(least) and math.prod(shape) == one.count:
        return integers(tuple(shape), each[0].reshape(shape), each[1].reshape(shape), elem=one.elem)
    return plain(one.elem, shape, least, one.span)


def _unsqueeze(node: Node, inputs: list[Sized | None]) -> list[Sized]:
    one = needed(node, inputs, 0)
    axes = certain(node, inputs, 1, "axes") or []
    rank = len(one.shape) + len(axes)
    places = {axis_of(node, axis, rank) for axis in axes}
    if len(places) != len(axes):
        raise UnsafeModel("Unsqueeze names an axis twice")
    rest = iter(zip(one.shape, one.least, strict=True))
    pairs = [(1, 1) if place in places else next(rest) for place in range(rank)]
    return [_reshaped(one, [most for most, _ in pairs], [fewest for _, fewest in pairs])]


def _squeeze(node: Node, inputs: list[Sized | None]) -> list[Sized]:
    one = needed(node, inputs, 0)
    axes = certain(node, inputs, 1, "axes")
    if axes is None:
        raise Unbounded("Squeeze without axes")
    gone = {axis_of(node, axis, len(one.shape)) for axis in axes}
    shape, least = ([n for place, n in enumerate(of) if place not in gone] for of in (one.shape, one.least))
    return [_reshaped(one, shape, least)]


def _reshape(node: Node, inputs: list[Sized | None]) -> list[Sized]:
    one, wanted = needed(node, inputs, 0), needed(node, inputs, 1)
    if len(wanted.shape) != 1 or (each := wanted.each) is None:
        raise Unbounded("Reshape to a shape of unknown rank")
    shape: list[int] = []
    least: list[int] = []
    free = []
    for place, (low, high) in enumerate(zip(each[0].tolist(), each[1].tolist(), strict=True)):
        if low == high == 0:
            copied = place < len(one.shape) and not node.integer("allowzero", 0)
            shape.append(one.shape[place] if copied else 0)
            least.append(one.least[place] if copied else 0)
        elif low == high and low > 0:
            shape.append(int(low))
            least.append(int(low))
        else:  # what is left over, or one of many: no length exceeds the number of elements
            if low == high:
                free.append(place)
            shape.append(max(one.count, 1))
            least.append(0)
    if len(free) > 1:
        raise UnsafeModel("Reshape with two lengths left open")
    if free:
        (open_,) = free
        rest = math.prod(n for place, n in enumerate(least) if place != open_)
        shape[open_] = -(-one.count // rest) if rest else one.count
        if one.exact and shape[:open_] + shape[open_ + 1 :] == least[:open_] + least[open_ + 1 :]:
            least[open_] = shape[open_]
    return [_reshaped(one, shape, least)]


def _expand(node: Node, inputs: list[Sized | None]) -> list[Sized]:
    one, wanted = needed(node, inputs, 0), needed(node, inputs, 1)
    asked = _asked(node, wanted)
    least = broadcast_least(one.least, asked if wanted.known is not None else (0,) * len(asked))
    return [plain(one.elem, broadcast(one.shape, asked), least, one.span)]


def _filled(node: Node, inputs: list[Sized | None]) -> list[Sized]:
    wanted = needed(node, inputs, 0)
    elem, span = FLOAT, FREE
    if node.has("value"):
        tensor = read_tensor(node.attributes["value"].fields["t"][0])
        elem = tensor.elem
        if tensor.values:
            span = (float(min(tensor.values)), float(max(tensor.values)))
    if elem not in ELEMENT_BYTES:
        raise UnsafeModel(f"ConstantOfShape of element type {elem}; expected a number")
    shape = _asked(node, wanted)
    return [plain(elem, shape, shape if wanted.known is not None else (0,) * len(shape), span)]


def _asked(node: Node, wanted: Sized) -> Lengths:
    """The largest shape that a value can ask for."""
    if len(wanted.shape) != 1 or (each := wanted.each) is None:
        raise Unbounded(f"{node.kind} to a shape of unknown rank")
    return tuple(max(_length(node, high), 0) for high in each[1].tolist())


def _slice(node: Node, inputs: list[Sized | None]) -> list[Sized]:
    one, starts, ends = (needed(node, inputs, place) for place in range(3))
    rank = len(one.shape)
    axes = certain(node, inputs, 3, "axes") or list(range(starts.count))
    steps = certain(node, inputs, 4, "steps") or [1] * len(axes)
    first, last = starts.each, ends.each
    if first is None or last is None or not len(axes) == len(steps) == len(first[0]) == len(last[0]):
        raise Unbounded("Slice by starts or ends of unknown number")
    shape, least, cuts = list(one.shape), list(one.least), [slice(None)] * rank
    for place, (axis, step) in enumerate(zip(axes, steps, strict=True)):
        at = axis_of(node, axis, rank)
        low, high, end, most = (float(bound[place]) for bound in (*first, *last))
        if low == high and end == most and step and shape[at] == least[at]:
            stop = None if step < 0 and end < -shape[at] else int(end)
            cuts[at] = slice(int(low), stop, step)
            shape[at] = least[at] = len(range(*cuts[at].indices(shape[at])))
            continue
        # Of an axis of uncertain length, or a cut at an uncertain place: as much as there is, at most.
        forwards = low >= 0 and end >= 0 and step == 1
        fewest = min(least[at], end) - high if forwards and math.isfinite(high) else 0
        shape[at] = int(max(0.0, min(shape[at], most - low))) if forwards else shape[at]
        least[at] = int(min(max(0.0, fewest), shape[at]))
    if (each := one.each) and shape == least:
        return [integers(tuple(shape), each[0][tuple(cuts)], each[1][tuple(cuts)], elem=one.elem)]
    return [plain(one.elem, shape, least, one.span)]


def _split(node: Node, inputs: list[Sized | None]) -> list[Sized]:
    one, many = needed(node, inputs, 0), len(node.outputs)
    axis = axis_of(node, node.integer("axis", 0), len(one.shape))
    sizes = certain(node, inputs, 1, "split")
    if sizes is not None and (len(sizes) != many or any(size < 0 for size in sizes)):
        raise UnsafeModel(f"Split into {len(sizes)} parts and {many} outputs")
    parts = [(-(-one.shape[axis] // many), 0)] * many if sizes is None else [(size, size) for size in sizes]
    return [
        plain(
            one.elem,
            (*one.shape[:axis], most, *one.shape[axis + 1 :]),
            (*one.least[:axis], fewest, *one.least[axis + 1 :]),
            one.span,
        )
        for most, fewest in parts
    ]


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
    """`LinearClassifier` and `LinearRegressor`: as many weights as columns times numbers that come out."""
    rows = needed(node, inputs, 0)
    classes = node.kind.endswith("Classifier")
    many = node.count("intercepts") if classes else node.integer("targets", 1)
    columns = rows.shape[1] if len(rows.shape) == 2 and rows.least[1] == rows.shape[1] else -1
    if many < 1 or node.count("coefficients") != many * columns:
        raise UnsafeModel(f"{node.kind} has {node.count('coefficients')} weights of {many} for rows {list(rows.shape)}")
    if not classes:
        if node.count("intercepts") not in (0, many):
            raise UnsafeModel(f"{node.kind} has {node.count('intercepts')} intercepts for {many} targets")
        return [plain(FLOAT, (rows.shape[0], many), (rows.least[0], many))]
    labels = len(node.integers("classlabels_ints"))
    if labels != max(many, 2):
        raise UnsafeModel(f"{node.kind} has {labels} labels for {many} classes")
    scores = plain(FLOAT, (rows.shape[0], labels), (rows.least[0], labels))
    return [plain(INT64, rows.shape[:1], rows.least[:1]), scores]


def _scaled(node: Node, inputs: list[Sized | None]) -> list[Sized]:
    """`Scaler`, `Imputer` and `Normalizer`: one constant, or one a column."""
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
    "ConstantOfShape": _filled,
    "Expand": _expand,
    "Gather": _gather,
    "Gemm": _gemm,
    "LayerNormalization": _same,
    "ai.onnx.ml.Imputer": _scaled,
    "ai.onnx.ml.LinearClassifier": _linear,
    "ai.onnx.ml.LinearRegressor": _linear,
    "ai.onnx.ml.Normalizer": _scaled,
    "ai.onnx.ml.Scaler": _scaled,
    "GatherElements": _gather_elements,
    "Identity": _same,
    "MatMul": _product,
    "Range": _range,
    "Reshape": _reshape,
    "Shape": _shape,
    "Slice": _slice,
    "Split": _split,
    "Squeeze": _squeeze,
    "TopK": _top,
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
}
"""Operator -> the rule of its sizes, but for the tree ensembles (`tree_ensembles`)."""
