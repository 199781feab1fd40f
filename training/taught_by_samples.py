"""A method of a comparison that learns from agreement between samples instead of labels."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from metaprobe.eval.results import Family
from metaprobe.records.errors import RecordError
from metaprobe.records.types import Run
from metaprobe.training.agreement import AgreementPairs, agreement_pairs
from metaprobe.training.calibrators import RISING_PLATT
from metaprobe.training.evidence import Evidence
from metaprobe.training.folds import Roles, Rows
from metaprobe.training.ladder import LadderRows, fit_ladder
from metaprobe.training.methods import Fitted, Method, agreement_ladder
from metaprobe.training.stored_runs import load_runs

TAUGHT = "taught by samples, no labels"
"""Name of the score that is learned from agreement. It reads the log-probabilities of one answer."""


@dataclass(frozen=True, slots=True, eq=False)
class TaughtBySamples:
    """The ladder on log-probabilities, trained to predict whether the model would give the same answer again.

    The fit reads no label. In each fold it reads only pairs of that fold's learning answers. Labels are used
    afterwards: the calibration of a comparison maps the score to P(right) without changing the score's order.
    """

    pairs: AgreementPairs
    name: str = TAUGHT
    family: Family = "learned"
    fitted: bool = True
    calibrators: ClassVar[tuple[str, ...]] = (RISING_PLATT,)

    def fit(self, evidence: Evidence, roles: Roles, *, seed: int) -> Fitted:
        """Fits on the pairs of the rows of these roles. Answers that were cut are ranked last, as in the product."""
        sample, table = evidence.sample(), evidence.table
        rows, agrees = self.pairs.rows_among(table.call_ids.tolist())
        ladder_rows = LadderRows(
            sample.X[rows], agrees, sample.groups[rows], sample.runs[rows], sample.names, read=sample.read
        )

        def pairs_of(answers: Rows) -> Rows:
            return np.flatnonzero(np.isin(rows, answers))

        pair_roles = Roles(**{name: pairs_of(answers) for name, answers in roles.parts.items()})
        ladder = fit_ladder(ladder_rows, pair_roles, bar=agreement_ladder(len(np.unique(rows))).bar, seed=seed)
        scores = np.asarray(ladder.score_of(sample.X, sample.runs), dtype=np.float64)
        scores[table.cut] = scores.min()
        return Fitted(lambda chosen: scores[chosen], ladder.selection_auroc)


def stage_of_labels(runs: Sequence[Run], target: str = "correct") -> str:
    """Returns the only stage whose calls carry the label; empty if several stages do, or none."""
    stages = {call.stage for run in runs for call in run.calls if run.label(target, call.id) is not None}
    return stages.pop() if len(stages) == 1 else ""


def sample_methods(stores: Sequence[str | Path], *, target: str = "correct") -> list[Method]:
    """Returns `TaughtBySamples` in a list; an empty list if the stores do not have enough samples.

    Args:
        stores: run stores in which questions have several answers.
        target: name of the label by which methods are compared. The answers of the stage with this label are the
            samples. If several stages or none have this label, the list is empty.
    """
    runs = load_runs(stores)
    if not (stage := stage_of_labels(runs, target)):
        return []
    try:
        return [TaughtBySamples(agreement_pairs(runs, stage=stage))]
    except RecordError:
        return []
