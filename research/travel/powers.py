"""The total log-probability over a power of the length: what each power is worth, by length and by source.

    python -m research.travel.powers --data DATA   # seconds

Power 0 is the total, 1 the mean, and 0.5 the scaled total that the bundled predictor is. The samples of GSM8K, which
nobody had looked at when 0.5 was chosen, are a source of their own. *Chosen* is the power that the other sources like
best: what choosing is worth where it was not done.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from metaprobe.eval.metrics.discrimination import auroc
from research.travel.measure import LEAST, RESAMPLES, ROOT, data_option, keep
from research.travel.sets import Answers, join, of_stores, others, recorded

POWERS = (0.0, 0.25, 0.5, 0.75, 1.0)
SHIPPED = 0.5
SAMPLES = "gsm8k samples"
LENGTHS = (("1 to 4 tokens", 0, 4), ("5 to 40", 4, 40), ("over 40", 40, np.inf))
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class RunOfAnswers:
    """One run, and the AUROC of every power in it."""

    source: str
    task: str
    length: float
    """Median, in tokens."""
    aurocs: Floats


@click.command()
@data_option
def main(data: Path) -> None:
    """Measure, and keep the figures in docs/measured/travel.json."""
    samples = of_stores(SAMPLES, [ROOT / "recorded" / "gsm8k-samples"])
    keep("powers", measure(join([recorded(ROOT), others(data), samples])))


def measure(answers: Answers) -> dict[str, Any]:
    """The mean AUROC over runs of every power, among all, by length and by source; intervals draw tasks."""
    runs = list(by_run(answers))
    sources = sorted({run.source for run in runs})
    found = {"all": figures(runs)}
    found |= {name: figures([run for run in runs if low < run.length <= high]) for name, low, high in LENGTHS}
    chosen = []
    for source in sources:
        here = [run for run in runs if run.source == source]
        elsewhere = np.mean([run.aurocs for run in runs if run.source != source], axis=0)
        best = int(elsewhere.argmax())
        found[source] = figures(here) | {"chosen": POWERS[best]}
        chosen += [run.aurocs[best] - run.aurocs[POWERS.index(SHIPPED)] for run in here]
    return {"powers": POWERS, "rows": found, "chosen_over_shipped": float(np.mean(chosen))}


def by_run(answers: Answers) -> list[RunOfAnswers]:
    """Every run with enough right and wrong answers."""
    lengths = np.array([len(one) for one in answers.logprobs])
    totals = np.array([np.sum(one, dtype=np.float64) for one in answers.logprobs])
    scores = [totals / lengths**power for power in POWERS]
    found = []
    for source, name in sorted(set(zip(answers.source, answers.run, strict=True))):
        rows = (answers.source == source) & (answers.run == name)
        y = answers.y[rows]
        if min(y.sum(), len(y) - y.sum()) >= LEAST:
            values = np.array([float(auroc(y, score[rows])) for score in scores])
            found.append(RunOfAnswers(str(source), str(answers.task[rows][0]), float(np.median(lengths[rows])), values))
    return found


def figures(runs: Sequence[RunOfAnswers], seed: int = 0) -> dict[str, Any]:
    """Mean AUROC of each power, and its gain over the shipped one with an interval where there are three tasks."""
    aurocs = np.array([run.aurocs for run in runs])
    gains = aurocs - aurocs[:, [POWERS.index(SHIPPED)]]
    tasks, of = np.unique([run.task for run in runs], return_inverse=True)
    drawn = np.random.default_rng(seed).multinomial(len(tasks), np.full(len(tasks), 1 / len(tasks)), RESAMPLES)
    weights = drawn[:, of]  # (resamples, runs)
    means = weights @ gains / weights.sum(axis=1, keepdims=True)
    low, high = np.quantile(means, [0.025, 0.975], axis=0)
    intervals = [[float(a), float(b)] for a, b in zip(low, high, strict=True)] if len(tasks) > 2 else None
    return {
        "runs": len(runs),
        "tasks": len(tasks),
        "auroc": aurocs.mean(axis=0).tolist(),
        "gain": gains.mean(axis=0).tolist(),
        "intervals": intervals,
    }


if __name__ == "__main__":
    main()
