"""An exported checkpoint gives what was fitted, and its manifest and card say what it was made of."""

import dataclasses
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from conftest import made_up

from metaprobe.checkpoints import ContractMismatch, describe, load_checkpoint
from metaprobe.probes.hidden import ConfidenceProbe
from metaprobe.probes.quality import QualityPredictor
from metaprobe.records.errors import InvalidResponse, RecordError
from metaprobe.records.types import Call, Hidden
from metaprobe.training.calibrators import sigmoid
from metaprobe.training.evidence import Evidence
from metaprobe.training.folds import final_roles
from metaprobe.training.linear_probe import linear_graph
from metaprobe.training.recipes.train_hidden import write_hidden
from metaprobe.training.stored_states import InMemory
from metaprobe.training.study import study_of
from metaprobe.training.trees import fit_trees

# Whether so little data passes every audit is not the subject here.
pytestmark = pytest.mark.filterwarnings("ignore::metaprobe.checkpoints.UntrustedCheckpoint")

HEAVY = {"torch", "transformers", "sklearn", "scipy", "pyarrow", "lightgbm", "onnx", "safetensors"}


def test_the_linear_graph_is_the_formula_and_imputes_the_mean() -> None:
    rng = np.random.default_rng(0)
    mean, scale, weights, intercept = (
        rng.normal(size=4),
        rng.uniform(1, 2, 4),
        rng.normal(size=(4, 2)),
        rng.normal(size=2),
    )
    X = rng.normal(size=(20, 4)).astype(np.float32)
    X[::3, 1] = np.nan
    graph = linear_graph(
        input_name="x", mean=mean, scale=scale, weights=weights, intercept=intercept, outputs=["a", "b"], impute=True
    )
    a, b = onnxruntime.InferenceSession(graph).run(None, {"x": X})
    expected = sigmoid(np.nan_to_num((X - mean) / scale) @ weights + intercept)
    np.testing.assert_allclose(np.hstack([a, b]), expected, atol=1e-5)


def test_the_predictor_ranks_what_it_was_trained_on(planted: dict[str, Path], evidence: Evidence) -> None:
    predictor = QualityPredictor.load(planted["quality"])
    verdicts = predictor.predict_many(list(evidence.table.logprobs))
    scores = np.array([verdict.score for verdict in verdicts])
    assert scores[evidence.table.y == 1].mean() > scores[evidence.table.y == 0].mean() + 0.1
    flagged = np.array([verdict.flagged for verdict in verdicts])
    wrong = evidence.table.y == 0
    assert flagged.mean() == pytest.approx(wrong.mean(), abs=0.1), "as many as are expected to be wrong"
    assert flagged[wrong].mean() > flagged[~wrong].mean() + 0.1


def test_the_probe_reads_its_layer_and_refuses_others(planted: dict[str, Path], evidence: Evidence) -> None:
    probe = ConfidenceProbe.load(planted["after"])
    assert isinstance(evidence.states, InMemory)
    activations = evidence.states.activations
    assert (probe.layer, probe.position) == (2, "answer_last")
    hidden = activations.values[:, 2, 1]
    p = probe.probability(hidden.astype(np.float32))
    assert p[evidence.table.y == 1].mean() > p[evidence.table.y == 0].mean() + 0.1
    call = Call(id="c", hidden=Hidden(activations.values[0], activations.layers, activations.positions))
    with pytest.warns(UserWarning, match="are not scored"), pytest.raises(InvalidResponse, match="not checked"):
        probe.confidence(call)
    assert ConfidenceProbe.load(planted["after"], on_mismatch="ignore").confidence(call) == pytest.approx(
        float(p[0]), abs=1e-5
    )
    for wrong in (None, Hidden(activations.values[0][:2], (0, 1), activations.positions)):
        with pytest.raises(InvalidResponse, match="layer 2 at answer_last"):
            probe.confidence(dataclasses.replace(call, hidden=wrong))
    other = dataclasses.replace(call, model="another")
    with (
        pytest.warns(UserWarning, match="response of 'another', checkpoint trained on m"),
        pytest.raises(InvalidResponse),
    ):
        probe.confidence(other)
    with pytest.raises(ContractMismatch, match="response of 'another"):
        ConfidenceProbe.load(planted["after"], on_mismatch="refuse").confidence(other)
    with pytest.raises(InvalidResponse, match="NaN"):
        probe.probability(np.full((1, 12), np.nan, np.float32))
    with pytest.raises(ContractMismatch, match="expected 'quality'"):
        QualityPredictor.load(planted["after"])


def test_a_probe_needs_hidden_states(tmp_path: Path) -> None:
    bare = study_of(dataclasses.replace(made_up(120), states=None), folds=2)
    with pytest.raises(RecordError, match="no hidden states"):
        write_hidden(tmp_path / "x", bare, when="after", target="correct", command="")


def test_the_card_and_inspect_tell_figures_with_intervals_and_audits(planted: dict[str, Path]) -> None:
    card = (planted["quality"] / "README.md").read_text()
    shown = describe(load_checkpoint(planted["quality"]))
    for text in (card, shown):
        assert "auroc" in text
        assert "beats length" in text
    manifest = load_checkpoint(planted["quality"]).manifest
    assert manifest.metrics["auroc"].low < manifest.metrics["auroc"].estimate < manifest.metrics["auroc"].high
    assert manifest.generator is not None
    assert (manifest.generator.model, manifest.generator.logprobs_mode) == ("m", "raw")


def test_features_that_never_vary_are_refused_and_not_exported(evidence: Evidence) -> None:
    roles = final_roles(list(evidence.table.groups), evidence.table.y)
    with pytest.raises(RecordError, match="nothing to split"):
        fit_trees(np.ones_like(evidence.features), evidence.table.y, roles, names=evidence.feature_names)
