"""Heads of several kinds in one checkpoint: levels and Q are recovered, and what cannot be learned is said."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from metaprobe.checkpoints import load_checkpoint
from metaprobe.eval.metrics.ranked import quadratic_weighted_kappa, spearman
from metaprobe.probes.quality import QualityPredictor
from metaprobe.records.errors import RecordError
from metaprobe.records.store import RunStore
from metaprobe.records.types import Call, Item, Label, Run
from metaprobe.training import trees as trees_module
from metaprobe.training.calibrators import Isotonic, Platt, sigmoid
from metaprobe.training.evidence import Evidence
from metaprobe.training.folds import final_roles
from metaprobe.training.recipes.train_quality import (
    Amount,
    GradedStudy,
    Level,
    Probability,
    collect_graded,
    fit_graded,
    fit_probability,
    head_studies,
    load_heads,
    measure_grades,
    trees_graph,
    write_quality,
)
from metaprobe.training.training_options import QualityOptions
from metaprobe.training.trees import fit_trees

# Whether so little data passes every audit is not the subject here.
pytestmark = pytest.mark.filterwarnings("ignore::metaprobe.checkpoints.UntrustedCheckpoint")

JUDGE = "judge:m"
HEADS = ("correct", "instruction", "critical", "quality")
REACHED = ("instruction>=2", "instruction>=3")


@pytest.fixture(autouse=True, scope="module")
def _one_size_of_tree() -> Iterator[None]:
    """The search over sizes is tested elsewhere; here many heads are fitted."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trees_module, "GRID", trees_module.GRID[:1])
        patch.setattr(trees_module, "MAX_ROUNDS", 80)
        yield


def judged_runs(n: int = 400, *, seed: int = 0) -> list[Run]:
    """Arguments whose tokens know the levels that a judge gives; a second judge knows nothing. Some go unjudged."""
    rng = np.random.default_rng(seed)
    runs = []
    for i in range(n):
        truth = rng.normal()
        logprobs = -np.abs(rng.normal(1.5 - 1.2 * np.tanh(truth), 0.5, int(rng.integers(15, 40)))).astype(np.float32)
        call = Call(id=f"c{i}", stage="argument", agent="advocate", model="m", logprobs=logprobs, logprobs_mode="raw")
        labels = [Label(call.id, "correct", float(truth + rng.normal() > 0), "program")]
        levels = [1.0 + (z > -0.7) + (z > 0.6) for z in truth + 0.5 * rng.normal(size=3)]
        names = ("instruction", "justification", "evidence")
        labels += [Label(call.id, name, level, JUDGE) for name, level in zip(names, levels, strict=True)]
        if i % 5:  # a judge whose flag could not be read
            critical = truth + 0.4 * rng.normal() < -0.6
            labels.append(Label(call.id, "critical", float(critical), JUDGE))
            labels.append(Label(call.id, "q", 0.0 if critical else sum(levels), JUDGE))
        labels += [Label(call.id, "evidence", float(rng.integers(1, 4)), "other:judge")] if i < 30 else []
        item = Item(id=f"i{i}", task="t", group=f"g{i // 3}", question="")
        runs.append(Run(id=f"r{i}", system="s", variant="v", item=item, calls=(call,), labels=tuple(labels)))
    return runs


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "runs"
    RunStore(path).append(judged_runs())
    return path


