"""A method of a comparison that needs samples instead of labels: the score that agreement teaches."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from metaprobe.eval.results import Family
from metaprobe.records.errors import RecordError
from metaprobe.records.types import Run
from metaprobe.training.agreement import AgreementPairs, agreement_pairs
from metaprobe.training.calibration import RISING_PLATT
from metaprobe.training.evidence import Evidence, load_runs
from metaprobe.training.folds import Roles, Rows
from metaprobe.training.ladder import LadderRows, fit_ladder
from metaprobe.training.methods import Fitted, Method, agreement_ladder

TAUGHT = "taught by samples, no labels"
"""Name of the score that is learned from agreement: it reads the log-probabilities of one answer."""


@dataclass(frozen=True, slots=True, eq=False)
class TaughtBySamples:
    """The ladder on log-probabilities, taught which answers the model gives again. It reads no label.

    The fit of each fold sees the pairs of that fold's learning answers alone. Labels enter afterwards: the calibration
    of a comparison maps the score to P(right), and leaves its order as it is.
    """

    pairs: AgreementPairs
    name: str = TAUGHT
    family: Family = "learned"
    fitted: bool = True
    calibrators: ClassVar[tuple[str, ...]] = (RISING_PLATT,)

    def fit(self, evidence: Evidence, roles: Roles, *, seed: int) -> Fitted:
        """Fits on the pairs of the rows of these roles. Answers that were cut are ranked last, as in the product."""
        sample, table = evidence.sample(), evidence.table
        rows, same = self.pairs.rows_among(table.call_ids.tolist())
        compared = LadderRows(
            sample.X[rows], same, sample.groups[rows], sample.runs[rows], sample.names, read=sample.read
        )

        def pairs_of(answers: Rows) -> Rows:
            return np.flatnonzero(np.isin(rows, answers))

        own = Roles(**{name: pairs_of(answers) for name, answers in roles.parts.items()})
        ladder = fit_ladder(compared, own, bar=agreement_ladder(len(np.unique(rows))).bar, seed=seed)
        scores = np.asarray(ladder.score_of(sample.X, sample.runs), dtype=np.float64)
        scores[table.cut] = scores.min()
        return Fitted(lambda at: scores[at], ladder.selection_auroc)


def stage_of_labels(runs: Sequence[Run], target: str = "correct") -> str:
    """Returns the only stage whose calls carry the label; empty where several stages or none do."""
    stages = {call.stage for run in runs for call in run.calls if run.label(target, call.id) is not None}
    return stages.pop() if len(stages) == 1 else ""


def sample_methods(stores: Sequence[str | Path], *, target: str = "correct") -> list[Method]:
    """Returns the method for stores in which questions have several answers; none for other stores.

    `target`: name of the label by which methods are compared. The answers of the only stage that carries it are the
    samples. Where several stages carry it, there is no such method.
    """
    runs = load_runs(stores)
    if not (stage := stage_of_labels(runs, target)):
        return []
    try:
        return [TaughtBySamples(agreement_pairs(runs, stage=stage))]
    except RecordError:
        return []
