"""A comparison shows what papers on probes show: the surest 80 %, learning curves, gains by model size."""

from pathlib import Path

import pytest
from logged_answers import stored

from metaprobe.eval.compare import headline_by_model
from metaprobe.eval.metrics.ranked import auroc
from metaprobe.eval.report.write import report_files
from metaprobe.training.methods import LADDER
from metaprobe.training.recipes.compare_runs import comparison, learning_curve
from metaprobe.training.study import Study, study

MODELS = {"big-1.5b": (260, 0.6), "small-135m": (260, 0.4)}


@pytest.fixture(scope="module")
def studied(tmp_path_factory: pytest.TempPathFactory) -> Study:
    """Answers of two models, studied in two folds."""
    return study([stored(tmp_path_factory.mktemp("runs") / "r", MODELS)], folds=2)


@pytest.mark.slow
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
