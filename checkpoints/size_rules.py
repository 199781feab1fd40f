"""How large each listed operator's outputs can get: rules on shapes, and on the integers that shapes are made of.

A length is an upper bound. An integer tensor carries bounds of its values, for each element while it is small. With
both, the size of everything that a graph makes is known before it runs. What no rule can bound is refused.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from metaprobe.checkpoints.errors import UnsafeModel
from metaprobe.checkpoints.graph_nodes import BOOL, ELEMENT_BYTES, FLOAT, INT32, INT64, KNOWN_VALUES, Node, read_tensor

Bounds = NDArray[np.float64]
LARGEST = 2.0**52
"""A bound beyond this is none: it is no longer exact as a double, and the integer may have overflowed."""
HEAVY, SORTED = 4, 10
"""What one number takes of an operator such as `Exp`, and of a sort, in units of a sum."""
FREE = (-math.inf, math.inf)


@dataclass(frozen=True, slots=True)
class Sized:
    """A value of the graph: its type, the most that it can hold, and of integers what they can be."""

    elem: int
    shape: tuple[int, ...]
    exact: bool = True
    """Whether the lengths are these, and not only at most these."""
    low: Bounds | None = None
    high: Bounds | None = None
    """Of integers: of the shape of the value while it is small and exact, else one number for all; None of others."""

    @property
    def count(self) -> int:
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        return self.count * ELEMENT_BYTES[self.elem]

    @property
    def span(self) -> tuple[float, float]:
        """Least and greatest integer of all."""
        if self.low is None or self.high is None:
            return FREE
        return float(self.low.min(initial=math.inf)), float(self.high.max(initial=-math.inf))

    @property
    def known(self) -> NDArray[np.int64] | None:
        """The integers where each is certain, as a list, else None."""
        if self.low is None or self.high is None or self.low.shape != self.shape or not self.exact:
            return None
        same = np.isfinite(self.low) & (self.low == self.high)
        return self.low.astype(np.int64).ravel() if same.all() else None


Rule = Callable[[Node, list[Sized | None]], list[Sized]]


class Unbounded(UnsafeModel):
    """No rule can say how large something gets."""


def integers(shape: tuple[int, ...], low: object, high: object, *, elem: int = INT64, exact: bool = True) -> Sized:
    """An integer value within bounds, an element or all together."""
    low, high = np.asarray(low, np.float64), np.asarray(high, np.float64)
    most = LARGEST if elem == INT64 else 2.0**31 - 1
    low = np.where(np.isnan(low) | (low < -most), -np.inf, np.minimum(low, most))
    high = np.where(np.isnan(high) | (high > most), np.inf, np.maximum(high, -most))
    small = exact and math.prod(shape) <= KNOWN_VALUES
    if not small or (low.shape != shape and low.shape != ()):
        low, high = low.min(initial=np.inf), high.max(initial=-np.inf)
        if low > high:  # nothing in it
            low, high = np.float64(0), np.float64(0)
    if small:
        low, high = np.broadcast_to(low, shape), np.broadcast_to(high, shape)
    return Sized(elem, shape, exact, np.asarray(low), np.asarray(high))


def plain(elem: int, shape: Sequence[int], exact: bool = True, span: tuple[float, float] = FREE) -> Sized:
    """A value of any type; integers within `span`."""
    if elem in (INT64, INT32):
        return integers(tuple(shape), *span, elem=elem, exact=exact)
    return Sized(elem, tuple(shape), exact)


def needed(node: Node, inputs: Sequence[Sized | None], place: int) -> Sized:
    if place >= len(inputs) or (found := inputs[place]) is None:
        raise UnsafeModel(f"{node.kind} has {len(inputs)} inputs; input {place} is missing")
    return found


def certain(node: Node, inputs: Sequence[Sized | None], place: int, attribute: str) -> list[int] | None:
    """Integers of an attribute, or else of an input that is known; None where neither is given."""
    if node.has(attribute):
        return [int(one) for one in node.integers(attribute)]
    if place >= len(inputs) or inputs[place] is None:
        return None
    found = needed(node, inputs, place).known
    if found is None:
        raise Unbounded(f"{node.kind}: its {attribute} depend on what is read; expected constants")
    return [int(one) for one in found]


def axis_of(node: Node, axis: int, rank: int) -> int:
    if not -rank <= axis < max(rank, 1):
        raise UnsafeModel(f"{node.kind} has axis {axis} of a value with {rank} axes")
    return axis % rank if rank else 0


def broadcast(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    """The largest length of each axis: an upper bound also where lengths are bounds."""
    rank = max(map(len, shapes), default=0)
    return tuple(max(dims) for dims in zip(*((1,) * (rank - len(s)) + s for s in shapes), strict=True))


def _same(node: Node, inputs: list[Sized | None]) -> list[Sized]:
    return [needed(node, inputs, 0)]


def _number(node: Node, inputs: list[Sized | None]) -> list[Sized]:
    """Elementwise, of one value; integers become anything."""
    one = needed(node, inputs, 0)
    if node.kind == "Neg" and one.low is not None and one.high is not None:
        return [integers(one.shape, *_not_wrapped(-one.high, -one.low), elem=one.elem, exact=one.exact)]
    return [plain(one.elem, one.shape, one.exact)]


def _truth(node: Node, inputs: list[Sized | None]) -> list[Sized]:
    given = [one for one in inputs if one is not None]
    return [Sized(BOOL, broadcast(*(one.shape for one in given)), all(one.exact for one in given))]


def _together(node: Node, inputs: list[Sized | None]) -> list[Sized]:
    """Elementwise, of several values that are broadcast; bounds of integers by the operator."""
    given = [needed(node, inputs, place) for place in range(len(inputs)) if inputs[place] is not None]
    if node.kind == "Where":
        given = given[1:]
        shape = broadcast(needed(node, inputs, 0).shape, *(one.shape for one in given))
    else:
        shape = broadcast(*(one.shape for one in given))
    exact = all(one.exact for one in inputs if one is not None)
    first = needed(node, inputs, 1 if node.kind == "Where" else 0)
    if first.low is None or node.kind in ("Pow", "Mod"):
        return [plain(first.elem, shape, exact)]
    if node.kind == "Clip":
        lows, highs = zip(*(one.span for one in given), strict=True)
        return [integers(shape, min(lows), max(highs), elem=first.elem, exact=exact)]
    if node.kind == "Div" and not needed(node, inputs, 1).span[0] >= 1:
        raise UnsafeModel("Div of integers by what may be 0 or below, which ends the process; expected 1 or more")
    fits = exact and math.prod(shape) <= KNOWN_VALUES
    parts = []
    for one in given:
        low, high = (one.low, one.high) if fits else one.span
        parts.append((np.asarray(low, np.float64), np.asarray(high, np.float64)))
    low, high = parts[0]
    with np.errstate(all="ignore"):
        for other, top in parts[1:]:
            low, high = _combined(node.kind, (low, high), (other, top))
    return [integers(shape, low, high, elem=first.elem, exact=exact)]


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
            corners = [x * y for x in a for y in b]
        case "Div":
            whole = (b[0] > 0) | (b[1] < 0)
            corners = [np.where(whole, np.trunc(x / y), np.nan) for x in a for y in b]
        case _:
            return np.float64(-np.inf), np.float64(np.inf)  # type: ignore[return-value]
    stacked = np.stack(np.broadcast_arrays(*corners))
    low, high = stacked.min(axis=0), stacked.max(axis=0)  # NaN where any corner is
    return _not_wrapped(low, high) if kind == "Mul" else (low, high)


def _not_wrapped(low: Bounds, high: Bounds) -> tuple[Bounds, Bounds]:
    """The bounds, or none where a sum or product may leave the range of integers and begin again at its other end."""
    sure = (low >= -LARGEST) & (high <= LARGEST)
    return np.where(sure, low, -np.inf), np.where(sure, high, np.inf)


def _cast(node: Node, inputs: list[Sized | None]) -> list[Sized]:
    one, to = needed(node, inputs, 0), node.integer("to", 0)
    if to not in ELEMENT_BYTES:
        raise UnsafeModel(f"Cast to element type {to}; expected a number")
    span = one.span if one.low is not None else (0.0, 1.0) if one.elem == BOOL else FREE
    if to in (INT64, INT32) and one.low is not None and one.high is not None:
        return [integers(one.shape, one.low, one.high, elem=to, exact=one.exact)]
    return [plain(to, one.shape, one.exact, span)]


def _shape(node: Node, inputs: list[Sized | None]) -> list[Sized]:
    one = needed(node, inputs, 0)
    rank = len(one.shape)
    start, end = (node.integer(name, otherwise) for name, otherwise in (("start", 0), ("end", rank)))
    start, end = (min(max(at + rank if at < 0 else at, 0), rank) for at in (start, end))
    dims = np.array(one.shape[start:end], np.float64)
    return [integers((len(dims),), dims if one.exact else np.zeros(len(dims)), dims)]


def _range(node: Node, inputs: list[Sized | None]) -> list[Sized]:
    start, limit, step = (needed(node, inputs, place) for place in range(3))
    if start.low is None:
        raise Unbounded("Range of numbers that are no integers; expected integers")
    (low, _), (_, high), (least, _) = start.span, limit.span, step.span
    if least < 1:
        raise Unbounded("Range with a step that may be below 1")
    count = max(0.0, math.ceil((high - low) / least)) if math.isfinite(high - low) else math.inf
    exact = all(one.known is not None for one in (start, limit, step))
    return [integers((_length(node, count),), low, max(high, low), elem=start.elem, exact=exact)]


def _length(node: Node, count: float) -> int:
    if not math.isfinite(count):
        raise Unbounded(f"{node.kind}: the size depends on what is read, without a bound")
    return int(count)


def _concat(node: Node, inputs: list[Sized | None]) -> list[Sized]:
    given = [needed(node, inputs, place) for place in range(len(inputs))]
    first = needed(node, inputs, 0)
    rank = len(first.shape)
    if any(len(one.shape) != rank for one in given) or not node.has("axis") or not rank:
        raise UnsafeModel("Concat of values with different numbers of axes, or without an axis")
    axis = axis_of(node, node.integer("axis", 0), rank)
    shape = [max(dims) for dims in zip(*(one.shape for one in given), strict=True)]
    shape[axis] = sum(one.shape[axis] for one in given)
    exact = all(one.exact for one in given)
    if first.low is None:
        return [plain(first.elem, shape, exact)]
    if exact and rank == 1 and shape[0] <= KNOWN_VALUES:
        low, high = (np.concatenate([np.asarray(getattr(one, name)) for one in given]) for name in ("low", "high"))
        return [integers(tuple(shape), low, high, elem=first.elem)]
    spans = [one.span for one in given if one.count]
    span = (min(s[0] for s in spans), max(s[1] for s in spans)) if spans else (0.0, 0.0)
    return [integers(tuple(shape), *span, elem=first.elem, exact=exact)]


def _reshaped(one: Sized, shape: Sequence[int]) -> Sized:
    """The same elements in another shape of the same number of elements."""
    if one.low is None or one.high is None:
        return Sized(one.elem, tuple(shape), one.exact)
    if one.exact and one.low.shape == one.shape and math.prod(shape) == one.count:
        low, high = one.low.reshape(shape), one.high.reshape(shape)
        return integers(tuple(shape), low, high, elem=one.elem)
    return integers(tuple(shape), *one.span, elem=one.elem, exact=one.exact)


def _unsqueeze(node: Node, inputs: list[Sized | None]) -> list[Sized]:
    one = needed(node, inputs, 0)
    axes = certain(node, inputs, 1, "axes") or []
    rank = len(one.shape) + len(axes)
    places = {axis_of(node, axis, rank) for axis in axes}
    rest = iter(one.shape)
    if len(places) != len(axes):
        raise UnsafeModel("Unsqueeze names an axis twice")
    return [_reshaped(one, [1 if place in places else next(rest) for place in range(rank)])]


def _squeeze(node: Node, inputs: list[Sized | None]) -> list[Sized]:
    one = needed(node, inputs, 0)
    axes = certain(node, inputs, 1, "axes")
    if axes is None:
        raise Unbounded("Squeeze without axes")
    gone = {axis_of(node, axis, len(one.shape)) for axis in axes}
    return [_reshaped(one, [length for place, length in enumerate(one.shape) if place not in gone])]


def _reshape(node: Node, inputs: list[Sized | None]) -> list[Sized]:
    one, wanted = needed(node, inputs, 0), needed(node, inputs, 1)
    if wanted.low is None or wanted.high is None or len(wanted.shape) != 1 or wanted.low.shape != wanted.shape:
        raise Unbounded("Reshape to a shape of unknown rank")
    shape, sure, free = [], one.exact, []
    for place, (low, high) in enumerate(zip(wanted.low.tolist(), wanted.high.tolist(), strict=True)):
        kept = one.shape[place] if place < len(one.shape) and not node.integer("allowzero", 0) else 0
        if low == high == 0:
            shape.append(kept)
        elif low == high == -1:
            free.append(place)
            shape.append(1)
        elif low == high and low > 0:
            shape.append(int(low))
        else:  # a copied or a left over length is among what it can be
            shape.append(int(min(max(high, kept, one.count if low < 0 else 0), max(one.count, 1))))
            sure = False
    if len(free) > 1:
        raise UnsafeModel("Reshape with two lengths left open")
    if free:
        rest = (
            math.prod(shape)
            if sure
            else math.prod(int(v) for v in (wanted.known if wanted.known is not None else ()) if v > 0)
        )
        shape[free[0]] = -(-one.count // max(rest, 1))
    return [_reshaped(Sized(one.elem, one.shape, sure, one.low, one.high), shape)]


def _expand(node: Node, inputs: list[Sized | None]) -> list[Sized]:
    one, wanted = needed(node, inputs, 0), needed(node, inputs, 1)
    return [
        plain(one.elem, broadcast(one.shape, _asked(node, wanted)), one.exact and wanted.known is not None, one.span)
    ]


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
    return [plain(elem, _asked(node, wanted), wanted.known is not None, span)]


def _asked(node: Node, wanted: Sized) -> tuple[int, ...]:
    """The largest shape that a value can ask for."""
    if wanted.high is None or len(wanted.shape) != 1 or wanted.high.shape != wanted.shape:
        raise Unbounded(f"{node.kind} to a shape of unknown rank")
    return tuple(max(_length(node, high), 0) for high in wanted.high.tolist())


def _slice(node: Node, inputs: list[Sized | None]) -> list[Sized]:
    one, starts, ends = (needed(node, inputs, place) for place in range(3))
    rank = len(one.shape)
    axes = certain(node, inputs, 3, "axes") or list(range(starts.count))
    steps = certain(node, inputs, 4, "steps") or [1] * len(axes)
    if any(x.low is None or x.low.shape != (len(axes),) for x in (starts, ends)) or len(steps) != len(axes):
        raise Unbounded("Slice by starts or ends of unknown number")
    shape, exact, picks = list(one.shape), one.exact, [slice(None)] * rank
    for place, (axis, step) in enumerate(zip(axes, steps, strict=True)):
        at = axis_of(node, axis, rank)
        (low, high), (least, most) = (
            (float(x.low[place]), float(x.high[place]))  # type: ignore[index]
            for x in (starts, ends)
        )
        sure = one.exact and low == high and least == most and step != 0
        if sure:
            picks[at] = slice(int(low), int(least) if step > 0 or least >= -shape[at] else None, step)
            shape[at] = len(range(*picks[at].indices(shape[at])))
        else:
            exact = False
            if low >= 0 and least >= 0:
                shape[at] = int(max(0.0, min(shape[at], most - low)))
    if one.low is not None and one.high is not None and one.low.shape == one.shape and exact:
        return [integers(tuple(shape), one.low[tuple(picks)], one.high[tuple(picks)], elem=one.elem)]
    return [plain(one.elem, shape, exact, one.span)]


def _split(node: Node, inputs: list[Sized | None]) -> list[Sized]:
    one = needed(node, inputs, 0)
    axis = axis_of(node, node.integer("axis", 0), len(one.shape))
    sizes = certain(node, inputs, 1, "split")
    many = len(node.outputs)
    if sizes is None:
        sizes = [-(-one.shape[axis] // many)] * many
    if len(sizes) != many or any(size < 0 for size in sizes):
        raise UnsafeModel(f"Split into {len(sizes)} parts and {many} outputs")
    cut = [(*one.shape[:axis], min(size, one.shape[axis]), *one.shape[axis + 1 :]) for size in sizes]
    return [plain(one.elem, shape, one.exact, one.span) for shape in cut]


def _gather(node: Node, inputs: list[Sized | None]) -> list[Sized]:
    one, at = needed(node, inputs, 0), needed(node, inputs, 1)
    axis = axis_of(node, node.integer("axis", 0), len(one.shape))
    shape = (*one.shape[:axis], *at.shape, *one.shape[axis + 1 :])
    exact = one.exact and at.exact
    if one.low is not None and one.high is not None and one.low.shape == one.shape and len(one.shape) == 1:
        if (places := at.known) is not None and all(-len(one.low) <= p < len(one.low) for p in places):
            low, high = one.low[places].reshape(at.shape), one.high[places].reshape(at.shape)
            return [integers(shape, low, high, elem=one.elem)]
    return [plain(one.elem, shape, exact, one.span)]


def _gather_elements(node: Node, inputs: list[Sized | None]) -> list[Sized]:
    one, at = needed(node, inputs, 0), needed(node, inputs, 1)
    return [plain(one.elem, at.shape, at.exact, one.span)]


def _reduce(node: Node, inputs: list[Sized | None]) -> list[Sized]:
    one = needed(node, inputs, 0)
    axes = certain(node, inputs, 1, "axes")
    rank, kept = len(one.shape), node.integer("keepdims", 1)
    if not axes and node.integer("noop_with_empty_axes", 0):
        return [one]
    gone = {axis_of(node, axis, rank) for axis in axes} if axes else set(range(rank))
    shape = [1 if place in gone else length for place, length in enumerate(one.shape) if kept or place not in gone]
    low, high = one.span
    if node.kind == "ReduceSum":
        times = math.prod(one.shape[place] for place in gone)
        low, high = min(low * times, 0.0), max(high * times, 0.0)
        low, high = (low, high) if low >= -LARGEST and high <= LARGEST else FREE
    elif node.kind not in ("ReduceMax", "ReduceMin"):
        low, high = FREE
    return [plain(one.elem, shape, one.exact, (low, high))]


def _top(node: Node, inputs: list[Sized | None]) -> list[Sized]:
    one, wanted = needed(node, inputs, 0), needed(node, inputs, 1)
    axis = axis_of(node, node.integer("axis", -1), len(one.shape))
    length = one.shape[axis] if one.shape else 1
    shape = list(one.shape)
    if shape:
        shape[axis] = int(max(0.0, min(length, wanted.span[1])))
    exact = one.exact and wanted.known is not None
    return [plain(one.elem, shape, exact, one.span), plain(INT64, shape, exact, (0, length))]


def _transpose(node: Node, inputs: list[Sized | None]) -> list[Sized]:
    one = needed(node, inputs, 0)
    order = certain(node, inputs, 9, "perm") or list(range(len(one.shape)))[::-1]
    if sorted(order) != list(range(len(one.shape))):
        raise UnsafeModel(f"Transpose of {len(one.shape)} axes by {order}")
    return [plain(one.elem, [one.shape[place] for place in order], one.exact, one.span)]


def _product(node: Node, inputs: list[Sized | None]) -> list[Sized]:
    a, b = needed(node, inputs, 0), needed(node, inputs, 1)
    if not a.shape or not b.shape:
        raise UnsafeModel("MatMul of a single number")
    left, right = (1, *a.shape) if len(a.shape) == 1 else a.shape, (*b.shape, 1) if len(b.shape) == 1 else b.shape
    shape = (*broadcast(left[:-2], right[:-2]), left[-2], right[-1])
    if len(b.shape) == 1:
        shape = shape[:-1]
    if len(a.shape) == 1:
        shape = (*shape[:-2], *shape[-1:]) if len(b.shape) > 1 else ()
    return [plain(a.elem, shape, a.exact and b.exact)]


def _constant(node: Node, inputs: list[Sized | None]) -> list[Sized]:
    tensor = read_tensor(node.attributes["value"].fields["t"][0]) if node.has("value") else None
    if tensor is None or tensor.elem not in ELEMENT_BYTES:
        raise UnsafeModel("Constant that is no tensor of numbers")
    return [stored(tensor.elem, tuple(int(d or 0) for d in tensor.shape), tensor.values)]


def stored(elem: int, shape: tuple[int, ...], values: tuple[int, ...] | None) -> Sized:
    """A tensor of the file."""
    if values is not None and math.prod(shape) == len(values):
        each = np.array(values, np.float64).reshape(shape)
        return integers(shape, each, each, elem=elem)
    return plain(elem, shape)


def _gemm(node: Node, inputs: list[Sized | None]) -> list[Sized]:
    a, b = needed(node, inputs, 0), needed(node, inputs, 1)
    if len(a.shape) != 2 or len(b.shape) != 2:
        raise UnsafeModel("Gemm of values that are no matrices")
    rows, columns = a.shape[node.integer("transA", 0) != 0], b.shape[node.integer("transB", 0) == 0]
    return [plain(a.elem, (rows, columns), a.exact and b.exact)]


def _normalised(node: Node, inputs: list[Sized | None]) -> list[Sized]:
    one = needed(node, inputs, 0)
    return [one] * len(node.outputs)


def _linear(node: Node, inputs: list[Sized | None]) -> list[Sized]:
    """`LinearClassifier` and `LinearRegressor`: as many weights as columns times numbers that come out."""
    rows = needed(node, inputs, 0)
    classes = node.kind.endswith("Classifier")
    many = node.count("intercepts") if classes else node.integer("targets", 1)
    if len(rows.shape) != 2 or many < 1 or node.count("coefficients") != many * rows.shape[1] or not rows.exact:
        raise UnsafeModel(f"{node.kind} has {node.count('coefficients')} weights of {many} for rows {list(rows.shape)}")
    if not classes:
        if node.count("intercepts") not in (0, many):
            raise UnsafeModel(f"{node.kind} has {node.count('intercepts')} intercepts for {many} targets")
        return [Sized(FLOAT, (rows.shape[0], many))]
    labels = len(node.integers("classlabels_ints"))
    if labels != max(many, 2):
        raise UnsafeModel(f"{node.kind} has {labels} labels for {many} classes")
    return [plain(INT64, (rows.shape[0],)), Sized(FLOAT, (rows.shape[0], labels))]


def _scaled(node: Node, inputs: list[Sized | None]) -> list[Sized]:
    """`Scaler`, `Imputer` and `Normalizer`: one constant, or one a column."""
    one = needed(node, inputs, 0)
    for name in ("offset", "scale", "imputed_value_floats"):
        if node.has(name) and node.count(name) not in (1, one.shape[-1] if one.shape else 1):
            raise UnsafeModel(f"{node.kind}: {node.count(name)} of {name} for rows {list(one.shape)}")
    if one.elem != FLOAT and node.kind.endswith("Imputer"):
        raise UnsafeModel(f"{node.kind} of element type {one.elem}; expected float32")
    return [Sized(FLOAT, one.shape, one.exact)]


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
    "LayerNormalization": _normalised,
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
