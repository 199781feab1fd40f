"""The streaming gate: heads for the first tokens, and thresholds for all looks together."""
