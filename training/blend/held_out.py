"""What a blend reaches on whole tasks that its probe was not fitted on, and that its layer was not chosen on."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from metaprobe.eval.metrics.bootstrap import Interval, cluster_weights
from metaprobe.eval.metrics.discrimination import auroc
from metaprobe.probes.blend import Standard
from metaprobe.probes.terms import FREE, TERMS
from metaprobe.training.blend.fit import POSITION, Floats, centred, choose_layer, parts_of, weights_of
from metaprobe.training.crossfit.methods import RUN_IDENTITY, Evidence
from metaprobe.training.linear.states import States

FOLDS = 8
LEAST = 5
"""Right answers, and wrong ones, that a run needs for a figure of its own."""
MEAN, FREE_ALONE, PROBE, WITH_MEAN, BLEND = "mean", "scaled", "probe", "probe + mean", "probe + scaled"


@dataclass(frozen=True, slots=True, eq=False)
class TasksLeftOut:
    """Scores of every answer by what never saw its task; the names above are their keys."""

    y: NDArray[np.int64]
    runs: NDArray[np.str_]
    tasks: NDArray[np.str_]
    scores: Mapping[str, Floats]
    layers: tuple[int, ...]
    """The layer that was chosen for each part of the tasks, without them."""

    def gains(self, of: str, over: str, among: NDArray[np.bool_] | None = None) -> Interval:
        """Returns by how much AUROC within runs of one score is above another's; 95 % intervals draw whole tasks."""
        return self._interval(self.within(of, among) - self.within(over, among), among)

    def auroc(self, of: str, among: NDArray[np.bool_] | None = None) -> Interval:
        """Returns the mean of AUROC within runs of a score, over the runs that have answers enough of either kind."""
        return self._interval(self.within(of, among), among)

    def within(self, of: str, among: NDArray[np.bool_] | None = None) -> Floats:
        """Returns AUROC of each run that has answers enough, in the order of `counted`."""
        rows = [self.runs == run for run in self.counted(among)]
        return np.array([float(auroc(self.y[here], self.scores[of][here])) for here in rows])

    def counted(self, among: NDArray[np.bool_] | None = None) -> list[str]:
        """Returns the runs with at least five right and five wrong answers."""
        names = np.unique(self.runs if among is None else self.runs[among]).tolist()
        return [run for run in names if LEAST <= self.y[self.runs == run].sum() <= (self.runs == run).sum() - LEAST]

    def _interval(self, values: Floats, among: NDArray[np.bool_] | None) -> Interval:
        task_of = [str(self.tasks[self.runs == run][0]) for run in self.counted(among)]
        weights = cluster_weights(task_of, 2000)
        draws = weights @ values / weights.sum(axis=1)
        low, high = np.quantile(draws, [0.025, 0.975])
        answers = int(np.isin(self.runs, self.counted(among)).sum())
        return Interval(float(values.mean()), float(low), float(high), answers, len(set(task_of)))


def judge_held_out(evidence: Evidence, states: States, parts: NDArray[np.int64] | None = None) -> TasksLeftOut:
    """Returns the scores of all answers, each by a probe that was fitted, its layer chosen, on other tasks.

    `parts` (n,): the numbers from 0 to 7 of other parts that are left out in turn, in place of whole tasks.
    """
    table = evidence.table
    runs, y, tasks = RUN_IDENTITY.cells(table), table.y, table.tasks
    inputs = centred_states(states, runs)
    folds = parts_of(tasks, FOLDS) if parts is None else parts
    probe, chosen = np.full(len(y), np.nan), []
    for fold in range(FOLDS):
        test, rest = folds == fold, np.flatnonzero(folds != fold)
        layer = choose_layer(inputs, y, runs, tasks, rest)
        chosen.append(layer)
        probe[test] = inputs[layer][test] @ weights_of(inputs[layer], y, runs, rest)
    mean, scaled = (free_scores(evidence, name) for name in (MEAN, FREE_ALONE))
    scores = {
        MEAN: mean,
        FREE_ALONE: scaled,
        PROBE: probe,
        WITH_MEAN: standardised(probe, runs) + standardised(mean, runs),
        BLEND: standardised(probe, runs) + standardised(scaled, runs),
    }
    return TasksLeftOut(y, runs, tasks, scores, tuple(chosen))


def centred_states(states: States, runs: NDArray[np.str_]) -> dict[int, Floats]:
    """Returns the states of each layer of the later two thirds, less the mean of their run."""
    later = [layer for layer in states.layers if layer >= max(states.layers) / 3]
    return {layer: centred(states.read(layer, POSITION).astype(np.float64), runs) for layer in later}


def free_scores(evidence: Evidence, name: str) -> Floats:
    """Returns a free number (n,) of all answers, higher for better ones."""
    terms = evidence.features[:, -len(TERMS) :].astype(np.float64)
    return np.asarray(-terms @ np.array([FREE[name].get(term, 0.0) for term in TERMS]))


def standardised(score: Floats, runs: NDArray[np.str_]) -> Floats:
    """Returns the score in standard deviations above the mean of its run."""
    found = np.zeros(len(score))
    for run in np.unique(runs):
        rows = runs == run
        found[rows] = Standard.of(score[rows])(score[rows])
    return found
