"""What the likeliest alternatives of each token say beside its own log-probability: entropy, margin, mass at the top.

    python -m research.travel.alternatives     # on the runs of `breadth`, which keep five; a minute

All numbers are free, so that nothing is fitted but the last row: a logistic regression with base rates of the runs on
the scaled total and three sums over alternatives, on task families left out.
"""

import json
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from metaprobe.eval.metrics.bootstrap import cluster_weights, interval, paired_difference
from metaprobe.eval.metrics.stratified import StratifiedAuroc
from metaprobe.records.response import answer_logprobs
from metaprobe.records.store import RunStore
from metaprobe.training.common.offsets import fit_offsets
from research.travel.measure import MEASURED, RESAMPLES, ROOT, shown

FAMILY_PARTS = 10
FREE = "scaled total"
FITTED = "scaled total and alternatives, fitted"
Floats = NDArray[np.float64]


@click.command()
def main() -> None:
    """Measure each model's answers, and keep the figures in docs/measured/travel.json."""
    rows = {path.name: measure(path.name) for path in sorted((ROOT / "recorded" / "breadth").iterdir())}
    click.echo(json.dumps(rows, indent=1))
    kept = json.loads(MEASURED.read_text(encoding="utf-8"))
    MEASURED.write_text(json.dumps(kept | {"alternatives": rows}, indent=1) + "\n", encoding="utf-8")


def measure(model: str) -> dict[str, Any]:
    """AUROC within runs of each number, and what it gains over the scaled total; intervals draw task families."""
    numbers, y, run, family = load(model)
    scores = {name: np.array([one[name] for one in numbers]) for name in numbers[0]}
    scores[FITTED] = fitted(scores, y, run, family)
    within, weights = StratifiedAuroc(run), cluster_weights(family.tolist(), RESAMPLES)
    found: dict[str, Any] = {"answers": len(y), "families": len(np.unique(family)), "numbers": {}}
    for name, values in scores.items():
        found["numbers"][name] = {
            "auroc": shown(interval(within, y, values, weights)),
            "gain": shown(paired_difference(within, y, values, scores[FREE], weights)),
        }
    return found


def load(model: str) -> tuple[list[dict[str, float]], NDArray[np.int64], NDArray[np.str_], NDArray[np.str_]]:
    """Numbers, labels, run (task and way of asking) and task family of each labelled answer."""
    rows = []
    for run in RunStore(ROOT / "recorded" / "breadth" / model).runs(hidden=False):
        for call in run.calls:
            label, own = run.label("correct", call.id), answer_logprobs(call)
            if label is not None and own is not None and len(own) and call.top_logprobs is not None:
                top = np.asarray(call.top_logprobs, dtype=np.float64)[: len(own)]
                rows.append((numbers_of(own, top), int(label), f"{run.item.task}|{run.variant}", run.item.task))
    numbers, y, runs, families = zip(*rows, strict=True)
    return list(numbers), np.array(y), np.array(runs), np.array(families)


def numbers_of(own: Floats, top: Floats) -> dict[str, float]:
    """Of an answer's own log-probabilities (n,) and those of the likeliest tokens (n, k): numbers, high where sure.

    What is not among the k counts as one more alternative in the entropy.
    """
    own, top = np.asarray(own, dtype=np.float64), np.sort(top, axis=1)[:, ::-1]
    p = np.exp(top)
    rest = np.clip(1 - p.sum(axis=1, keepdims=True), 1e-9, 1)
    every = np.concatenate((p, rest), axis=1)
    entropy = -(every * np.log(np.clip(every, 1e-12, 1))).sum(axis=1)
    margin = p[:, 0] - p[:, 1]
    root = np.sqrt(len(own))
    return {
        FREE: float(own.sum() / root),
        "mean log-probability": float(own.mean()),
        "entropy, mean": float(-entropy.mean()),
        "entropy, sum over the root of the length": float(-entropy.sum() / root),
        "margin, mean": float(margin.mean()),
        "margin, lowest": float(margin.min()),
        "mass of the five, lowest": float(-rest.max()),
    }


def fitted(scores: dict[str, Floats], y: NDArray[np.int64], run: NDArray[np.str_], family: NDArray[np.str_]) -> Floats:
    """Scores (n,) of a logistic regression on four numbers, each fitted without the answer's task family."""
    four = (FREE, "entropy, mean", "margin, lowest", "mass of the five, lowest")
    X = np.stack([scores[name] for name in four], axis=1)
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    families = np.unique(family)
    found = np.full(len(y), np.nan)
    for place in range(FAMILY_PARTS):
        here = np.isin(family, families[place::FAMILY_PARTS])
        found[here] = X[here] @ fit_offsets(X[~here], y[~here], run[~here]).weights
    return found


if __name__ == "__main__":
    main()
