"""Ways of choosing how to answer, compared on the same items."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from metaprobe.eval.compare import RESAMPLES
from metaprobe.eval.metrics.bootstrap import cluster_weights, mean_interval
from metaprobe.eval.results import PolicyResult


@dataclass(frozen=True, slots=True)
class PolicyOutcomes:
    """What came of one way of choosing how to answer, on the same items."""

    name: str
    correct: NDArray[np.float64]
    """(items,): whether the answer that was kept is right."""
    tokens: NDArray[np.float64]
    """(items,): tokens generated for the question, the direct answer included where it was asked for first."""
    step_by_step: NDArray[np.bool_]
    """(items,): whether the kept answer is the step-by-step one."""


def policy_results(
    groups: Sequence[str], policies: Sequence[PolicyOutcomes], *, resamples: int = RESAMPLES, seed: int = 0
) -> tuple[PolicyResult, ...]:
    """Accuracy with interval, tokens and share of step-by-step answers of each policy."""
    weights = cluster_weights(list(groups), resamples, seed)
    return tuple(
        PolicyResult(
            policy=policy.name,
            accuracy=mean_interval(policy.correct, weights),
            tokens_per_question=float(policy.tokens.mean()),
            step_by_step=float(policy.step_by_step.mean()),
        )
        for policy in policies
    )
