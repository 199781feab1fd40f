"""The features inside the graph against their definition in NumPy, and its outputs against the features-in graph."""

import lightgbm
import numpy as np
import onnx
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper
from spoilt_checkpoints import rewrite

from metaprobe.checkpoints import (
    ContractMismatch,
    Draft,
    GoldenMismatch,
    UnsafeModel,
    describe_verified,
    load_checkpoint,
    save_checkpoint,
)
from metaprobe.checkpoints.graph_session import GraphSession
from metaprobe.checkpoints.manifest import RAW, RAW_GOLDEN
from metaprobe.probes.features import SEGMENTED, features, schema
from metaprobe.records.errors import InvalidResponse, RecordError
from metaprobe.training import raw_graph as raw_parity
from metaprobe.training.calibration import Platt
from metaprobe.training.heads import trees_graph
from metaprobe.training.raw_graph import build_raw_graph, near_split, pad, parity, raw_graph
from metaprobe.training.trees import Trees, float32_thresholds

TOLERANCE = {"rtol": 1e-6, "atol": 1e-6}
FULL = schema("full")
SCHEMA_NAMES = ["full", "full+terms", "terms"]
GOOD = [-0.5, -1.5, -0.25]


def passes_on(name: str) -> bytes:
    """A features-in graph that gives back the features, under the name of a head."""
    d = len(schema(name).names)
    ends = [helper.make_tensor_value_info(end, TensorProto.FLOAT, [None, d]) for end in ("features", "head")]
    graph = helper.make_graph([helper.make_node("Identity", ["features"], ["head"])], "g", ends[:1], ends[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 15)], ir_version=8)
    return model.SerializeToString()


@pytest.fixture(scope="module")
def readers():
    """Schema -> a session that gives the features of raw log-probabilities."""
    return {name: GraphSession(raw_graph(passes_on(name), name)) for name in SCHEMA_NAMES}


@pytest.mark.parametrize("name", [SEGMENTED, "full+top", "prefix-10"])
def test_a_graph_of_finished_answers_is_not_made_for_what_it_is_not_given(name):
    with pytest.raises(RecordError, match=r"expected the schema terms, full or full\+terms: leave raw\.onnx out"):
        raw_graph(passes_on(name), name)


@pytest.fixture(scope="module")
def responses():
    """600 answers, with the many exact zeros that confident models give."""
    rng = np.random.default_rng(0)
    return [
        (np.minimum(-rng.exponential(1, t), 0) * (rng.random(t) < rng.uniform(0.3, 1))).astype(np.float32)
        for t in rng.integers(1, 200, 600)
    ]


@pytest.fixture(scope="module")
def forest(responses):
    """Two calibrated heads on the full schema."""
    X = features(FULL, responses)
    heads = {"correct": grown(X, "full.mean", -0.5), "critical": grown(X, "last25%.slope", 0.0)}
    return trees_graph(heads, width=X.shape[1])


def grown(X, feature, middle):
    """Trees and calibrator that know whether a feature lies above the middle, give or take."""
    [names] = [schema(name).names for name in SCHEMA_NAMES if len(schema(name).names) == X.shape[1]]
    y = np.nan_to_num(X[:, names.index(feature)]) > np.random.default_rng(1).normal(middle, 0.2, len(X))
    options = {"objective": "binary", "num_leaves": 15, "min_data_in_leaf": 5, "num_threads": 1, "verbosity": -1}
    return Trees(float32_thresholds(lightgbm.train(options, lightgbm.Dataset(X, y), 40)), {}, 0.0), Platt(1.1, -0.1)


@pytest.mark.parametrize("name", ["full", "full+terms"])
def test_features_inside_the_graph_are_those_of_numpy_for_lengths_1_to_600(name, readers):
    rng = np.random.default_rng(0)
    shapes = [
        lambda t: -rng.exponential(1, t),
        lambda t: np.round(-rng.exponential(1, t), 1) + 0.0,  # ties
        lambda t: np.full(t, -0.7),
        lambda t: np.where(rng.random(t) < 0.05, -9999.0, -0.01),
        lambda t: np.zeros(t),
    ]
    lengths = [*range(1, 61), 99, 100, 101, 255, 256, 600]
    responses = [shapes[i % len(shapes)](t).astype(np.float32) for i, t in enumerate([*lengths] * 2)]
    found = readers[name].run(pad(responses))["head"]
    expected = features(schema(name), responses)
    np.testing.assert_allclose(found, expected, **TOLERANCE)
    assert np.isnan(expected).any()
    assert (found == expected)[~np.isnan(expected)].mean() > 0.99  # nearly all are equal to the last bit


values = st.one_of(st.floats(-40, 0, width=32), st.floats(-(2**-10), 0, width=32), st.sampled_from([-9999.0, 0.0]))
ragged = st.one_of(
    st.lists(values, min_size=1, max_size=12),
    st.lists(values, min_size=45, max_size=110),
    st.tuples(values, st.integers(1, 130)).map(lambda pair: [pair[0]] * pair[1]),
).map(lambda x: np.array(x, np.float32))


@settings(max_examples=40)
@given(st.lists(ragged, min_size=1, max_size=5), st.sampled_from(SCHEMA_NAMES))
@example([np.array([-9999.0] + [-0.1] * 60, np.float32), np.array([-0.1] * 60 + [-9999.0], np.float32)], "full")
def test_features_inside_the_graph_are_those_of_numpy_in_every_schema(readers, responses, name):
    found = readers[name].run(pad(responses))["head"]
    np.testing.assert_allclose(found, features(schema(name), responses), **TOLERANCE)


