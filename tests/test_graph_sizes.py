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
    nodes: list[onnx.NodeProto],
    weights: dict[str, np.ndarray] | None = None,
    *,
    opset: int = 17,
    shape: tuple[int | str | None, ...] = (None, 4),
    elem: int = TensorProto.FLOAT,
) -> bytes:
    """A graph from `x` to whatever the last node makes first."""
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", elem, list(shape))],
        [helper.make_tensor_value_info(nodes[-1].output[0], TensorProto.FLOAT, None)],
        [weight(np.asarray(value), name) for name, value in (weights or {}).items()],
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


def chain(kind: str, count: int, *more: str, **attributes: object) -> list[onnx.NodeProto]:
    names = ["x", *(f"v{i}" for i in range(count))]
    return [node(kind, [a, *(m.replace("@", a) for m in more)], [b], **attributes) for a, b in pairwise(names)]


def doubling(count: int) -> list[onnx.NodeProto]:
    return chain("Concat", count, "@", axis=1)


def read_count() -> list[onnx.NodeProto]:
    """A number that depends on what is read, `n`."""
    return [
        node("Cast", ["x"], ["i"], to=TensorProto.INT64),
        node("ReduceMax", ["i"], ["n"], axes=[0, 1], keepdims=0),
        node("Reshape", ["n", "one"], ["n1"]),
    ]


ONE, BIG = np.array([1]), np.array([10**9])
LIMITS = {"zero": np.int64(0), "step": np.int64(1), "huge": np.int64(10**10), "one": ONE, "big": BIG}

