"""Splits a text into words, and hashes the words or pieces of them into numbered buckets, as inputs of models."""

import re
import zlib
from collections import Counter
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

PIECES = (2, 3, 4)
"""Lengths of the pieces that a word is cut into, the blanks around it included."""

_WORD = re.compile(r"\w+")


def lower_words(text: str, max_words: int | None = None) -> list[str]:
    """Returns the words of a text in lower case, in order; at most the first `max_words` of them."""
    return _WORD.findall(text.lower())[:max_words]


def hashed_words(text: str, buckets: int, max_words: int | None = None) -> NDArray[np.int64]:
    """Returns the hash buckets, from 0 to `buckets` - 1, of the words and of the pairs of neighbouring words: each
    bucket once, in rising order.
    """
    words = lower_words(text, max_words)
    pairs = [f"{a} {b}" for a, b in pairwise(words)]
    return np.array(sorted({zlib.crc32(term.encode()) % buckets for term in [*words, *pairs]}), dtype=np.int64)


def hashed_pieces(text: str, buckets: int) -> NDArray[np.float32]:
    """Returns (buckets,) of length 1: the damped counts 1 + ln(n) of the pieces of a text's words; zeros without words.

    Pieces are hashed, not words, because related words such as `finish` and `finishing` share most of their pieces.
    """
    counts = Counter(
        zlib.crc32(padded[start : start + length].encode()) % buckets
        for word in lower_words(text)
        for padded in [f" {word} "]
        for length in PIECES
        for start in range(len(padded) - length + 1)
    )
    row = np.zeros(buckets, dtype=np.float32)
    row[list(counts)] = [1 + np.log(count) for count in counts.values()]
    return row / max(float(np.linalg.norm(row)), 1e-12)
