"""Refuses graphs that would take too much memory or time, before they run: by the sizes of everything they make.

What is known of a value before the graph runs: the least and the greatest of each length, and bounds of its integers,
element by element while it is small, for shapes are made of these. Each operator has a rule that bounds its outputs.
What no rule can bound is refused.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metaprobe.checkpoints.errors import UnsafeModel
from metaprobe.checkpoints.onnx_guard import ADAPTER
from metaprobe.checkpoints.onnx_wire import (
    BOOL,
    ELEMENT_BYTES,
    FLOAT,
    INT32,
    INT64,
    KNOWN_VALUES,
    Graph,
    Node,
    dims_for,
    read_tensor,
)

Bounds = NDArray[np.float64]
LARGEST = 2.0**52
"""A bound beyond this is none: it is no longer exact as a double, and the integer may have overflowed."""
FREE = (-math.inf, math.inf)
Lengths = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Sized:
    """A value of the graph: its type, how much it can hold, and of integers what they can be."""

    elem: int
    shape: Lengths
    """Lengths, at most."""
    least: Lengths
    """Lengths, at least."""
    low: Bounds | None = None
    high: Bounds | None = None
    """Bounds of the integers: in the shape of the value while it is small and exact, else one number for all elements.
    None for a value of another type."""

    @property
    def exact(self) -> bool:
        """Whether the lengths are certain."""
        return self.least == self.shape

    @property
    def count(self) -> int:
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        return self.count * ELEMENT_BYTES[self.elem]

    @property
    def span(self) -> tuple[float, float]:
        """Least and greatest integer of all."""
        if self.low is None or self.high is None or not self.low.size:
            return FREE if self.low is None else (0.0, 0.0)
        return float(self.low.min()), float(self.high.max())

    @property
    def each(self) -> tuple[Bounds, Bounds] | None:
        """Bounds element by element, where they are known so."""
        if self.low is None or self.high is None or self.low.shape != self.shape or not self.exact:
            return None
        return self.low, self.high

    @property
    def known(self) -> NDArray[np.int64] | None:
        """The integers where each is certain, as a list, else None."""
        if (each := self.each) is None or not (np.isfinite(each[0]) & (each[0] == each[1])).all():
            return None
        return each[0].astype(np.int64).ravel()


class Unbounded(UnsafeModel):
    """No rule can say how large something gets."""


def integers(
    shape: Lengths, lowest: Any, highest: Any, *, elem: int = INT64, least: Sequence[int] | None = None
) -> Sized:
    """An integer value within bounds, an element or all together. `least`: lengths, by default certain."""
    fewest = shape if least is None else tuple(least)
    low, high = np.asarray(lowest, np.float64), np.asarray(highest, np.float64)
    most = LARGEST if elem == INT64 else 2.0**31 - 1
    low = np.where(np.isnan(low) | (low < -most), -np.inf, np.minimum(low, most))
    high = np.where(np.isnan(high) | (high > most), np.inf, np.maximum(high, -most))
    small = fewest == shape and math.prod(shape) <= KNOWN_VALUES
    if not small or low.shape not in (shape, ()) or high.shape not in (shape, ()):
        some = bool(low.size and high.size)
        low, high = np.asarray(low.min() if some else 0.0), np.asarray(high.max() if some else 0.0)
    if small:
        low, high = np.broadcast_to(low, shape), np.broadcast_to(high, shape)
    return Sized(elem, shape, fewest, low, high)


def plain(
    elem: int, shape: Sequence[int], least: Sequence[int] | None = None, span: tuple[float, float] = FREE
) -> Sized:
    """A value of any type; integers within `span`. `least`: lengths, by default certain."""
    if elem in (INT64, INT32):
        return integers(tuple(shape), *span, elem=elem, least=least)
    return Sized(elem, tuple(shape), tuple(shape if least is None else least))


def stored(elem: int, shape: Lengths, values: tuple[int, ...] | None) -> Sized:
    """A tensor of the file."""
    if values is not None and math.prod(shape) == len(values):
        each = np.array(values, np.float64).reshape(shape)
        return integers(shape, each, each, elem=elem)
    return plain(elem, shape)


def needed(node: Node, inputs: Sequence[Sized | None], place: int) -> Sized:
    if place >= len(inputs) or (value := inputs[place]) is None:
        raise UnsafeModel(f"{node.kind} has {len(inputs)} inputs; input {place} is missing")
    return value


def certain(node: Node, inputs: Sequence[Sized | None], place: int, attribute: str) -> list[int] | None:
    """Integers of an attribute, or else of an input that is known; None where neither is given."""
    if node.has(attribute):
        given = node.integers(attribute)
        if len(given) > KNOWN_VALUES:
            raise UnsafeModel(f"{node.kind} has {len(given)} {attribute}; expected at most {KNOWN_VALUES}")
        return [int(one) for one in given]
    if place >= len(inputs) or inputs[place] is None:
        return None
    numbers = needed(node, inputs, place).known
    if numbers is None:
        raise Unbounded(f"{node.kind}: its {attribute} depend on what is read; expected constants")
    return [int(one) for one in numbers]


def axis_of(node: Node, axis: int, rank: int) -> int:
    if not -rank <= axis < max(rank, 1):
        raise UnsafeModel(f"{node.kind} has axis {axis} of a value with {rank} axes")
    return axis % rank if rank else 0


def broadcast(*shapes: Lengths) -> Lengths:
    """Returns the largest length of each axis: an upper bound also where lengths are bounds."""
    return tuple(max(dims) for dims in _aligned(shapes))


def broadcast_least(*shapes: Lengths) -> Lengths:
    """Returns the least length of each axis: 0 goes before 1."""
    return tuple(0 if 0 in dims else max(dims) for dims in _aligned(shapes))


def _aligned(shapes: Sequence[Lengths]) -> Iterable[Lengths]:
    """Returns the lengths of all shapes axis by axis, aligned at their last axes."""
    rank = max(map(len, shapes), default=0)
    return zip(*((1,) * (rank - len(s)) + s for s in shapes), strict=True)


def length_of(node: Node, count: float) -> int:
    """A bound as a length. Raises `Unbounded` where there is none."""
    if not math.isfinite(count):
        raise Unbounded(f"{node.kind}: the size depends on what is read, without a bound")
    return math.ceil(count)


def _reshaped(one: Sized, shape: Sequence[int], least: Sequence[int]) -> Sized:
    """The same elements in another shape of the same number of elements."""
    if (each := one.each) and tuple(shape) == tuple(least) and math.prod(shape) == one.count:
        return integers(tuple(shape), each[0].reshape(shape), each[1].reshape(shape), elem=one.elem)
    return plain(one.elem, shape, least, one.span)


def unsqueeze_rule(node: Node, inputs: list[Sized | None]) -> list[Sized]:
    one = needed(node, inputs, 0)
    axes = certain(node, inputs, 1, "axes") or []
    rank = len(one.shape) + len(axes)
    places = {axis_of(node, axis, rank) for axis in axes}
    if len(places) != len(axes):
        raise UnsafeModel("Unsqueeze names an axis twice")
    rest = iter(zip(one.shape, one.least, strict=True))
    pairs = [(1, 1) if place in places else next(rest) for place in range(rank)]
    return [_reshaped(one, [most for most, _ in pairs], [fewest for _, fewest in pairs])]


def squeeze_rule(node: Node, inputs: list[Sized | None]) -> list[Sized]:
    one = needed(node, inputs, 0)
    axes = certain(node, inputs, 1, "axes")
    if axes is None and not one.exact:
        raise Unbounded("Squeeze without axes of a value whose lengths are not certain")
    ones = [place for place, length in enumerate(one.shape) if length == 1]
    gone = {axis_of(node, axis, len(one.shape)) for axis in (ones if axes is None else axes)}
    shape, least = ([n for place, n in enumerate(of) if place not in gone] for of in (one.shape, one.least))
    return [_reshaped(one, shape, least)]


def reshape_rule(node: Node, inputs: list[Sized | None]) -> list[Sized]:
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


def expand_rule(node: Node, inputs: list[Sized | None]) -> list[Sized]:
    one, wanted = needed(node, inputs, 0), needed(node, inputs, 1)
    asked = _asked(node, wanted)
    least = broadcast_least(one.least, asked if wanted.known is not None else (0,) * len(asked))
    return [plain(one.elem, broadcast(one.shape, asked), least, one.span)]


def filled_rule(node: Node, inputs: list[Sized | None]) -> list[Sized]:
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
    return tuple(max(length_of(node, high), 0) for high in each[1].tolist())


def slice_rule(node: Node, inputs: list[Sized | None]) -> list[Sized]:
    one, starts, ends = (needed(node, inputs, place) for place in range(3))
    rank = len(one.shape)
    first, last = starts.each, ends.each
    if first is None or last is None:  # looked at first: their number may be any
        raise Unbounded("Slice by starts or ends of unknown number")
    axes = certain(node, inputs, 3, "axes") or list(range(starts.count))
    steps = certain(node, inputs, 4, "steps") or [1] * len(axes)
    if not len(axes) == len(steps) == len(first[0]) == len(last[0]):
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
        # The axis has an uncertain length, or the cut an uncertain place: at most the whole axis is left.
        forwards = low >= 0 and end >= 0 and step == 1
        fewest = min(least[at], end) - high if forwards and math.isfinite(high) else 0
        shape[at] = int(max(0.0, min(shape[at], most - low))) if forwards else shape[at]
        least[at] = int(min(max(0.0, fewest), shape[at]))
    if (each := one.each) and shape == least:
        return [integers(tuple(shape), each[0][tuple(cuts)], each[1][tuple(cuts)], elem=one.elem)]
    return [plain(one.elem, shape, least, one.span)]


def split_rule(node: Node, inputs: list[Sized | None]) -> list[Sized]:
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


HEAVY, SORTED = 4, 10
"""Cost of one number in an operator such as `Exp`, and in a sort, in units of a sum."""

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
    "Unsqueeze": unsqueeze_rule,
}
"""Operator -> the rule of its sizes, but for the tree ensembles."""


MODES = frozenset((b"LEAF", b"BRANCH_LEQ", b"BRANCH_LT", b"BRANCH_GTE", b"BRANCH_GT", b"BRANCH_EQ", b"BRANCH_NEQ"))
DEEPEST = 512
"""Levels of a tree. LightGBM's deepest of 31 leaves has 30."""
TARGETS = 1024
"""Numbers that an ensemble gives for a row; ours give one."""
STEP = 5
"""Cost of one step down a tree, in units of a sum."""


