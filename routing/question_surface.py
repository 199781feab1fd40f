"""The surface of a question: its words, pieces of its words, and counts of its form. It tells where the
question lies among the labelled questions, which share of its surface no labelled question has, and whether it has the
form of labelled questions.

NumPy only. `training/surface_fit.py` finds the directions, with the same functions that read a request here.
"""

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from metaprobe.probes.hashed_words import hashed_pieces, hashed_words

WORD_BUCKETS, PIECE_BUCKETS = 1 << 13, 1 << 10
READ_CHARS = 4_000
"""Characters that are read of a question: half from its beginning, half from its end. Reading them takes 3 ms."""
WORD_SCALE = 2.0
"""Length of a question's vector of words; that of its pieces has length 1."""
FORM_COUNTS = 7
"""Number of counts that `form_counts` returns."""
MOST_DEVIATIONS = 3.0
"""Largest distance of a count from its mean, in standard deviations. Counts further away are moved to it: a request
much longer than all labelled ones must not get a probability near 0 or 1 for its length alone.
"""
NEAREST_FORMS = 5
"""Number of nearest labelled questions to which a request's mean distance in form is measured."""
MAX_LABELLED_FORMS = 20_000
"""Most forms of labelled questions that are read from a checkpoint."""
MAX_SURFACE_NUMBER = 1e6
"""Largest number that is read from a checkpoint: sums of larger ones pass float32."""

_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True, slots=True, eq=False)
class SurfaceRow:
    """Words, pieces and form of one question."""

    words: NDArray[np.int64]
    """Buckets of the words and of the pairs of neighbouring words, each once, rising."""
    pieces: NDArray[np.float32]
    """Damped counts of the pieces of the words (PIECE_BUCKETS,), of length 1."""
    form: tuple[float, ...]
    """Counts of the form (FORM_COUNTS,)."""


def surface_row(question: str) -> SurfaceRow:
    """Returns words, pieces and form of a question."""
    text = read_part(question)
    return SurfaceRow(hashed_words(text, WORD_BUCKETS), hashed_pieces(text, PIECE_BUCKETS), form_counts(text))


