"""The heads of all looks and their joint thresholds, from the rows of one set of roles."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from metaprobe.eval.table import AnswerTable
from metaprobe.probes.features import COUNTS
from metaprobe.records.errors import RecordError
from metaprobe.training.common.calibrate import PARITY, Calibrator
from metaprobe.training.common.roles import Roles
from metaprobe.training.gate.look_models import Features, GateHead, Scores, fit_head
from metaprobe.training.gate.stopping_thresholds import joint_statistic, one_a_group, score_thresholds


@dataclass(frozen=True, slots=True, eq=False)
class FittedGate:
    """Heads by look, and the P(good) below which each rate fires at each look."""

    heads: Mapping[int, GateHead]
    thresholds: Mapping[float, Mapping[int, float]]
    """Alpha -> look -> P(good). Only the rates that the calibration groups allow."""
    calibration_groups: int
    """Groups with a good calibration answer."""
    left_out: Mapping[int, str]
    """Looks that could not be fitted, and why."""

    def probability(self, X: Features, tokens: NDArray[np.int64]) -> Scores:
        """P(good) (n, len(COUNTS)) of answers of so many tokens; NaN beyond their end and where there is no head."""
        result = np.full((len(X), len(COUNTS)), np.nan)
        for look, head in self.heads.items():
            if (rows := tokens >= look).any():
                result[rows, COUNTS.index(look)] = head.probability(X[rows])
        return result


def fit_gate(
    X: Features, table: AnswerTable, roles: Roles, *, alphas: Sequence[float] = (), seed: int = 0
) -> FittedGate:
    """Heads and thresholds from these roles; X: features of `SCHEMA`. Raises `RecordError` where no look can be fitted.

    A look is left out where too few answers are that long to fit trees or a calibrator.
    """
    heads: dict[int, GateHead] = {}
    left_out: dict[int, str] = {}
    for look in COUNTS:
        try:
            heads[look] = fit_head(X, table, roles, look, seed=seed)
        except RecordError as error:
            left_out[look] = str(error)
    if not heads:
        raise RecordError(f"no look can be fitted. {' '.join(f'{look}: {why}.' for look, why in left_out.items())}")
    good = roles.calibration[table.y[roles.calibration] == 1]
    drawn = one_a_group(good, table.groups, seed=seed)
    surprise = [
        np.where(table.tokens[drawn] >= look, head.surprise.of(head.scorer.score(X[drawn])), np.nan)
        for look, head in heads.items()
    ]
    found = score_thresholds({look: head.surprise for look, head in heads.items()}, joint_statistic(surprise), alphas)
    thresholds = {
        alpha: {look: _below(heads[look].calibrator, score) for look, score in scores.items()}
        for alpha, scores in found.items()
    }
    return FittedGate(heads, thresholds, len(drawn), left_out)


def _below(calibrator: Calibrator, score: float) -> float:
    """The probability below which scores lie below `score`; a rounding lower, so that ties are never stopped."""
    if np.isinf(score):
        return 1.0 if score > 0 else 0.0
    return max(0.0, float(calibrator.probability(np.array([score]))[0]) - PARITY)
