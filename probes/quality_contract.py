"""Names of a quality predictor's checkpoint, its input and its main heads, for code that writes such a checkpoint."""

KIND = "quality"
INPUT = "features"
MAIN_HEADS = ("correct", "quality")
"""Heads that give the score, the first that is there: a probability, or Q from 0 to 9."""
AT_LEAST = ">="
"""Between a head with levels and a level, in the name of an output: the probability of at least this level."""
CRITICAL = "critical"
"""The head of P(critical failure)."""
