"""Refuses graphs that would take too much memory or time before they run, by the sizes of all values that they compute.

A graph is walked for inputs of given shapes. Each operator has a rule for the lengths of its outputs. Some operators
compute shapes from small integers (`Shape`, `Concat`, `Mul`, ...). These integers are computed as well, if they do not
depend on the input data. A size that depends on the input data is refused: our exporters write no such graph.

Lengths must be exact wherever the runtime does not stop with an error. An overestimated length would make a difference
of two lengths too small, and the next shape may be computed from that difference.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metaprobe.checkpoints.checkpoint_errors import UnsafeModel
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

Lengths = tuple[int, ...]
MAX_RANGE_BOUND = 2**52
"""Largest bound of a `Range`. Beyond it, the runtime's difference of two bounds may overflow."""
WHOLE_NUMBER_TYPES = {INT64: np.int64, INT32: np.int32, BOOL: np.bool_}
"""Maps element types whose values are computed here to the NumPy type that computes as the runtime does."""


@dataclass(frozen=True, slots=True)
class Sized:
    """A value of the graph: its type, its lengths, and its numbers if they are few, integers or truths, and known."""

    elem: int
    shape: Lengths
    known_values: NDArray[Any] | None = None
    """Integers or truths, in the shape of the value; None if they are not known."""

    @property
    def count(self) -> int:
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        return self.count * ELEMENT_BYTES[self.elem]


def sized(elem: int, shape: Iterable[int], known_values: NDArray[Any] | None = None) -> Sized:
    """Returns a value, with its numbers only if they are few.

    Args:
        elem: ONNX type of the elements.
        shape: the shape.
        known_values: the numbers, if they are known.
    """
    is_small = known_values is not None and known_values.size <= KNOWN_VALUES
    return Sized(elem, tuple(shape), known_values if is_small else None)


def stored(elem: int, shape: Lengths, values: tuple[int, ...] | None) -> Sized:
    """Returns a tensor of the file as a value.

    Args:
        elem: ONNX type of the elements.
        shape: the shape.
        values: the numbers, if they are few.
    """
    if values is None or elem not in WHOLE_NUMBER_TYPES or math.prod(shape) != len(values):
        return Sized(elem, shape)
    return sized(elem, shape, np.array(values, WHOLE_NUMBER_TYPES[elem]).reshape(shape))


def needed(node: Node, inputs: Sequence[Sized | None], index: int) -> Sized:
    """Returns the input at this index. Raises `UnsafeModel` if it is missing."""
    if index >= len(inputs) or (value := inputs[index]) is None:
        raise UnsafeModel(f"{node.kind} has {len(inputs)} inputs; input {index} is missing")
    return value


def certain(node: Node, inputs: Sequence[Sized | None], index: int, attribute: str) -> list[int] | None:
    """Returns the integers of an attribute, or else of a known input; None if there is neither.

    Args:
        node: the operator.
        inputs: values of its inputs.
        index: index of the input.
        attribute: name of the attribute.
    """
    if node.has(attribute):
        integers = node.integers(attribute)
        if len(integers) > KNOWN_VALUES:
            raise UnsafeModel(f"{node.kind} has {len(integers)} {attribute}; expected at most {KNOWN_VALUES}")
        return [int(integer) for integer in integers]
    if index >= len(inputs) or inputs[index] is None:
        return None
    return _integers(node, inputs, index, attribute)


def _integers(node: Node, inputs: Sequence[Sized | None], index: int, name: str) -> list[int]:
    """Returns the integers of an input. Raises `UnsafeModel` if they depend on the input data.

    Args:
        node: the operator.
        inputs: values of its inputs.
        index: index of the input.
        name: name of the integers in errors.
    """
    value = needed(node, inputs, index)
    if value.known_values is None or value.elem == BOOL:
        raise UnsafeModel(f"{node.kind}: its {name} depend on what is read; expected what shapes and constants give")
    return [int(integer) for integer in value.known_values.ravel()]


def axis_of(node: Node, axis: int, rank: int) -> int:
    """Returns the axis counted from the first. Raises `UnsafeModel` if a value of this rank does not have it."""
    if not -rank <= axis < max(rank, 1):
        raise UnsafeModel(f"{node.kind} has axis {axis} of a value with {rank} axes")
    return axis % rank if rank else 0


def broadcast(*shapes: Lengths) -> Lengths:
    """Returns the length of each axis of shapes that are aligned at their last axes. A length 0 counts before 1."""
    rank = max(map(len, shapes), default=0)
    return tuple(
        0 if 0 in dims else max(dims) for dims in zip(*((1,) * (rank - len(s)) + s for s in shapes), strict=True)
    )


