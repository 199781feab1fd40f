"""Makes the controls for MetaCrit's answers to true-or-false claims, for systems.py and reproduction.py.

A small model often ends without a readable answer, which counts as wrong: a stage that merely repairs the form gains by
that. And a claim is true or false, so an answer that never reads it is right half of the time.
"""

from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from metaprobe.eval.metrics.bootstrap import Interval, cluster_weights, mean_interval
from metaprobe.pipelines import SYSTEMS
from metaprobe.records.answers import canonical
from metaprobe.records.types import Run
from research.systems.metacog_controls import half_of

Floats = NDArray[np.float64]
FINAL = "final"
CONSTANT = "the same answer to every claim (chosen on the other half)"
CHAIN = "one chain of thought, without agents"
HALF = "unreadable answers counted as half right"


def right(runs: Sequence[Run], stage: str = FINAL, *, half: bool = False) -> Floats:
    """(claims,) by id, of the returned answer or of one stage's. `half`: what cannot be read counts 0.5, not 0."""
    found = []
    for run in sorted(runs, key=lambda run: run.item.id):
        answer, value = _answered(run, stage)
        found.append(0.5 if half and not canonical(run.item, answer) else value)
    return np.array(found)


def unreadable(runs: Sequence[Run], stage: str = FINAL) -> float:
    """Share of answers that name neither true nor false."""
    return float(np.mean([not canonical(run.item, _answered(run, stage)[0]) for run in runs]))


def constant(runs: Sequence[Run]) -> Floats:
    """(claims,) by id: the gold answer that is most frequent in the other half of the groups, said of every claim."""
    ordered = sorted(runs, key=lambda run: run.item.id)
    halves = [half_of(run.item) for run in ordered]
    golds = [run.item.gold[0] for run in ordered]
    most = {
        half: Counter(gold for gold, own in zip(golds, halves, strict=True) if own != half).most_common(1)[0][0]
        for half in set(halves)
    }
    return np.array([float(gold == most[half]) for gold, half in zip(golds, halves, strict=True)])


def difference(runs: Sequence[Run], ours: Floats, others: Floats) -> Interval:
    """The mean difference, paired on the claim, by a bootstrap over groups."""
    ordered = sorted(runs, key=lambda run: run.item.id)
    return mean_interval(ours - others, cluster_weights([run.item.group or run.item.id for run in ordered]))


def _answered(run: Run, stage: str) -> tuple[str, float]:
    """The answer and whether it is right."""
    if stage == FINAL:
        return run.final_answer, run.outcome or 0.0
    (call,) = [call for call in run.calls if call.stage == stage]
    answer = SYSTEMS[run.system].extract_answer(run.item, call, run.variant)
    return answer, run.label("correct", call.id) or 0.0
