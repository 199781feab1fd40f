"""Whether resampled answers that agree say more than the answer's own log-probabilities: GSM8K, 16 samples a problem.

    python -m research.travel.samples     # on the runs of `gsm8k-samples*`; seconds

The agreement of a sample is the share of the other samples of its problem with the same last number. It needs the
other samples, so that the same question is asked with fewer of them too: those that come after it, in a circle.
"""

import json
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from metaprobe.eval.metrics.bootstrap import cluster_weights, interval, paired_difference
from metaprobe.eval.metrics.ranked import StratifiedAuroc, auroc
from metaprobe.records.correctness import numbers
from metaprobe.records.response import answer_logprobs
from metaprobe.records.store import RunStore
from research.blocks import ROOT, keep_figures, packed
from research.travel.measure import MEASURED, RESAMPLES

STORES = {"qwen-coder-0.5b": "gsm8k-samples", "qwen-coder-1.5b": "gsm8k-samples-1.5b"}
"""Model -> its recorded store; one that is not there yet is left out."""
FREE = "scaled total"
MEAN, LENGTH = "mean log-probability", "length, shorter is surer"
FREE_NUMBERS = (FREE, MEAN, "lowest log-probability", LENGTH, "not cut")
"""Numbers that a sample has without the others of its problem."""
CUT_LAST = (FREE, MEAN)
"""Numbers that are also tried with every cut sample behind all others, as a user who first looks at the finish reason
would."""
OTHERS = (1, 3, 7, 15)
"""How many other samples are asked for their agreement."""
Floats = NDArray[np.float64]


@click.command()
def main() -> None:
    """Measure, and keep the figures in docs/measured/travel.json."""
    found = {}
    for model, name in STORES.items():
        if (store := ROOT / "recorded" / name).exists():
            found[f"{model}, all"] = measure(store, whole=False)
            found[f"{model}, ended by themselves"] = measure(store, whole=True)
    click.echo(json.dumps(found, indent=1))
    keep_figures(MEASURED, found, "samples", sort=False)


def measure(store: Path, *, whole: bool) -> dict[str, Any]:
    """AUROC of each number over all samples, its gain over two free numbers, and AUROC among samples of one problem.

    The free numbers are the scaled total, and the one with the highest AUROC of these very samples, which is more than
    anyone knows beforehand. Intervals draw problems. Agreement says of a problem how hard it is, and of its samples
    which to take: the last two figures are of the second alone, beside the free number that is best at that.
    `whole`: whether only samples are judged that were not cut; the others of the problem may still vote.
    """
    rows = load(store)
    rows = [row for row in rows if not (whole and row["cut"])]
    y, problem = np.array([row["correct"] for row in rows]), [row["problem"] for row in rows]
    scores = {name: np.array([row["numbers"][name] for row in rows]) for name in rows[0]["numbers"]}
    free = list(FREE_NUMBERS)
    if not whole:
        behind = 1e6 * np.array([row["cut"] for row in rows])
        last = {f"{name}, cut samples last": scores[name] - behind for name in CUT_LAST}
        free, scores = [*free, *last], {**last, **scores}
    standardised = [(one - one.mean()) / one.std() for one in (scores[FREE], scores[f"agreement with {OTHERS[-1]}"])]
    scores[f"{FREE} and agreement with {OTHERS[-1]}, standardised"] = sum(standardised)
    weights, within = cluster_weights(problem, RESAMPLES), StratifiedAuroc(np.array(problem))
    found: dict[str, Any] = {
        "answers": len(y),
        "problems": len(set(problem)),
        "right": float(y.mean()),
        "cut": float(np.mean([row["cut"] for row in rows])),
        "numbers": {},
    }
    agreeing, cut = scores[f"agreement with {OTHERS[-1]}"], np.array([row["cut"] for row in rows])
    found["agreement"] = {
        name: float(agreeing[part].mean()) for name, part in (("cut", cut), ("ended", ~cut)) if any(part)
    }
    found["best"] = best = max(free, key=lambda name: auroc(y, scores[name]))
    found["best_within"] = inside = max(free, key=lambda name: within(y, scores[name]))
    for name in [*free, *(name for name in scores if name not in free)]:
        values = scores[name]
        found["numbers"][name] = {
            "auroc": packed(interval(auroc, y, values, weights), 3),
            "gain": packed(paired_difference(auroc, y, values, scores[FREE], weights), 3),
            "over_best": packed(paired_difference(auroc, y, values, scores[best], weights), 3),
            "within": packed(interval(within, y, values, weights), 3),
            "within_over_best": packed(paired_difference(within, y, values, scores[inside], weights), 3),
        }
    return found


def load(store: Path) -> list[dict[str, Any]]:
    """Returns, for each sample, its problem, whether it is right, whether it was cut, and its numbers, high where
    sure."""
    found = []
    for run in RunStore(store).runs(hidden=False):
        calls = [call for call in run.calls if call.stage == "answer"]
        last = [(numbers(call.text) or [None])[-1] for call in calls]
        for i, call in enumerate(calls):
            label, own = run.label("correct", call.id), answer_logprobs(call)
            if label is None or own is None or not len(own):
                continue
            own = np.asarray(own, dtype=np.float64)
            given: dict[str, float] = {
                FREE: float(own.sum() / np.sqrt(len(own))),
                MEAN: float(own.mean()),
                "lowest log-probability": float(own.min()),
                LENGTH: -float(len(own)),
                "not cut": float(call.finish_reason == "stop"),
            }
            for others in OTHERS:
                given[f"agreement with {others}"] = agreement(last, i, others)
            cut = call.finish_reason != "stop"
            found.append({"problem": run.item.id, "correct": int(label), "cut": cut, "numbers": given})
    return found


def agreement(last: list[Any], i: int, others: int) -> float:
    """The share of the `others` samples after sample i, in a circle, that end with its number; 0 where it has none."""
    if last[i] is None:
        return 0.0
    after = [last[(i + step) % len(last)] for step in range(1, others + 1)]
    return sum(one == last[i] for one in after) / others


if __name__ == "__main__":
    main()
