"""Refuses graphs that would take too much memory or time, before they run: by the sizes of everything they make."""

import math
from collections.abc import Mapping

from metaprobe.checkpoints.errors import UnsafeModel
from metaprobe.checkpoints.graph_nodes import ELEMENT_BYTES, Graph, Node, dims_for
from metaprobe.checkpoints.onnx_operators import ADAPTER, Operators, operators_of
from metaprobe.checkpoints.size_bounds import Sized, plain, stored
from metaprobe.checkpoints.size_rules import RULES, work_of
from metaprobe.checkpoints.tree_ensembles import STEP, Ensemble, ensemble_sizes, read_ensemble

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
NODES, NODES_OF_ADAPTER = 1_000, 30_000
"""Most nodes of a graph; a predictor's raw.onnx has some 400. ONNX Runtime takes a millisecond to open each one."""
BYTES_A_NODE = 4096
"""Bytes of the file for each further node of a language model, up to `NODES_OF_ADAPTER`: it has weights in most."""
EDGES = 512
"""Most inputs, and most outputs, of a node."""
EDGES_A_NODE = 8
"""Inputs and outputs of all nodes together, a node, beyond `EDGES`. Exporters write three. Every rule takes time for
each one, for integers some 50 microseconds."""
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


def check_operators(graph: Graph, kind: str | None) -> None:
    """Raises `UnsafeModel` for operators, attributes or types that no exporter of this kind writes."""
    listed = operators_of(kind)
    most = NODES if kind not in (ADAPTER, None) else min(NODES + graph.bytes // BYTES_A_NODE, NODES_OF_ADAPTER)
    if len(graph.nodes) > most:
        raise UnsafeModel(f"the graph has {len(graph.nodes)} nodes; at most {most} in a file of {graph.bytes} bytes")
    edges = sum(len(node.inputs) + len(node.outputs) for node in graph.nodes)
    named = len(graph.weights) + len(graph.inputs) + len(graph.outputs)  # ONNX Runtime drops unused ones one by one
    if max(edges, named) > EDGES + EDGES_A_NODE * len(graph.nodes):
        raise UnsafeModel(
            f"the graph has {edges} inputs and outputs of {len(graph.nodes)} nodes, and {named} weights, inputs and "
            f"outputs of its own; at most {EDGES} and {EDGES_A_NODE} a node"
        )
    for node in graph.nodes:
        _check_node(node, listed)
    used = {name for node in graph.nodes for name in node.inputs} | {*graph.inputs, *graph.outputs}
    for name, tensor in {**graph.weights, **graph.inputs}.items():
        if name in used and tensor.elem not in ELEMENT_BYTES:
            raise UnsafeModel(f"{name[:80]!r} has element type {tensor.elem}; expected numbers")


def _check_node(node: Node, listed: Operators) -> None:
    if node.kind not in listed:
        raise UnsafeModel(
            f"the model uses operator {node.kind[:80]!r}, which no exporter of this kind of checkpoint writes"
            + ("; export with zipmap=False" if node.kind.endswith("ZipMap") else "")
            + f"; allowed are {', '.join(sorted(listed))}"
        )
    if max(len(node.inputs), len(node.outputs)) > EDGES:
        raise UnsafeModel(f"{node.kind} has {len(node.inputs)} inputs and {len(node.outputs)} outputs; at most {EDGES}")
    if odd := sorted(node.attributes.keys() - listed[node.kind]):
        allowed = ", ".join(sorted(listed[node.kind])) or "none"
        raise UnsafeModel(f"operator {node.kind} has the attribute {odd[0][:80]!r}; allowed are {allowed}")


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
