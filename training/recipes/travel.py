"""The recipe of a blend for tasks that nobody has seen: a probe of hidden states beside a free number.

The probe is strongly regularised, on states that are centred run by run, and the runs' base rates are kept apart. What
it reaches is measured on whole tasks that it was not fitted on, and that its layer was not chosen on.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from metaprobe.checkpoints import Checkpoint
from metaprobe.checkpoints.table import format_interval
from metaprobe.eval.metrics.bootstrap import Interval, cluster_weights
from metaprobe.eval.metrics.discrimination import auroc
from metaprobe.eval.results import Finding
from metaprobe.probes.terms import FREE, TERMS
from metaprobe.probes.travel import FEWEST, INPUT, KIND, OUTPUT, Standard
from metaprobe.records.activations import CONVENTION
from metaprobe.records.errors import RecordError
from metaprobe.training.checkpoint import Export, write_checkpoint, writes
from metaprobe.training.evidence import Evidence, load_evidence, reader_contract, runs_of
from metaprobe.training.heads import linear_graph
from metaprobe.training.ladder import fit_offsets
from metaprobe.training.options import TravelOptions
from metaprobe.training.states import States, Wanted

POSITION = "answer_mean"
INNER = 3
WEIGHT_SD = 0.02
"""Standard deviation of a weight's prior, per standard deviation of its column: strong, and fixed for all layers."""
FOLDS = 8
LEAST = 5
"""Right answers, and wrong ones, that a run needs for a figure of its own."""
MEAN, FREE_ALONE, PROBE, WITH_MEAN, BLEND = "mean", "scaled", "probe", "probe + mean", "probe + scaled"
FEWEST_TASKS = 10
"""Tasks below which leaving some out says little of the next one."""

Floats = NDArray[np.float64]


def weights_of(X: Floats, y: NDArray[np.int64], runs: NDArray[np.str_], rows: NDArray[np.int64]) -> Floats:
    """Returns the probe's weights (d,) for states X (n, d), learned from these rows; base rates of runs are apart."""
    spread = X[rows].std(axis=0) + 1e-6
    fit = fit_offsets(X[rows] / spread, y[rows], runs[rows], sd=WEIGHT_SD)
    weights: Floats = fit.weights / spread
    return weights


def choose_layer(
    inputs: dict[int, Floats],
    y: NDArray[np.int64],
    runs: NDArray[np.str_],
    tasks: NDArray[np.str_],
    rows: NDArray[np.int64],
) -> int:
    """Returns the layer whose probe orders best the answers of tasks left out, among these rows."""
    parts = parts_of(tasks[rows], INNER)
    reached = {}
    for layer, X in inputs.items():
        scores = np.full(len(y), np.nan)
        for part in range(INNER):
            here = rows[parts == part]
            scores[here] = X[here] @ weights_of(X, y, runs, rows[parts != part])
        aurocs = []
        for run in np.unique(runs[rows]):
            here = rows[runs[rows] == run]
            if 0 < y[here].sum() < len(here):
                aurocs.append(float(auroc(y[here], scores[here])))
        reached[layer] = np.mean(aurocs)
    return max(reached, key=lambda layer: reached[layer])


def centred(X: Floats, runs: NDArray[np.str_]) -> Floats:
    """Returns X less the mean of the answers of the same run; no label is looked at."""
    names, place = np.unique(runs, return_inverse=True)
    sums = np.zeros((len(names), X.shape[1]))
    np.add.at(sums, place, X)
    return X - (sums / np.bincount(place)[:, None])[place]


def parts_of(tasks: NDArray[np.str_], count: int) -> NDArray[np.int64]:
    """Returns the part (n,) that each answer falls into, where whole tasks are dealt into so many parts."""
    names = np.unique(tasks)
    part = dict(zip(names, np.random.default_rng(0).permutation(len(names)) % count, strict=True))
    return np.array([part[name] for name in tasks])


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


def judge_held_out(evidence: Evidence, states: States) -> TasksLeftOut:
    """Returns the scores of all answers, each by a probe that was fitted, its layer chosen, on other tasks."""
    table = evidence.table
    runs, y, tasks = runs_of(table), table.y, table.tasks
    inputs = centred_states(states, runs)
    folds = parts_of(tasks, FOLDS)
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
    standard = np.zeros(len(score))
    for run in np.unique(runs):
        rows = runs == run
        standard[rows] = Standard.of(score[rows])(score[rows])
    return standard


