"""The terms by the book: one response, one number at a time, in Python's own arithmetic."""

import math

FLOOR = 1e-4


def plain_terms(logprobs: list[float]) -> dict[str, float]:
    """Term -> its value, of the log-probabilities of one response."""
    surprise = [-value for value in logprobs]
    half = max(1, len(surprise) // 2)
    three = sorted(surprise, reverse=True)[:3]
    early, late = (math.log(math.fsum(part) / half + FLOOR) for part in (surprise[:half], surprise[-half:]))
    return {
        "lowest3": math.log(math.fsum(three) / len(three) + FLOOR),
        "mean": math.log(math.fsum(surprise) / len(surprise) + FLOOR),
        "min": math.log(max(surprise) + FLOOR),
        "total": math.log(math.fsum(surprise) + FLOOR),
        "first": math.log(surprise[0] + FLOOR),
        "halves": early - late,
        "length": math.log(len(surprise)),
    }