HOSTILE: dict[str, Callable[[], bytes]] = {
    "MaxPool of a huge kernel": lambda: model(
        [node("MaxPool", ["x"], ["y"], kernel_shape=[40000], pads=[39999, 39999])], shape=(1, 1, 60000)
    ),
    "ConstantOfShape": lambda: model([node("ConstantOfShape", ["big"], ["y"])], LIMITS),
    "Expand": lambda: model([node("Expand", ["w", "big"], ["y"])], {"w": ones(1), **LIMITS}),
    "Expand by what is read": lambda: model(
        [*read_count(), node("Expand", ["w", "n1"], ["y"])], {"w": ones(1), **LIMITS}
    ),
    "Tile": lambda: model([node("Tile", ["w", "big"], ["y"])], {"w": ones(1), **LIMITS}),
    "Range": lambda: model([node("Range", ["zero", "huge", "step"], ["y"])], LIMITS),
    "Range of what is read": lambda: model([*read_count(), node("Range", ["zero", "n", "step"], ["y"])], LIMITS),
    "Range of no step": lambda: model([node("Range", ["step", "huge", "zero"], ["y"])], LIMITS),
    "OneHot": lambda: model([node("OneHot", ["one", "huge", "w"], ["y"])], {"w": ones(2), **LIMITS}),
    "Pad": lambda: model([node("Pad", ["x", "pads"], ["y"])], {"pads": np.array([0, 0, 0, 10**9])}),
    "Resize": lambda: model([node("Resize", ["x", "", "", "to"], ["y"])], {"to": np.array([1, 10**9])}),
    "Gather of huge": lambda: model(
        [node("Gather", ["w", "at"], ["y"])], {"w": ones(10, 10000), "at": np.zeros(10**5, np.int64)}
    ),
    "MatMul of broadcast batches": lambda: model(
        [node("MatMul", ["a", "b"], ["y"])], {"a": ones(1000, 1, 30, 1), "b": ones(1, 1000, 1, 30)}
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
        [node("MatMulInteger", ["a", "b"], ["n"]), node("Cast", ["n"], ["y"], to=TensorProto.FLOAT)],
        {"a": ones(1000, 1, 30, 1).astype(np.uint8), "b": ones(1, 1000, 1, 30).astype(np.int8)},
    ),
    "MatMul of rows by rows": lambda: model(
        [node("Reshape", ["x", "turned"], ["t"]), node("MatMul", ["x", "t"], ["y"])], {"turned": np.array([4, -1])}
    ),
    "Add of three weights": lambda: model(
        [node("Add", ["a", "b"], ["ab"]), node("Add", ["ab", "c"], ["y"])],
        {"a": ones(1000, 1, 1), "b": ones(1, 1000, 1), "c": ones(1, 1, 1000)},
    ),
    "Where": lambda: model(
        [node("Greater", ["a", "b"], ["m"]), node("Where", ["m", "c", "a"], ["y"])],
        {"a": ones(1000, 1, 1), "b": ones(1, 1000, 1), "c": ones(1, 1, 1000)},
    ),
    "Sum": lambda: model(
        [node("Sum", ["a", "b", "c"], ["y"])],
        {"a": ones(1000, 1, 1), "b": ones(1, 1000, 1), "c": ones(1, 1, 1000)},
    ),
    "a tree of huge targets": lambda: model([tree(n_targets=10**9)]),
    "a sum of too many": lambda: model([node("Sum", ["x"] * 600, ["y"])]),
    "a tree of many targets": lambda: model([tree(n_targets=3_000_000)]),
    "axes without end": lambda: model(
        [
            node("Unsqueeze", ["x", "axes"], ["v0"]),
            *[node("Unsqueeze", [f"v{i}", "axes"], [f"v{i + 1}"]) for i in range(300)],
        ],
        {"axes": np.arange(60)},
    ),
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
    "Cast to text": lambda: model([node("Cast", ["x"], ["y"], to=TensorProto.STRING)]),
    "StringConcat": lambda: model(
        [node("Cast", ["x"], ["v"], to=TensorProto.STRING), node("StringConcat", ["v", "v"], ["y"])], opset=20
    ),
    "text as input": lambda: model([node("Identity", ["x"], ["y"])], elem=TensorProto.STRING),
    "a chain that doubles": lambda: model(doubling(40)),
    "a chain that doubles by Expand": lambda: model(
        [
            node("Shape", ["x"], ["s0"]),
            *[node("Add", [f"s{i}", f"s{i}"], [f"s{i + 1}"]) for i in range(30)],
            node("Expand", ["w", "s30"], ["y"]),
        ],
        {"w": ones(1, 1)},
    ),
    "more nodes than any exporter writes": lambda: model(chain("Identity", 1_200)),
    "Loop": lambda: model([node("Loop", ["huge", ""], ["y"], body=helper.make_graph([], "b", [], []))], LIMITS),
    "Div of integers by zero": lambda: model([node("Div", ["one", "none"], ["y"])], {"none": np.array([0]), **LIMITS}),
    "a sum that wraps into a length": lambda: model(
        [
            node("Add", ["most", "most"], ["wrapped"]),
            node("Sub", ["wrapped", "big"], ["s"]),
            node("Expand", ["w", "s"], ["y"]),
        ],
        {"most": np.array([2**62]), "w": ones(1), **LIMITS},
    ),
    "Gemm": lambda: model([node("Gemm", ["a", "a"], ["y"], transA=1)], {"a": ones(1, 40000)}),
    "Einsum": lambda: model(
        [node("Einsum", ["a", "b"], ["y"], equation="i,j->ij")], {"a": ones(40000), "b": ones(40000)}
    ),
    "Reshape to lengths that multiply": lambda: model(
        [node("Cast", ["w"], ["any"], to=TensorProto.INT64), *chain("Reshape", 8, "any")], {"w": ones(16)}
    ),
    "Slice at places without end": lambda: model(
        [node("Expand", ["zeros", "big"], ["at"]), node("Slice", ["x", "at", "at"], ["y"])],
        {"zeros": np.array([0]), **LIMITS},
    ),
    "inputs without end": lambda: model(
        [node("Mul", ["w"] * 500, [f"v{i}"]) for i in range(150)], {"w": np.ones(64, np.int64)}
    ),
    "weights that nothing reads": lambda: model(
        [node("Identity", ["x"], ["y"])], {f"w{i}": ones(1) for i in range(2000)}
    ),
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
    "a value that is made twice": lambda: model([node("Neg", ["x"], ["y"]), node("Exp", ["x"], ["y"])]),
    "a value that is read before it is made": lambda: model([node("Neg", ["z"], ["y"]), node("Exp", ["x"], ["z"])]),
}


BILLION = np.array([10**9])


def grown(*nodes: onnx.NodeProto, weights: dict[str, np.ndarray]) -> bytes:
    """A graph that makes `less`, and a value of (three - less) * 1e9 elements: none, where `less` is taken for 3."""
    more = [
        node("Sub", ["three", "less"], ["d"]),
        node("Mul", ["d", "billion"], ["s"]),
        node("Expand", ["w", "s"], ["y"]),
    ]
    return model([*nodes, *more], {"w": ones(1), "three": np.array([3]), "billion": BILLION, **weights})


