"""The same boosters where the features are a Dask array: LightGBM fits them on the workers of a Dask cluster.

    client = Client("scheduler:8786")
    X = dask.array.from_array(features, chunks=(100_000, -1))   # or read by the workers themselves
    fit_trees(X, y, roles, names=names)

Labels, groups and scores, a few bytes an answer, stay on this machine; features never come back to it, but for the
sample of `sample`.

LightGBM's Dask interface evaluates on other rows but does not stop early (its workers would stop at different rounds
and wait for each other for ever: LightGBM issues 3712 and 6351). Here all rounds are fitted, their losses on the
selection rows are computed afterwards, and the rule of early stopping is applied to these: the same rounds as it would
have found, for more work. Which rows a worker holds decides its bins and its bagging, so that two fits differ as two
seeds do on one machine.
"""

import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from threading import Event, Thread
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metaprobe.records.errors import RecordError
from metaprobe.records.extras import require
from metaprobe.training.common.roles import Roles, Rows
from metaprobe.training.common.trees import MAX_ROUNDS, PATIENCE, Grown, Parameters, raw_scores, safe

Floats = NDArray[np.float64]

SAMPLE_ROWS = 200_000
"""Rows that come to this machine, for the region of support and for checking the graph."""

BLOCK_ROWS = 100_000

FITS = 3
"""How often a fit is begun, where each time a worker is lost."""
LOOK_AFTER = 1.0
"""Seconds between two looks at the workers."""


class Cluster:
    """Grows on the workers of the default Dask client."""

    def __init__(
        self, X: Any, y: NDArray[Any], roles: Roles, names: Sequence[str], start: Floats | None = None
    ) -> None:
        """X: a Dask array (n, d) of float32; `start` (n,): log-odds that the trees add to.

        Raises `RecordError` for anything else, and where there is no client.
        """
        for module in ("dask.dataframe", "distributed"):  # LightGBM asks for both, and says less
            require(module, "train,dask")
        self._array = require("dask.array", "dask")
        if not isinstance(X, self._array.Array):
            raise RecordError(f"features are a {type(X).__name__}; expected a NumPy or a Dask array")
        distributed = require("distributed", "dask")
        try:
            self._client = distributed.default_client()
        except ValueError as error:
            raise RecordError(
                "features are a Dask array, and there is no Dask client: make a distributed.Client first"
            ) from error
        self._X = X.rechunk({1: -1})
        self._y, self._roles, self._names, self._start = y, roles, safe(names), start

    def grow(self, parameters: Parameters) -> Grown:
        booster = self._fit(parameters, self._roles.train, MAX_ROUNDS)
        selection, y = self._X[self._roles.selection], self._y[self._roles.selection]
        known = np.zeros(len(y)) if self._start is None else self._start[self._roles.selection]
        starts = np.cumsum([0, *selection.chunks[0]])
        delayed = require("dask", "dask").delayed
        losses = log_losses_by_round if parameters["objective"] == "binary" else squares_by_round
        sums = [
            delayed(losses)(booster, block, y[start:end], known[start:end])
            for block, start, end in zip(selection.to_delayed()[:, 0], starts[:-1], starts[1:], strict=True)
        ]
        rounds = best_rounds(np.sum(self._client.gather(self._client.compute(sums)), axis=0))
        added = blockwise(lambda block: raw_scores(booster, block, rounds), selection)
        return Grown(parameters, rounds, added + known)

    def finish(self, parameters: Parameters, rounds: int) -> Any:
        return self._fit(parameters, self._roles.learning, rounds)

    def _fit(self, parameters: Parameters, rows: Rows, rounds: int) -> Any:
        interface = require("lightgbm.dask", "train,dask")
        # Each worker uses the threads it has.
        given = {name: value for name, value in parameters.items() if name not in ("num_threads", "seed")}
        binary = parameters["objective"] == "binary"
        kind = interface.DaskLGBMClassifier if binary else interface.DaskLGBMRegressor
        model = kind(**given, random_state=parameters["seed"], n_estimators=rounds, client=self._client)
        X = self._X[rows]
        y = self._array.from_array(self._y[rows], chunks=(X.chunks[0],))
        known = None if self._start is None else self._array.from_array(self._start[rows], chunks=(X.chunks[0],))

        def fit() -> Any:
            with warnings.catch_warnings():
                # It says so whenever its estimators are made as they are meant to be.
                warnings.filterwarnings("ignore", message="Parameter n_jobs will be ignored")
                return model.fit(X, y, init_score=known, feature_name=self._names).booster_

        return fit_with_who_is_left(self._client, fit)