@dataclass(frozen=True, slots=True)
class Ensemble:
    """The size of a tree ensemble and its work for one row."""

    features: int
    """One more than the last column that is read."""
    targets: int
    """Numbers that it gives."""
    steps: int
    """Steps down all trees together, at most."""


def read_ensemble(node: Node) -> Ensemble:
    """Returns what a `TreeEnsembleRegressor` or `TreeEnsembleClassifier` does. Raises `UnsafeModel` for no trees.

    Every node but a tree's first has one parent in the same tree, so that no way down is without end. Columns, targets
    and the nodes that carry weights are held to what there is: the runtime looks them up unchecked.
    """
    kind = "target" if node.kind.endswith("Regressor") else "class"
    trees, ids, features, true, false = (
        node.integers(f"nodes_{name}") for name in ("treeids", "nodeids", "featureids", "truenodeids", "falsenodeids")
    )
    count, modes = len(ids), node.texts("nodes_modes")
    lengths = {len(one) for one in (trees, ids, features, true, false, modes)} | {node.count("nodes_values")}
    if lengths != {count} or not count:
        raise UnsafeModel(f"{node.kind}: the lists of nodes have {sorted(lengths)} entries; expected one number")
    if not set(modes) <= MODES:
        raise UnsafeModel(f"{node.kind} has nodes of modes other than {', '.join(sorted(m.decode() for m in MODES))}")
    for name in ("hitrates", "missing_value_tracks_true"):
        many = node.count("nodes_hitrates") if name == "hitrates" else len(node.integers(f"nodes_{name}"))
        if many not in (0, count):
            raise UnsafeModel(f"{node.kind}: nodes_{name} has {many} entries of {count}")
    numbers = (ids, features, trees, true, false, *(node.integers(f"{kind}_{name}") for name in ("treeids", "nodeids")))
    if any(len(one) and (one.min() < 0 or one.max() >= 1 << 31) for one in numbers):
        raise UnsafeModel(f"{node.kind} has a negative or huge number of a node, a tree or a feature")
    if np.count_nonzero(np.diff(trees)) != len(np.unique(trees)) - 1:  # on which the runtime ends the process
        raise UnsafeModel(f"{node.kind} has a tree whose nodes do not stand together")
    keys = trees << 32 | ids
    order = np.argsort(keys, kind="stable")
    if (np.diff(keys[order]) == 0).any():
        raise UnsafeModel(f"{node.kind} has a node twice")
    branch = np.fromiter((mode != b"LEAF" for mode in modes), bool, count)
    targets = _targets(node, kind, keys[order])
    steps = _steps(node, keys, order, branch, trees, true, false)
    return Ensemble(int(features[branch].max(initial=-1)) + 1, targets, steps)


