"""Thresholds that keep what they promise, and checkpoints with every calibrator."""

import dataclasses
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from conftest import made_up
from test_promised_thresholds import found_by

from metaprobe.eval.table import AnswerTable
from metaprobe.probes.hidden import ConfidenceProbe
from metaprobe.training.calibration import Beta, Calibrator, Isotonic, Platt, fit_platt
from metaprobe.training.evidence import Evidence
from metaprobe.training.folds import final_roles
from metaprobe.training.heads import linear_graph, trees_graph
from metaprobe.training.recipes.hidden import write_hidden
from metaprobe.training.study import study_of
from metaprobe.training.trees import fit_trees

pytestmark = pytest.mark.filterwarnings("ignore::metaprobe.checkpoints.UntrustedCheckpoint")

KNOTS = Isotonic(np.array([-1.0, 0.0, 0.5, 2.0]), np.array([0.1, 0.3, 0.3, 0.9]))
CALIBRATORS = (Platt(1.3, -0.2), Beta(0.1, 0.8, 0.4, 1.2, -0.3), KNOTS)


@pytest.mark.parametrize("calibrator", CALIBRATORS, ids=lambda c: c.name)
def test_a_graph_ends_in_its_calibrator(evidence: Evidence, calibrator: Calibrator) -> None:
    X, y = evidence.features, evidence.table.y
    trees = fit_trees(X, y, final_roles(evidence.table.groups.tolist(), y), names=evidence.feature_names)
    graph = trees_graph({"correct": (trees, calibrator)}, width=X.shape[1])
    [got] = onnxruntime.InferenceSession(graph).run(None, {"features": X})
    np.testing.assert_allclose(got[:, 0], calibrator.probability(trees.score(X)), atol=1e-5)
    rng = np.random.default_rng(0)
    states = rng.normal(size=(50, 4)).astype(np.float32)
    mean, scale, weights = rng.normal(size=4), np.exp(rng.normal(size=4)), rng.normal(size=4)
    graph = linear_graph(
        input_name="hidden",
        mean=mean,
        scale=scale,
        weights=weights[:, None],
        intercept=np.array([0.3]),
        outputs=["correct"],
        calibrator=calibrator,
    )
    [got] = onnxruntime.InferenceSession(graph).run(None, {"hidden": states})
    np.testing.assert_allclose(got[:, 0], calibrator.probability(((states - mean) / scale) @ weights + 0.3), atol=1e-5)


def test_a_probe_is_trained_exported_and_reads_what_it_was_trained_on(evidence: Evidence, tmp_path: Path) -> None:
    study = study_of(evidence, folds=2)
    assert study.fits["hidden probe, answer"].ranking[evidence.table.y == 1].mean() > 0
    write_hidden(tmp_path / "probe", study, when="after", target="correct", command="test")
    probe = ConfidenceProbe.load(tmp_path / "probe")
    assert (probe.layers, probe.position) == ((2,), "answer_last")
    assert evidence.states is not None
    p = probe.probability(evidence.states.read(2, "answer_last").astype(np.float32))
    assert p[evidence.table.y == 1].mean() > p[evidence.table.y == 0].mean() + 0.1


def judged(n: int, seed: int) -> tuple[AnswerTable, np.ndarray]:
    """Answers with scores that tell much, and are no log-odds."""
    rng = np.random.default_rng(seed)
    evidence = made_up(n, seed=seed)
    scores = 3 * (2 * evidence.table.y - 1) + rng.normal(size=n) * 2.5
    return dataclasses.replace(evidence.table, groups=evidence.table.call_ids), scores


@pytest.mark.parametrize("name", ["platt", "flat"])
def test_promised_thresholds_hold_on_new_answers(name: str) -> None:
    missed, wrong, accepted = [], [], 0
    for seed in range(20):
        table, scores = judged(600, seed)
        rows = np.arange(300)
        calibrator: Calibrator = fit_platt(scores[rows], table.y[rows])
        if name == "flat":
            knots = np.quantile(scores[rows], [0.05, 0.3, 0.5, 0.95])
            calibrator = Isotonic(knots.astype(np.float32).astype(float), np.array([0.05, 0.4, 0.4, 0.95]))
        found = found_by(scores, table, rows, calibrator, seed=seed)
        p, y = calibrator.probability(scores)[300:], table.y[300:]
        missed.append(float((p[y == 0] >= found["catch"]).mean()))
        if "risk" in found:
            accepted += 1
            wrong.append(float((y[p >= found["risk"]] == 0).mean()))
    # In expectation over calibrations; 0.015 is about two standard errors of the mean of 20.
    assert np.mean(missed) <= 0.1 + 0.015
    assert accepted > 6, "with a confidence of 95 % half of so few answers carry none"
    # More than 10 % wrong in at most 10 % of calibrations, and three standard errors of that.
    assert np.mean(np.array(wrong) > 0.1 + 2 * np.sqrt(0.09 / 150)) <= 0.1 + 3 * np.sqrt(0.09 / accepted)


def test_what_cannot_be_promised_is_left_out() -> None:
    table, scores = judged(600, 0)
    noise = np.random.default_rng(1).normal(size=600)
    assert "risk" not in found_by(noise, table, np.arange(300), Platt(1.0, 0.0))
    few = np.flatnonzero(table.y == 0)[:5].tolist() + np.flatnonzero(table.y == 1)[:20].tolist()
    assert found_by(scores, table, np.array(few), Platt(1.0, 0.0)) == {}
