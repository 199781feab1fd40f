"""Learned scores against the controls, measured for docs/research/quality.md and written there; how numbers look."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metaprobe.eval.compare import BEST_BASELINE, Judged
from metaprobe.eval.metrics.bootstrap import control_comparison, metric_values
from metaprobe.eval.metrics.ranked import StratifiedAuroc
from metaprobe.eval.results import CONTROL_FAMILIES
from metaprobe.training.methods import TREES
from research.blocks import packed, signed

Figures = Mapping[str, Any]
Packed = Sequence[float]


def over_controls(
    y: NDArray[np.int64], methods: Mapping[str, Judged], metric: StratifiedAuroc, weights: NDArray[np.int32]
) -> dict[str, Any]:
    """Learned method -> its gain over the single control that is strongest on these answers, and which ones it beats.

    Controls are the numbers and features of which no model is made, each chosen without test rows; the row of those
    that the folds chose is none of its own candidates. p is after Holm's correction over all controls.
    """
    values = {name: metric_values(metric, y, judged.ranking, weights) for name, judged in methods.items()}
    free = [n for n, judged in methods.items() if judged.family in CONTROL_FAMILIES and n != BEST_BASELINE]
    controls = {name: values[name] for name in free}
    rows = {}
    for name, judged in methods.items():
        if judged.family == "learned":
            against = control_comparison(values[name], controls, weights)
            rows[name] = {
                "control": against.strongest.name,
                "auroc": round(against.strongest.estimate, 4),
                "difference": packed(against.strongest.difference),
                "p_holm": round(against.strongest.p_holm, 4),
                "standing": [control.name for control in against.standing],
                "controls": len(controls),
            }
    return rows


def beats(measured: Sequence[Figures], name: str, key: str) -> str:
    """In how many sets a method beats every control after Holm's correction, and in how many it loses to the
    strongest."""
    ahead, behind, found = against_controls(measured, name, key)
    if not found:
        return "not measured yet"
    left = len(measured) - found
    rest = f" ({left} more sets are not measured against it yet)" if left else ""
    return f"beats every control in {ahead} of {found} sets, loses to the strongest in {behind}{rest}"


def against_controls(measured: Sequence[Figures], name: str, key: str) -> tuple[int, int, int]:
    """In how many sets a method beats every control, in how many the strongest beats it, and how many were measured."""
    found = [row for of in measured if (row := of["methods"][name].get(key)) is not None]
    ahead = sum(not row["standing"] for row in found)
    return ahead, sum(verdict(row["difference"]) == "does not hold" for row in found), len(found)


def strongest(found: Figures) -> str:
    """Which control is the strongest; empty where it was not measured."""
    row = found["methods"][TREES].get("over_strongest")
    if not row:
        return ""
    within = found["methods"][TREES].get("within_over_strongest")
    inside = f", within runs {within['control']} ({within['auroc']:.2f})" if within else ""
    return f"Strongest of {row['controls']} controls: {row['control']} ({row['auroc']:.2f}){inside}. "


def gain(row: Figures | None) -> str:
    """A difference to the strongest control; a star where every control is beaten."""
    return "-" if not row else signed(row["difference"]) + ("" if row["standing"] else " *")


def verdict(difference: Packed) -> str:
    """Says whether the interval of a difference lies above 0."""
    _, low, high = difference
    return "holds" if low > 0 else "does not hold" if high < 0 else "undecided"
