"""Metrics, a file a family."""
