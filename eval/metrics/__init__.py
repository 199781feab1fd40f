"""Metrics, a file a family. Each takes `(y, score, weight=None)`; weights of shape (R, n) give R values in one call."""