@pytest.mark.parametrize("padding", [np.nan, np.inf, -np.inf, 7.0, -3.0])
def test_padding_and_neighbours_do_not_matter(padding, readers):
    inputs = pad([GOOD, [-0.1] * 40, [-2.0]])
    alone = [readers["full"].run(pad([x]))["head"][0] for x in (GOOD, [-0.1] * 40, [-2.0])]
    inputs["logprobs"][np.isnan(inputs["logprobs"])] = padding
    np.testing.assert_array_equal(readers["full"].run(inputs)["head"], alone)


BAD_ROWS = [([0.5, -1.0], 2), ([-1.0, np.nan], 2), ([-np.inf, -1.0], 2), ([np.inf], 1)]
BAD_ROWS += [(GOOD, length) for length in (0, -1, 4, 2**40)]


def test_a_row_that_cannot_be_scored_gives_nan_and_leaves_its_neighbours_alone(forest):
    session = GraphSession(raw_graph(forest, "full"))
    alone = session.run(pad([GOOD]))
    for bad, length in BAD_ROWS:
        inputs = pad([GOOD, bad, GOOD])
        inputs["lengths"][1] = length
        for name, found in session.run(inputs).items():
            np.testing.assert_array_equal(np.isnan(found[:, 0]), [False, True, False])
            np.testing.assert_array_equal(found[[0, 2], 0], alone[name][[0, 0], 0])


def test_heads_are_those_of_the_features_in_graph(forest, responses):
    expected = GraphSession(forest).run({"features": features(FULL, responses)})
    actual = GraphSession(build_raw_graph(forest, "full", responses)).run(pad(responses))
    assert list(actual) == ["correct", "critical"]
    agreement = parity(expected, actual, near_split(forest, features(FULL, responses)))
    assert agreement.rows == 600
    assert agreement.largest < 1e-6
    assert agreement.different <= 6
    assert expected["correct"].std() > 0.1  # or else agreement would mean little


def test_graph_that_disagrees_is_not_let_out(forest, responses, monkeypatch):
    monkeypatch.setattr(raw_parity, "raw_graph", lambda graph, name: raw_graph(doubled(forest), name))
    with pytest.raises(GoldenMismatch, match="raw graph differs"):
        build_raw_graph(forest, "full", responses[:70])


def doubled(forest: bytes) -> bytes:
    """The same graph with every leaf doubled."""
    model = onnx.load_from_string(forest)
    for node in model.graph.node:
        for attribute in node.attribute:
            if attribute.name == "target_weights":
                attribute.floats[:] = [2 * weight for weight in attribute.floats]
    return model.SerializeToString()


def test_graph_of_other_features_is_refused(forest):
    with pytest.raises(RecordError, match=r"\[\[153\]\].*'terms'"):
        raw_graph(forest, "terms")
    newer = onnx.load_from_string(forest)
    next(opset for opset in newer.opset_import if opset.domain == "").version = 18
    with pytest.raises(RecordError, match=r"opset 18; expected .* from 15 to 17"):
        raw_graph(newer.SerializeToString(), "full")
    with pytest.raises(InvalidResponse, match="no responses"):
        build_raw_graph(forest, "full", [])


@pytest.fixture
def saved(tmp_path, forest, responses):
    """Writes a checkpoint with these extra files."""

    def save(extra):
        X = features(FULL, responses[:20])
        expected = GraphSession(forest).run({"features": X})
        draft = Draft(kind="quality", contract={"schema": "full", "features": list(FULL.names)})
        inputs = {"features": X}
        return save_checkpoint(
            tmp_path / "c", draft, model=forest, golden_inputs=inputs, expected=expected, card="# c", extra=extra
        )

    return save


def test_the_raw_graph_is_held_against_its_own_golden_rows(saved, forest, responses):
    checkpoint = saved({RAW: build_raw_graph(forest, "full", responses[:9])})
    raw = checkpoint.raw_session().run(pad(responses[:9]))
    plain = checkpoint.run({"features": features(FULL, responses[:9])})
    np.testing.assert_allclose(raw["correct"], plain["correct"], atol=1e-5)
    assert "raw.onnx    passed the guard; its outputs and golden rows are" in describe_verified(
        checkpoint, pinned=False
    )
    (checkpoint.path / RAW).write_bytes(raw_graph(doubled(forest), "full"))  # by someone who can make hashes
    rewrite(checkpoint.path, lambda m: None, rehash=[RAW])
    other = load_checkpoint(checkpoint.path)
    for look in (other.raw_session, lambda: describe_verified(other, pinned=False)):
        with pytest.raises(GoldenMismatch, match=r"raw_golden\.json: output '\w+' of row \d+ differs by"):
            look()
    rewrite(checkpoint.path, lambda m: m["files"].pop(RAW_GOLDEN))
    with pytest.raises(ContractMismatch, match=r"lists raw\.onnx without raw_golden\.json"):
        load_checkpoint(checkpoint.path)


def test_extra_graph_is_held_to_the_same_guard(saved, forest):
    model = onnx.load_from_string(forest)
    model.graph.node[0].domain = "com.elsewhere"
    for name in (RAW, "other.ONNX"):
        with pytest.raises(UnsafeModel, match=rf"{name}.*com\.elsewhere"):
            saved({name: model.SerializeToString()})


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        (lambda: {}, r"holds no raw\.onnx"),
        (lambda: {RAW: raw_graph(passes_on("terms"), "terms")}, r"outputs correct.*raw\.onnx has head"),
    ],
)
def test_a_raw_graph_that_is_missing_or_gives_other_outputs_is_refused(saved, extra, said):
    with pytest.raises(ContractMismatch, match=said):
        saved(extra()).raw_session()