def read_part(question: str) -> str:
    """Returns the beginning and the end of a question of over `READ_CHARS` characters; half surrogates become `?`."""
    if len(question) > READ_CHARS:
        question = question[: READ_CHARS // 2] + question[-READ_CHARS // 2 :]
    return question.encode("utf-8", "replace").decode()


def form_counts(question: str) -> tuple[float, ...]:
    """Returns ln(1 + characters), ln(1 + words), mean length of a word, numbers, words with a capital, commas and line
    ends.
    """
    words = question.split()
    return (
        float(np.log1p(len(question))),
        float(np.log1p(len(words))),
        sum(map(len, words)) / len(words) if words else 0.0,
        float(len(_NUMBER.findall(question))),
        float(sum(word[:1].isupper() for word in words)),
        float(question.count(",")),
        float(question.count("\n")),
    )


@dataclass(frozen=True, slots=True, eq=False)
class QuestionSurface:
    """Directions in which the surfaces of the labelled questions differ. A question has a coordinate along each."""

    words: NDArray[np.float32]
    """Directions (WORD_BUCKETS, k) of the words, already multiplied by the inverse document frequencies."""
    squares: NDArray[np.float32]
    """Squared inverse document frequencies (WORD_BUCKETS,), for the length of a question's vector of words."""
    pieces: NDArray[np.float32]
    """Directions (PIECE_BUCKETS, k) of the pieces."""
    form: NDArray[np.float32]
    """Directions (FORM_COUNTS, k) of the standardised counts."""
    mean: NDArray[np.float32]
    scale: NDArray[np.float32]
    """`mean` and `scale` (FORM_COUNTS,): mean and standard deviation of each count over the labelled questions."""
    centre: NDArray[np.float32]
    """Mean coordinates (k,) of the labelled questions, from which coordinates are measured."""
    form_scale: float
    """Standard deviation of a count of form in the vector of a question."""

    def coordinates(self, question: str) -> tuple[NDArray[np.float64], float]:
        """Returns the coordinates (k,) of a question, and which share of its surface lies outside all directions."""
        row = surface_row(question)
        length = float(self.squares[row.words].sum()) ** 0.5
        form = self.standardised(np.array([row.form]))[0]
        coordinates = np.asarray(row.pieces @ self.pieces + form @ self.form, dtype=np.float64)
        if length:
            coordinates += self.words[row.words].sum(axis=0, dtype=np.float64) / length
        whole = WORD_SCALE**2 * (length > 0) + float(row.pieces @ row.pieces) + self.form_scale**2 * float(form @ form)
        centred = coordinates - self.centre
        return centred, float(outside_share(whole, coordinates @ coordinates, centred @ centred))

    def standardised(self, form: NDArray[np.float64]) -> NDArray[np.float64]:
        """Returns counts (n, FORM_COUNTS) in standard deviations from their means, at most `MOST_DEVIATIONS`."""
        return np.asarray(np.clip((form - self.mean) / self.scale, -MOST_DEVIATIONS, MOST_DEVIATIONS))

    def to_bytes(self) -> bytes:
        """Returns the bytes that `read_surface` reads. Words that too few labelled questions hold have no numbers."""
        words = self.words[self.squares > 0]
        numbers = (self.squares, self.pieces, self.form, self.mean, self.scale, self.centre, [self.form_scale], words)
        return b"".join(np.ascontiguousarray(part, dtype="<f4").tobytes() for part in numbers)


def outside_share(whole: ArrayLike, inside: ArrayLike, centred: ArrayLike) -> NDArray[np.float64]:
    """Returns which share of the surface of questions lies outside all directions, from 0 to 1.

    Args:
        whole: squared length of each question's vector of words, pieces and form.
        inside: squared length of its part along the directions.
        centred: squared distance of this part from the mean of the labelled questions.
    """
    whole, inside, centred = (np.asarray(values, dtype=np.float64) for values in (whole, inside, centred))
    outside = np.maximum(whole - inside, 0.0)
    return np.asarray(outside / np.maximum(outside + centred, 1e-9))


def read_surface(data: bytes, directions: int) -> QuestionSurface:
    """Returns the directions in a checkpoint's file. Raises `ValueError` for another size, or a number out of range."""
    values, k = np.frombuffer(data, dtype="<f4"), directions
    sizes = (WORD_BUCKETS, PIECE_BUCKETS * k, FORM_COUNTS * k, FORM_COUNTS, FORM_COUNTS, k, 1)
    seen = values[:WORD_BUCKETS] > 0
    expected = sum(sizes) + int(seen.sum()) * k
    if len(values) != expected or not (np.abs(values) <= MAX_SURFACE_NUMBER).all():
        raise ValueError(f"the surface has {len(values)} numbers; expected {expected} finite ones")
    squares, pieces, form, mean, scale, centre, form_scale, stored = np.split(values, np.cumsum(sizes))
    if (squares < 0).any() or (scale <= 0).any():
        raise ValueError("the surface holds a square below 0, or a scale that is not above 0")
    words = np.zeros((WORD_BUCKETS, k), dtype=np.float32)
    words[seen] = stored.reshape(-1, k)
    return QuestionSurface(
        words, squares, pieces.reshape(-1, k), form.reshape(-1, k), mean, scale, centre, float(form_scale[0])
    )


@dataclass(frozen=True, slots=True, eq=False)
class LabelledForms:
    """The forms of the labelled questions, to tell a request of another form apart."""

    mean: NDArray[np.float32]
    scale: NDArray[np.float32]
    """`mean` and `scale` (FORM_COUNTS,): mean and standard deviation of each count over the labelled questions."""
    points: NDArray[np.float32]
    """Standardised counts (n, FORM_COUNTS) of the labelled questions."""
    limit: float
    """Largest mean distance to the nearest labelled questions at which a request's form counts as seen."""

    def distance(self, question: str) -> float:
        """Returns the mean distance of a question to the `NEAREST_FORMS` labelled questions of the nearest form."""
        point = (np.array(form_counts(read_part(question))) - self.mean) / self.scale
        distances = np.sqrt(((self.points - point) ** 2).sum(axis=1))
        return float(np.sort(distances)[:NEAREST_FORMS].mean())

    def to_bytes(self) -> bytes:
        """Returns the bytes that `read_forms` reads."""
        parts = (np.array([self.limit]), self.mean, self.scale, self.points)
        return b"".join(np.ascontiguousarray(part, dtype="<f4").tobytes() for part in parts)


def read_forms(data: bytes) -> LabelledForms:
    """Returns the forms in a checkpoint's file. Raises `ValueError` for another size, or a number out of range."""
    values = np.frombuffer(data, dtype="<f4")
    before = 1 + 2 * FORM_COUNTS
    if len(values) <= before or (len(values) - before) % FORM_COUNTS or not np.isfinite(values).all():
        raise ValueError(f"the forms have {len(values)} numbers; expected {before} and {FORM_COUNTS} for each question")
    if len(values) > before + FORM_COUNTS * MAX_LABELLED_FORMS:
        raise ValueError(f"the forms have {len(values)} numbers; expected at most {MAX_LABELLED_FORMS} questions")
    (limit,), mean, scale, points = np.split(values, [1, 1 + FORM_COUNTS, before])
    if limit < 0 or (scale <= 0).any():
        raise ValueError("the forms hold a limit below 0, or a scale that is not above 0")
    return LabelledForms(mean, scale, points.reshape(-1, FORM_COUNTS), float(limit))
