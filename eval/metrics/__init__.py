"""Metrics, a file a family. All take `(y, score, weight=None)`; weights of shape (R, n) give R values in one call."""
