"""Helpers of `test_audits.py` and `test_audits_of_scores.py`."""

import numpy as np

N = 300


WORDS = np.array([f"{a}{b}{c}" for a in "bdfgk" for b in "aeiou" for c in "lmnrst"])


def questions(n=N, words=12, seed=0):
    """Different questions of random words, without numbers."""
    return np.array([" ".join(row) for row in np.random.default_rng(seed).choice(WORDS, (n, words))])


def folds(groups, k=3):
    """k splits by group, of three roles."""
    number = np.unique(groups, return_inverse=True)[1] % k
    rows = np.arange(len(groups))
    return [
        {
            "train": rows[(number - f) % k == 1],
            "selection": rows[(number - f) % k == 2],
            "test": rows[(number - f) % k == 0],
        }
        for f in range(k)
    ]
