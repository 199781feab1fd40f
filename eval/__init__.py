"""Tasks, metrics, comparison and report."""
