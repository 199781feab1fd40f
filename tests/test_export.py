"""What is exported gives what was fitted; a verdict says what it is and what it does not know."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from metaprobe.checkpoints import ContractMismatch, TamperedCheckpoint, describe, load_checkpoint
from metaprobe.probes.contract import mismatch
from metaprobe.probes.features import TERM_NAMES
from metaprobe.probes.hidden import ConfidenceProbe
from metaprobe.probes.quality import QualityPredictor
from metaprobe.probes.score_file import score_lines
from metaprobe.records.errors import InvalidResponse, RecordError
from metaprobe.records.types import Call, Hidden
from metaprobe.training.calibration import Platt, sigmoid
from metaprobe.training.evidence import Evidence, generator_of
from metaprobe.training.folds import final_roles
from metaprobe.training.heads import linear_graph, trees_graph
from metaprobe.training.recipes.hidden import write_hidden
from metaprobe.training.recipes.quality import write_quality
from metaprobe.training.states import InMemory
from metaprobe.training.study import Study, crossfit, standard_methods
from metaprobe.training.trees import fit_trees

# Whether so little data passes every audit is not the subject here.
pytestmark = pytest.mark.filterwarnings("ignore::metaprobe.checkpoints.UntrustedCheckpoint")

HEAVY = {"torch", "transformers", "sklearn", "scipy", "pyarrow", "lightgbm", "onnx", "safetensors"}


@pytest.fixture(scope="module")
def found(evidence: Evidence) -> Study:
    methods = tuple(standard_methods(evidence))
    return Study(evidence, methods, crossfit(evidence, methods), seed=0)


@pytest.fixture(scope="module")
def quality(found: Study, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("checkpoints") / "quality"
    write_quality(path, {"correct": found}, command="a test")
    return path


@pytest.fixture(scope="module")
def confidence(found: Study, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("checkpoints") / "confidence"
    write_hidden(path, found, when="after", target="correct", command="a test")
    return path


def chat(logprobs: list[object], **more: object) -> dict[str, object]:
    content = [{"token": "t", "logprob": value} for value in logprobs]
    message = {"role": "assistant", "content": "t" * len(logprobs)}
    return {
        "model": "m",
        "choices": [{"message": message, "finish_reason": "stop", "logprobs": {"content": content}}],
    } | more


def test_trees_give_the_same_in_onnx_with_nan_anywhere(evidence: Evidence) -> None:
    X, y = np.round(evidence.features, 1), evidence.table.y
    roles = final_roles(list(evidence.table.groups), y)
    trees, platt = fit_trees(X, y, roles, names=evidence.feature_names), Platt(1.3, -0.2)
    session = onnxruntime.InferenceSession(trees_graph({"correct": (trees, platt)}, width=X.shape[1]))
    holes = X.copy()
    holes[np.random.default_rng(0).uniform(size=X.shape) < 0.3] = np.nan
    for rows in (X, holes):
        got = session.run(None, {"features": rows})[0][:, 0]
        np.testing.assert_allclose(got, platt.probability(trees.score(rows)), atol=1e-6)


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


def test_the_predictor_ranks_what_it_was_trained_on(quality: Path, evidence: Evidence) -> None:
    predictor = QualityPredictor.load(quality)
    verdicts = predictor.predict_many(list(evidence.table.logprobs))
    scores = np.array([verdict.score for verdict in verdicts])
    assert scores[evidence.table.y == 1].mean() > scores[evidence.table.y == 0].mean() + 0.1
    flagged = np.array([verdict.flagged for verdict in verdicts])
    wrong = evidence.table.y == 0
    assert flagged.mean() == pytest.approx(wrong.mean(), abs=0.1), "as many as are expected to be wrong"
    assert flagged[wrong].mean() > flagged[~wrong].mean() + 0.1


def test_a_response_a_call_and_a_list_get_the_same_score(quality: Path) -> None:
    predictor = QualityPredictor.load(quality)
    values = [-0.5, -1.25, -0.125, -2.0]
    call = Call(id="c", logprobs=np.array(values, np.float32), model="m", logprobs_mode="raw")
    scores = {predictor.predict(r).score for r in (chat(list(values)), json.dumps(chat(list(values))), call, values)}
    assert len(scores) == 1


def test_nothing_is_said_of_being_like_the_training_data_for_that_was_no_sign_of_anything(quality: Path) -> None:
    for unlike in ([-40.0, -50.0, -60.0, -45.0, -70.0], -np.abs(np.random.default_rng(0).normal(1.0, 0.7, 5000))):
        verdict = QualityPredictor.load(quality).predict(unlike)
        assert "unlike" not in verdict.reason


def test_another_model_or_mode_is_warned_about_or_refused(quality: Path) -> None:
    other = chat([-0.1, -0.2], model="gpt-x")
    with pytest.warns(UserWarning, match="response of gpt-x, checkpoint trained on m; the score may mean nothing"):
        verdict = QualityPredictor.load(quality).predict(other)
    assert "gpt-x" in verdict.reason
    with pytest.raises(ContractMismatch, match="gpt-x"):
        QualityPredictor.load(quality, on_mismatch="refuse").predict(other)
    processed = Call(id="c", logprobs=np.array([-0.1], np.float32), model="m", logprobs_mode="processed")
    with pytest.warns(UserWarning, match="processed log-probabilities, checkpoint trained on raw"):
        QualityPredictor.load(quality).predict(processed)


@pytest.mark.parametrize(
    "bad",
    [{}, {"choices": []}, chat([]), chat([float("nan")]), chat([0.5]), chat([float("-inf")]), [], "not json", None],
)
def test_what_cannot_be_scored_is_a_clear_error(quality: Path, bad: object) -> None:
    with pytest.raises(InvalidResponse, match=r"\w+ \w+"):
        QualityPredictor.load(quality).predict(bad)


def test_an_answer_shorter_than_every_window_is_scored(quality: Path) -> None:
    verdict = QualityPredictor.load(quality).predict(chat([-0.3]))
    assert verdict.score is not None
    assert 0 <= verdict.score <= 1


def test_scoring_a_file_gives_a_line_for_each_line(quality: Path, tmp_path: Path) -> None:
    path = tmp_path / "responses.jsonl"
    good = {"id": "a", "response": chat([-0.1, -0.2, -0.3])}
    lines = [
        json.dumps(good),
        json.dumps(chat([-0.4])),
        '{"id": "c", "resp',
        json.dumps({"id": "d", "response": {}}),
        "",
    ]
    path.write_text("\n".join([*lines, json.dumps({**good, "id": "f"})]))
    out = list(score_lines(QualityPredictor.load(quality), path))
    assert [line["line"] for line in out] == [1, 2, 3, 4, 6]
    assert [line["score"] is None for line in out] == [False, False, True, True, False]
    assert "responses.jsonl:3" in out[2]["reason"]
    assert set(out[0]) == {"line", "id", "score", "heads", "critical", "flagged", "reason"}
    json.dumps(out, allow_nan=False)


def test_the_probe_reads_its_layer_and_refuses_others(confidence: Path, evidence: Evidence) -> None:
    probe = ConfidenceProbe.load(confidence)
    assert isinstance(evidence.states, InMemory)
    activations = evidence.states.activations
    assert (probe.layer, probe.position) == (2, "answer_last")
    hidden = activations.values[:, 2, 1]
    p = probe.probability(hidden.astype(np.float32))
    assert p[evidence.table.y == 1].mean() > p[evidence.table.y == 0].mean() + 0.1
    call = Call(id="c", hidden=Hidden(activations.values[0], activations.layers, activations.positions))
    assert probe.confidence(call) == pytest.approx(float(p[0]), abs=1e-5)
    for wrong in (None, Hidden(activations.values[0][:2], (0, 1), activations.positions)):
        with pytest.raises(InvalidResponse, match="layer 2 at answer_last"):
            probe.confidence(dataclasses.replace(call, hidden=wrong))
    other = dataclasses.replace(call, model="another")
    with pytest.warns(UserWarning, match="response of another, checkpoint trained on m"):
        probe.confidence(other)
    with pytest.raises(ContractMismatch, match="response of another"):
        ConfidenceProbe.load(confidence, on_mismatch="refuse").confidence(other)
    with pytest.raises(InvalidResponse, match="NaN"):
        probe.probability(np.full((1, 12), np.nan, np.float32))
    with pytest.raises(ContractMismatch, match="expected 'quality'"):
        QualityPredictor.load(confidence)


def test_a_probe_needs_hidden_states(found: Study, tmp_path: Path) -> None:
    bare = dataclasses.replace(found, evidence=dataclasses.replace(found.evidence, states=None))
    with pytest.raises(RecordError, match="no hidden states"):
        write_hidden(tmp_path / "x", bare, when="after", target="correct", command="")


def test_the_card_and_inspect_tell_figures_with_intervals_and_audits(quality: Path) -> None:
    card = (quality / "README.md").read_text()
    shown = describe(load_checkpoint(quality))
    for text in (card, shown):
        assert "auroc" in text
        assert "beats length" in text
    manifest = load_checkpoint(quality).manifest
    assert manifest.metrics["auroc"].low < manifest.metrics["auroc"].estimate < manifest.metrics["auroc"].high
    assert manifest.generator is not None
    assert (manifest.generator.model, manifest.generator.logprobs_mode) == ("m", "raw")


def test_the_manifest_says_what_it_was_made_of(quality: Path, confidence: Path, evidence: Evidence) -> None:
    table = evidence.table
    for path, packages in ((quality, {"onnx"}), (confidence, {"onnx"})):
        manifest = load_checkpoint(path).manifest
        made = manifest.training
        assert made is not None
        assert (made.fingerprint, made.n, made.groups) == ("f", len(table), len(set(table.groups.tolist())))
        assert (made.seed, made.command, made.regrouped) == (0, "a test", evidence.regrouped)
        assert manifest.generator == evidence.generator
        assert packages <= manifest.versions.keys()
        assert manifest.calibration is not None
        assert manifest.calibration.method in ("platt", "isotonic", "beta", "temperature")
        assert manifest.calibration.fitted_on == "calibration rows, by group; never the held-out ones"
        assert {"auroc", "brier", "ece"} & manifest.metrics.keys()
        assert manifest.metrics["auroc"].n == len(table)
        assert manifest.audits["splits share no group"].passed
        assert {"flag"} <= manifest.thresholds.keys() <= {"flag", "accept", "iterate"}
        for name in manifest.thresholds:
            assert f"`{name}`" in (path / "README.md").read_text()
    contract = load_checkpoint(quality).manifest.contract
    assert contract == {
        "schema": "terms",  # so few answers carry no trees
        "features": list(TERM_NAMES),
        "targets": ["correct"],
        "kinds": {"correct": "binary"},
        "scales": {},
    }
    probe = load_checkpoint(confidence).manifest.contract
    assert (probe["target"], probe["position"]) == ("correct", "answer_last")


def test_a_tampered_checkpoint_is_not_loaded(quality: Path, tmp_path: Path) -> None:
    import shutil

    copy = tmp_path / "copy"
    shutil.copytree(quality, copy)
    model = bytearray((copy / "model.onnx").read_bytes())
    model[len(model) // 2] ^= 1
    (copy / "model.onnx").write_bytes(model)
    with pytest.raises(TamperedCheckpoint, match=r"model\.onnx"):
        QualityPredictor.load(copy)


def test_scoring_needs_numpy_and_onnxruntime_only(quality: Path) -> None:
    """Everything else is made to fail on import, as in an environment with the base install."""
    code = f"""
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split('.')[0] in {HEAVY!r}:
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Absent())
from metaprobe import QualityPredictor
verdict = QualityPredictor.load({str(quality)!r}).predict({chat([-0.1, -0.2, -0.3])!r})
print(verdict.score)
"""
    command = [sys.executable, "-W", "error", "-W", "ignore:the checkpoint:UserWarning", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert 0 < float(done.stdout) < 1


def test_a_misspelt_choice_does_not_quietly_mean_another(quality: Path) -> None:
    with pytest.raises(ValueError, match="'refse'; expected one of warn, refuse, ignore"):
        QualityPredictor.load(quality, on_mismatch="refse")  # type: ignore[arg-type]


def test_one_bad_response_of_many_is_named(quality: Path) -> None:
    predictor = QualityPredictor.load(quality)
    assert len(predictor.predict_many(response for response in ([-0.1], [-0.2]))) == 2
    with pytest.raises(InvalidResponse, match="response 1: "):
        predictor.predict_many([[-0.1], [float("nan")]])


def test_features_that_never_vary_are_refused_and_not_exported(evidence: Evidence) -> None:
    roles = final_roles(list(evidence.table.groups), evidence.table.y)
    with pytest.raises(RecordError, match="nothing to split"):
        fit_trees(np.ones_like(evidence.features), evidence.table.y, roles, names=evidence.feature_names)


def test_a_checkpoint_of_several_models_names_them_all_and_says_when_a_response_is_of_none() -> None:
    calls = [
        Call(id=str(i), messages=(), text="a", model=name, logprobs=np.zeros(1, np.float32), logprobs_mode="raw")
        for i, name in enumerate(("b", "a", "b"))
    ]
    found = generator_of(calls)
    assert found is not None
    assert (found.models, found.revision, found.logprobs_mode) == (("a", "b"), "", "raw")
    assert mismatch(found, model="b", on_mismatch="note", stacklevel=1) == ""
    assert mismatch(found, model="c", on_mismatch="note", stacklevel=1) == "response of c, checkpoint trained on a, b"
    assert generator_of([*calls, dataclasses.replace(calls[0], model="")]) is None