@pytest.fixture(scope="module")
def checkpoint(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("checkpoints") / "heads"
    write_quality(path, head_studies([store], QualityOptions(out=path, target=HEADS, folds=2)), command="a test")
    return path


def test_one_checkpoint_holds_probabilities_levels_and_q_each_on_its_scale(checkpoint: Path) -> None:
    manifest = load_checkpoint(checkpoint).manifest
    assert tuple(manifest.contract["targets"]) == HEADS
    assert tuple(spec.name for spec in manifest.outputs) == (*HEADS, *REACHED)
    assert manifest.contract["scales"] == {"instruction": [1, 3], "quality": [0, 9]}
    assert tuple(manifest.contract["kinds"].values()) == ("binary", "ordinal", "binary", "regression")
    assert {"flag", "critical"} <= set(manifest.thresholds)
    card = (checkpoint / "README.md").read_text()
    assert "- instruction: ordinal, 1 to 3, 400 answers" in card
    assert "- critical: binary, a probability, 320 answers" in card  # learned from what has the label
    assert "- quality: regression, 0 to 9, 320 answers" in card


def test_planted_levels_are_recovered_on_held_out_answers(checkpoint: Path) -> None:
    found = load_checkpoint(checkpoint).manifest.metrics
    for name in ("instruction", "quality"):
        assert found[f"{name}.spearman"].low > 0.5
        assert found[f"{name}.quadratic_weighted_kappa"].low > 0.4
        assert found[f"{name}.mae_of_the_best_constant_minus_mae"].low > 0
    assert found["quality.mae"].n == 320
    assert found["critical.auroc"].low > 0.75
    # The failures' own, which are fewer than half.
    assert 0.5 < found["critical.auprc"].estimate < 1


def test_a_verdict_has_all_heads_and_bad_answers_are_critical(checkpoint: Path) -> None:
    predictor = QualityPredictor.load(checkpoint)
    good, bad = predictor.predict_many([[-0.3] * 25, [-2.6] * 25])
    assert set(good.heads) == {*HEADS, *REACHED}
    assert sum(good.heads[name] for name in REACHED) == pytest.approx(good.heads["instruction"] - 1, abs=1e-5)
    assert good.critical is not None
    assert bad.critical is not None
    assert good.critical < 0.3 < bad.critical
    assert 1 <= bad.heads["instruction"] < good.heads["instruction"] <= 3
    assert 0 <= bad.heads["quality"] < 4 < good.heads["quality"] <= 9


def test_a_critical_failure_flags_an_answer(checkpoint: Path) -> None:
    predictor = QualityPredictor.load(checkpoint)
    threshold = predictor.checkpoint.manifest.thresholds["critical"]
    rng = np.random.default_rng(8)
    verdicts = predictor.predict_many([-rng.exponential(scale, 40) for scale in (0.05, 0.5, 2.0) for _ in range(20)])
    sure = [v for v in verdicts if v.critical is not None and v.critical >= threshold]
    assert 0 < len(sure) < len(verdicts)
    assert all(v.flagged for v in sure)


def test_labels_of_one_source_are_told_from_those_of_another(store: Path) -> None:
    by_all = load_heads([store], ["evidence"])["evidence"]
    by_judge = load_heads([store], ["evidence"], source="judge")["evidence"]
    assert not np.array_equal(by_all.grades, by_judge.grades)  # type: ignore[union-attr]
    fingerprints = {heads.evidence.fingerprint for heads in (by_all, by_judge)}  # type: ignore[union-attr]
    assert len(fingerprints) == 1, "what was learned from is told by all labels of the runs"
    with pytest.raises(RecordError, match="sources found: judge:m, other:judge, program"):
        load_heads([store], ["evidence"], source="human")
    with pytest.raises(RecordError, match="no answer with a label 'correct'"):
        load_heads([store], ["correct"], source="other:judge")


def test_a_label_that_is_off_its_scale_or_of_one_level_is_refused(evidence: Evidence, tmp_path: Path) -> None:
    n = len(evidence.table)
    with pytest.raises(RecordError, match=r"label evidence: .*nothing to distinguish"):
        collect_graded(evidence, np.full(n, 3), "evidence")
    run = judged_runs(1)[0]
    RunStore(tmp_path / "runs").append([dataclasses.replace(run, labels=(Label("c0", "evidence", 4.0, JUDGE),))])
    with pytest.raises(RecordError, match="call c0: label evidence is 4; expected a whole number from 1 to 3"):
        load_heads([tmp_path / "runs"], ["evidence"])


def test_one_class_of_a_binary_head_is_refused(store: Path, tmp_path: Path) -> None:
    runs = [
        dataclasses.replace(run, labels=tuple(dataclasses.replace(x, value=0.0) for x in run.labels))
        for run in judged_runs(60)
    ]
    RunStore(tmp_path / "runs").append(runs)
    with pytest.raises(RecordError, match="nothing to distinguish"):
        head_studies([tmp_path / "runs"], QualityOptions(out=tmp_path, target="critical", folds=2))


def test_every_kind_of_head_is_the_same_in_onnx_on_a_grid_with_holes(evidence: Evidence) -> None:
    X, y = np.round(evidence.features, 1), evidence.table.y  # repeated values lie on the thresholds
    roles = final_roles(list(evidence.table.groups), y)
    trees = fit_trees(X, y, roles, names=evidence.feature_names)
    knots = Isotonic(np.array([-1.0, 0.0, 0.5, 2.0]), np.array([0.1, 0.3, 0.3, 0.9]))
    low, high = Probability(trees, Platt(1.3, 1.0)), Probability(trees, knots)
    heads = {
        "correct": Probability(trees, Platt(1.3, -0.2)),
        "instruction": Level(1.0, (low, high)),
        "justification": Level(1.25, (high,)),
        "evidence": Level(1.0, (high, low)),
        "critical": Probability(trees, knots, inverted=True),
        "quality": Amount(trees, 4.0, 3.0, (0, 9)),
    }
    session = onnxruntime.InferenceSession(trees_graph(heads, width=X.shape[1]))
    holes = X.copy()
    holes[np.random.default_rng(0).uniform(size=X.shape) < 0.3] = np.nan
    for rows in (X, holes):
        expected = {name: head.value(rows) for name, head in heads.items()}
        got = dict(zip(heads, session.run(list(heads), {"features": rows}), strict=True))
        for name, values in expected.items():
            np.testing.assert_allclose(got[name][:, 0], values, atol=1e-5, err_msg=name)
        assert np.ptp(expected["quality"]) > 1  # not equal because they are constant


def test_constraints_are_taken_where_they_hold_and_left_where_they_hurt(evidence: Evidence) -> None:
    """Where all columns are constrained, the wrong sign leaves nothing to learn. Terms are made of surprise."""
    columns = [i for i, name in enumerate(evidence.feature_names) if name.endswith((".mean", ".min"))]
    names = [evidence.feature_names[i] for i in columns]
    X, y = evidence.features[:, columns], evidence.table.y
    roles = final_roles(list(evidence.table.groups), y)
    turned = fit_trees(X, 1 - y, roles, names=names)
    assert "monotone_constraints" not in turned.parameters
    assert turned.selection_auroc > 0.6
    held = fit_trees(X, y, roles, names=names)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trees_module, "_refinements", lambda y, names: iter(()))
        free = fit_trees(X, y, roles, names=names)
        noise = fit_trees(X, np.random.default_rng(0).permutation(y), roles, names=names)
    assert held.selection_auroc >= free.selection_auroc
    assert "monotone_constraints" in held.parameters
    signs = np.array([-1 if name.startswith("terms.") else 1 for name in names], np.float32)
    assert sorted(set(signs)) == [-1, 1]
    higher = [X + 0.5 * row for row in np.diag(signs)]
    assert all((held.score(x) >= held.score(X) - 1e-9).all() for x in higher)
    assert any((noise.score(x) < noise.score(X) - 1e-9).any() for x in higher)  # trees alone do not keep to it


