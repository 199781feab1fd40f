"""Metrics, audits, comparison and report."""
