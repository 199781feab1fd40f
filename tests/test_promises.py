"""Thresholds that keep what they promise, and checkpoints with every calibrator."""

import numpy as np
import onnxruntime
import pytest

from metaprobe.training.calibration import Beta, Calibrator, Isotonic, Platt
from metaprobe.training.evidence import Evidence
from metaprobe.training.folds import final_roles
from metaprobe.training.heads import linear_graph, trees_graph
from metaprobe.training.trees import Trees, fit_trees

pytestmark = pytest.mark.filterwarnings("ignore::metaprobe.checkpoints.UntrustedCheckpoint")

KNOTS = Isotonic(np.array([-1.0, 0.0, 0.5, 2.0]), np.array([0.1, 0.3, 0.3, 0.9]))
CALIBRATORS = (Platt(1.3, -0.2), Beta(0.1, 0.8, 0.4, 1.2, -0.3), KNOTS)


@pytest.fixture(scope="module")
def trees(evidence: Evidence) -> Trees:
    roles = final_roles(evidence.table.groups.tolist(), evidence.table.y)
    return fit_trees(evidence.features, evidence.table.y, roles, names=evidence.feature_names)


@pytest.mark.parametrize("calibrator", CALIBRATORS, ids=lambda c: c.name)
def test_a_graph_ends_in_its_calibrator(evidence: Evidence, trees: Trees, calibrator: Calibrator) -> None:
    X = evidence.features
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
