"""A comparison shows what papers on probes show: the surest 80 %, learning curves, gains by model size."""

from pathlib import Path

import numpy as np
import pytest
from logged_answers import stored

from metaprobe.eval.compare import headline_by_model, parameters_of
from metaprobe.eval.metrics.discrimination import auroc
from metaprobe.eval.metrics.selective import AccuracyAtCoverage, ErrorFall
from metaprobe.eval.report.write import report_files
from metaprobe.training.comparison import comparison
from metaprobe.training.folds import outer_folds, with_fewer
from metaprobe.training.methods import LADDER
from metaprobe.training.recipes.recommended import learning_curve
from metaprobe.training.study import Study, study

MODELS = {"big-1.5b": (260, 0.6), "small-135m": (260, 0.4)}


@pytest.fixture(scope="module")
def studied(tmp_path_factory: pytest.TempPathFactory) -> Study:
    """Answers of two models, studied in two folds."""
    return study([stored(tmp_path_factory.mktemp("runs") / "r", MODELS)], folds=2)


def test_accuracy_and_error_of_the_surest_answers_are_those_counted_by_hand() -> None:
    y, score = np.array([1, 1, 1, 0, 1, 0, 0, 1, 0, 0]), np.linspace(1, 0, 10)
    assert AccuracyAtCoverage(0.8)(y, score) == pytest.approx(5 / 8)
    assert ErrorFall(0.8)(y, score) == pytest.approx(1 - (3 / 8) / (5 / 10))
    assert AccuracyAtCoverage(1.0)(y, score) == pytest.approx(0.5)
    # Equal scores count in part: a score that says nothing leaves the error as it is.
    assert AccuracyAtCoverage(0.8)(y, np.zeros(10)) == pytest.approx(0.5)
    assert ErrorFall(0.8)(y, np.zeros(10)) == pytest.approx(0)
    assert ErrorFall(0.8)(y, y) == pytest.approx(1 - (3 / 8) / (5 / 10))
    doubled = AccuracyAtCoverage(0.8)(y, score, np.full((1, 10), 2))
    assert np.asarray(doubled) == pytest.approx([5 / 8])


@pytest.mark.parametrize(
    ("model", "parameters"),
    [
        ("smollm2-135m", 135e6),
        ("qwen-coder-0.5b", 0.5e9),
        ("Qwen/Qwen2.5-Coder-1.5B-Instruct", 1.5e9),
        ("gpt-4o", None),
        ("llama-3b1", None),
    ],
)
def test_a_models_size_is_what_its_name_states(model: str, parameters: float | None) -> None:
    assert parameters_of(model) == parameters


def test_fewer_labels_are_whole_groups_in_one_role_each_and_the_test_rows_stay() -> None:
    groups = [f"g{i // 3}" for i in range(300)]
    y = np.random.default_rng(0).integers(0, 2, 300)
    for roles in outer_folds(groups, y, folds=3):
        fewer = with_fewer(roles, 60, groups, y)
        assert fewer.test.tolist() == roles.test.tolist()
        assert 60 <= len(fewer.seen) < 63
        assert set(fewer.seen.tolist()) <= set(roles.seen.tolist())
        of = [{groups[i] for i in rows.tolist()} for rows in fewer.parts.values()]
        assert sum(map(len, of)) == len(set().union(*of))


def test_a_learning_curve_ends_at_the_study_and_both_pictures_and_tables_are_written(studied: Study) -> None:
    curve = learning_curve(studied)
    assert curve is not None
    assert curve.labels == (100, min(len(roles.seen) for roles in studied.fits.roles))
    last = {method.name: method.auroc[-1].estimate for method in curve.methods}
    table, fits = studied.evidence.table, studied.fits
    assert last[LADDER] == pytest.approx(float(auroc(table.y, fits[LADDER].ranking)))
    rows = headline_by_model(table, fits.methods, LADDER)
    assert [row.model for row in rows] == ["small-135m", "big-1.5b"]
    for row in rows:
        at = table.models == row.model
        assert (row.n, row.accuracy) == (at.sum(), table.y[at].mean())
        assert row.auroc.estimate == pytest.approx(float(auroc(table.y[at], fits[LADDER].ranking[at])))
        assert row.control in {method.name for method in fits.methods}
    files = report_files(comparison(studied, learning=curve, command="test"))
    assert {f"{kind}/{name}" for name in ("learning", "models") for kind in ("tables", "figures")} <= {
        Path(name).with_suffix("").as_posix() for name in files
    }
    assert b"\\toprule" in files["tables/selective.tex"]
    assert b"small-135m" in files["tables/models.tex"]
