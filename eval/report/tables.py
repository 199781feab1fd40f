"""The tables of a report: what their columns mean, what may be set in bold, and the same as CSV."""

import csv
import io
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from math import isnan

from metaprobe.eval.metrics import Interval
from metaprobe.eval.report.model import Comparison, MethodResult


@dataclass(frozen=True, slots=True)
class MetricColumn:
    """One metric of the method table."""

    field: str
    title: str
    higher_is_better: bool


METRICS = (
    MetricColumn("auroc", "AUROC", True),
    MetricColumn("auprc", "AUPRC", True),
    MetricColumn("ece", "ECE", False),
    MetricColumn("brier_skill", "Brier skill", True),
    MetricColumn("aurc", "AURC", False),
)
DIFFERENCES = (("diff_stated", "vs stated"), ("diff_baseline", "vs baseline"))


def number(value: float, digits: int = 2, *, signed: bool = False) -> str:
    """`0.71`; `n/a` for nan; never a minus before zeros only."""
    if isnan(value):
        return "n/a"
    value = round(value, digits) + 0.0  # -0.0 + 0.0 is 0.0
    return f"{value:+.{digits}f}" if signed else f"{value:.{digits}f}"


def bounds(interval: Interval, digits: int = 2, *, signed: bool = False) -> str:
    """`[0.68, 0.74]`."""
    return f"[{number(interval.low, digits, signed=signed)}, {number(interval.high, digits, signed=signed)}]"


def verdict(difference: Interval) -> str:
    """The sign of a paired difference in a word: an interval that holds 0 decides nothing."""
    if difference.low > 0:
        return "better"
    return "worse" if difference.high < 0 else "unclear"


def clear_winner(methods: Iterable[MethodResult], column: MetricColumn) -> str | None:
    """The method whose interval lies wholly on the better side of every other's; None where there is none.

    Intervals that do not overlap ask for more than a difference being significant: bold is never a matter of luck.
    """
    sign = 1 if column.higher_is_better else -1
    # (worse end, better end) of each, larger is better
    ends = {m.name: sorted((sign * i.low, sign * i.high)) for m in methods for i in [getattr(m, column.field)]}
    if len(ends) < 2:
        return None
    best = max(ends, key=lambda name: ends[name][0])
    return best if all(ends[best][0] > other[1] for name, other in ends.items() if name != best) else None


def tables_csv(comparison: Comparison) -> dict[str, str]:
    """File name to CSV text (RFC 4180, numbers in full precision) for every table that has rows."""
    tables: dict[str, list[dict[str, object]]] = {
        "methods.csv": _methods(comparison),
        "reliability.csv": [{"method": m.name, **asdict(b)} for m in comparison.methods for b in m.reliability],
        "layers.csv": [
            {
                "probe": sweep.probe,
                "layer": layer,
                "position": position,
                "selection_auroc": float(sweep.selection_auroc[i, j]),
                "chosen": int((layer, position) == (sweep.chosen_layer, sweep.chosen_position)),
            }
            for sweep in comparison.sweeps
            for i, layer in enumerate(sweep.layers)
            for j, position in enumerate(sweep.positions)
        ],
        "accuracy.csv": [
            {"dimension": row.dimension, "level": row.level, "variant": variant, "accuracy": cell.accuracy, "n": cell.n}
            for row in comparison.accuracy
            for variant, cell in row.by_variant.items()
        ],
        "choices.csv": [
            {
                "policy": c.policy,
                **_spread("accuracy", c.accuracy),
                "tokens_per_question": c.tokens_per_question,
                "step_by_step": c.step_by_step,
            }
            for c in comparison.choices
        ],
        "audits.csv": [
            {"name": a.name, "passed": int(a.passed), "severity": a.severity, "detail": a.detail}
            for a in comparison.audits
        ],
        "provenance.csv": [{"key": key, "value": value} for key, value in comparison.provenance.items()],
    }
    return {name: _csv(rows) for name, rows in tables.items() if rows}


def _methods(comparison: Comparison) -> list[dict[str, object]]:
    rows = []
    for method in comparison.methods:
        row: dict[str, object] = {"method": method.name, "family": method.family, "coverage": method.coverage}
        for name in (*(column.field for column in METRICS), *(name for name, _ in DIFFERENCES)):
            row |= _spread(name, getattr(method, name))
        rows.append(row | {"n": method.auroc.n, "groups": method.auroc.groups, "level": method.auroc.level})
    return rows


def _spread(name: str, interval: Interval | None) -> dict[str, object]:
    if interval is None:
        return {name: "", f"{name}_low": "", f"{name}_high": ""}
    return {name: interval.estimate, f"{name}_low": interval.low, f"{name}_high": interval.high}


def _csv(rows: list[dict[str, object]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
