"""Graphs of a few kilobytes that would take gigabytes or minutes: refused before they run, by what the file says."""

import contextlib
import re
import resource
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.capi.onnxruntime_pybind11_state import (
    Fail,
    InvalidArgument,
    InvalidGraph,
    NotImplemented,
    RuntimeException,
)

from metaprobe.checkpoints import UnsafeModel, load_checkpoint
from metaprobe.checkpoints.checkpoint import GraphSession
from metaprobe.checkpoints.graph_sizes import RULES, check_growth, sizes_of
from metaprobe.checkpoints.onnx_guard import ADAPTER_OPERATORS, ALL_OPERATORS, MODEL_OPERATORS, check_model
from metaprobe.checkpoints.onnx_wire import dims_for

BUNDLED = Path(__file__).parent.parent / "checkpoints" / "bundled"
node, weight = helper.make_node, numpy_helper.from_array
ML = "ai.onnx.ml"


def model(
    nodes: str | list[onnx.NodeProto],
    weights: dict[str, np.ndarray] | None = None,
    *,
    opset: int = 17,
    shape: tuple[int | str | None, ...] = (None, 4),
    elem: int = TensorProto.FLOAT,
) -> bytes:
    """A graph from `x` to whatever the last node makes first; nodes in ONNX's text syntax are divided by `;`.

    `weights`: in addition to `WEIGHTS`, where the nodes are text.
    """
    weights = weights or {}
    if isinstance(nodes, str):
        nodes, weights = [onnx.parser.parse_node(text) for text in nodes.split(";")], WEIGHTS | weights
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", elem, list(shape))],
        [helper.make_tensor_value_info(nodes[-1].output[0], TensorProto.FLOAT, None)],
        [weight(np.asarray(value), name) for name, value in weights.items()],
    )
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid(ML, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()


def ones(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


def tree(**changes: object) -> onnx.NodeProto:
    """One split and two leaves."""
    whole: dict[str, object] = {
        "n_targets": 1,
        "nodes_treeids": [0, 0, 0],
        "nodes_nodeids": [0, 1, 2],
        "nodes_featureids": [0, 0, 0],
        "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"],
        "nodes_values": [0.0, 0.0, 0.0],
        "nodes_truenodeids": [1, 0, 0],
        "nodes_falsenodeids": [2, 0, 0],
        "target_treeids": [0, 0],
        "target_nodeids": [1, 2],
        "target_ids": [0, 0],
        "target_weights": [1.0, 2.0],
    }
    return node("TreeEnsembleRegressor", ["x"], ["y"], domain=ML, **{**whole, **changes})


def chain(kind: str, count: int, *more: str, first: str = "x", **attributes: object) -> list[onnx.NodeProto]:
    names = [first, *(f"v{i}" for i in range(count))]
    return [node(kind, [a, *(m.replace("@", a) for m in more)], [b], **attributes) for a, b in pairwise(names)]


READ = "i = Cast<to=7>(x); n = ReduceMax<axes=[0, 1], keepdims=0>(i); n1 = Reshape(n, one)"
"""A number that depends on what is read, `n`."""
WEIGHTS = {
    **{name: np.int64(value) for name, value in (("zero", 0), ("step", 1), ("huge", 10**10))},
    **{name: np.array([value]) for name, value in (("none", 0), ("one", 1), ("two", 2), ("three", 3), ("big", 10**9))},
    **{"w": ones(1), "long": ones(1000, 1, 1), "wide": ones(1, 1000, 1), "deep": ones(1, 1, 1000)},
    **{"empty": ones(0), "flat": ones(3), "five": ones(5), "thousands": ones(40000), "row": ones(1, 40000)},
}

HOSTILE: dict[str, str | Callable[[], bytes]] = {
    "MaxPool of a huge kernel": lambda: model(
        "y = MaxPool<kernel_shape=[40000], pads=[39999, 39999]>(x)", shape=(1, 1, 60000)
    ),
    "ConstantOfShape": "y = ConstantOfShape(big)",
    "Expand": "y = Expand(w, big)",
    "Expand by what is read": f"{READ}; y = Expand(w, n1)",
    "Tile": "y = Tile(w, big)",
    "Range": "y = Range(zero, huge, step)",
    "Range of what is read": f"{READ}; y = Range(zero, n, step)",
    "Range of no step": "y = Range(step, huge, zero)",
    "OneHot": "y = OneHot(one, huge, w)",
    "Pad": lambda: model("y = Pad(x, pads)", {"pads": np.array([0, 0, 0, 10**9])}),
    "Resize": lambda: model("y = Resize(x, , , to)", {"to": np.array([1, 10**9])}),
    "Gather of huge": lambda: model("y = Gather(v, at)", {"v": ones(10, 10000), "at": np.zeros(10**5, np.int64)}),
    "MatMul of broadcast batches": lambda: model(
        "y = MatMul(a, b)", {"a": ones(1000, 1, 30, 1), "b": ones(1, 1000, 1, 30)}
    ),
    "MatMul again and again": lambda: model(
        [node("MatMul", ["w" if i == 0 else f"m{i}", "w"], [f"m{i + 1}"]) for i in range(200)], {"w": ones(700, 700)}
    ),
    "MatMulInteger again and again": lambda: model(
        [
            step
            for i in range(200)
            for step in (
                node("MatMulInteger", ["w" if i == 0 else f"m{i}", "w"], [f"n{i + 1}"]),
                node("Cast", [f"n{i + 1}"], [f"m{i + 1}"], to=TensorProto.INT8 if i < 199 else TensorProto.FLOAT),
            )
        ],
        {"w": ones(700, 700).astype(np.int8)},
    ),
    "MatMulInteger of broadcast batches": lambda: model(
        "n = MatMulInteger(a, b); y = Cast<to=1>(n)",
        {"a": ones(1000, 1, 30, 1).astype(np.uint8), "b": ones(1, 1000, 1, 30).astype(np.int8)},
    ),
    "MatMul of rows by rows": lambda: model("t = Reshape(x, turned); y = MatMul(x, t)", {"turned": np.array([4, -1])}),
    "Add of three weights": "ab = Add(long, wide); y = Add(ab, deep)",
    "Where": "m = Greater(long, wide); y = Where(m, deep, long)",
    "Sum": "y = Sum(long, wide, deep)",
    "a tree of huge targets": lambda: model([tree(n_targets=10**9)]),
    "a sum of too many": lambda: model([node("Sum", ["x"] * 600, ["y"])]),
    "a sum of too many among many nodes": lambda: model([*chain("Neg", 99), node("Sum", ["x"] * 600, ["y"])]),
    "a tree of many targets": lambda: model([tree(n_targets=3_000_000)]),
    "axes without end": lambda: model(chain("Unsqueeze", 301, "axes"), {"axes": np.arange(60)}),
    "a list of attributes without end": lambda: model([node("ReduceMax", ["x"], ["y"], axes=[0] * 10**6)], opset=15),
    "a tree in a circle": lambda: model([tree(nodes_truenodeids=[0, 0, 0], nodes_falsenodeids=[2, 0, 0])]),
    "a tree of two that are each other's": lambda: model(
        [
            tree(
                nodes_modes=["LEAF", "BRANCH_LEQ", "BRANCH_LEQ"],
                nodes_truenodeids=[0, 2, 1],
                nodes_falsenodeids=[0, 2, 1],
            )
        ]
    ),
    "a node with two parents": lambda: model([tree(nodes_falsenodeids=[1, 0, 0])]),
    "a branch to nowhere": lambda: model([tree(nodes_falsenodeids=[7, 0, 0])]),
    "a feature that is not there": lambda: model([tree(nodes_featureids=[4, 0, 0])]),
    "a negative feature": lambda: model([tree(nodes_featureids=[-1, 0, 0])]),
    "a target that is not there": lambda: model([tree(target_ids=[0, 1])]),
    "a weight at no node": lambda: model([tree(target_nodeids=[1, 9])]),
    "fewer thresholds than nodes": lambda: model([tree(nodes_values=[0.0])]),
    "a node twice": lambda: model([tree(nodes_nodeids=[0, 1, 1])]),
    "Cast to text": "y = Cast<to=8>(x)",
    "StringConcat": lambda: model("v = Cast<to=8>(x); y = StringConcat(v, v)", opset=20),
    "text as input": lambda: model("y = Identity(x)", elem=TensorProto.STRING),
    "a chain that doubles": lambda: model(chain("Concat", 40, "@", axis=1)),
    "a chain that doubles by Expand": lambda: model(
        [node("Shape", ["x"], ["s0"]), *chain("Add", 30, "@", first="s0"), node("Expand", ["w", "v29"], ["y"])],
        {"w": ones(1, 1)},
    ),
    "more nodes than any exporter writes": lambda: model(chain("Identity", 1_200)),
    "Loop": lambda: model([node("Loop", ["huge", ""], ["y"], body=helper.make_graph([], "b", [], []))], WEIGHTS),
    "Div of integers by zero": "y = Div(one, none)",
    "a sum that wraps into a length": lambda: model(
        "wrapped = Add(most, most); s = Sub(wrapped, big); y = Expand(w, s)", {"most": np.array([2**62])}
    ),
    "Gemm": "y = Gemm<transA=1>(row, row)",
    "Einsum": 'y = Einsum<equation="i,j->ij">(thousands, thousands)',
    "Reshape to lengths that multiply": lambda: model(
        [node("Cast", ["w"], ["any"], to=TensorProto.INT64), *chain("Reshape", 8, "any")], {"w": ones(16)}
    ),
    "Slice at places without end": "at = Expand(none, big); y = Slice(x, at, at)",
    "inputs without end": lambda: model(
        [node("Mul", ["w"] * 500, [f"v{i}"]) for i in range(150)], {"w": np.ones(64, np.int64)}
    ),
    "weights that nothing reads": lambda: model("y = Identity(x)", {f"w{i}": ones(1) for i in range(2000)}),
    "a tree whose nodes lie apart": lambda: model(
        [
            tree(
                nodes_treeids=[1, 1, 0, 1],
                nodes_nodeids=[1, 2, 0, 0],
                nodes_featureids=[0] * 4,
                nodes_modes=["LEAF", "LEAF", "LEAF", "BRANCH_LEQ"],
                nodes_values=[0.0] * 4,
                nodes_truenodeids=[0, 0, 0, 1],
                nodes_falsenodeids=[0, 0, 0, 2],
                target_treeids=[1, 1],
                target_nodeids=[1, 2],
            )
        ]
    ),
    "a domain in two versions": lambda: edited(lambda made: made.opset_import.append(helper.make_opsetid("", 11))),
    "an integer of a million bytes": lambda: _overlong(),
    "two attributes of one name": lambda: edited(
        lambda made: made.graph.node[0].attribute.append(helper.make_attribute("axis", 0))
    ),
    "an attribute of another type": lambda: edited(
        lambda made: setattr(made.graph.node[0].attribute[0], "type", onnx.AttributeProto.FLOAT)
    ),
    "a value that is made twice": "y = Neg(x); y = Exp(x)",
    "a value that is read before it is made": "y = Neg(z); z = Exp(x)",
}
GROWN = "d = Sub(three, less); s = Mul(d, big); y = Expand(w, s)"
"""Makes, of `less`, a value of (three - less) * 1e9 elements: none, where `less` is taken for 3."""
# A size that is only an upper bound, or computed otherwise than the runtime does, would make the difference 0.
HOSTILE |= {
    "the shorter part of an uneven split": f"a, b = Split<axis=0>(five); less = Shape(b); {GROWN}",
    "a second output of another shape": f"a, mean = LayerNormalization(flat, flat); less = Shape(mean); {GROWN}",
    "a broadcast to nothing": f"a = Add(empty, w); zero_or_one = Shape(a); less = Add(zero_or_one, two); {GROWN}",
    "a slice backwards from before the beginning": lambda: model(
        f"a = Slice(five, before, before, none, back); none_or_one = Shape(a); less = Sub(three, none_or_one); {GROWN}",
        {"before": np.array([-9]), "back": np.array([-1])},
    ),
    "a quotient of the least integer": lambda: model(
        f"minus_two = Div(least, large); less = Add(minus_two, one); {GROWN}",
        {"least": np.array([-(2**63)]), "large": np.array([2**62])},
    ),
    "a difference of truths": "yes = Equal(one, one); s = Sub(yes, yes); y = Expand(w, s)",
    "a range whose difference wraps": lambda: model(
        "y = Range(high, low, step)",
        {"high": np.int64(2**62 + 2**61), "low": np.int64(-(2**62) - 2**61 + 10**10)},
    ),
}


def edited(change: Callable[[onnx.ModelProto], object]) -> bytes:
    """A graph that joins its input to itself, changed."""
    made = onnx.load_from_string(model("y = Concat<axis=1>(x, x)"))
    change(made)
    return made.SerializeToString()


def _overlong() -> bytes:
    """The list of axes holds a thousand integers and one of a million bytes."""
    integers = b"\x00" * 1000 + b"\x80" * 10**6 + b"\x00"
    reduced = node("ReduceMax", ["x"], ["y"])
    reduced.attribute.append(onnx.AttributeProto(name="axes", type=onnx.AttributeProto.INTS, s=integers))
    data = bytearray(model([reduced], opset=15))
    data[data.index(integers) - 4] = 8 << 3 | 2  # the tag of `ints` in place of that of `s`, before 3 bytes of length
    return bytes(data)


def peak() -> int:
    """Bytes that this process has held at most."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


@pytest.mark.parametrize("how", HOSTILE)
def test_a_graph_that_asks_for_too_much_is_refused_before_it_runs(how: str) -> None:
    made = HOSTILE[how]
    data = model(made) if isinstance(made, str) else made()
    before = peak()
    for kind in ("quality", "adapter", None):
        began = time.process_time()
        with pytest.raises(UnsafeModel):
            GraphSession(data, kind=kind)
        assert time.process_time() - began < 10  # run, it would take minutes
    assert peak() - before < 512 << 20


def test_every_listed_operator_has_a_rule_and_the_lists_are_short() -> None:
    trees = {f"{ML}.TreeEnsembleRegressor", f"{ML}.TreeEnsembleClassifier"}
    assert ALL_OPERATORS.keys() - trees == RULES.keys()
    assert not {name for name in ADAPTER_OPERATORS if name.startswith(ML)}


@pytest.mark.parametrize("path", sorted(BUNDLED.glob("*/*.onnx")), ids=lambda path: f"{path.parent.name}/{path.name}")
def test_bundled_graphs_stay_within_their_kinds_lists_and_far_below_the_limits(path: Path) -> None:
    kind = load_checkpoint(path.parent).manifest.kind
    graph = check_model(path.read_bytes(), kind)
    check_growth(graph, kind)
    memory, work = sizes_of(graph, dims_for(graph, (16, 64)))
    assert memory < 1 << 20
    assert work < 5_000_000


SMALL = st.integers(1, 5)
DRAWN = (
    "{v} = Add({a}, {b})",
    "{v} = Concat<axis={axis}>({a}, {a})",
    "{v} = Sigmoid({a})",
    "{v} = ReduceSum<keepdims=1>({a}, axis1)",
    "{v} = Reshape({a}, flat)",
    "{v}s = Shape<start=1>({a}); {v}m = Min({v}s, three); {v} = Slice({a}, axis0, {v}m, axis1)",
    "{v}s = Shape<start=1>({a}); {v}m = Concat<axis=0>({v}s, rest); {v}t = Reshape({a}, {v}m); {v} = MatMul({a}, {v}t)",
    "{v}s = Shape(x); {v} = Expand({a}, {v}s)",
    "{v} = Gather<axis=1>({a}, zeros)",
)


def computed(data: bytes, x: np.ndarray) -> list[np.ndarray]:
    """Every output, or nothing where the runtime says that shapes do not fit together."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        return list(onnxruntime.InferenceSession(data, options).run(None, {"x": x}))
    except (Fail, InvalidArgument, InvalidGraph, NotImplemented, RuntimeException):
        return []


@settings(deadline=None, max_examples=40)
@given(data=st.data(), rows=SMALL, columns=SMALL)
def test_no_value_of_a_random_graph_is_larger_than_its_bound(data: st.DataObject, rows: int, columns: int) -> None:
    """Graphs of random listed operators, run by ONNX Runtime with every value as an output."""
    known, steps = ["x"], []
    integers = {"three": [3], "axis0": [0], "axis1": [1], "flat": [-1, 1], "rest": [-1], "zeros": [0, 0]}
    weights = {"w": ones(1, columns), **{name: np.array(values) for name, values in integers.items()}}
    for place in range(data.draw(st.integers(1, 8))):
        one, other, axis = (data.draw(st.sampled_from(drawn)) for drawn in (known, known, (0, 1)))
        steps.append(data.draw(st.sampled_from(DRAWN)).format(v=f"v{place}", a=one, b=other, axis=axis))
        known.append(f"v{place}")
    made = onnx.load_from_string(model("; ".join(steps), weights, shape=(None, columns)))
    del made.graph.output[:]
    for output in (output for one in made.graph.node for output in one.output):
        elem = TensorProto.INT64 if output.endswith(("s", "m")) else TensorProto.FLOAT
        made.graph.output.append(helper.make_tensor_value_info(output, elem, None))
    with contextlib.suppress(UnsafeModel):
        memory, _ = sizes_of(check_model(made.SerializeToString()), {"x": (rows, columns)})
        found = computed(made.SerializeToString(), np.ones((rows, columns), np.float32))
        assert sum(value.nbytes for value in found) <= memory


SOURCES = Path(__file__).parent.parent / "training"
WRITTEN = re.compile(r"""(?:make_node|g\.add|graph\.add|more\.add|outer\.add|self\.add)\(\s*"([A-Z]\w+)\"""")
FOR_USERS = {"Identity", "Reshape", "ReduceMean"}
"""On the list of model.onnx though no exporter of ours writes them there: for graphs that users save themselves."""


def written_in(*patterns: str) -> set[str]:
    """Operators whose names stand in calls that make nodes, in these files of training/."""
    found = {pattern: list(SOURCES.glob(pattern)) for pattern in patterns}
    assert all(found.values()), f"no file of training/ has a name like {[name for name in found if not found[name]]}"
    files = [path for paths in found.values() for path in paths]
    return {name for path in files for name in WRITTEN.findall(path.read_text(encoding="utf-8"))}


def test_the_lists_hold_what_the_exporters_write_and_nothing_else() -> None:
    """Operators of the exporters' own code. What converters and torch write is held to the lists by every training."""
    fitted = ("calibrators.py", "trees.py", "base_rates.py", "ladder.py", "linear_probe.py", "rescale.py")
    models = written_in("export.py", *fitted, "recipes/*.py")
    plain = {name for name in MODEL_OPERATORS if not name.startswith(ML)}
    assert len(models) > 15
    assert models <= plain
    assert plain - models == FOR_USERS
