"""The total log-probability over a power of the length: what each power is worth, by length and by source.

    python -m research.travel.powers --data DATA   # seconds

Power 0 is the total, 1 the mean, and 0.5 the scaled total that the bundled predictor is. The samples of GSM8K, which
nobody had looked at when 0.5 was chosen, are a source of their own. The prefixes of gsm8k_token_entropy are left out:
in a run all are of one length, so that every power puts them in the same order. *Chosen* is the power that the other
sources like best: what choosing is worth where it was not done.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from metaprobe.eval.metrics.bootstrap import cluster_weights
from metaprobe.eval.metrics.ranked import auroc
from research.travel.measure import LEAST, RESAMPLES, ROOT, data_option, keep
from research.travel.samples import STORES
from research.travel.sets import Answers, join, of_stores, others, recorded

POWERS = (0.0, 0.25, 0.5, 0.75, 1.0)
SHIPPED = 0.5
SAMPLES = "gsm8k samples"
ONE_LENGTH = "gsm8k_token_entropy"
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
    y: NDArray[np.int64]
    groups: NDArray[np.str_]
    scores: Floats
    """Shape (powers, answers)."""


@click.command()
@data_option
def main(data: Path) -> None:
    """Measure, and keep the figures in docs/measured/travel.json."""
    samples = [of_stores(f"{SAMPLES}, {model}", [ROOT / "recorded" / name]) for model, name in STORES.items()]
    theirs = others(data)
    theirs = theirs.rows(theirs.source != ONE_LENGTH)
    keep("powers", measure(join([recorded(ROOT), theirs, *samples])))


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
            here = np.array([score[rows] for score in scores])
            values = np.array([float(auroc(y, score)) for score in here])
            task, length = str(answers.task[rows][0]), float(np.median(lengths[rows]))
            found.append(RunOfAnswers(str(source), task, length, values, y, answers.group[rows], here))
    return found


def figures(runs: Sequence[RunOfAnswers]) -> dict[str, Any]:
    """Mean AUROC of each power, and its gain over the shipped one; intervals draw tasks, or of few tasks questions."""
    aurocs = np.array([run.aurocs for run in runs])
    tasks = len({run.task for run in runs})
    drawn = _means_by_task(runs) if tasks > 2 else _means_by_question(runs)
    gains = drawn - drawn[:, [POWERS.index(SHIPPED)]]
    low, high = np.nanquantile(gains, [0.025, 0.975], axis=0)
    return {
        "runs": len(runs),
        "tasks": tasks,
        "auroc": aurocs.mean(axis=0).tolist(),
        "gain": (aurocs - aurocs[:, [POWERS.index(SHIPPED)]]).mean(axis=0).tolist(),
        "intervals": [[float(a), float(b)] for a, b in zip(low, high, strict=True)],
        "drawn": "tasks" if tasks > 2 else "questions",
    }


def _means_by_task(runs: Sequence[RunOfAnswers], seed: int = 0) -> Floats:
    """(resamples, powers): the mean over runs, whole tasks drawn."""
    tasks, of = np.unique([run.task for run in runs], return_inverse=True)
    drawn = np.random.default_rng(seed).multinomial(len(tasks), np.full(len(tasks), 1 / len(tasks)), RESAMPLES)
    weights = drawn[:, of]  # (resamples, runs)
    return (weights @ np.array([run.aurocs for run in runs])) / weights.sum(axis=1, keepdims=True)


def _means_by_question(runs: Sequence[RunOfAnswers]) -> Floats:
    """(resamples, powers): the mean over runs, questions drawn, the same ones in every run and for every power."""
    groups = np.concatenate([run.groups for run in runs])
    weights, start, found = cluster_weights(groups.tolist(), RESAMPLES), 0, []
    for run in runs:
        own = weights[:, start : start + len(run.y)]
        found.append([auroc(run.y, score, own) for score in run.scores])
        start += len(run.y)
    return np.nanmean(np.array(found), axis=0).T


if __name__ == "__main__":
    main()
