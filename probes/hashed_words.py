"""Words of a text and the places that they are hashed to: what every model that reads words here is fed."""

import re
import zlib
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

_WORD = re.compile(r"\w+")


def words_of(text: str, most: int | None = None) -> list[str]:
    """Returns the words of a text in lower case, in order; the first `most` of them where that is given."""
    return _WORD.findall(text.lower())[:most]


def hashed_words(text: str, buckets: int, most: int | None = None) -> NDArray[np.int64]:
    """Returns the buckets, from 0 to `buckets` - 1, of the words and pairs of neighbours, each once, rising."""
    words = words_of(text, most)
    pairs = [f"{a} {b}" for a, b in pairwise(words)]
    return np.array(sorted({zlib.crc32(term.encode()) % buckets for term in [*words, *pairs]}), dtype=np.int64)
