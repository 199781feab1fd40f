"""Serve, log, label, estimate, watch and renew predictors in production."""
