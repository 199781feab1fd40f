"""What flagging a share of the answers catches and costs, as a checkpoint stores it: in words, and as a threshold."""

from collections.abc import Mapping, Sequence
from itertools import pairwise

from metaprobe.checkpoints.errors import ContractMismatch
from metaprobe.checkpoints.manifest import FlagPoint, Metric

SHOWN = (0.1, 0.2, 0.3, 0.5)
"""Rates in the table of a card."""
NAMED = 0.3
"""Rate in the sentence."""
GAIN = "auroc_gain_over_mean_log_probability"


def threshold_at(points: Sequence[FlagPoint], rate: float) -> float:
    """Returns the score below which about a share `rate` of the answers lies, read off the stored curve.

    Between two stored rates it is interpolated. Raises `ContractMismatch` where nothing is stored, or not for the rate.
    """
    if not points:
        raise ContractMismatch(
            f"flag_rate={rate:g}: the checkpoint stores no curve of flag rates; those of version 0.1 have none, nor do "
            "those of fewer than 50 calibration answers or 10 wrong ones, for new tasks, or without a head `correct`. "
            "Train or adapt it with more labels, or hold the score against a threshold of your own"
        )
    first, last = points[0].rate, points[-1].rate
    if isinstance(rate, bool) or not first <= rate <= last:
        raise ContractMismatch(f"flag_rate is {rate!r}; expected a share from {first:g} to {last:g}, such as 0.3")
    for low, high in pairwise(points):
        if low.rate <= rate <= high.rate:
            part = (rate - low.rate) / (high.rate - low.rate)
            return low.threshold + part * (high.threshold - low.threshold)
    return points[0].threshold


def flag_sentences(points: Sequence[FlagPoint], metrics: Mapping[str, Metric]) -> list[str]:
    """Returns what flagging catches and costs on held-out answers, and whether it is needed; empty without a curve."""
    found = [point for point in points if abs(point.rate - NAMED) < 1e-9]
    lines = [
        f"Flagging {point.rate:.0%} of the answers catches {point.caught.estimate:.0%} of the wrong ones and costs "
        f"{point.cost.estimate:.0%} of the right ones (held out; flagging at random: {point.rate:.0%} of both)."
        for point in found
    ]
    gain = metrics.get(GAIN) or metrics.get(f"correct.{GAIN}")  # the latter where there are several heads
    if points and gain is not None and gain.low <= 0:
        stands = "ranks them better" if gain.high < 0 else "is not shown to rank them worse"
        lines.append(
            f"The mean log-probability {stands} (gain in AUROC {gain.estimate:+.3f} [{gain.low:+.3f}, "
            f"{gain.high:+.3f}]): you may not need this."
        )
    return lines


def flag_table(points: Sequence[FlagPoint]) -> list[str]:
    """Returns the lines of a Markdown table: what each of a few rates catches and costs, with 95 % intervals."""
    rows = [
        f"| {point.rate:.0%} | {_format(point.caught)} | {_format(point.cost)} | {point.threshold:.4f} |"
        for point in points
        if any(abs(point.rate - rate) < 1e-9 for rate in SHOWN)
    ]
    head = ["| flagged | of the wrong answers | of the right answers | score below |", "|---|---|---|---|"]
    return [*head, *rows] if rows else []


def _format(metric: Metric) -> str:
    return f"{metric.estimate:.0%} [{metric.low:.0%}, {metric.high:.0%}]"
