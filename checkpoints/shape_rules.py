"""The rules of operators that give values another shape: what they are asked for is itself a value of the graph."""

import math
from collections.abc import Sequence

from metaprobe.checkpoints.errors import UnsafeModel
from metaprobe.checkpoints.graph_nodes import ELEMENT_BYTES, FLOAT, Node, read_tensor
from metaprobe.checkpoints.size_bounds import (
    FREE,
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
)


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
        # Of an axis of uncertain length, or a cut at an uncertain place: as much as there is, at most.
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
