"""Helpers of `test_compare.py` and `test_compare_runs.py`."""

import numpy as np

from metaprobe.eval.table import AnswerTable

N = 600


LEVELS = np.array(["easy", "medium", "hard"])


RIGHT = np.array([0.85, 0.5, 0.15])
"""By level."""


def answers(*, groups=None, seed=0) -> AnswerTable:
    """Answers whose rightness depends on the level; stated confidence knows the level and nothing else."""
    rng = np.random.default_rng(seed)
    level = np.arange(N) % 3
    names = np.array([f"c{i}" for i in range(N)])
    logprobs = np.empty(N, dtype=object)
    logprobs[:] = [np.zeros(1, np.float32)] * N
    return AnswerTable(
        call_ids=names,
        items=names,
        tasks=np.full(N, "t"),
        groups=names if groups is None else groups,
        variants=np.full(N, "v"),
        dimensions=np.full(N, "d"),
        levels=LEVELS[level],
        questions=names,
        models=np.full(N, "m"),
        y=(rng.uniform(size=N) < RIGHT[level]).astype(np.int64),
        stated_difficulty=np.full(N, np.nan),
        stated_confidence=np.array([0.9, 0.8, 0.7])[level],
        p_true=np.full(N, np.nan),
        logprobs=logprobs,
        tokens=np.ones(N, dtype=np.int64),
        cut=np.zeros(N, dtype=bool),
    )