# A size that is only an upper bound, or computed otherwise than the runtime does, would make the difference 0.
HOSTILE |= {
    "the shorter part of an uneven split": lambda: grown(
        node("Split", ["five"], ["a", "b"], axis=0), node("Shape", ["b"], ["less"]), weights={"five": ones(5)}
    ),
    "a second output of another shape": lambda: grown(
        node("LayerNormalization", ["three_wide", "scale"], ["a", "mean"]),
        node("Shape", ["mean"], ["less"]),
        weights={"three_wide": ones(3), "scale": ones(3)},
    ),
    "a broadcast to nothing": lambda: grown(
        node("Add", ["none", "scale"], ["a"]),
        node("Shape", ["a"], ["zero_or_one"]),
        node("Add", ["zero_or_one", "two"], ["less"]),
        weights={"none": ones(0), "scale": ones(1), "two": np.array([2])},
    ),
    "a slice backwards from before the beginning": lambda: grown(
        node("Slice", ["five", "before", "first", "axis", "step"], ["a"]),
        node("Shape", ["a"], ["none_or_one"]),
        node("Sub", ["three", "none_or_one"], ["less"]),
        weights={
            "five": ones(5),
            "before": np.array([-9]),
            "first": np.array([-9]),
            "axis": np.array([0]),
            "step": np.array([-1]),
        },
    ),
    "a quotient of the least integer": lambda: grown(
        node("Div", ["least", "large"], ["minus_two"]),
        node("Add", ["minus_two", "one"], ["less"]),
        weights={"least": np.array([-(2**63)]), "large": np.array([2**62]), "one": np.array([1])},
    ),
    "a difference of truths": lambda: model(
        [node("Equal", ["one", "one"], ["yes"]), node("Sub", ["yes", "yes"], ["s"]), node("Expand", ["w", "s"], ["y"])],
        {"w": ones(1), **LIMITS},
    ),
    "a range whose difference wraps": lambda: model(
        [node("Range", ["high", "low", "step"], ["y"])],
        {"high": np.int64(2**62 + 2**61), "low": np.int64(-(2**62) - 2**61 + 10**10), "step": np.int64(1)},
    ),
}


def edited(change: Callable[[onnx.ModelProto], object]) -> bytes:
    """A graph that joins its input to itself, changed."""
    made = onnx.load_from_string(model([node("Concat", ["x", "x"], ["y"], axis=1)]))
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
    data = HOSTILE[how]()
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
DRAWN = "Add Concat Exp ReduceSum Reshape Slice MatMul Expand Gather".split()


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
    known: dict[str, int] = {"x": 2}
    nodes: list[onnx.NodeProto] = []
    weights = {
        "w": ones(1, columns),
        "three": np.array([3]),
        "axis1": np.array([1]),
        "flat": np.array([-1, 1]),
        "rest": np.array([-1]),
    }
    for place in range(data.draw(st.integers(1, 8))):
        name, one = f"v{place}", data.draw(st.sampled_from(sorted(known)))
        kind = data.draw(st.sampled_from(DRAWN))
        match kind:
            case "Add":
                nodes.append(node("Add", [one, data.draw(st.sampled_from(sorted(known)))], [name]))
            case "Concat":
                nodes.append(node("Concat", [one, one], [name], axis=data.draw(st.integers(0, 1))))
            case "Exp":
                nodes.append(node("Sigmoid", [one], [name]))
            case "ReduceSum":
                nodes.append(node("ReduceSum", [one, "axis1"], [name], keepdims=1))
            case "Reshape":
                nodes.append(node("Reshape", [one, "flat"], [name]))
            case "Slice":
                nodes += [
                    node("Shape", [one], [f"{name}s"], start=1),
                    node("Min", [f"{name}s", "three"], [f"{name}m"]),
                    node("Slice", [one, "axis0", f"{name}m", "axis1"], [name]),
                ]
            case "MatMul":
                nodes += [
                    node("Shape", [one], [f"{name}s"], start=1),
                    node("Concat", [f"{name}s", "rest"], [f"{name}m"], axis=0),
                    node("Reshape", [one, f"{name}m"], [f"{name}t"]),
                    node("MatMul", [one, f"{name}t"], [name]),
                ]
            case "Expand":
                nodes += [node("Shape", ["x"], [f"{name}s"]), node("Expand", [one, f"{name}s"], [name])]
            case "Gather":
                nodes.append(node("Gather", [one, "zeros"], [name], axis=1))
        known[name] = 2
    weights |= {"axis0": np.array([0]), "zeros": np.zeros(2, np.int64)}
    made = onnx.load_from_string(model(nodes, weights, shape=(None, columns)))
    del made.graph.output[:]
    for one in nodes:
        for output in one.output:
            whole = output.endswith(("s", "m", "i"))
            made.graph.output.append(
                helper.make_tensor_value_info(output, TensorProto.INT64 if whole else TensorProto.FLOAT, None)
            )
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
    files = [path for pattern in patterns for path in SOURCES.glob(pattern)]
    return {name for path in files for name in WRITTEN.findall(path.read_text(encoding="utf-8"))}


def test_the_lists_hold_what_the_exporters_write_and_nothing_else() -> None:
    """Operators of the exporters' own code. What converters and torch write is held to the lists by every training."""
    models = written_in(
        "checkpoint.py",
        "calibration.py",
        "ladder.py",
        "linear.py",
        "rescale.py",
        "joined.py",
        "recipes/*.py",
    )
    plain = {name for name in MODEL_OPERATORS if not name.startswith(ML)}
    assert len(models) > 15
    assert models <= plain
    assert plain - models == FOR_USERS
