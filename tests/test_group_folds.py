"""Folds by group are scikit-learn's, made faster: the same answers in the same fold."""

import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.model_selection import StratifiedGroupKFold

from metaprobe.records.errors import RecordError
from metaprobe.training.folds import group_folds


@given(st.integers(0, 2**32 - 1), st.integers(2, 7), st.integers(1, 6), st.integers(2, 4))
def test_they_are_the_folds_of_scikit_learn(seed: int, folds: int, members: int, classes: int) -> None:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(30, 200))
    y, groups = rng.integers(0, classes, n), rng.integers(0, max(folds + 3, n // members), n).astype(str)
    rows = rng.permutation(n)[: n - 5]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of a class with few members
        theirs = StratifiedGroupKFold(folds, shuffle=True, random_state=seed).split(rows, y[rows], groups[rows])
        expected = [(rows[rest].tolist(), rows[part].tolist()) for rest, part in theirs]
        if not all(part for _, part in expected):
            with pytest.raises(RecordError, match="is empty"):
                list(group_folds(rows, groups.tolist(), y, folds, seed))
            return
        found = [(rest.tolist(), part.tolist()) for rest, part in group_folds(rows, groups.tolist(), y, folds, seed)]
    assert found == expected


def test_too_few_groups_are_named() -> None:
    with pytest.raises(RecordError, match="6 answers in 2 groups do not suffice for 5 folds"):
        list(group_folds(np.arange(6), ["a", "a", "a", "b", "b", "b"], np.arange(6) % 2, 5, 0))
