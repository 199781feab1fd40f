"""Boosters whose last fit the workers of a Dask cluster make are as good as those of one machine."""

import sys
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest

from metaprobe.probes.quality import QualityPredictor
from metaprobe.records.errors import RecordError
from metaprobe.training import trees
from metaprobe.training.folds import final_roles
from metaprobe.training.recipes.train_quality import train_quality
from metaprobe.training.training_options import QualityOptions
from metaprobe.training.trees import fit_trees, on_cluster

distributed = pytest.importorskip("distributed")
lightgbm = pytest.importorskip("lightgbm")

NAMES = (*(f"f{i}.std" for i in range(8)), "full.mean", "100%.min")


def planted(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, len(NAMES))).astype(np.float32)
    logit = X[:, 8] + 0.5 * X[:, 0] * X[:, 1] - 0.5 * np.abs(X[:, 2])
    X[rng.uniform(size=X.shape) < 0.05] = np.nan
    return X, (rng.uniform(size=n) < 1 / (1 + np.exp(-2 * logit))).astype(np.int64)


class StandIn:
    """A Dask client in this process, whose workers can be lost; it notes what it was asked to do."""

    def __init__(self, *workers: str) -> None:
        self.workers, self.futures = set(workers), {"_train_part-1": None, "other": None}
        self.cancelled: list[str] = []
        self.restarted: list[str] = []

    def __enter__(self) -> "StandIn":
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def nthreads(self) -> dict[str, int]:
        return dict.fromkeys(self.workers, 1)

    def cancel(self, futures: list[str], *, force: bool) -> None:
        self.cancelled += futures

    def restart_workers(self, names: list[str], *, raise_for_error: bool) -> None:
        self.restarted += names


def estimator(kind: Any) -> Any:
    """LightGBM's estimator for Dask that fits in this process; `made` holds what it was made with."""

    class Estimator:
        made: ClassVar[list[dict[str, Any]]] = []

        def __init__(self, *, client: StandIn, **given: Any) -> None:
            self.made.append(given)
            self._model = kind(**given, num_threads=1)

        def fit(self, X: Any, y: Any, *, init_score: Any, feature_name: list[str]) -> Any:
            assert X.chunks[0] == y.chunks[0]
            assert X.numblocks == (4, 1)  # several blocks to each worker, and no row is torn
            warnings.warn("Parameter n_jobs will be ignored", UserWarning, stacklevel=2)
            known = None if init_score is None else init_score.compute()
            self.booster_ = self._model.fit(
                X.compute(), y.compute(), init_score=known, feature_name=feature_name
            ).booster_
            return self

    return Estimator


@pytest.mark.parametrize(("objective", "known"), [("binary", 0.0), ("binary", 1.0), ("regression", 0.0)])
def test_size_and_rounds_are_searched_on_a_sample_and_the_workers_fit_all_rows(
    objective: Any, known: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "LGBMClassifier" if objective == "binary" else "LGBMRegressor"
    kind = getattr(lightgbm, name)
    there = estimator(kind)
    monkeypatch.setattr(distributed, "Client", lambda address: StandIn("a", "b"))
    monkeypatch.setitem(sys.modules, "lightgbm.dask", SimpleNamespace(**{f"Dask{name}": there}))
    monkeypatch.setattr(trees, "MAX_ROUNDS", 12)
    monkeypatch.setattr(trees, "SAMPLE_ROWS", 150)
    X, y = planted(600, 0)
    y = y if objective == "binary" else 2.0 * y
    roles = final_roles([str(i) for i in range(600)], (y > 0).astype(np.int64))
    start = known * np.nan_to_num(X[:, 8]).astype(np.float64) if known else None  # log-odds that the trees add to
    with on_cluster("scheduler:8786"):
        fitted = fit_trees(X, y, roles, names=NAMES, objective=objective, start=start, seed=7)
    [asked] = there.made
    sampled = type(roles)(roles.train[::3], roles.selection, roles.calibration, roles.test)
    searched = fit_trees(X, y, sampled, names=NAMES, objective=objective, start=start, seed=7)
    assert {**asked, "seed": 7, "num_threads": 1} == {
        **{name: value for name, value in searched.parameters.items() if name != "rounds"},
        "random_state": 7,
        "n_estimators": searched.parameters["rounds"],
    }
    both = roles.learning
    whole = kind(**asked, num_threads=1)
    whole.fit(X[both], y[both], init_score=None if start is None else start[both])
    np.testing.assert_allclose(fitted.score(X), whole.booster_.predict(X, raw_score=True), atol=1e-5)


@pytest.mark.parametrize("noticed_late", [False, True])
def test_a_lost_worker_ends_the_fit_and_is_named(noticed_late: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trees, "LOOK_INTERVAL_S", 0.01)
    monkeypatch.setattr(distributed, "Future", lambda key, client: key)
    client = StandIn("a", "b")

    def fit() -> None:
        client.workers.discard("b")
        while not (noticed_late or client.restarted):
            pass
        raise RuntimeError("Socket recv error, Connection reset by peer")

    with pytest.raises(RecordError, match=r"lost b during a fit"), trees._fail_if_worker_lost(client):
        fit()
    assert (client.cancelled, client.restarted) == (["_train_part-1"], ["a"])


def test_a_fit_that_fails_with_all_workers_there_says_why_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trees, "LOOK_INTERVAL_S", 0.01)
    with pytest.raises(ValueError, match="labels"), trees._fail_if_worker_lost(StandIn("a")):
        raise ValueError("the labels are not 0 and 1")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::metaprobe.checkpoints.UntrustedCheckpoint")
def test_a_training_whose_trees_two_workers_fit(
    recorded_runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trees, "GRID", trees.GRID[:1])
    monkeypatch.setattr(trees, "MAX_ROUNDS", 20)
    monkeypatch.setattr(trees, "_refinements", lambda y, names: iter(()))
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, memory_limit=None
    ) as cluster:
        options = QualityOptions(out=tmp_path / "c", folds=2, dask=cluster.scheduler_address)
        checkpoint = train_quality([recorded_runs], options)
        X, y = planted(3000, 0)
        roles = final_roles([f"g{i // 3}" for i in range(len(y))], y)
        with on_cluster(cluster.scheduler_address):
            there = fit_trees(X, y, roles, names=NAMES)
    here = fit_trees(X, y, roles, names=NAMES)
    assert checkpoint.manifest.metrics["auroc"].estimate > 0.55
    assert QualityPredictor(checkpoint).predict([-0.1] * 12).score is not None
    assert np.corrcoef(here.score(X), there.score(X))[0, 1] > 0.95
