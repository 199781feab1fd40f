"""Reads the surface of labelled questions for P(success), and finds the principal directions of words, pieces of words
and counts of form of `routing/question_surface.py`, on which `success_fit` fits heads.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metaprobe.records.extras import require
from metaprobe.routing.question_surface import (
    FORM_COUNTS,
    NEAREST_FORMS,
    PIECE_BUCKETS,
    WORD_BUCKETS,
    WORD_SCALE,
    LabelledForms,
    QuestionSurface,
    outside_share,
    surface_row,
)

Floats = NDArray[np.float64]
FEWEST_QUESTIONS = 3
"""Fewest labelled questions that must hold a word for it to count."""
SURFACE_COMPONENTS = 128
"""Number of principal directions that are used. 256 were measured to be no better with 200 and with 600 labels."""
SPANNING_QUESTIONS = 2_000
"""Most questions that the directions are found from: the time grows with the cube of their number."""


LEAST_DEVIATIONS = (0.1, 0.1, 0.1, 1.0, 1.0, 1.0, 1.0)
"""Least standard deviation of each count: one that hardly varies in the labelled questions cannot weigh much."""
LEAST_UNITS = (0.5, 0.5, 1.0, 1.0, 1.0, 1.0, 1.0)
"""Least unit of each count in the distance of forms: where no labelled question has a comma, one comma is 1 away."""
LEAST_LIMIT = 2.0
"""Least distance in form that counts as seen, so that labels of one length do not shut out a request half as long."""


@dataclass(frozen=True, slots=True, eq=False)
class SurfaceRows:
    """Words, pieces and form of n questions, a row each."""

    words: Any
    """Which buckets of words each question has, (n, WORD_BUCKETS) of 0 and 1 as scipy CSR."""
    pieces: NDArray[np.float32]
    """Pieces of the words (n, PIECE_BUCKETS), rows of length 1."""
    form: Floats
    """Counts of the form (n, FORM_COUNTS)."""

    def __getitem__(self, rows: NDArray[np.int64]) -> "SurfaceRows":
        return SurfaceRows(self.words[rows], self.pieces[rows], self.form[rows])


def read_surfaces(questions: Sequence[str]) -> SurfaceRows:
    """Returns words, pieces and form of the questions."""
    rows = [surface_row(question) for question in questions]
    ends = np.cumsum([0, *(len(row.words) for row in rows)])
    columns = np.concatenate([np.empty(0, dtype=np.int64), *(row.words for row in rows)])
    shape = (len(rows), WORD_BUCKETS)
    return SurfaceRows(
        require("scipy.sparse", "fit").csr_matrix((np.ones(len(columns)), columns, ends), shape=shape),
        np.array([row.pieces for row in rows], dtype=np.float32).reshape(-1, PIECE_BUCKETS),
        np.array([row.form for row in rows], dtype=np.float64).reshape(-1, FORM_COUNTS),
    )


@dataclass(frozen=True, slots=True, eq=False)
class SurfaceSpan:
    """The columns of some questions, and their principal directions."""

    surface: QuestionSurface
    """The directions as a checkpoint holds them."""
    directions: Floats
    """Principal directions (WORD_BUCKETS + PIECE_BUCKETS + FORM_COUNTS, k), by falling variance."""

    def project(self, rows: SurfaceRows) -> Floats:
        """Returns the coordinates (n, k) of questions along the directions, measured from the mean of those spanned."""
        return self.coordinates(rows)[0]

    def coordinates(self, rows: SurfaceRows) -> tuple[Floats, Floats]:
        """Returns `QuestionSurface.coordinates` of n questions: (n, k), and the share (n,) outside all directions."""
        words, others = _columns(self.surface, rows)
        raw = words @ self.directions[:WORD_BUCKETS] + others @ self.directions[WORD_BUCKETS:]
        whole = np.asarray(words.multiply(words).sum(axis=1)).ravel() + (others**2).sum(axis=1)
        centred = np.asarray(raw - self.surface.centre)
        return centred, outside_share(whole, (raw**2).sum(axis=1), (centred**2).sum(axis=1))


def surface_span(rows: SurfaceRows, *, form_scale: float, seed: int) -> SurfaceSpan:
    """Returns the span of labelled questions, without their labels."""
    n = len(rows.form)
    seen = np.asarray(rows.words.sum(axis=0)).ravel()
    frequency = np.where(seen >= FEWEST_QUESTIONS, np.log((1 + n) / (1 + seen)) + 1, 0.0)
    # The columns of a question follow from frequencies and scales; directions come after them.
    empty = QuestionSurface(
        words=np.zeros((WORD_BUCKETS, 0), dtype=np.float32),
        squares=(frequency**2).astype(np.float32),
        pieces=np.zeros((PIECE_BUCKETS, 0), dtype=np.float32),
        form=np.zeros((FORM_COUNTS, 0), dtype=np.float32),
        mean=rows.form.mean(axis=0).astype(np.float32),
        scale=_scale(rows.form, LEAST_DEVIATIONS),
        centre=np.zeros(0, dtype=np.float32),
        form_scale=form_scale,
    )
    spanning = np.sort(np.random.default_rng(seed).permutation(n)[:SPANNING_QUESTIONS])
    words, others = _columns(empty, rows[spanning])
    products = (words @ words.T).toarray() + others @ others.T
    first, last = max(0, len(products) - SURFACE_COMPONENTS), len(products) - 1  # eigenvalues rise
    variance, mixes = require("scipy.linalg", "fit").eigh(products, subset_by_index=(first, last))
    count = max(1, min(SURFACE_COMPONENTS, int((variance > 1e-9 * variance[-1]).sum())))
    strongest = mixes[:, ::-1][:, :count] / np.sqrt(np.maximum(variance[::-1][:count], 1e-12))
    directions = np.vstack([words.T @ strongest, others.T @ strongest])
    by_word, pieces, form = np.split(directions.astype(np.float32), np.cumsum([WORD_BUCKETS, PIECE_BUCKETS]))
    surface = replace(
        empty,
        words=by_word * np.sqrt(empty.squares)[:, None] * np.float32(WORD_SCALE),
        pieces=pieces,
        form=form * np.float32(form_scale),
        centre=np.asarray((words @ directions[:WORD_BUCKETS] + others @ directions[WORD_BUCKETS:]).mean(axis=0)).astype(
            np.float32
        ),
    )
    return SurfaceSpan(surface, directions)


def fit_forms(form: Floats, groups: Sequence[str], share: float) -> LabelledForms:
    """Returns the forms of labelled questions, with the distance that a share of them has to those of other groups.

    Args:
        form: counts of the form (n, FORM_COUNTS).
        groups: group of each question.
        share: share of the questions whose form counts as seen.
    """
    mean, scale = form.mean(axis=0).astype(np.float32), _scale(form, LEAST_UNITS)
    points = ((form - mean) / scale).astype(np.float32)
    group = np.unique(np.asarray(groups), return_inverse=True)[1]
    nearest = np.empty(len(points))
    for row in range(len(points)):
        distances = np.sqrt(((points[group != group[row]] - points[row]) ** 2).sum(axis=1))
        nearest[row] = np.sort(distances)[:NEAREST_FORMS].mean()
    return LabelledForms(mean, scale, points, max(float(np.quantile(nearest, share)), LEAST_LIMIT))


def _scale(form: Floats, least: Sequence[float]) -> NDArray[np.float32]:
    """Returns the standard deviation of each count, at least `least`."""
    return np.asarray(np.maximum(form.std(axis=0), least), dtype=np.float32)


def _columns(surface: QuestionSurface, rows: SurfaceRows) -> tuple[Any, Floats]:
    """Returns the columns of words (n, WORD_BUCKETS) as scipy CSR, and those of pieces and form."""
    sparse = require("scipy.sparse", "fit")
    words = rows.words @ sparse.diags(np.sqrt(surface.squares.astype(np.float64)))
    length = np.sqrt(np.asarray(words.multiply(words).sum(axis=1)).ravel())
    words = sparse.diags(WORD_SCALE / np.where(length > 0, length, 1.0)) @ words
    form = surface.form_scale * surface.standardised(rows.form)
    return words.tocsr(), np.hstack([rows.pieces, form]).astype(np.float64)
