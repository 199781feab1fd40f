"""Compares the confidence that models state, and what is learned from their log-probabilities, with what is right.

    python -m research.hero.measure

From the stores in recorded/ whose figures are in docs/measured/probes.json; some minutes of one core. The figures are
kept in docs/measured/hero.json, from which research/hero/figure.py draws.
"""

from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from metaprobe.eval.metrics.bootstrap import cluster_weights, mean_interval
from metaprobe.training.evidence import load_evidence
from metaprobe.training.methods import TREES, FeatureTrees
from metaprobe.training.study import crossfit
from research.blocks import ROOT, packed, write_figures

MEASURED = ROOT / "docs" / "measured" / "hero.json"
STORES = tuple(
    f"{model}-{task}"
    for model in ("qwen-coder-0.5b", "smollm2-135m")
    for task in ("arithmetic", "creak", "factual-qa", "places")
)
EDGES = np.linspace(0, 1, 11)
FEWEST = 50
"""Answers in a bin; bins with fewer are left out, and counted."""


@click.command()
def main() -> None:
    """Measure the curves and keep them."""
    parts = [part_of(store) for store in STORES]
    y, groups = np.concatenate([part["y"] for part in parts]), np.concatenate([part["groups"] for part in parts])
    figures = {
        "curves": {
            name: curve(np.concatenate([part[name] for part in parts]), y, groups) for name in ("stated", "learned")
        },
    }
    write_figures(MEASURED, figures)


def part_of(store: str) -> dict[str, NDArray[Any]]:
    """Labels, groups, stated confidence (NaN where none was stated) and the learned probability of one store's answers.

    The learned one is out of fold: LightGBM on log-probabilities that saw no answer of the same group.
    """
    click.echo(store, err=True)
    evidence = load_evidence([ROOT / "recorded" / store], hidden=False)
    found = crossfit(evidence, [FeatureTrees()])
    groups = np.array([f"{store}:{group}" for group in evidence.table.groups])
    return {
        "y": evidence.table.y,
        "groups": groups,
        "stated": evidence.table.stated_confidence,
        "learned": found[TREES].probability,
    }


def curve(scores: NDArray[np.float64], y: NDArray[np.int64], groups: NDArray[np.str_]) -> dict[str, Any]:
    """In each tenth of the scores: their mean, the share of right answers with its interval, and how many they are."""
    known = np.isfinite(scores)
    scores, y, groups = scores[known], y[known], groups[known]
    weights = cluster_weights(list(groups))
    tenth = np.clip(np.searchsorted(EDGES, scores, side="right") - 1, 0, len(EDGES) - 2)
    bins, left_out = [], 0
    for at in range(len(EDGES) - 1):
        inside = tenth == at
        if (count := int(inside.sum())) < FEWEST:
            left_out += count
            continue
        right = mean_interval(y[inside], weights[:, inside])
        bins.append({"mean": round(float(scores[inside].mean()), 4), "right": packed(right), "n": count})
    return {"n": int(known.sum()), "mean": round(float(scores.mean()), 4), "left_out": left_out, "bins": bins}


if __name__ == "__main__":
    main()
