"""Serves, logs, labels, estimates, watches and renews predictors in production."""