def _reshaped(tensor: Sized, shape: Sequence[int]) -> list[Sized]:
    """Returns the tensor in another shape, with its known values if their number fits."""
    fits = tensor.known_values is not None and tensor.known_values.size == math.prod(shape)
    return [
        sized(
            tensor.elem, shape, tensor.known_values.reshape(shape) if fits and tensor.known_values is not None else None
        )
    ]


def unsqueeze_rule(node: Node, inputs: list[Sized | None]) -> list[Sized]:
    tensor = needed(node, inputs, 0)
    axes = certain(node, inputs, 1, "axes") or []
    rank = len(tensor.shape) + len(axes)
    added_axes = {axis_of(node, axis, rank) for axis in axes}
    if len(added_axes) != len(axes):
        raise UnsafeModel("Unsqueeze names an axis twice")
    remaining_lengths = iter(tensor.shape)
    return _reshaped(tensor, [1 if axis in added_axes else next(remaining_lengths) for axis in range(rank)])


def squeeze_rule(node: Node, inputs: list[Sized | None]) -> list[Sized]:
    tensor = needed(node, inputs, 0)
    axes = certain(node, inputs, 1, "axes")
    ones = [axis for axis, length in enumerate(tensor.shape) if length == 1]
    removed_axes = {axis_of(node, axis, len(tensor.shape)) for axis in (ones if axes is None else axes)}
    return _reshaped(tensor, [length for axis, length in enumerate(tensor.shape) if axis not in removed_axes])


def reshape_rule(node: Node, inputs: list[Sized | None]) -> list[Sized]:
    tensor, shape = needed(node, inputs, 0), _integers(node, inputs, 1, "lengths")
    if not node.integer("allowzero", 0):
        shape = [
            tensor.shape[axis] if length == 0 and axis < len(tensor.shape) else length
            for axis, length in enumerate(shape)
        ]
    open_axes = [axis for axis, length in enumerate(shape) if length < 0]
    if len(open_axes) > 1:
        raise UnsafeModel("Reshape with two lengths left open")
    for open_axis in open_axes:  # where it does not divide, the runtime stops
        shape[open_axis] = tensor.count // max(
            math.prod(length for axis, length in enumerate(shape) if axis != open_axis), 1
        )
    return _reshaped(tensor, shape)


def expand_rule(node: Node, inputs: list[Sized | None]) -> list[Sized]:
    tensor, lengths = needed(node, inputs, 0), _requested_lengths(node, inputs, 1)
    shape = broadcast(tensor.shape, lengths)
    is_small = tensor.known_values is not None and math.prod(shape) <= KNOWN_VALUES
    return [
        sized(
            tensor.elem,
            shape,
            np.broadcast_to(tensor.known_values, shape) if is_small and tensor.known_values is not None else None,
        )
    ]


def filled_rule(node: Node, inputs: list[Sized | None]) -> list[Sized]:
    tensor = read_tensor(node.attributes["value"].fields["t"][0]) if node.has("value") else None
    elem, shape = FLOAT if tensor is None else tensor.elem, _requested_lengths(node, inputs, 0)
    if elem not in ELEMENT_BYTES:
        raise UnsafeModel(f"ConstantOfShape of element type {elem}; expected a number")
    is_small_whole = tensor is not None and elem in WHOLE_NUMBER_TYPES and math.prod(shape) <= KNOWN_VALUES
    numbers = tensor.values if tensor is not None and is_small_whole else None
    return [sized(elem, shape, np.full(shape, numbers[0], WHOLE_NUMBER_TYPES[elem]) if numbers else None)]


def _requested_lengths(node: Node, inputs: Sequence[Sized | None], index: int) -> Lengths:
    return tuple(max(length, 0) for length in _integers(node, inputs, index, "lengths"))


def slice_rule(node: Node, inputs: list[Sized | None]) -> list[Sized]:
    tensor = needed(node, inputs, 0)
    starts, ends = (_integers(node, inputs, index, "places") for index in (1, 2))
    axes = certain(node, inputs, 3, "axes") or list(range(len(starts)))
    steps = certain(node, inputs, 4, "steps") or [1] * len(axes)
    if not len(axes) == len(steps) == len(starts) == len(ends) or min(steps, default=1) < 1:
        raise UnsafeModel(f"Slice of {len(axes)} axes by {len(starts)} starts, {len(ends)} ends and steps {steps}")
    shape, cuts = list(tensor.shape), [slice(None)] * len(tensor.shape)
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        index = axis_of(node, axis, len(shape))
        cuts[index] = slice(start, end, step)
        shape[index] = len(range(*cuts[index].indices(tensor.shape[index])))
    return [sized(tensor.elem, shape, None if tensor.known_values is None else tensor.known_values[tuple(cuts)])]