def _targets(node: Node, kind: str, sorted_keys: NDArray[np.int64]) -> int:
    """How many numbers it gives; its weights stand at nodes that exist, for targets that exist."""
    trees, ids, targets = (node.integers(f"{kind}_{name}") for name in ("treeids", "nodeids", "ids"))
    if len({len(trees), len(ids), len(targets), node.count(f"{kind}_weights")}) != 1:
        raise UnsafeModel(f"{node.kind}: the lists of weights differ in length")
    labels = len(node.integers("classlabels_int64s"))
    many = node.integer("n_targets", 1) if kind == "target" else labels
    if many > TARGETS:
        raise UnsafeModel(f"{node.kind} gives {many} numbers a row; at most {TARGETS}")
    if many < 1 or (len(targets) and not 0 <= targets.min() <= targets.max() < many):
        raise UnsafeModel(f"{node.kind} gives {many} numbers, and has weights for others")
    if node.count("base_values") not in (0, many, 1):
        raise UnsafeModel(f"{node.kind}: {node.count('base_values')} base values of {many}")
    wanted = trees << 32 | ids
    if (
        len(wanted)
        and not (sorted_keys[np.searchsorted(sorted_keys, wanted).clip(max=len(sorted_keys) - 1)] == wanted).all()
    ):
        raise UnsafeModel(f"{node.kind} has weights at nodes that do not exist")
    return many


