"""Where a checkpoint's number is reached as often as the stated one reached the paper's threshold.

Monitor-Generate-Verify stops at a stated evaluation of 0.85, which models give to most of their answers. A calibrated
probability may never get there. The checkpoint's threshold `iterate` is therefore the value of its number that is
reached by the same share of the training answers as reached 0.85 by their stated evaluation.

MetaCogAgent's 0.5 gets none. What is stated there is too high as well, so that agents hardly ever ask, and a threshold
that is reached as often hands that fault on (docs/systems.md, "Which threshold a replaced number meets").
"""

from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from metaprobe.records.types import Run
from metaprobe.routing.actions import AGAIN, GOOD, STOP

POINT = "iterate"
FEWEST = 50
"""Evaluated answers that a share needs."""
ROUNDING = 1e-5
"""An exported graph may give a probability that is so much lower."""
PROMISE = {
    POINT: (
        f" The threshold `{POINT}` is reached as often as the stated evaluation reached {GOOD} in the training runs."
    )
}


def evaluations_of(runs: Iterable[Run]) -> dict[str, float]:
    """Returns what each answer was evaluated at when a policy was asked at `iterate`, by call id, in [0, 1].

    Only what models stated: an answer that a checkpoint read is left out, and one whose evaluation could not be read.
    """
    found: dict[str, float] = {}
    for run in runs:
        answers = {call.round: call.id for call in run.calls if call.stage == "answer"}
        for number, decision in enumerate(d for d in run.decisions if d.point == POINT):
            call_id = answers.get(number)
            if call_id is None or run.label("signal:quality", call_id) is not None:
                continue
            # The papers' rules write down what they compared; a learned policy writes something else.
            if decision.scores.get(AGAIN) == GOOD and decision.scores.get(STOP, -1.0) >= 0:
                found[call_id] = decision.scores[STOP]
    return found


def operating_points(
    probability: NDArray[np.float64], call_ids: Iterable[str], evaluated: Mapping[str, float]
) -> dict[str, float]:
    """Returns the threshold `iterate` on these probabilities (n,) of the calls, as a dict; empty where there is none.

    The calls are answers that nothing but a calibrator was fitted to. `evaluated`: of `evaluations_of`. There is none
    where fewer than `FEWEST` of them were evaluated, or where all of these or none reach the paper's threshold.
    """
    evaluations = np.array([evaluated.get(call_id, np.nan) for call_id in call_ids])
    known = np.isfinite(evaluations)
    if known.sum() < FEWEST:
        return {}
    threshold = match_share(probability[known], float((evaluations[known] >= GOOD).mean()))
    return {} if threshold is None else {POINT: threshold}


def match_share(probability: NDArray[np.float64], share: float) -> float | None:
    """Returns the threshold that about this share of the probabilities reaches; None for a share of 0 or 1.

    Of the values that occur it is the one whose share comes nearest, the higher of equals.
    """
    if not 0 < share < 1:
        return None
    values = np.unique(probability)[::-1]
    reached = (probability[None, :] >= values[:, None]).mean(axis=1)
    return max(float(values[np.argmin(np.abs(reached - share))]) - ROUNDING, 0.0)
