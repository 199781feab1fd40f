"""Metrics, a file a family. All take `(y, score, weight=None)`; weights of shape (R, n) give R values in one call."""

from metaprobe.eval.metrics.bootstrap import Interval, cluster_weights, interval, mean_interval, paired_difference
from metaprobe.eval.metrics.calibration import ReliabilityBin, brier, brier_skill, ece, ece_debiased, reliability_table
from metaprobe.eval.metrics.discrimination import auprc, auroc
from metaprobe.eval.metrics.ordinal import kendall, spearman
from metaprobe.eval.metrics.selective import RiskCoverage, aurc, excess_aurc, risk_coverage

__all__ = [
    "Interval",
    "ReliabilityBin",
    "RiskCoverage",
    "auprc",
    "aurc",
    "auroc",
    "brier",
    "brier_skill",
    "cluster_weights",
    "ece",
    "ece_debiased",
    "excess_aurc",
    "interval",
    "kendall",
    "mean_interval",
    "paired_difference",
    "reliability_table",
    "risk_coverage",
    "spearman",
]
