"""Boosters fitted by the workers of a Dask cluster are as good as those of one machine."""

import os
import signal
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest

from metaprobe.eval.metrics.discrimination import auroc
from metaprobe.probes.quality import QualityPredictor
from metaprobe.records.errors import RecordError
from metaprobe.training import trees
from metaprobe.training.folds import final_roles
from metaprobe.training.options import QualityOptions
from metaprobe.training.recipes.quality import head_studies, write_quality
from metaprobe.training.trees import fit_trees

distributed = pytest.importorskip("distributed")
array = pytest.importorskip("dask.array")

NAMES = (*(f"f{i}.std" for i in range(8)), "full.mean", "full.min")


def planted(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, len(NAMES))).astype(np.float32)
    logit = X[:, 8] + 0.5 * X[:, 0] * X[:, 1] - 0.5 * np.abs(X[:, 2])
    X[rng.uniform(size=X.shape) < 0.05] = np.nan
    return X, (rng.uniform(size=n) < 1 / (1 + np.exp(-2 * logit))).astype(np.int64)


def test_rounds_are_those_that_early_stopping_keeps() -> None:
    losses = np.array([5.0, 3.0, 4.0, 3.5, 2.0, 1.0])
    assert trees.best_rounds(losses, patience=2) == 2  # 1.0 comes too late
    assert trees.best_rounds(losses, patience=4) == 6


@pytest.mark.parametrize("known", [0.0, 1.5])
def test_losses_computed_afterwards_are_those_that_lightgbm_reports(known: float) -> None:
    lightgbm = pytest.importorskip("lightgbm")
    X, y = planted(400, 0)
    seen: dict[str, Any] = {}
    start = known * np.nan_to_num(X[:, 8])  # log-odds that the trees add to
    given = [start[:300], start[300:]] if known else [None, None]
    train = lightgbm.Dataset(X[:300], y[:300], init_score=given[0])
    booster = lightgbm.train(
        {"objective": "binary", "metric": "binary_logloss", "verbosity": -1, "num_threads": 1},
        train,
        10,
        valid_sets=[lightgbm.Dataset(X[300:], y[300:], init_score=given[1], reference=train)],
        callbacks=[lightgbm.record_evaluation(seen)],
    )
    found = trees.log_losses_by_round(booster, X[300:], y[300:], start[300:]) / 100
    np.testing.assert_allclose(found, seen["valid_0"]["binary_logloss"], rtol=1e-6)


def test_without_a_cluster_it_says_what_to_make() -> None:
    X, y = planted(200, 0)
    roles = final_roles([str(i) for i in range(200)], y)
    with pytest.raises(RecordError, match=r"make a distributed\.Client first"):
        fit_trees(array.from_array(X, chunks=(50, -1)), y, roles, names=NAMES)


class OneWorker:
    """What a cluster's client does, in this thread: numbers of a Dask array are computed where they are asked for."""

    def nthreads(self) -> dict[str, int]:
        return {"worker": 1}

    def compute(self, delayed: list[Any]) -> list[Any]:
        return [each.compute(scheduler="synchronous") for each in delayed]

    def gather(self, found: list[Any]) -> list[Any]:
        return found

    def persist(self, X: Any) -> Any:
        return X


def grown_here(kind: Any) -> Any:
    """LightGBM's estimator for Dask that fits here; it holds what it was made with in `made`."""

    class Estimator:
        made: ClassVar[list[dict[str, Any]]] = []

        def __init__(self, *, client: OneWorker, **given: Any) -> None:
            self.made.append({**given, "client": client})
            self._model = kind(**given, num_threads=1, verbosity=-1)

        def fit(self, X: Any, y: Any, *, init_score: Any, feature_name: list[str]) -> Any:
            assert X.chunks[0] == y.chunks[0]
            assert len(X.chunks[1]) == 1  # a row is never torn
            warnings.warn("Parameter n_jobs will be ignored", UserWarning, stacklevel=2)
            known = None if init_score is None else init_score.compute()
            return self._model.fit(X.compute(), y.compute(), init_score=known, feature_name=feature_name)

    return Estimator


