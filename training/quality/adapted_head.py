"""One head of a predictor on the labelled answers that it was adapted to: its thresholds and numbers, and what is said
of it."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from metaprobe.checkpoints import FlagOptions
from metaprobe.eval.compare import Judged, method_results
from metaprobe.eval.metrics.bootstrap import Interval, cluster_weights, interval, paired_difference
from metaprobe.eval.metrics.discrimination import auroc
from metaprobe.eval.metrics.stratified import StratifiedAuroc
from metaprobe.eval.table import AnswerTable
from metaprobe.probes.base_rates import CERTAIN
from metaprobe.records.errors import RecordError
from metaprobe.training.common.calibrators import Floats, Platt, sigmoid
from metaprobe.training.common.offsets import Fit
from metaprobe.training.crossfit.held_out import ENOUGH_FOR_ECE, known_figures
from metaprobe.training.crossfit.methods import RUN_IDENTITY, Evidence
from metaprobe.training.crossfit.stored_thresholds import (
    ScoredAnswers,
    StoredFlags,
    critical_thresholds,
    flagging_of,
)

LEAST_SCALE = 0.05
"""Where the labels say that higher scores are worse, the order is kept and the scores are drawn together to this."""
NO_ORDER = (
    "answers with higher scores are not right more often here, so that the adapted scores say next to nothing: look at "
    "the labels, or train on them"
)


@dataclass(frozen=True, slots=True, eq=False)
class Adapted:
    """One head on the labelled answers."""

    evidence: Evidence
    before: Floats
    """(n,): log-odds that the checkpoint gives, of an average run."""
    fit: Fit
    held_out: Floats
    """(n,): probabilities, each by a fit on the other folds."""

    @property
    def scale(self) -> float:
        return float(self.fit.weights[0])

    @property
    def table(self) -> AnswerTable:
        return self.evidence.table

    @property
    def runs(self) -> NDArray[np.str_]:
        return RUN_IDENTITY.cells(self.table)

    @property
    def ranking(self) -> Floats:
        """(n,): probabilities that order the answers. The order within one run is that of before, whatever is fitted,
        and needs no holding out; that of several runs does."""
        return self.held_out if len(np.unique(self.runs)) > 1 else sigmoid(self.log_odds)

    @property
    def log_odds(self) -> Floats:
        """(n,): adapted, the base rates of the runs included."""
        return self.scale * self.before + self.fit.rates.of(self.runs)

    @property
    def ordered(self) -> Floats:
        """(n,): log-odds whose order no label of the answer itself has made; of several runs those of the folds."""
        p = np.clip(self.held_out, CERTAIN, 1 - CERTAIN)
        return np.log(p) - np.log1p(-p) if len(np.unique(self.runs)) > 1 else self.log_odds


def flags_of(head: Adapted, asked: FlagOptions, seed: int) -> StoredFlags:
    """What the head that gives the score stores of flagging."""
    rows, identity, exported = np.arange(len(head.table)), Platt(1.0, 0.0), sigmoid(head.log_odds)
    answers = ScoredAnswers(head.table, rows, head.ordered, identity, exported, head.held_out, head.ranking)
    return flagging_of(answers, asked, seed=seed)


def critical_of(head: Adapted, seed: int) -> dict[str, float]:
    """Thresholds of the head `critical` that so many labels carry, on the adapted probability."""
    rows, sound = np.arange(len(head.table)), replace(head.table, y=1 - head.table.y)
    try:
        return critical_thresholds(-head.ordered, sound, rows, Platt(1.0, 0.0), seed=seed)
    except RecordError:
        return {}  # too few groups


def measure(head: Adapted, seed: int) -> dict[str, Interval]:
    """What is known of the adapted scores, held out: order, skill, and how far off they are on average."""
    table, p = head.table, head.held_out
    weights = cluster_weights(table.groups.tolist(), seed=seed)
    [found] = method_results(table, [Judged("adapted", "learned", p, head.ranking, 1.0)])
    metrics = {"auroc": found.auroc, "brier_skill": found.brier_skill, "aurc": found.aurc}
    if len(table) >= ENOUGH_FOR_ECE:
        metrics["ece"] = found.ece
    mean = np.array([values.mean() for values in table.logprobs])
    if len(np.unique(head.runs)) > 1:
        within = StratifiedAuroc(head.runs)
        inside = {
            "auroc_within_runs": interval(within, table.y, head.before, weights),
            "auroc_within_runs_gain_over_mean_log_probability": paired_difference(
                within, table.y, head.before, mean, weights
            ),
        }
        metrics = known_figures(inside) | metrics
    metrics["auroc_gain_over_mean_log_probability"] = paired_difference(auroc, table.y, head.ranking, mean, weights)
    metrics["mean_score_minus_share_right"] = interval(mean_gap, table.y, p, weights)
    return metrics


def mean_gap(y: ArrayLike, score: ArrayLike, weight: ArrayLike | None = None) -> Any:
    """Mean score less the share of ones; 0 where scores are right on average."""
    error = np.asarray(score, dtype=np.float64) - np.asarray(y, dtype=np.float64)
    if weight is None:
        return float(error.mean())
    weights = np.asarray(weight, dtype=np.float64)
    return weights @ error / weights.sum(axis=-1)


def line_of(name: str, head: Adapted) -> str:
    """A card's line about the head: its scale, and the labels that it was adapted to."""
    runs = len(np.unique(head.runs))
    said = (
        f"{name}: scale {head.scale:.2f}, {len(head.table)} labelled answers of {runs} run{'s' * (runs > 1)}, "
        f"{head.table.y.mean():.0%} of them 1"
    )
    if head.scale <= LEAST_SCALE:
        said += f"; {NO_ORDER}"
    return said
