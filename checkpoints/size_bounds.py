"""What is known of a value of a graph before it runs: bounds of its lengths, and of the integers in it.

A length has a least and a greatest value. An integer tensor carries bounds of its values, for each element while it is
small, for shapes are made of these.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metaprobe.checkpoints.errors import UnsafeModel
from metaprobe.checkpoints.graph_nodes import ELEMENT_BYTES, INT32, INT64, KNOWN_VALUES, Node

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
    """Of integers: of the shape of the value while it is small and exact, else one number for all; None of others."""

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
    if place >= len(inputs) or (found := inputs[place]) is None:
        raise UnsafeModel(f"{node.kind} has {len(inputs)} inputs; input {place} is missing")
    return found


def certain(node: Node, inputs: Sequence[Sized | None], place: int, attribute: str) -> list[int] | None:
    """Integers of an attribute, or else of an input that is known; None where neither is given."""
    if node.has(attribute):
        given = node.integers(attribute)
        if len(given) > KNOWN_VALUES:
            raise UnsafeModel(f"{node.kind} has {len(given)} {attribute}; expected at most {KNOWN_VALUES}")
        return [int(one) for one in given]
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


def broadcast(*shapes: Lengths) -> Lengths:
    """The largest length of each axis: an upper bound also where lengths are bounds."""
    rank = max(map(len, shapes), default=0)
    return tuple(max(dims) for dims in zip(*((1,) * (rank - len(s)) + s for s in shapes), strict=True))


def broadcast_least(*shapes: Lengths) -> Lengths:
    """The least length of each axis: 0 goes before 1."""
    rank = max(map(len, shapes), default=0)
    padded = zip(*((1,) * (rank - len(s)) + s for s in shapes), strict=True)
    return tuple(0 if 0 in dims else max(dims) for dims in padded)


def length_of(node: Node, count: float) -> int:
    """A bound as a length. Raises `Unbounded` where there is none."""
    if not math.isfinite(count):
        raise Unbounded(f"{node.kind}: the size depends on what is read, without a bound")
    return math.ceil(count)