def split_rule(node: Node, inputs: list[Sized | None]) -> list[Sized]:
    tensor, output_count = needed(node, inputs, 0), len(node.outputs)
    axis = axis_of(node, node.integer("axis", 0), len(tensor.shape))
    sizes = certain(node, inputs, 1, "split")
    parts = [tensor.shape[axis] // output_count] * output_count if sizes is None else sizes
    if len(parts) != output_count or sum(parts) != tensor.shape[axis] or min(parts, default=0) < 0:
        raise UnsafeModel(f"Split of {tensor.shape[axis]} into {parts[:8]} and {output_count} outputs")
    return [sized(tensor.elem, (*tensor.shape[:axis], part, *tensor.shape[axis + 1 :])) for part in parts]


HEAVY_COST = 4
"""Cost of one number in an operator such as `Exp`, relative to a sum."""

SizeRule = Callable[[Node, list[Sized | None]], list[Sized]]


def _same_shape(node: Node, inputs: list[Sized | None]) -> list[Sized]:
    return [needed(node, inputs, 0)]


def _elementwise(node: Node, inputs: list[Sized | None]) -> list[Sized]:
    """Returns the sizes of an operator on one value, or on several values that are broadcast."""
    operands = [operand for operand in inputs if operand is not None]
    first = needed(node, inputs, int(node.kind == "Where"))
    if node.kind == "Div" and first.elem in WHOLE_NUMBER_TYPES:
        divisor = needed(node, inputs, 1).known_values
        if divisor is None or not (divisor >= 1).all():
            raise UnsafeModel("Div of integers by what may be 0 or below, which ends the process; expected 1 or more")
    shape, compute = broadcast(*(operand.shape for operand in operands)), INTEGER_FUNCTIONS.get(node.kind)
    numbers = [operand.known_values for operand in operands if operand.known_values is not None]
    is_small = len(numbers) == len(operands) and math.prod(shape) <= KNOWN_VALUES
    with np.errstate(all="ignore"):  # it wraps as the runtime's integers do
        computed = np.asarray(compute(*numbers)) if compute is not None and is_small else None
    return [sized(BOOL if node.kind in BOOLEAN_OPERATORS else first.elem, shape, computed)]


def _cast(node: Node, inputs: list[Sized | None]) -> list[Sized]:
    tensor, to = needed(node, inputs, 0), node.integer("to", 0)
    if to not in ELEMENT_BYTES:
        raise UnsafeModel(f"Cast to element type {to}; expected a number")
    return [
        sized(
            to,
            tensor.shape,
            tensor.known_values.astype(WHOLE_NUMBER_TYPES[to])
            if tensor.known_values is not None and to in WHOLE_NUMBER_TYPES
            else None,
        )
    ]


def _shape(node: Node, inputs: list[Sized | None]) -> list[Sized]:
    tensor = needed(node, inputs, 0)
    rank = len(tensor.shape)
    begin, end = (node.integer(name, otherwise) for name, otherwise in (("start", 0), ("end", rank)))
    begin, end = (min(max(index + rank if index < 0 else index, 0), rank) for index in (begin, end))
    lengths = tensor.shape[begin:end]
    return [sized(INT64, (len(lengths),), np.array(lengths, np.int64))]


def _range(node: Node, inputs: list[Sized | None]) -> list[Sized]:
    start, limit, step = (_integers(node, inputs, index, "bounds")[0] for index in range(3))
    if step < 1 or max(abs(start), abs(limit)) > MAX_RANGE_BOUND:
        raise UnsafeModel(f"Range from {start} to {limit} by {step}; expected a step of at least 1")
    length, elem = max(0, -((start - limit) // step)), needed(node, inputs, 0).elem
    is_small = length <= KNOWN_VALUES
    return [
        sized(elem, (length,), start + step * np.arange(length, dtype=WHOLE_NUMBER_TYPES[elem]) if is_small else None)
    ]


def _concat(node: Node, inputs: list[Sized | None]) -> list[Sized]:
    operands = [needed(node, inputs, index) for index in range(len(inputs))]
    first = needed(node, inputs, 0)
    rank = len(first.shape)
    if any(len(operand.shape) != rank for operand in operands) or not node.has("axis") or not rank:
        raise UnsafeModel("Concat of values with different numbers of axes, or without an axis")
    axis = axis_of(node, node.integer("axis", 0), rank)
    shape = list(first.shape)
    shape[axis] = sum(operand.shape[axis] for operand in operands)
    if any(
        operand.shape[:axis] + operand.shape[axis + 1 :] != first.shape[:axis] + first.shape[axis + 1 :]
        for operand in operands
    ):
        raise UnsafeModel("Concat of values whose other lengths differ")
    numbers = [operand.known_values for operand in operands if operand.known_values is not None]
    is_small = len(numbers) == len(operands) and math.prod(shape) <= KNOWN_VALUES
    return [sized(first.elem, shape, np.concatenate(numbers, axis) if is_small else None)]


def _gather(node: Node, inputs: list[Sized | None]) -> list[Sized]:
    tensor, indices = needed(node, inputs, 0), needed(node, inputs, 1)
    axis = axis_of(node, node.integer("axis", 0), len(tensor.shape))
    gathered = (
        np.take(tensor.known_values, indices.known_values, axis)
        if tensor.known_values is not None and indices.known_values is not None
        else None
    )
    return [sized(tensor.elem, (*tensor.shape[:axis], *indices.shape, *tensor.shape[axis + 1 :]), gathered)]


def _gather_elements(node: Node, inputs: list[Sized | None]) -> list[Sized]:
    return [sized(needed(node, inputs, 0).elem, needed(node, inputs, 1).shape)]


def _reduce(node: Node, inputs: list[Sized | None]) -> list[Sized]:
    tensor = needed(node, inputs, 0)
    axes = certain(node, inputs, 1, "axes")
    rank, keeps_axes = len(tensor.shape), node.integer("keepdims", 1)
    if not axes and node.integer("noop_with_empty_axes", 0):
        return [tensor]
    reduced_axes = {axis_of(node, axis, rank) for axis in axes} if axes else set(range(rank))
    lengths = [
        1 if axis in reduced_axes else length
        for axis, length in enumerate(tensor.shape)
        if keeps_axes or axis not in reduced_axes
    ]
    return [sized(tensor.elem, lengths)]


def _transpose(node: Node, inputs: list[Sized | None]) -> list[Sized]:
    tensor = needed(node, inputs, 0)
    order = certain(node, inputs, len(inputs), "perm") or list(range(len(tensor.shape)))[::-1]
    if sorted(order) != list(range(len(tensor.shape))):
        raise UnsafeModel(f"Transpose of {len(tensor.shape)} axes by {order}")
    return [sized(tensor.elem, [tensor.shape[axis] for axis in order])]


def _product(node: Node, inputs: list[Sized | None]) -> list[Sized]:
    a, b = needed(node, inputs, 0).shape, needed(node, inputs, 1).shape
    if not a or not b:
        raise UnsafeModel(f"{node.kind} of a single number")
    ends = a[-2:-1] + (b[-1:] if len(b) > 1 else ())
    elem = INT32 if node.kind == "MatMulInteger" else needed(node, inputs, 0).elem
    return [sized(elem, (*broadcast(a[:-2], b[:-2]), *ends))]


def _gemm(node: Node, inputs: list[Sized | None]) -> list[Sized]:
    a, b = needed(node, inputs, 0), needed(node, inputs, 1)
    if len(a.shape) != 2 or len(b.shape) != 2:
        raise UnsafeModel("Gemm of values that are no matrices")
    row, column = int(node.integer("transA", 0) != 0), int(node.integer("transB", 0) == 0)
    return [sized(a.elem, (a.shape[row], b.shape[column]))]


def _constant(node: Node, inputs: list[Sized | None]) -> list[Sized]:
    tensor = read_tensor(node.attributes["value"].fields["t"][0]) if node.has("value") else None
    if tensor is None or tensor.elem not in ELEMENT_BYTES:
        raise UnsafeModel("Constant that is no tensor of numbers")
    return [stored(tensor.elem, tuple(int(d or 0) for d in tensor.shape), tensor.values)]


def _linear(node: Node, inputs: list[Sized | None]) -> list[Sized]:
    """Returns the sizes of `LinearClassifier`, which has as many weights as columns times classes."""
    rows, class_count = needed(node, inputs, 0), node.count("intercepts")
    columns = rows.shape[1] if len(rows.shape) == 2 else -1
    if class_count < 1 or node.count("coefficients") != class_count * columns:
        raise UnsafeModel(
            f"{node.kind} has {node.count('coefficients')} weights of {class_count} for rows {list(rows.shape)}"
        )
    label_count = len(node.integers("classlabels_ints"))
    if label_count != max(class_count, 2):
        raise UnsafeModel(f"{node.kind} has {label_count} labels for {class_count} classes")
    return [sized(INT64, rows.shape[:1]), sized(FLOAT, (rows.shape[0], label_count))]


def _scaled(node: Node, inputs: list[Sized | None]) -> list[Sized]:
    """Returns the sizes of `Scaler` and `Imputer`, which have one constant, or one for each column."""
    tensor = needed(node, inputs, 0)
    for name in ("offset", "scale", "imputed_value_floats"):
        if node.has(name) and node.count(name) not in (1, tensor.shape[-1] if tensor.shape else 1):
            raise UnsafeModel(f"{node.kind}: {node.count(name)} of {name} for rows {list(tensor.shape)}")
    if tensor.elem != FLOAT and node.kind.endswith("Imputer"):
        raise UnsafeModel(f"{node.kind} of element type {tensor.elem}; expected float32")
    return [Sized(FLOAT, tensor.shape)]


def work_of(node: Node, inputs: Sequence[Sized | None], outputs: Sequence[Sized]) -> int:
    """Returns the work of an operator: about how many sums of two numbers take as much time.

    Args:
        node: the operator.
        inputs: values of its inputs.
        outputs: values of its outputs.
    """
    numbers_made = sum(value.count for value in outputs)
    numbers_read = sum(value.count for value in inputs if value is not None)
    if node.kind in ("MatMul", "MatMulInteger", "Gemm"):
        return numbers_read + numbers_made * max(*needed(node, inputs, 0).shape, 1)
    if "Linear" in node.kind:
        return numbers_read + numbers_made * max(needed(node, inputs, 0).shape[1], 1)
    weight = HEAVY_COST if node.kind in HEAVY_OPERATORS else 1
    return numbers_read + weight * max(numbers_made, numbers_read)


HEAVY_OPERATORS = frozenset("Exp Log Pow Sigmoid Softplus Tanh Erf Sin Cos Sqrt Softmax Div Gelu Cast".split())
_NUMERIC_OPERATORS = (
    "Abs Add Clip Cos Div Erf Exp Gelu Log Max Min Mul Neg Pow Reciprocal Sigmoid Sin Softmax Softplus Sqrt Sub Sum "
    "Tanh"
)
BOOLEAN_OPERATORS = frozenset("And Equal Greater GreaterOrEqual IsNaN Less LessOrEqual Not Or".split())
INTEGER_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "Add": np.add,
    "Sum": lambda *numbers: reduce(np.add, numbers),
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Div": lambda a, b: a // b + ((a < 0) & (a % b != 0)),  # towards zero
    "Min": lambda *numbers: reduce(np.minimum, numbers),
    "Max": lambda *numbers: reduce(np.maximum, numbers),
    "Neg": np.negative,
    "Where": np.where,
    "And": np.logical_and,
    "Or": np.logical_or,
    "Not": np.logical_not,
    "Equal": np.equal,
    "Greater": np.greater,
    "GreaterOrEqual": np.greater_equal,
    "Less": np.less,
    "LessOrEqual": np.less_equal,
}
"""Maps an operator to the function that computes its integers or truths."""
RULES: dict[str, SizeRule] = {
    **dict.fromkeys((*_NUMERIC_OPERATORS.split(), "Where", *BOOLEAN_OPERATORS), _elementwise),
    **dict.fromkeys(("ReduceMax", "ReduceMean", "ReduceSum"), _reduce),
    "Cast": _cast,
    "Concat": _concat,
    "Constant": _constant,
    "ConstantOfShape": filled_rule,
    "Expand": expand_rule,
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "Gemm": _gemm,
    "LayerNormalization": _same_shape,
    "ai.onnx.ml.Imputer": _scaled,
    "ai.onnx.ml.LinearClassifier": _linear,
    "ai.onnx.ml.Scaler": _scaled,
    "Identity": _same_shape,
    "MatMul": _product,
    "MatMulInteger": _product,
    "Range": _range,
    "Reshape": reshape_rule,
    "Shape": _shape,
    "Slice": slice_rule,
    "Split": split_rule,
    "Squeeze": squeeze_rule,
    "Transpose": _transpose,
    "Unsqueeze": unsqueeze_rule,
}
"""Maps an operator to the rule of its sizes; tree ensembles are not included."""


TREE_NODE_MODES = frozenset(
    (b"LEAF", b"BRANCH_LEQ", b"BRANCH_LT", b"BRANCH_GTE", b"BRANCH_GT", b"BRANCH_EQ", b"BRANCH_NEQ")
)
MAX_TREE_LEVELS = 512
"""Most levels of a tree. LightGBM's deepest of 31 leaves has 30."""
MAX_TARGETS = 1024
"""Most numbers that an ensemble gives for a row; ours give one."""
TREE_STEP_COST = 5
"""Cost of one step down a tree, relative to a sum."""


@dataclass(frozen=True, slots=True)
class Ensemble:
    """The size of a tree ensemble and its work for one row."""

    features: int
    """Index after the last column that is read."""
    targets: int
    """Number of outputs of the ensemble for one row."""
    steps: int
    """Most steps that one row takes from the roots to the leaves, summed over all trees."""


def read_ensemble(node: Node) -> Ensemble:
    """Returns the size of a `TreeEnsembleRegressor` or `TreeEnsembleClassifier`. Raises `UnsafeModel` if they are no
    trees.

    Every node except a tree's first has one parent in the same tree, so no path is endless. Columns, targets and nodes
    with weights must exist, because the runtime does not check them.
    """
    # One entry for each node in every list.
    kind = "target" if node.kind.endswith("Regressor") else "class"
    tree_ids, node_ids, feature_ids, true_children, false_children = (
        node.integers(f"nodes_{name}") for name in ("treeids", "nodeids", "featureids", "truenodeids", "falsenodeids")
    )
    node_count, modes = len(node_ids), node.texts("nodes_modes")
    lengths = {len(column) for column in (tree_ids, node_ids, feature_ids, true_children, false_children, modes)} | {
        node.count("nodes_values")
    }
    if lengths != {node_count} or not node_count:
        raise UnsafeModel(f"{node.kind}: the lists of nodes have {sorted(lengths)} entries; expected one number")
    if not set(modes) <= TREE_NODE_MODES:
        raise UnsafeModel(
            f"{node.kind} has nodes of modes other than {', '.join(sorted(m.decode() for m in TREE_NODE_MODES))}"
        )
    for name in ("hitrates", "missing_value_tracks_true"):
        entry_count = node.count("nodes_hitrates") if name == "hitrates" else len(node.integers(f"nodes_{name}"))
        if entry_count not in (0, node_count):
            raise UnsafeModel(f"{node.kind}: nodes_{name} has {entry_count} entries of {node_count}")
    # Numbers of nodes and trees that the runtime can hold, each node once.
    numbers = (
        node_ids,
        feature_ids,
        tree_ids,
        true_children,
        false_children,
        *(node.integers(f"{kind}_{name}") for name in ("treeids", "nodeids")),
    )
    if any(len(column) and (column.min() < 0 or column.max() >= 1 << 31) for column in numbers):
        raise UnsafeModel(f"{node.kind} has a negative or huge number of a node, a tree or a feature")
    if np.count_nonzero(np.diff(tree_ids)) != len(np.unique(tree_ids)) - 1:  # on which the runtime ends the process
        raise UnsafeModel(f"{node.kind} has a tree whose nodes do not stand together")
    keys = tree_ids << 32 | node_ids
    order = np.argsort(keys, kind="stable")
    if (np.diff(keys[order]) == 0).any():
        raise UnsafeModel(f"{node.kind} has a node twice")
    is_branch = np.fromiter((mode != b"LEAF" for mode in modes), bool, node_count)
    targets = _target_count(node, kind, keys[order])
    steps = _step_count(
        node,
        keys=keys,
        order=order,
        is_branch=is_branch,
        tree_ids=tree_ids,
        true_children=true_children,
        false_children=false_children,
    )
    return Ensemble(int(feature_ids[is_branch].max(initial=-1)) + 1, targets, steps)


def _target_count(node: Node, kind: str, sorted_keys: NDArray[np.int64]) -> int:
    """Returns how many numbers the ensemble gives. Checks that its weights belong to existing nodes and targets.

    Args:
        node: the ensemble.
        kind: prefix of the attributes.
        sorted_keys: keys of all nodes, sorted.
    """
    tree_ids, node_ids, target_ids = (node.integers(f"{kind}_{name}") for name in ("treeids", "nodeids", "ids"))
    if len({len(tree_ids), len(node_ids), len(target_ids), node.count(f"{kind}_weights")}) != 1:
        raise UnsafeModel(f"{node.kind}: the lists of weights differ in length")
    label_count = len(node.integers("classlabels_int64s"))
    target_count = node.integer("n_targets", 1) if kind == "target" else label_count
    if target_count > MAX_TARGETS:
        raise UnsafeModel(f"{node.kind} gives {target_count} numbers a row; at most {MAX_TARGETS}")
    if target_count < 1 or (len(target_ids) and not 0 <= target_ids.min() <= target_ids.max() < target_count):
        raise UnsafeModel(f"{node.kind} gives {target_count} numbers, and has weights for others")
    if node.count("base_values") not in (0, target_count, 1):
        raise UnsafeModel(f"{node.kind}: {node.count('base_values')} base values of {target_count}")
    weighted_keys = tree_ids << 32 | node_ids
    if (
        len(weighted_keys)
        and not (
            sorted_keys[np.searchsorted(sorted_keys, weighted_keys).clip(max=len(sorted_keys) - 1)] == weighted_keys
        ).all()
    ):
        raise UnsafeModel(f"{node.kind} has weights at nodes that do not exist")
    return target_count


def _step_count(
    node: Node,
    *,
    keys: NDArray[np.int64],
    order: NDArray[np.intp],
    is_branch: NDArray[np.bool_],
    tree_ids: NDArray[np.int64],
    true_children: NDArray[np.int64],
    false_children: NDArray[np.int64],
) -> int:
    """Returns the number of levels of all trees together, from the nodes without a parent down.

    Args:
        node: the ensemble.
        keys: key of each node: tree and number.
        order: order that sorts the keys.
        is_branch: whether each node is a branch.
        tree_ids: tree of each node.
        true_children: child of each node if its condition is true.
        false_children: child of each node if its condition is false.
    """
    sorted_keys = keys[order]
    children = np.concatenate(
        [tree_ids[is_branch] << 32 | true_children[is_branch], tree_ids[is_branch] << 32 | false_children[is_branch]]
    )
    sorted_positions = np.searchsorted(sorted_keys, children).clip(max=len(keys) - 1)
    parent_counts = np.zeros(len(keys), np.int64)
    child_indices = order[sorted_positions]
    if len(children):
        if (sorted_keys[sorted_positions] != children).any():
            raise UnsafeModel(f"{node.kind} has a branch to a node that does not exist in its tree")
        parent_counts = np.bincount(child_indices, minlength=len(keys))
    if (parent_counts > 1).any():
        raise UnsafeModel(f"{node.kind} has a node with two parents; expected trees")
    roots = np.flatnonzero(parent_counts == 0)
    if len(np.unique(tree_ids[roots])) != len(roots):
        raise UnsafeModel(f"{node.kind} has a tree with two first nodes")
    children_of = np.full((2, len(keys)), -1, np.int64)
    children_of[:, is_branch] = child_indices.reshape(2, -1)
    level, nodes_seen, steps = roots, 0, 0
    for _ in range(MAX_TREE_LEVELS):
        if not len(level):
            break
        nodes_seen, steps = nodes_seen + len(level), steps + len(np.unique(tree_ids[level]))
        level = children_of[:, level[is_branch[level]]].ravel()
    if len(level) or nodes_seen != len(keys):  # nodes that were not reached form a circle, because each has one parent
        raise UnsafeModel(
            f"{node.kind} has nodes in a circle, or trees of more than {MAX_TREE_LEVELS} levels; expected trees"
        )
    return steps


def ensemble_sizes(node: Node, ensemble: Ensemble, inputs: list[Sized | None]) -> list[Sized]:
    """Returns the sizes of an ensemble's outputs for these rows.

    Args:
        node: the ensemble.
        ensemble: its size.
        inputs: values of its inputs.
    """
    rows = needed(node, inputs, 0)
    if len(rows.shape) != 2 or rows.shape[1] < ensemble.features:
        raise UnsafeModel(
            f"{node.kind} reads {ensemble.features} features of rows of shape {list(rows.shape)}; expected as many"
        )
    numbers = sized(FLOAT, (rows.shape[0], ensemble.targets))
    return [numbers] if node.kind.endswith("Regressor") else [sized(INT64, rows.shape[:1]), numbers]


MAX_GRAPH_BYTES = 256 << 20
"""Most bytes of all values that a graph computes for its golden rows, counted as if no value were ever freed.

The bundled graphs compute less than one megabyte.
"""
MAX_WORK = 500_000_000
"""Most work for the golden rows, counted in additions: some tenths of a second on one core."""
ROOM_PER_BYTE, ROOM_PER_BYTE_OF_ADAPTER = 4, 64
"""Additional bytes allowed for each byte of the file. A language model casts its weights, and fills many layers."""
SUMS_PER_BYTE = 4
"""Additional sums allowed for each byte of the file and row; for a language model for each token, up to
`MAX_COUNTED_TOKENS`.
"""
MAX_COUNTED_TOKENS = 1 << 14
"""Most tokens for which `SUMS_PER_BYTE` is counted."""
MAX_VALUE_ELEMENTS = 1 << 60
"""Most elements of a value. Larger numbers multiply to Python integers that fill the memory themselves.

Values that pass the checks below have less than 2**55 bytes.
"""
FEW_ROWS, MANY_ROWS = 2**4, 2**20
"""Numbers of rows for which memory is compared. It may grow in proportion to the rows, and no faster."""
SHORT_LENGTH, LONG_LENGTH = 2**6, 2**14
"""Numbers of tokens, or alternatives, for which memory is compared. For a language model it may grow as
their square.
"""
SLACK = 4
"""How many times faster than expected memory may grow."""
MAX_AXES = 16
"""Most axes of a value; an exporter writes five. Every rule takes time for each axis."""

_ENSEMBLES = frozenset({"ai.onnx.ml.TreeEnsembleRegressor", "ai.onnx.ml.TreeEnsembleClassifier"})


def check_growth(graph: Graph, kind: str | None) -> None:
    """Raises `UnsafeModel` if a few rows take too much, memory grows faster than the rows, or a tree ensemble is
    invalid.

    For a language model (any graph with kind None may be one) memory may grow as the square of the lengths.
    """
    for index, node in enumerate(graph.nodes):
        if node.kind in _ENSEMBLES:
            graph.trees[index] = read_ensemble(node)
    degree = 2 if kind in (ADAPTER, None) else 1
    few_rows_bytes = check_sizes(graph, dims_for(graph, (FEW_ROWS, SHORT_LENGTH)), kind, "a few rows")
    many_rows_bytes = sizes_of(graph, dims_for(graph, (MANY_ROWS, SHORT_LENGTH)))[0]
    if many_rows_bytes > SLACK * (MANY_ROWS // FEW_ROWS) * few_rows_bytes + MAX_GRAPH_BYTES:
        raise UnsafeModel(
            f"the model makes {many_rows_bytes >> 20} MB for {MANY_ROWS} rows and {few_rows_bytes >> 10} kB for "
            f"{FEW_ROWS}; expected memory to grow as the rows do"
        )
    long_bytes = sizes_of(graph, dims_for(graph, (FEW_ROWS, LONG_LENGTH)))[0]
    if long_bytes > SLACK * (LONG_LENGTH // SHORT_LENGTH) ** degree * few_rows_bytes + MAX_GRAPH_BYTES:
        raise UnsafeModel(
            f"the model makes {long_bytes >> 20} MB for lengths of {LONG_LENGTH} and {few_rows_bytes >> 10} kB for "
            f"{SHORT_LENGTH}; expected memory to grow as {'their square' if degree == 2 else 'they do'}"
        )


def check_sizes(graph: Graph, shapes: Mapping[str, tuple[int, ...]], kind: str | None, what: str) -> int:
    """Returns the most bytes of all values that a graph computes for inputs of these shapes.

    Raises `UnsafeModel` if this takes too much memory or time.

    Args:
        graph: the graph.
        shapes: shape of each input, by name.
        kind: kind of the checkpoint; None for any.
        what: what the inputs are, for errors.
    """
    memory, work = sizes_of(graph, shapes)
    is_language_model = kind in (ADAPTER, None)
    rows = max([1, *(shape[0] for shape in shapes.values() if shape)])
    tokens = (
        min(max([1, *(math.prod(shape) for shape in shapes.values())]), MAX_COUNTED_TOKENS)
        if is_language_model
        else min(rows, FEW_ROWS)
    )
    max_bytes = MAX_GRAPH_BYTES + (ROOM_PER_BYTE_OF_ADAPTER if is_language_model else ROOM_PER_BYTE) * graph.bytes
    if memory > max_bytes or work > MAX_WORK + SUMS_PER_BYTE * graph.bytes * tokens:
        raise UnsafeModel(
            f"the model needs more than {MAX_GRAPH_BYTES >> 20} MB or {MAX_WORK:,} sums for {what}: it makes up to "
            f"{memory >> 20} MB in {work:,} sums"
        )
    return memory


def sizes_of(graph: Graph, shapes: Mapping[str, tuple[int, ...]]) -> tuple[int, int]:
    """Returns the most bytes and sums of two numbers that a graph takes for inputs of these shapes.

    Raises `UnsafeModel` if there is no bound.
    """
    values: dict[str, Sized] = {
        name: stored(tensor.elem, tuple(int(length or 0) for length in tensor.shape), tensor.values)
        for name, tensor in graph.weights.items()
    }
    if ranks := [len(value.shape) for value in values.values() if len(value.shape) > MAX_AXES]:
        raise UnsafeModel(f"a weight has {ranks[0]} axes; at most {MAX_AXES}")
    for name, tensor in graph.inputs.items():
        values[name] = Sized(tensor.elem, shapes[name])
    memory = work = 0
    for index, node in enumerate(graph.nodes):
        inputs = [values[name] if name else None for name in node.inputs]
        ensemble = graph.trees.get(index)
        try:
            output_sizes = (
                RULES[node.kind](node, inputs) if ensemble is None else ensemble_sizes(node, ensemble, inputs)
            )
        except UnsafeModel:
            raise
        except (IndexError, TypeError, ValueError, OverflowError) as error:
            raise UnsafeModel(f"operator {node.kind}: its inputs do not fit together ({error})") from error
        if len(output_sizes) < len(node.outputs):
            raise UnsafeModel(f"{node.kind} has {len(node.outputs)} outputs; expected at most {len(output_sizes)}")
        for name, value in zip(node.outputs, output_sizes, strict=False):
            if len(value.shape) > MAX_AXES:
                raise UnsafeModel(f"{node.kind} makes a value of {len(value.shape)} axes; at most {MAX_AXES}")
            if value.count > MAX_VALUE_ELEMENTS:
                raise UnsafeModel(f"{node.kind} makes a value of more than {MAX_VALUE_ELEMENTS} elements")
            values[name] = value
            memory += value.bytes
        work += work_of(node, inputs, output_sizes)
        if ensemble is not None and inputs[0] is not None:
            work += TREE_STEP_COST * ensemble.steps * inputs[0].shape[0]
    return memory, work
