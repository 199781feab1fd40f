"""Which texts nearly repeat one another: Jaccard similarity of word 3-grams, exact, for tens of thousands of texts."""

import re
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from metaprobe.records.extras import require

BLOCK = 128
"""Texts compared with all others at a time: at most BLOCK * n pairs are in memory."""
MAX_COMPARED = 10_000_000
"""Pairs after which no further text is looked at."""
SIMILAR = 0.8
"""Jaccard similarity from which two texts are nearly the same."""

Indices = NDArray[np.intp]


def normalise(text: str) -> str:
    """Lower case, words and operators apart by one space; punctuation that ends a clause is dropped."""
    return " ".join(re.findall(r"\w+|[^\w\s.,;:!?'\"]", text.casefold()))


def numbers_of(text: str, *, keep: bool = True) -> str:
    """The numbers of a text in order; with `keep=False`, the text with 0 in the place of each."""
    return " ".join(re.findall(r"\d+", text)) if keep else re.sub(r"\d+", "0", text)


def nearly_identical(
    texts: Sequence[str], threshold: float = SIMILAR, *, seed: int = 0
) -> Iterator[tuple[Indices, Indices, Indices]]:
    """As `similar_pairs` of normalised texts, those pairs only that hold the same numbers in the same order.

    Questions that differ in digits alone ("what is 3 + 5", "what is 4 + 9") are different questions.
    """
    numbers = np.unique([numbers_of(text) for text in texts], return_inverse=True)[1]
    for rows, i, j in similar_pairs(texts, threshold, seed=seed):
        same = numbers[i] == numbers[j]
        yield rows, i[same], j[same]


def similar_pairs(
    texts: Sequence[str], threshold: float, *, seed: int = 0
) -> Iterator[tuple[Indices, Indices, Indices]]:
    """For block after block of the texts, in random order: the block, and its pairs (i in the block, j any other).

    Candidates are found by prefix filtering (Bayardo, Ma and Srikant 2007, doi:10.1145/1242572.1242591): with grams
    ordered from rare to common, two sets of similarity t share one of the first |x| - ceil(t |x|) + 1 of each. Ends
    early where candidates are very many, as among long templates.
    """
    if not any(texts):
        return
    vectorizer = require("sklearn.feature_extraction.text", "fit").CountVectorizer(
        analyzer=_grams, binary=True, dtype=np.int32
    )
    grams = vectorizer.fit_transform(texts)
    grams = grams[:, np.argsort(grams.getnnz(axis=0), kind="stable")].tocsr()
    grams.sort_indices()
    sizes = np.diff(grams.indptr)
    prefix = grams.copy()
    at = np.arange(grams.nnz) - np.repeat(grams.indptr[:-1], sizes)  # place within its text, rarest first
    prefix.data[at > np.repeat(sizes - np.ceil(threshold * sizes - 1e-9), sizes)] = 0
    prefix.eliminate_zeros()
    order = np.random.default_rng(seed).permutation(len(texts))
    columns, compared = prefix.T.tocsr(), 0
    for start in range(0, len(order), BLOCK):
        rows = order[start : start + BLOCK]
        candidates = (prefix[rows] @ columns).tocoo()
        i, j = np.unique(rows[candidates.row]), np.unique(candidates.col)
        shared = (grams[i] @ grams[j].T).tocoo()
        i, j = i[shared.row], j[shared.col]
        similar = (shared.data >= threshold * (sizes[i] + sizes[j] - shared.data) - 1e-9) & (i != j)
        yield rows, i[similar], j[similar]
        compared += len(i)
        if compared > MAX_COMPARED:
            return


def _grams(text: str) -> list[str]:
    """Word 3-grams; a text of fewer words is one gram, an empty one has none."""
    words = text.split()
    return [" ".join(words[i : i + 3]) for i in range(max(len(words) - 2, 1))] if words else []
