"""The quality predictor: heads on log-probability features."""