@pytest.mark.parametrize(("objective", "known"), [("binary", 0.0), ("binary", 1.0), ("regression", 0.0)])
def test_a_cluster_grows_on_train_rows_stops_by_selection_rows_and_finishes_on_both(
    objective: str, known: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    lightgbm, client = pytest.importorskip("lightgbm"), OneWorker()
    kind = lightgbm.LGBMClassifier if objective == "binary" else lightgbm.LGBMRegressor
    made = grown_here(kind)
    made.made.clear()
    monkeypatch.setattr(distributed, "default_client", lambda: client)
    interface = SimpleNamespace(DaskLGBMClassifier=None, DaskLGBMRegressor=None)
    setattr(interface, "DaskLGBMClassifier" if objective == "binary" else "DaskLGBMRegressor", made)
    monkeypatch.setitem(sys.modules, "lightgbm.dask", interface)
    monkeypatch.setattr(trees, "MAX_ROUNDS", 12)
    X, y = planted(600, 0)
    y = y if objective == "binary" else 2.0 * y
    roles = final_roles([str(i) for i in range(600)], (y > 0).astype(np.int64))
    spread = array.from_array(X, chunks=(70, 4))
    start = known * np.nan_to_num(X[:, 8]).astype(np.float64)  # log-odds that the trees add to
    cluster = trees.Cluster(spread, y, roles, [*NAMES[:-1], "100%.min"], start if known else None)
    parameters = {"objective": objective, "num_leaves": 4, "seed": 7, "num_threads": 3}
    grown = cluster.grow(parameters)
    [asked] = made.made
    assert asked == {"objective": objective, "num_leaves": 4, "random_state": 7, "n_estimators": 12, "client": client}
    assert grown.parameters is parameters
    booster = kind(objective=objective, num_leaves=4, random_state=7, n_estimators=12, num_threads=1, verbosity=-1)
    given = {part: start[getattr(roles, part)] if known else None for part in ("train", "learning")}
    booster = booster.fit(X[roles.train], y[roles.train], init_score=given["train"]).booster_
    at = X[roles.selection], y[roles.selection], start[roles.selection]
    losses = (trees.log_losses_by_round if objective == "binary" else trees.squares_by_round)(booster, *at)
    assert grown.rounds == trees.best_rounds(losses)
    expected = booster.predict(at[0], raw_score=True, num_iteration=grown.rounds)
    np.testing.assert_allclose(grown.scores, expected + at[2])
    whole = cluster.finish(parameters, 5)
    assert whole.num_trees() == 5
    assert whole.feature_name()[-1] == "100pct.min"
    both = kind(objective=objective, num_leaves=4, random_state=7, n_estimators=5, num_threads=1, verbosity=-1)
    both = both.fit(X[roles.learning], y[roles.learning], init_score=given["learning"]).booster_
    np.testing.assert_allclose(whole.predict(X), both.predict(X))


def test_squared_errors_computed_afterwards_are_those_of_each_round() -> None:
    lightgbm = pytest.importorskip("lightgbm")
    X, y = planted(300, 0)
    booster = lightgbm.train({"objective": "regression", "verbosity": -1, "num_threads": 1}, lightgbm.Dataset(X, y), 4)
    for rounds, found in enumerate(trees.squares_by_round(booster, X, y, np.zeros(300)), start=1):
        assert found == pytest.approx(np.square(booster.predict(X, num_iteration=rounds) - y).sum())


def test_what_is_no_array_is_refused() -> None:
    X, y = planted(200, 0)
    roles = final_roles([str(i) for i in range(200)], y)
    with pytest.raises(RecordError, match=r"features are a list; expected a NumPy or a Dask array"):
        trees.Cluster(X.tolist(), y, roles, NAMES)


def test_a_function_is_computed_block_by_block_and_a_sample_is_spread_evenly() -> None:
    X, _ = planted(50, 0)
    spread = array.from_array(X, chunks=(8, 3))
    seen: list[tuple[int, int]] = []

    def first(block: np.ndarray) -> np.ndarray:
        seen.append(block.shape)
        return block[:, 0].astype(np.float64)

    found = trees.blockwise(first, spread)
    np.testing.assert_array_equal(found, X[:, 0].astype(np.float64))
    assert found.dtype == np.float64
    assert sorted(seen) == [(2, 10)] + [(8, 10)] * 6
    assert trees.blockwise(first, spread[:0]).shape == (0,)
    assert trees.blockwise(first, spread[:1]).shape == (1,)
    np.testing.assert_array_equal(trees.sample(spread, 50), X)
    np.testing.assert_array_equal(trees.sample(spread, 49), X[::2])
    np.testing.assert_array_equal(trees.sample(spread, 10), X[::5])
    assert trees.sample(spread.astype(np.float64), 10).dtype == np.float32
    np.testing.assert_array_equal(trees.in_memory(spread), X)
    assert trees.in_memory(X) is X


def test_blocks_are_shared_out_several_to_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    client = OneWorker()
    monkeypatch.setattr(distributed, "default_client", lambda: client)
    X, _ = planted(41, 0)
    assert trees.distribute(X).chunks == ((21, 20), (len(NAMES),))
    assert trees.distribute(X, rows=16).chunks[0] == (16, 16, 9)
    assert trees.distribute(X[:1]).chunks[0] == (1,)
    np.testing.assert_array_equal(trees.distribute(X).compute(scheduler="synchronous"), X)


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
    monkeypatch.setattr(trees, "MAX_ROUNDS", 20)
    monkeypatch.setattr(trees, "_refinements", lambda y, names: iter(()))
    studies = head_studies([recorded_runs], QualityOptions(out=tmp_path / "c", folds=2), spread=True)
    checkpoint = write_quality(tmp_path / "c", studies, command="a test")
    assert checkpoint.manifest.metrics["auroc"].estimate > 0.55
    assert QualityPredictor(checkpoint).predict([-0.1] * 12).score is not None


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


class Cluster:
    """A client of workers that can be lost, and that says what was asked of it."""

    def __init__(self, *names: str) -> None:
        self.names, self.futures = set(names), {"_train_part-1": None, "other": None}
        self.cancelled: list[Any] = []
        self.restarted: list[str] = []

    def nthreads(self) -> dict[str, int]:
        return dict.fromkeys(self.names, 1)

    def cancel(self, futures: list[Any], *, force: bool) -> None:
        self.cancelled += futures

    def restart_workers(self, names: list[str], *, raise_for_error: bool) -> None:
        self.restarted += names


def lose(cluster: Cluster, name: str) -> None:
    """Takes a worker away, and goes on when that was noticed, as a fit whose work is cancelled."""
    cluster.names.discard(name)
    before = len(cluster.restarted)
    while len(cluster.restarted) == before:
        time.sleep(0.005)
    cluster.names.add(name + "'")
    raise RuntimeError("cancelled")


def test_a_fit_that_lost_a_worker_begins_anew_with_who_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trees, "LOOK_AFTER", 0.01)
    monkeypatch.setattr(distributed, "Future", lambda key, client: key)
    cluster, fits = Cluster("a", "b"), []

    def fit() -> str:
        fits.append(sorted(cluster.names))
        if len(fits) == 1:
            lose(cluster, "b")
        return "booster"

    assert trees.fit_with_who_is_left(cluster, fit) == "booster"
    assert fits == [["a", "b"], ["a", "b'"]]
    assert (cluster.cancelled, cluster.restarted) == (["_train_part-1"], ["a"])