def _steps(
    node: Node,
    keys: NDArray[np.int64],
    order: NDArray[np.intp],
    branch: NDArray[np.bool_],
    trees: NDArray[np.int64],
    true: NDArray[np.int64],
    false: NDArray[np.int64],
) -> int:
    """Levels of all trees together, from the nodes without a parent down."""
    sorted_keys = keys[order]
    children = np.concatenate([trees[branch] << 32 | true[branch], trees[branch] << 32 | false[branch]])
    at = np.searchsorted(sorted_keys, children).clip(max=len(keys) - 1)
    parents = np.zeros(len(keys), np.int64)
    places = order[at]
    if len(children):
        if (sorted_keys[at] != children).any():
            raise UnsafeModel(f"{node.kind} has a branch to a node that does not exist in its tree")
        parents = np.bincount(places, minlength=len(keys))
    if (parents > 1).any():
        raise UnsafeModel(f"{node.kind} has a node with two parents; expected trees")
    roots = np.flatnonzero(parents == 0)
    if len(np.unique(trees[roots])) != len(roots):
        raise UnsafeModel(f"{node.kind} has a tree with two first nodes")
    down = np.full((2, len(keys)), -1, np.int64)
    down[:, branch] = places.reshape(2, -1)
    level, seen, steps = roots, 0, 0
    for _ in range(DEEPEST):
        if not len(level):
            break
        seen, steps = seen + len(level), steps + len(np.unique(trees[level]))
        level = down[:, level[branch[level]]].ravel()
    if len(level) or seen != len(keys):  # what was not reached is a circle, for every node has one parent at most
        raise UnsafeModel(f"{node.kind} has nodes in a circle, or trees of more than {DEEPEST} levels; expected trees")
    return steps


def ensemble_sizes(node: Node, ensemble: Ensemble, inputs: list[Sized | None]) -> list[Sized]:
    """Sizes of what an ensemble gives for these rows."""
    rows = needed(node, inputs, 0)
    if len(rows.shape) != 2 or rows.least[1] < ensemble.features:
        raise UnsafeModel(
            f"{node.kind} reads {ensemble.features} features of rows of shape {list(rows.shape)}; expected as many"
        )
    numbers = plain(FLOAT, (rows.shape[0], ensemble.targets), (rows.least[0], ensemble.targets))
    return [numbers] if node.kind.endswith("Regressor") else [plain(INT64, rows.shape[:1], rows.least[:1]), numbers]


MEMORY = 256 << 20
"""Bytes of everything that a graph makes for its golden rows, all counted as if nothing were ever freed. The bundled
graphs make less than one megabyte."""
WORK = 500_000_000
"""Sums of two numbers for its golden rows: some tenths of a second on one core."""
ROOM, ROOM_OF_ADAPTER = 4, 64
"""Bytes more for each byte of the file: a language model casts its weights, and fills many layers."""
SUMS = 4
"""Sums more for each byte of the file and row, of a language model each token up to `TOKENS` of them."""
TOKENS = 1 << 14
MOST_ELEMENTS = 1 << 60
"""Elements of a value whose bound is still a number to reckon with. Bounds beyond it multiply to integers of Python
that themselves fill the memory; what the checks below let through stays under 2**55 bytes."""
FEW, MANY = 2**4, 2**20
"""Rows for which memory is compared: it may grow as they do, and no faster."""
SHORT, LONG = 2**6, 2**14
"""Tokens, or alternatives, likewise; of a language model it may grow as their square."""
SLACK = 4
DEEPEST_RANK = 16
"""Most axes of a value; an exporter writes five. Every rule takes time for each axis."""

