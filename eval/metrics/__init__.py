"""Metrics, a file a family. All take `(y, score, weight=None)`; weights of shape (R, n) give R values in one call."""

from metaprobe.eval.metrics.bootstrap import (
    Interval,
    cluster_weights,
    interval,
    mean_interval,
    paired_difference,
    percentile_interval,
    resampled,
    statistic_interval,
)
from metaprobe.eval.metrics.calibration import (
    ReliabilityBin,
    brier,
    brier_reliability,
    brier_resolution,
    brier_skill,
    brier_uncertainty,
    ece,
    ece_debiased,
    reliability_table,
)
from metaprobe.eval.metrics.controls import ControlComparison, ControlDifference, against_controls
from metaprobe.eval.metrics.delong import delong_covariance, delong_test, holm
from metaprobe.eval.metrics.discrimination import auprc, auroc
from metaprobe.eval.metrics.ordinal import kendall, spearman
from metaprobe.eval.metrics.selective import (
    CoverageAtRisk,
    RiskCoverage,
    aurc,
    excess_aurc,
    prediction_rejection_ratio,
    risk_coverage,
)
from metaprobe.eval.metrics.stratified import StratifiedAuroc
from metaprobe.eval.metrics.type2 import MetaD, equal_grades, fit_meta_d, response_counts, sensitivity

__all__ = [
    "ControlComparison",
    "ControlDifference",
    "CoverageAtRisk",
    "Interval",
    "MetaD",
    "ReliabilityBin",
    "RiskCoverage",
    "StratifiedAuroc",
    "against_controls",
    "auprc",
    "aurc",
    "auroc",
    "brier",
    "brier_reliability",
    "brier_resolution",
    "brier_skill",
    "brier_uncertainty",
    "cluster_weights",
    "delong_covariance",
    "delong_test",
    "ece",
    "ece_debiased",
    "equal_grades",
    "excess_aurc",
    "fit_meta_d",
    "holm",
    "interval",
    "kendall",
    "mean_interval",
    "paired_difference",
    "percentile_interval",
    "prediction_rejection_ratio",
    "reliability_table",
    "resampled",
    "response_counts",
    "risk_coverage",
    "sensitivity",
    "spearman",
    "statistic_interval",
]
