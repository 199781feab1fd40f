"""A judge's probability is read on its log-odds, and calibrated on all labels: known answers, by public ends."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from sklearn.linear_model import LogisticRegression

import metaprobe
from metaprobe.checkpoints.manifest import MODEL
from metaprobe.probes.quality import FEATURES_INPUT
from metaprobe.records.types import DecisionAnswer
from metaprobe.training.calibrators import (
    Platt,
    anchored,
    closest_of,
    fit_platt,
    highest_of,
    log_odds_of,
    probabilities_as_log_odds,
    sigmoid,
)
from metaprobe.training.export import GraphBuilder
from metaprobe.training.ladder import decided_columns

Floats = np.ndarray
JUDGES: dict[str, Callable[[Floats], Floats]] = {
    "too sure": lambda t: sigmoid(3.0 * t),
    "not sure enough": lambda t: sigmoid(0.3 * t),
    "biased": lambda t: sigmoid(t + 2.0),
    "in steps of a tenth": lambda t: np.round(sigmoid(2.0 * (t + 0.5)) * 10) / 10,
}
"""Judges by name. Each maps the log-odds of being right, with noise, to the probability that the judge gives."""
MOST_GAP = 0.002
"""Largest difference of the mean score from the share of right answers among the labels that were learned from."""


def drawn(judge: Callable[[Floats], Floats], n: int, seed: int) -> tuple[Floats, Floats]:
    """Returns what the judge says of n answers, and the true log-odds of these."""
    rng = np.random.default_rng(seed)
    truth = rng.normal(0.3, 1.5, n)
    return judge(truth + rng.normal(0, 0.4, n)), truth


def written(path: Path, said: Floats, right: np.ndarray) -> Path:
    lines = [
        {
            "id": f"a{i}",
            "group": f"q{i}",
            "question": f"Question {i}?",
            "answer": f"Answer {i}.",
            "decisions": {
                "model": "rigged-judge",
                "answers": [{"type": "predicate", "name": "correct", "probability": float(p)}],
            },
            "labels": {"correct": int(y)},
        }
        for i, (p, y) in enumerate(zip(said, right, strict=True))
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def scores(checkpoint: Path, said: Floats) -> Floats:
    about = {"call_id": "1", "question": "correct", "source": "rigged-judge", "kind": "predicate"}
    answers = [[DecisionAnswer(**about, value=float(p))] for p in said]
    return np.array([verdict.score for verdict in metaprobe.load(checkpoint).predict_many(answers)])


def error(p: Floats, truth: Floats) -> float:
    """Returns the calibration error of p against the true probabilities, in 15 bins of equal mass."""
    parts = np.array_split(np.argsort(p, kind="stable"), 15)
    return sum(len(part) * abs(p[part].mean() - truth[part].mean()) for part in parts) / len(p)


@pytest.mark.parametrize("name", JUDGES)
def test_a_judge_is_as_well_calibrated_as_by_platts_map_of_its_log_odds(name: str, tmp_path: Path) -> None:
    said, truth = drawn(JUDGES[name], 300, seed=5)
    right = (np.random.default_rng(6).uniform(size=300) < sigmoid(truth)).astype(np.int64)
    metaprobe.train_quality(
        [written(tmp_path / "lines.jsonl", said, right)], out=tmp_path / "made", reads="decisions", folds=2
    )
    fresh, of_fresh = drawn(JUDGES[name], 1500, seed=7)
    columns = [log_odds_of(p, 0.01)[:, None] for p in (said, fresh)]
    plain = LogisticRegression(C=1e6).fit(columns[0], right).predict_proba(columns[1])[:, 1]
    ours = scores(tmp_path / "made", fresh)
    raw, own, other = (error(p, sigmoid(of_fresh)) for p in (fresh, ours, plain))
    assert own < other + 0.01
    assert own < 0.75 * raw
    assert (np.diff(ours[np.argsort(fresh, kind="stable")]) >= 0).all(), "the judge's order is kept"
    own_labels = scores(tmp_path / "made", said)
    assert own_labels.mean() == pytest.approx(right.mean(), abs=MOST_GAP), "calibrated on all labels"


@given(arrays(np.float64, st.integers(1, 30), elements=st.floats(0, 1)))
def test_no_two_probabilities_become_one_and_the_order_stays(values: Floats) -> None:
    closest = closest_of(values)
    assert 0 < closest < 0.5
    clear = np.unique(values[(values == 0) | (values == 1) | ((values > 1e-5) & (values < 1 - 1e-5))])
    found = log_odds_of(clear, closest)
    assert np.isfinite(found).all()
    assert (np.diff(found) >= 0).all()
    apart = np.diff(clear) > 1e-9
    assert (np.diff(found)[apart] > 0).all()


def test_a_number_that_is_no_probability_is_read_as_it_is() -> None:
    levels = np.array([0.0, 0.4, 2.0])
    assert probabilities_as_log_odds(levels).tolist() == levels.tolist()
    assert probabilities_as_log_odds(np.array([0.5, 0.75])).tolist() == pytest.approx([0.0, np.log(3)])


def test_levels_and_what_is_made_of_options_are_no_probabilities_to_the_ladder() -> None:
    names = ("tone", "tone.entropy", "tone=high", "tone=low", "true")
    values = np.array([[0.4, 0.6, 0.4, 0.6, 0.9], [0.1, 0.3, 0.1, 0.9, 0.2]], dtype=np.float32)
    read = decided_columns(names, values)
    assert [place > 0 for place in read.closest] == [False, False, True, True, True]
    found = read.of(values)
    np.testing.assert_array_equal(found[:, :2], values[:, :2])
    np.testing.assert_allclose(found[:, 4], log_odds_of(values[:, 4]), atol=1e-6)


@given(st.integers(0, 10**6))
def test_the_graph_reads_the_same_log_odds(seed: int) -> None:
    rng = np.random.default_rng(seed)
    values = np.concatenate([rng.beta(0.2, 0.2, (40, 2)), [[0.0, 1.0], [1.0, 0.0]]]).astype(np.float32)
    values[:, 1] *= np.float32(3)  # an expected level
    read = decided_columns(("true", "tone"), values)
    graph = GraphBuilder()
    column = graph.add("Gather", read.add_to(graph, "x", 2), graph.constant([0]), axis=1)
    graph.add("Sigmoid", graph.add("Mul", column, graph.number(0.5)), name="p")
    session = onnxruntime.InferenceSession(graph.model({"x": 2}, ["p"]))
    [found] = session.run(None, {"x": values})
    np.testing.assert_allclose(found.ravel(), sigmoid(0.5 * read.of(values)[:, 0]), atol=1e-5)
    assert highest_of(read.closest[0]) < 1


@given(st.integers(0, 10**6), st.floats(-3, 3), st.floats(0.1, 4))
def test_an_anchored_map_is_right_on_average_and_keeps_its_slope(seed: int, shift: float, slope: float) -> None:
    rng = np.random.default_rng(seed)
    score = rng.normal(shift, 3, 50)
    y = (rng.uniform(size=50) < sigmoid(score)).astype(np.int64)
    y[:2] = 0, 1
    found = anchored(Platt(slope, 0.0), score, y)
    assert found.slope == slope
    assert found.probability(score).mean() == pytest.approx(y.mean(), abs=1e-6)


def test_the_exported_graph_is_the_fitted_model(tmp_path: Path) -> None:
    said, truth = drawn(JUDGES["too sure"], 200, seed=1)
    right = (np.random.default_rng(2).uniform(size=200) < sigmoid(truth)).astype(np.int64)
    made = metaprobe.train_quality(
        [written(tmp_path / "lines.jsonl", said, right)], out=tmp_path / "made", reads="decisions", folds=2
    )
    found = made.run({FEATURES_INPUT: said.astype(np.float32)[:, None]})["correct"].ravel()
    given_as = said.astype(np.float32).astype(np.float64)
    closest = closest_of(given_as)
    z = log_odds_of(np.minimum(given_as, highest_of(closest)), closest)
    unsure = (found > 0.1) & (found < 0.9)  # where float32 leaves the log-odds their digits
    slope, intercept = np.polyfit(z[unsure], log_odds_of(found[unsure]), 1)
    np.testing.assert_allclose(found, sigmoid(slope * z + intercept), atol=1e-5)
    assert (tmp_path / "made" / MODEL).is_file()
    assert fit_platt(z, right).slope == pytest.approx(slope, rel=0.35)