@writes(KIND)
def train_travel(stores: Sequence[str | Path], options: TravelOptions) -> Checkpoint:
    """Returns the blend's checkpoint, its probe fitted on all labelled answers of these stores.

    The card holds what the blend reached on whole tasks that were left out. Raises `RecordError` for hidden states of
    several models, for fewer than ten tasks, and where the blend is not above the mean log-probability on tasks left
    out.
    """
    evidence = load_evidence(
        stores,
        target=options.target,
        stage=options.stage,
        agent=options.agent,
        wanted=Wanted(options.layers, (POSITION,)),
    )
    states = evidence.states
    if states is None:
        raise RecordError(
            f"{evidence.without_hidden} of {len(evidence.table)} labelled answers have no hidden states at {POSITION}: "
            "run `metaprobe extract` first"
        )
    tasks = set(evidence.table.tasks.tolist())
    if len(tasks) < FEWEST_TASKS:
        raise RecordError(
            f"the answers are to {len(tasks)} tasks; expected at least {FEWEST_TASKS}, of which some are left out in"
            " turn: for the tasks at hand there is `metaprobe train hidden`"
        )
    options.on_step("tasks left out")
    left_out = judge_held_out(evidence, states)
    gain = left_out.gains(BLEND, MEAN)
    blend, mean = (format_interval(left_out.auroc(name), 3) for name in (BLEND, MEAN))
    options.on_line(f"tasks left out: blend {blend}, mean log-probability {mean}")
    if gain.estimate <= 0:
        raise RecordError(
            f"on tasks left out the blend is not above the mean log-probability ({gain.estimate:+.3f} AUROC within "
            f"runs, {gain.low:+.3f} to {gain.high:+.3f}), so none is written: use bundled:quality, or record more tasks"
        )
    options.on_step("fit and export")
    return _write(evidence, states, left_out, options)


def _write(evidence: Evidence, states: States, left_out: TasksLeftOut, options: TravelOptions) -> Checkpoint:
    """Fits layer and weights on all answers, and writes them with what was found on tasks left out."""
    table, y = evidence.table, evidence.table.y
    runs, rows = runs_of(table), np.arange(len(y))
    inputs = centred_states(states, runs)
    layer = choose_layer(inputs, y, runs, table.tasks, rows)
    weights = weights_of(inputs[layer], y, runs, rows)
    read = states.read(layer, POSITION).astype(np.float32)
    # Scores of these states get standard deviation 1.
    centre = read.astype(np.float64).mean(axis=0)
    weights = weights / (float(((read.astype(np.float64) - centre) @ weights).std()) or 1.0)
    return write_checkpoint(
        options.out,
        Export(
            kind=KIND,
            title=f"Travelling blend: {options.target}",
            summary=_summary(layer, left_out),
            graph=linear_graph(
                input_name=INPUT,
                mean=centre,
                scale=np.ones(len(centre)),
                weights=weights[:, None],
                intercept=np.zeros(1),
                outputs=[OUTPUT],
                probabilities=False,
            ),
            input_name=INPUT,
            inputs=read,
            expected={OUTPUT: (read.astype(np.float64) - centre) @ weights},
            contract={
                "layer": layer,
                "position": POSITION,
                "width": len(weights),
                "convention": CONVENTION,
                "target": options.target,
                "free": FREE_ALONE,
                "standardised_on": f"at least {FEWEST} unlabelled answers of one run",
                **reader_contract(evidence),
            },
            **evidence.origin(options.seed, options.recorded("train_travel")),
            calibration="none: scores order the answers of one run",
            calibrated_on="nothing",
            metrics={
                "auroc_within_runs_without_task": left_out.auroc(BLEND),
                "auroc_within_runs_without_task_of_probe_alone": left_out.auroc(PROBE),
                "auroc_within_runs_without_task_of_scaled_log_probability": left_out.auroc(FREE_ALONE),
                "auroc_within_runs_without_task_of_mean_log_probability": left_out.auroc(MEAN),
                "auroc_within_runs_without_task_gain_over_mean_log_probability": left_out.gains(BLEND, MEAN),
                "auroc_within_runs_without_task_gain_over_scaled_log_probability": left_out.gains(BLEND, FREE_ALONE),
            },
            audits=_audits(left_out),
            packages=("onnx",),
        ),
    )


def _audits(left_out: TasksLeftOut) -> list[Finding]:
    """Returns, for either free number, whether the blend was above it on tasks left out, with its interval above 0."""
    audits = []
    for free, name in ((MEAN, "mean log-probability"), (FREE_ALONE, "scaled log-probability")):
        gain = left_out.gains(BLEND, free)
        detail = f"gain in AUROC within runs on tasks left out {gain.estimate:+.3f} [{gain.low:+.3f}, {gain.high:+.3f}]"
        audits.append(Finding(f"blend is above the {name} on tasks left out", gain.low > 0, detail, "weak"))
    return audits


def _summary(layer: int, left_out: TasksLeftOut) -> str:
    """Returns the card's first paragraph."""
    return (
        f"Orders the answers of one run (a model, a task, a way of asking) to a task that it has not seen. It adds two "
        f"scores, each standardised on the run's unlabelled answers: a strongly regularised logistic probe on layer "
        f"{layer} at {POSITION}, learned from {len(set(left_out.tasks.tolist()))} tasks, and the total log-probability "
        f"over the root of the length. Layer 0 is the embeddings' output, layer i the output of block i. It gives no "
        f"probability and no flag, for how often a new task is answered rightly cannot be seen in its scores; without "
        f"a hidden state the log-probabilities stand alone. Numbers below: tasks left out, AUROC inside a run, mean "
        f"over runs with five right and five wrong answers; intervals draw whole tasks."
    )
