"""Figures of a system in one variant, from its recorded runs, ready for JSON."""

from collections.abc import Callable, Sequence
from typing import Any

from metaprobe.eval.results import plain
from metaprobe.eval.systems import metacogagent_figures as metacogagent
from metaprobe.eval.systems import metacrit_figures as metacrit
from metaprobe.eval.systems import mgv_figures as mgv
from metaprobe.eval.systems.decision_figures import decision_points
from metaprobe.records.types import Run


def system_figures(runs: Sequence[Run], *, resamples: int = 1000, seed: int = 0) -> dict[str, Any]:
    """Returns cost, accuracy by stage and decisions of one variant's runs, and the figures of its system's paper.

    Intervals are 95 % bootstrap intervals over groups: (estimate, low, high).

    Args:
        runs: the runs.
        resamples: number of bootstrap resamples.
        seed: seed of the bootstrap.
    """
    (cost,) = metacrit.cost_table(runs, resamples=resamples, seed=seed)
    stages = metacrit.stage_accuracy(runs, resamples=resamples, seed=seed)
    system = runs[0].system
    analyses = ANALYSES[system](runs, resamples, seed) if system in ANALYSES else {}
    return {
        "cost": plain(cost),
        "accuracy by stage": {stage.stage: plain(stage.accuracy) for stage in stages},
        "decisions": {point: plain(decisions) for point, decisions in decision_points(runs).items()},
        **{name: plain(value) for name, value in analyses.items()},
    }


def _cycles(runs: Sequence[Run], resamples: int, seed: int) -> dict[str, Any]:
    (report,) = mgv.cycle_reports(runs, resamples=resamples, seed=seed)
    return {"cycles": report}


ANALYSES: dict[str, Callable[[Sequence[Run], int, int], dict[str, Any]]] = {
    "metacrit": lambda runs, resamples, seed: {
        "agreement": metacrit.agreement(runs, resamples=resamples, seed=seed),
        "failure types": metacrit.failure_types(runs),
    },
    "monitor-generate-verify": _cycles,
    "self-refine": _cycles,
    "self-verification": _cycles,
    "metacogagent": lambda runs, resamples, seed: {
        "delegation": metacogagent.measure_metacogagent(runs, resamples=resamples, seed=seed)
    },
}
"""Maps a system to its own analyses of runs of one variant."""