_ENSEMBLES = frozenset({"ai.onnx.ml.TreeEnsembleRegressor", "ai.onnx.ml.TreeEnsembleClassifier"})


def check_growth(graph: Graph, kind: str | None) -> None:
    """Raises `UnsafeModel` where a few rows take too much, memory grows faster than they do, or trees are no trees.

    Of a language model (None may be one) it may grow as the square of the lengths.
    """
    for place, node in enumerate(graph.nodes):
        if node.kind in _ENSEMBLES:
            graph.trees[place] = read_ensemble(node)
    degree = 2 if kind in (ADAPTER, None) else 1
    base = check_sizes(graph, dims_for(graph, (FEW, SHORT)), kind, "a few rows")
    rows = sizes_of(graph, dims_for(graph, (MANY, SHORT)))[0]
    if rows > SLACK * (MANY // FEW) * base + MEMORY:
        raise UnsafeModel(
            f"the model makes {rows >> 20} MB for {MANY} rows and {base >> 10} kB for {FEW}; expected memory to grow "
            "as the rows do"
        )
    longer = sizes_of(graph, dims_for(graph, (FEW, LONG)))[0]
    if longer > SLACK * (LONG // SHORT) ** degree * base + MEMORY:
        raise UnsafeModel(
            f"the model makes {longer >> 20} MB for lengths of {LONG} and {base >> 10} kB for {SHORT}; expected memory "
            f"to grow as {'their square' if degree == 2 else 'they do'}"
        )


def check_sizes(graph: Graph, shapes: Mapping[str, tuple[int, ...]], kind: str | None, what: str) -> int:
    """Returns the bytes that a graph makes of inputs of these shapes, at most, and all together.

    Raises `UnsafeModel` where memory or time is too much for `what` the inputs are.
    """
    memory, work = sizes_of(graph, shapes)
    language = kind in (ADAPTER, None)
    rows = max([1, *(shape[0] for shape in shapes.values() if shape)])
    tokens = min(max([1, *(math.prod(shape) for shape in shapes.values())]), TOKENS) if language else min(rows, FEW)
    most = MEMORY + (ROOM_OF_ADAPTER if language else ROOM) * graph.bytes
    if memory > most or work > WORK + SUMS * graph.bytes * tokens:
        raise UnsafeModel(
            f"the model needs more than {MEMORY >> 20} MB or {WORK:,} sums for {what}: it makes up to "
            f"{memory >> 20} MB in {work:,} sums"
        )
    return memory


def sizes_of(graph: Graph, shapes: Mapping[str, tuple[int, ...]]) -> tuple[int, int]:
    """Bytes of everything that a graph makes of inputs of these shapes, and sums of two numbers, at most.

    Raises `UnsafeModel` where there is no bound.
    """
    values: dict[str, Sized] = {
        name: stored(tensor.elem, tuple(int(length or 0) for length in tensor.shape), tensor.values)
        for name, tensor in graph.weights.items()
    }
    if ranks := [len(one.shape) for one in values.values() if len(one.shape) > DEEPEST_RANK]:
        raise UnsafeModel(f"a weight has {ranks[0]} axes; at most {DEEPEST_RANK}")
    for name, tensor in graph.inputs.items():
        values[name] = plain(tensor.elem, shapes[name])
    memory = work = 0
    for place, node in enumerate(graph.nodes):
        inputs = [values[name] if name else None for name in node.inputs]
        ensemble = graph.trees.get(place)
        made = _made(node, inputs, ensemble)
        if len(made) < len(node.outputs):
            raise UnsafeModel(f"{node.kind} has {len(node.outputs)} outputs; expected at most {len(made)}")
        for name, value in zip(node.outputs, made, strict=False):
            if len(value.shape) > DEEPEST_RANK:
                raise UnsafeModel(f"{node.kind} makes a value of {len(value.shape)} axes; at most {DEEPEST_RANK}")
            if value.count > MOST_ELEMENTS:
                raise UnsafeModel(f"{node.kind} makes a value of more than {MOST_ELEMENTS} elements")
            values[name] = value
            memory += value.bytes
        work += work_of(node, inputs, made)
        if ensemble is not None and inputs[0] is not None:
            work += STEP * ensemble.steps * inputs[0].shape[0]
    return memory, work


def _made(node: Node, inputs: list[Sized | None], ensemble: Ensemble | None) -> list[Sized]:
    try:
        return RULES[node.kind](node, inputs) if ensemble is None else ensemble_sizes(node, ensemble, inputs)
    except UnsafeModel:
        raise
    except (IndexError, ValueError, OverflowError) as error:
        raise UnsafeModel(f"operator {node.kind}: its inputs do not fit together ({error})") from error
