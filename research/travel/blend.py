"""A probe of hidden states from many tasks, with the free number beside it, on task families left out.

    python -m research.travel.blend STORE [STORE ...]    # run stores of `breadth` with hidden states; minutes

The probe is a strongly regularised logistic regression on the mean of the answer's states at one layer. The states are
centred on the target's own unlabelled answers, run by run. Layers are chosen on families left out of the learning part.
The blend is the plain sum of probe and free number, each standardised on the run's unlabelled answers.
"""

import json
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from metaprobe.eval.metrics.bootstrap import cluster_weights
from metaprobe.eval.metrics.discrimination import auroc
from metaprobe.probes.terms import FREE, SCALED, TERMS
from metaprobe.training.common.offsets import fit_offsets
from metaprobe.training.crossfit.evidence import load_evidence
from metaprobe.training.crossfit.methods import RUN_IDENTITY, Evidence
from research.breadth import numbers, quantities
from research.breadth.items import NAME
from research.travel.measure import MEASURED

POSITION = "answer_mean"
FOLDS, INNER = 8, 3
WEIGHT_SD = 0.02
"""Of the prior of a weight, per standard deviation of its column: strongly regularised, fixed before any layer."""
SCALED_WEIGHTS = np.array([FREE[SCALED].get(term, 0.0) for term in TERMS])
LEAST = 5
"""Right answers, and wrong ones, that a run needs for a figure of its own."""
ARITHMETIC = {f"{NAME}-{family}" for family in (*numbers.FAMILIES, *quantities.FAMILIES)}
Floats = NDArray[np.float64]


@click.command()
@click.argument("stores", nargs=-1, required=True, type=click.Path(exists=True, file_okay=False, path_type=Path))
def main(stores: tuple[Path, ...]) -> None:
    """Measure each store, and keep the figures in docs/measured/travel.json."""
    for store in stores:
        found = measure(load_evidence([store]))
        click.echo(f"{store.name}: {json.dumps(found)}")
        kept = json.loads(MEASURED.read_text(encoding="utf-8")) if MEASURED.exists() else {}
        kept["blend"] = kept.get("blend", {}) | {store.name: found}
        MEASURED.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")


def measure(evidence: Evidence) -> dict[str, Any]:
    """AUROC within runs of probe, free numbers and blend, and what each gains over the mean; intervals draw tasks."""
    table, states = evidence.table, evidence.states
    assert states is not None, "the store holds no hidden states; metaprobe extract reads them"
    runs, y = RUN_IDENTITY.cells(table), table.y
    later = [layer for layer in states.layers if layer >= max(states.layers) / 3]
    inputs = {layer: centred(states.read(layer, POSITION).astype(np.float64), runs) for layer in later}
    folds = parts_of(table.tasks, FOLDS)
    probe, chosen = np.full(len(y), np.nan), []
    for fold in range(FOLDS):
        test, rest = folds == fold, np.flatnonzero(folds != fold)
        layer = choose_layer(inputs, y, runs, table.tasks, rest)
        chosen.append(layer)
        probe[test] = fit(inputs[layer], y, runs, rest)[test]
    terms = evidence.features[:, -len(TERMS) :].astype(np.float64)
    mean, scaled = -terms[:, TERMS.index("mean")], -terms @ SCALED_WEIGHTS
    scores = {
        "mean": mean,
        "scaled": scaled,
        "probe": probe,
        "probe + mean": standardised(probe, runs) + standardised(mean, runs),
        "probe + scaled": standardised(probe, runs) + standardised(scaled, runs),
    }
    return {"answers": len(y), "layers": chosen, "all": figures(scores, y, runs, table.tasks)} | {
        "without_arithmetic": figures(scores, y, runs, table.tasks, ~is_arithmetic(table.tasks))
    }


def is_arithmetic(tasks: NDArray[np.str_]) -> NDArray[np.bool_]:
    """Which answers are to tasks of calculating."""
    return np.isin(tasks, sorted(ARITHMETIC))


def figures(
    scores: dict[str, Floats],
    y: NDArray[np.int64],
    runs: NDArray[np.str_],
    tasks: NDArray[np.str_],
    among: NDArray[np.bool_] | None = None,
) -> dict[str, Any]:
    """Means over runs, and gains over the mean log-probability and over the scaled total."""
    found, of_task = [], []
    for run in np.unique(runs if among is None else runs[among]):
        rows = runs == run
        ones = int(y[rows].sum())
        if min(ones, int(rows.sum()) - ones) >= LEAST:
            found.append([float(auroc(y[rows], values[rows])) for values in scores.values()])
            of_task.append(str(tasks[rows][0]))
    table, weights = np.array(found), cluster_weights(of_task, 2000)
    draws = weights @ table / weights.sum(axis=1, keepdims=True)
    names = list(scores)
    shown: dict[str, Any] = {"runs": len(found), "tasks": len(set(of_task))}
    for place, name in enumerate(names):
        shown[name] = {"auroc": round(float(table[:, place].mean()), 3)}
        for against in ("mean", "scaled"):
            other = names.index(against)
            low, high = np.quantile(draws[:, place] - draws[:, other], [0.025, 0.975])
            gain = float((table[:, place] - table[:, other]).mean())
            shown[name][f"over_{against}"] = [round(float(value), 3) for value in (gain, low, high)]
    return shown


def choose_layer(
    inputs: dict[int, Floats],
    y: NDArray[np.int64],
    runs: NDArray[np.str_],
    tasks: NDArray[np.str_],
    rows: NDArray[np.int64],
) -> int:
    """The layer whose probe orders best the answers of families left out, among these rows."""
    parts = parts_of(tasks[rows], INNER)
    reached = {}
    for layer, X in inputs.items():
        scores = np.full(len(y), np.nan)
        for part in range(INNER):
            scores[rows[parts == part]] = fit(X, y, runs, rows[parts != part])[rows[parts == part]]
        found = []
        for run in np.unique(runs[rows]):
            here = rows[runs[rows] == run]
            if 0 < y[here].sum() < len(here):
                found.append(float(auroc(y[here], scores[here])))
        reached[layer] = np.mean(found)
    return max(reached, key=lambda layer: reached[layer])


def fit(X: Floats, y: NDArray[np.int64], runs: NDArray[np.str_], rows: NDArray[np.int64]) -> Floats:
    """Scores (n,) of all answers by a probe of these rows; the base rates of the runs are kept apart."""
    spread = X[rows].std(axis=0) + 1e-6
    found = fit_offsets(X[rows] / spread, y[rows], runs[rows], sd=WEIGHT_SD)
    return X / spread @ found.weights


def centred(X: Floats, runs: NDArray[np.str_]) -> Floats:
    """X less the mean of the answers of the same run; no label is looked at."""
    names, place = np.unique(runs, return_inverse=True)
    sums = np.zeros((len(names), X.shape[1]))
    np.add.at(sums, place, X)
    return X - (sums / np.bincount(place)[:, None])[place]


def standardised(score: Floats, runs: NDArray[np.str_]) -> Floats:
    """The score less its mean in the run, by its standard deviation there."""
    found = np.zeros(len(score))
    for run in np.unique(runs):
        rows = runs == run
        found[rows] = (score[rows] - score[rows].mean()) / (score[rows].std() + 1e-9)
    return found


def parts_of(tasks: NDArray[np.str_], count: int) -> NDArray[np.int64]:
    """Whole tasks dealt into so many parts."""
    names = np.unique(tasks)
    part = dict(zip(names, np.random.default_rng(0).permutation(len(names)) % count, strict=True))
    return np.array([part[name] for name in tasks])


if __name__ == "__main__":
    main()