def fit_with_who_is_left(client: Any, fit: Callable[[], Any]) -> Any:
    """Returns what `fit` returns; where a worker is lost meanwhile, fits anew with those that are left or came back.

    LightGBM's workers speak to each other directly, and wait for one that died for ever, or fail when their connection
    to it ends. So they are watched: when one is gone, what they compute is cancelled and the others are started again.
    Raises `RecordError` where a worker was lost each of `FITS` times, and whatever else ends a fit of which no worker
    was lost.
    """
    for _ in range(FITS):
        watch = _WorkerWatch(client)
        try:
            with watch:
                return fit()
        except Exception:
            if not watch.lost and not watch.look_once_more():
                raise
    raise RecordError(
        f"a worker of the Dask cluster was lost in each of {FITS} fits, last {', '.join(sorted(watch.lost))}; look"
        " at the memory that the workers are allowed, and start again"
    )


class _WorkerWatch:
    """Looks every second whether all workers are still there, from its beginning to its end."""

    def __init__(self, client: Any) -> None:
        self._client, self._there = client, set(client.nthreads())
        self._ended = Event()
        self._thread = Thread(target=self._watch, daemon=True)
        self.lost: set[str] = set()

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join()

    def look_once_more(self) -> bool:
        """Tells whether a worker is gone, a second after the fit failed.

        The others may report a broken connection before the scheduler reports who broke it.
        """
        time.sleep(LOOK_AFTER)
        return self._look()

    def _watch(self) -> None:
        while not self._ended.wait(LOOK_AFTER):
            if self._look():
                return

    def _look(self) -> bool:
        now = set(self._client.nthreads())
        self.lost = self._there - now
        if self.lost:
            future = require("distributed", "dask").Future
            waiting = [key for key in list(self._client.futures) if "_train_part" in str(key)]
            self._client.cancel([future(key, self._client) for key in waiting], force=True)
            left = sorted(self._there & now)
            if left:  # they are inside LightGBM's code, which waits for the lost one
                self._client.restart_workers(left, raise_for_error=False)
        return bool(self.lost)


def log_losses_by_round(booster: Any, X: NDArray[np.float32], y: NDArray[np.int64], start: Floats) -> Floats:
    """Summed log loss (rounds,) of these rows after each round; their log-odds are `start` (n,) before the first."""
    sign = 1.0 - 2.0 * y
    return np.array([np.logaddexp(0, sign * scores).sum() for scores in _stages(booster, X, start)])


def squares_by_round(booster: Any, X: NDArray[np.float32], y: Floats, start: Floats) -> Floats:
    """Summed squared errors (rounds,), likewise."""
    return np.array([np.square(scores - y).sum() for scores in _stages(booster, X, start)])


def _stages(booster: Any, X: NDArray[np.float32], start: Floats) -> Iterator[Floats]:
    """Raw scores (n,) after each round: one array, that changes."""
    scores = start.copy()
    for number in range(booster.num_trees()):
        scores += booster.predict(X, raw_score=True, start_iteration=number, num_iteration=1)
        yield scores


def best_rounds(losses: Floats, patience: int = PATIENCE) -> int:
    """How many rounds early stopping would keep, by these losses (rounds,)."""
    best = 0
    for number, loss in enumerate(losses):
        if loss < losses[best]:
            best = number
        elif number - best >= patience:
            break
    return best + 1


def blockwise(function: Callable[[NDArray[np.float32]], Floats], X: Any) -> Floats:
    """`function` of every block of rows, computed where the block is: (n,) on this machine."""
    if not X.shape[0]:
        return np.empty(0)
    found = X.rechunk({1: -1}).map_blocks(function, dtype=np.float64, drop_axis=1, meta=np.empty(0))
    return np.asarray(found.compute(), dtype=np.float64)


def sample(X: Any, most: int = SAMPLE_ROWS) -> NDArray[np.float32]:
    """Some rows of a Dask array, evenly spread; all where they are few."""
    return np.asarray(X[:: max(1, -(-X.shape[0] // most))].compute(), dtype=np.float32)


def distribute(X: NDArray[np.float32], rows: int = BLOCK_ROWS) -> Any:
    """X as a Dask array whose blocks of so many rows lie with the workers of the default client, several to each."""
    array, distributed = require("dask.array", "dask"), require("distributed", "dask")
    client = distributed.default_client()
    rows = min(rows, max(1, -(-len(X) // (2 * len(client.nthreads())))))
    return client.persist(array.from_array(X, chunks=(rows, -1)))
