"""Boosters fitted by the workers of a Dask cluster are as good as those of one machine."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from metaprobe.eval.metrics.discrimination import auroc
from metaprobe.probes.quality import QualityPredictor
from metaprobe.records.errors import RecordError
from metaprobe.training.common import trees
from metaprobe.training.common.roles import final_roles
from metaprobe.training.common.trees import fit_trees
from metaprobe.training.quality.train import head_studies, write_quality

distributed = pytest.importorskip("distributed")
array = pytest.importorskip("dask.array")
dask_trees = pytest.importorskip("metaprobe.training.common.dask_trees")

NAMES = (*(f"f{i}.std" for i in range(8)), "full.mean", "full.min")


def planted(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, len(NAMES))).astype(np.float32)
    logit = X[:, 8] + 0.5 * X[:, 0] * X[:, 1] - 0.5 * np.abs(X[:, 2])
    X[rng.uniform(size=X.shape) < 0.05] = np.nan
    return X, (rng.uniform(size=n) < 1 / (1 + np.exp(-2 * logit))).astype(np.int64)


def test_rounds_are_those_that_early_stopping_keeps() -> None:
    losses = np.array([5.0, 3.0, 4.0, 3.5, 2.0, 1.0])
    assert dask_trees.stopped(losses, patience=2) == 2  # 1.0 comes too late
    assert dask_trees.stopped(losses, patience=4) == 6


def test_losses_computed_afterwards_are_those_that_lightgbm_reports() -> None:
    lightgbm = pytest.importorskip("lightgbm")
    X, y = planted(400, 0)
    seen: dict[str, Any] = {}
    train = lightgbm.Dataset(X[:300], y[:300])
    booster = lightgbm.train(
        {"objective": "binary", "metric": "binary_logloss", "verbosity": -1, "num_threads": 1},
        train,
        10,
        valid_sets=[lightgbm.Dataset(X[300:], y[300:], reference=train)],
        callbacks=[lightgbm.record_evaluation(seen)],
    )
    found = dask_trees.staged_log_losses(booster, X[300:], y[300:]) / 100
    np.testing.assert_allclose(found, seen["valid_0"]["binary_logloss"], rtol=1e-6)


def test_without_a_cluster_it_says_what_to_make() -> None:
    X, y = planted(200, 0)
    roles = final_roles([str(i) for i in range(200)], y)
    with pytest.raises(RecordError, match=r"make a distributed\.Client first"):
        fit_trees(array.from_array(X, chunks=(50, -1)), y, roles, names=NAMES)


@pytest.fixture
def two_workers() -> Iterator[None]:
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, memory_limit=None
        ) as cluster,
        distributed.Client(cluster),
    ):
        yield


@pytest.mark.slow
@pytest.mark.usefixtures("two_workers")
@pytest.mark.filterwarnings("ignore::metaprobe.checkpoints.UntrustedCheckpoint")
def test_the_whole_of_training_runs_on_the_workers(
    recorded_runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trees, "GRID", trees.GRID[:1])
    monkeypatch.setattr(dask_trees, "MAX_ROUNDS", 20)
    monkeypatch.setattr(trees, "_refinements", lambda y, names: iter(()))
    studies = head_studies([recorded_runs], ["correct"], folds=2, spread=True)
    checkpoint = write_quality(tmp_path / "c", studies, command="a test")
    assert checkpoint.manifest.metrics["auroc"].estimate > 0.55
    verdict = QualityPredictor(checkpoint).predict([-0.1] * 12)
    assert verdict.in_support is not None


@pytest.mark.slow
@pytest.mark.usefixtures("two_workers")
def test_two_workers_find_what_one_machine_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trees, "GRID", trees.GRID[1:2])
    monkeypatch.setattr(trees, "_refinements", lambda y, names: iter(()))
    # Enough rows that another seed on one machine changes the AUROC by less than 0.005; which rows a worker holds is
    # as much chance as a seed.
    X, y = planted(12000, 0)
    new, truth = planted(6000, 1)
    roles = final_roles([f"g{i // 3}" for i in range(len(y))], y)
    here = fit_trees(X, y, roles, names=NAMES)
    there = fit_trees(array.from_array(X, chunks=(1500, -1)), y, roles, names=NAMES)
    one, two = (float(auroc(truth, model.score(new))) for model in (here, there))
    assert one > 0.8
    assert two == pytest.approx(one, abs=0.01)
    # It scores a Dask array where it lies, and the same.
    np.testing.assert_allclose(there.score(array.from_array(new, chunks=(1000, -1))), there.score(new))
    # A regression as well.
    amount = fit_trees(array.from_array(X, chunks=(1500, -1)), 2.0 * y, roles, names=NAMES, objective="regression")
    assert float(auroc(truth, amount.score(new))) == pytest.approx(one, abs=0.02)
