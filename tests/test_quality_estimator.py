"""The quality predictor as scikit-learn knows estimators, on responses of different lengths."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from sklearn.base import clone
from sklearn.model_selection import GroupKFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from metaprobe.checkpoints import Generator
from metaprobe.checkpoints.manifest import RAW
from metaprobe.probes.quality import QualityPredictor
from metaprobe.training.common import trees
from metaprobe.training.crossfit.methods import Evidence
from metaprobe.training.quality.estimator import QualityClassifier


@pytest.fixture(autouse=True, scope="module")
def _one_size_of_tree() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trees, "GRID", trees.GRID[:1])
        patch.setattr(trees, "MAX_ROUNDS", 60)
        yield


@pytest.fixture(scope="module")
def fitted(evidence: Evidence) -> QualityClassifier:
    table = evidence.table
    return QualityClassifier(seed=1).fit(list(table.logprobs), table.y, groups=table.groups)


def test_parameters_are_kept_and_cloned_without_what_was_learned(fitted: QualityClassifier) -> None:
    copy = clone(fitted)
    assert copy.get_params() == fitted.get_params() == {"schema": "full", "seed": 1}
    assert not hasattr(copy, "head_")
    assert clone(fitted).set_params(schema="prefix-5").schema == "prefix-5"


def test_cross_validation_by_group_finds_what_was_planted(evidence: Evidence) -> None:
    table = evidence.table
    pipeline = make_pipeline(FunctionTransformer(), QualityClassifier())
    found = cross_val_score(
        pipeline, list(table.logprobs), table.y, groups=table.groups, cv=GroupKFold(3), scoring="roc_auc"
    )
    assert found.min() > 0.6


def test_probabilities_belong_to_the_classes_whatever_they_are_called(evidence: Evidence) -> None:
    table = evidence.table
    named = np.where(table.y == 1, "right", "bad")
    model = QualityClassifier().fit(list(table.logprobs), named)
    p = model.predict_proba(list(table.logprobs))
    np.testing.assert_allclose(p.sum(axis=1), 1)
    assert model.classes_.tolist() == ["bad", "right"]
    assert p[table.y == 1, 1].mean() > p[table.y == 0, 1].mean() + 0.1
    np.testing.assert_array_equal(model.predict(list(table.logprobs)) == "right", p[:, 1] > 0.5)


def test_an_exported_checkpoint_gives_the_same_probabilities(
    fitted: QualityClassifier, evidence: Evidence, tmp_path: Path
) -> None:
    fitted.export(tmp_path / "c", generator=Generator(model="m", logprobs_mode="raw"))
    responses = list(evidence.table.logprobs[:50])
    verdicts = QualityPredictor.load(tmp_path / "c").predict_many(responses)
    np.testing.assert_allclose([v.score for v in verdicts], fitted.predict_proba(responses)[:, 1], atol=1e-5)
    assert "None was measured." in (tmp_path / "c" / "README.md").read_text()
    assert not (tmp_path / "c" / RAW).exists(), "it was not asked for"


def test_a_graph_from_log_probabilities_is_added_where_it_is_asked_for(
    fitted: QualityClassifier, evidence: Evidence, tmp_path: Path
) -> None:
    assert {values.dtype for values in fitted.responses_} == {np.dtype(np.float32)}, "as the graph takes them"
    fitted.export(tmp_path / "c", raw=True)
    responses = [np.asarray(values, dtype=np.float32) for values in evidence.table.logprobs[64:100]]
    padded = np.zeros((len(responses), max(map(len, responses))), dtype=np.float32)
    for row, values in zip(padded, responses, strict=True):
        row[: len(values)] = values
    session = onnxruntime.InferenceSession(tmp_path / "c" / RAW)
    lengths = np.array([len(values) for values in responses])
    given = {node.name: padded if node.type == "tensor(float)" else lengths for node in session.get_inputs()}
    [scores] = session.run(["correct"], given)
    np.testing.assert_allclose(scores[:, 0], fitted.predict_proba(responses)[:, 1], atol=1e-4)


@pytest.mark.parametrize(
    ("n", "y", "said"),
    [
        (20, [0, 1, 2, 1] * 5, "Only binary classification"),
        (20, [0, 1] * 9, "inconsistent numbers of samples"),
        (4, [0, 1, 0, 1], "do not suffice"),
    ],
)
def test_what_cannot_be_learned_from_is_said(n: int, y: list[int], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        QualityClassifier().fit([[-0.1, -0.2]] * n, y)


def test_a_schema_that_needs_alternatives_is_refused() -> None:
    with pytest.raises(ValueError, match=r"without '\+top'"):
        QualityClassifier(schema="full+top").fit([[-0.1]] * 2, [0, 1])