def test_an_exported_probability_is_right_on_average_on_all_rows_seen(evidence: Evidence) -> None:
    table = evidence.table
    roles = final_roles(table.groups.tolist(), table.y)
    rare = table.y.copy()
    rare[roles.calibration] = np.arange(len(roles.calibration)) % 10 == 0  # elsewhere about half are right
    sample = evidence.sample(rare)
    head = fit_probability(sample, roles)
    logit = head.calibrator.logit(head.scorer.score_of(sample.X, sample.runs))
    assert sigmoid(logit).mean() == pytest.approx(rare.mean(), abs=0.002)


def test_q_is_right_on_average_keeps_to_its_scale_and_needs_no_parts(evidence: Evidence) -> None:
    n = len(evidence.table)
    q = np.where(evidence.table.y == 1, 9.0, np.arange(n) % 5.0)
    data = collect_graded(evidence, q, "quality")
    roles = final_roles(data.evidence.table.groups.tolist(), data.strata)
    amount = fit_graded(data, roles, seed=0)
    assert isinstance(amount, Amount)
    rows = roles.calibration
    line = amount.slope * amount.trees.score(evidence.features[rows]) + amount.intercept
    assert line.mean() == pytest.approx(q[rows].mean())
    values = amount.value(evidence.features)
    assert values.min() >= 0
    assert values.max() <= 9
    assert spearman(q, values) > 0.4


def test_graded_figures_are_those_of_their_definitions(evidence: Evidence) -> None:
    grades = 1 + evidence.table.y + (np.arange(len(evidence.table)) % 2)
    mean = np.array([values.mean() for values in evidence.table.logprobs])
    controls = {"mean log-probability": mean}
    study = GradedStudy(collect_graded(evidence, grades, "evidence"), grades + 0.4, controls, 0)
    found, audits = measure_grades(study)
    assert found["spearman"].estimate == pytest.approx(1)
    assert found["mae"].estimate == pytest.approx(0.4)
    assert found["quadratic_weighted_kappa"].estimate == 1 == quadratic_weighted_kappa(grades, grades)
    assert all(audit.passed for audit in audits)
    assert "evidence beats mean log-probability" in {audit.name for audit in audits}
    plain = GradedStudy(collect_graded(evidence, grades, "evidence"), mean + 4, controls, 0)
    lost = [audit.name for audit in measure_grades(plain)[1] if not audit.passed]
    assert lost[0] == "evidence beats mean log-probability", "it is that number"
