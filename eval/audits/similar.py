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

REWORDED = 0.4
"""Cosine of character n-grams from which two word problems of the same numbers are one. In the recorded stores those
that are two reach 0.3, and rewordings by hand 0.6."""
MOST_ALIKE = 5
"""Other texts that one may resemble, numbers aside, before it counts as made by a template."""
FEWEST_NUMBERS, FEWEST_WORDS = 2, 8
"""That a question needs for its numbers to tell it from others: "what is 44 + 69" is not "what is 69 + 44 reworded"."""

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


def reworded_pairs(texts: Sequence[str], threshold: float = REWORDED) -> tuple[Indices, Indices]:
    """Pairs (i, j) of normalised texts that ask the same in other words: the same numbers, in any order, and much the
    same letters (cosine of TF-IDF weighted character 3- and 4-grams).

    Only texts of at least 2 numbers and 8 words are looked at: without numbers a rewording cannot be told from another
    question about the same thing. Nor are those that are made by a template, that is, much like more than 5 texts
    whatever the numbers: there the same numbers come by chance. Each pair is returned in both orders. Ends early as
    `similar_pairs` does.
    """
    alike: dict[tuple[str, ...], list[int]] = {}
    for row, text in enumerate(texts):
        numbers = re.findall(r"\d+", text)
        if len(numbers) >= FEWEST_NUMBERS and len(re.findall(r"[^\W\d]+", text)) >= FEWEST_WORDS:
            alike.setdefault((*sorted(numbers), *sorted(re.findall(r"[+*/=^<>×÷]", text))), []).append(row)
    found, compared = [np.empty((0, 2), dtype=np.intp)], 0
    groups = [np.array(rows, dtype=np.intp) for rows in alike.values() if len(rows) > 1]
    if not groups:
        return found[0][:, 0], found[0][:, 1]
    extraction = require("sklearn.feature_extraction.text", "fit")
    vectorizer = extraction.TfidfVectorizer(analyzer="char_wb", ngram_range=(3, 4), sublinear_tf=True, dtype=np.float32)
    grams = vectorizer.fit_transform(texts)
    for rows in groups:
        for start in range(0, len(rows), BLOCK):
            block = rows[start : start + BLOCK]
            near = np.argwhere((grams[block] @ grams[rows].T).toarray() >= threshold)
            pairs = np.stack([block[near[:, 0]], rows[near[:, 1]]], axis=1)
            found.append(pairs[pairs[:, 0] != pairs[:, 1]])
            compared += len(block) * len(rows)
            if compared > MAX_COMPARED:
                break
    pairs = np.concatenate(found)
    rows = np.unique(pairs)
    if not len(rows):
        return pairs[:, 0], pairs[:, 1]
    masked = vectorizer.fit_transform([re.sub(r"\d+", "0", text) for text in texts])
    alone = np.zeros(len(texts), dtype=bool)
    for start in range(0, len(rows), BLOCK):
        block = rows[start : start + BLOCK]
        alone[block] = ((masked[block] @ masked.T).toarray() >= threshold).sum(
            axis=1
        ) <= MOST_ALIKE + 1  # itself is one
    kept = pairs[alone[pairs].all(axis=1)]
    return kept[:, 0], kept[:, 1]


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