def test_a_connection_that_breaks_before_the_scheduler_misses_a_worker_is_a_lost_worker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(distributed, "Future", lambda key, client: key)
    cluster, fits = Cluster("a", "b"), []

    def wait(seconds: float) -> None:
        assert seconds == trees.LOOK_AFTER
        cluster.names = {"a", "b'"}  # only now the scheduler knows

    monkeypatch.setattr(trees, "time", SimpleNamespace(sleep=wait))

    def fit() -> str:
        fits.append(sorted(cluster.names))
        if len(fits) == 1:
            raise RuntimeError("Socket recv error, Connection reset by peer")
        return "booster"

    assert trees.fit_with_who_is_left(cluster, fit) == "booster"
    assert fits == [["a", "b"], ["a", "b'"]]
    assert cluster.restarted == ["a"]


def test_a_cluster_that_goes_on_losing_workers_is_named_and_other_errors_are_not_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(trees, "LOOK_AFTER", 0.01)
    monkeypatch.setattr(distributed, "Future", lambda key, client: key)
    cluster, fits = Cluster("a", "b"), []

    def fit() -> str:
        fits.append(max(cluster.names))
        return lose(cluster, max(cluster.names))

    with pytest.raises(RecordError, match=r"lost in each of 3 fits, last b''; look at the memory"):
        trees.fit_with_who_is_left(cluster, fit)
    assert fits == ["b", "b'", "b''"]

    def fail() -> None:
        fits.append("failed")
        raise ValueError("labels are none")

    with pytest.raises(ValueError, match="labels are none"):
        trees.fit_with_who_is_left(cluster, fail)
    assert fits.count("failed") == 1


@pytest.mark.slow
@pytest.mark.usefixtures("two_workers")
def test_a_worker_that_is_killed_in_the_middle_costs_time_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trees, "GRID", trees.GRID[1:2])
    monkeypatch.setattr(trees, "_refinements", lambda y, names: iter(()))
    X, y = planted(12000, 0)
    new, truth = planted(6000, 1)
    roles = final_roles([f"g{i // 3}" for i in range(len(y))], y)
    client, killed = distributed.default_client(), []

    def kill() -> None:
        for _ in range(600):
            busy = [address for address, keys in client.processing().items() if "_train_part" in str(keys)]
            if len(busy) == 2:
                time.sleep(0.3)  # both are inside LightGBM
                [pid] = client.run(os.getpid, workers=[busy[0]]).values()
                os.kill(pid, signal.SIGKILL)
                killed.append(busy[0])
                return
            time.sleep(0.05)

    killer = Thread(target=kill)
    killer.start()
    there = fit_trees(array.from_array(X, chunks=(1500, -1)), y, roles, names=NAMES)
    killer.join()
    assert killed, "no worker was ever busy with LightGBM"
    here = fit_trees(X, y, roles, names=NAMES)
    one, two = (float(auroc(truth, model.score(new))) for model in (here, there))
    assert one > 0.8
    assert two == pytest.approx(one, abs=0.01)
