"""Analyses the preferences of a study's participants, aspect by aspect: shares, tests, effect sizes, reliability.

The test of an aspect is Friedman's, over participants: each participant's counts of choices are ranked. It is corrected
for the four aspects by Holm. Pairs of conditions are tested by flipping signs of the participants' differences, and
corrected by Holm within the aspect. Intervals are bootstraps over participants. The plain chi-square takes every answer
as an independent case, as papers often do. It is shown next to its corrected form and decides nothing.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from metaprobe.eval.metrics.bootstrap import Interval, cluster_weights, holm, mean_interval, statistic_interval
from metaprobe.eval.metrics.ranked import Floats
from metaprobe.records.errors import RecordError
from metaprobe_writing_assistant.study.answers import Sheet, one_kind
from metaprobe_writing_assistant.study.choice_tests import (
    MIN_PARTICIPANTS,
    Choices,
    chi_square,
    counts_of,
    cronbach_alpha,
    fleiss_kappa,
    friedman,
    likeness_of,
    paired_p,
    repeated_f,
    shares_of,
)
from metaprobe_writing_assistant.study.survey import ASPECTS, questions_of

RESAMPLES = 2000


@dataclass(frozen=True, slots=True)
class PairPreference:
    """Two conditions of one aspect."""

    first: str
    second: str
    difference: Interval
    """Share of choices for `first` minus that for `second`, a mean over participants."""
    standardized: float
    """The mean difference divided by its standard deviation between participants (Cohen's d of pairs)."""
    p: float
    p_holm: float
    """The p-value after Holm's correction over the pairs of this aspect."""


@dataclass(frozen=True, slots=True)
class AspectPreference:
    """One aspect of the survey."""

    aspect: str
    participants: int
    """Number of participants who answered at least one of its questions."""
    choices: int
    """Number of answers that name a condition."""
    counts: dict[str, int]
    shares: dict[str, Interval]
    """Maps a condition to the mean share of a participant's choices."""
    chi_square: float
    p_answers: float
    """P-value of the chi-square, as if every answer were independent."""
    p_corrected: float
    """P-value of the chi-square divided by the design effect."""
    likeness: float
    """How much one participant's answers resemble each other, from 0 to 1."""
    friedman: float
    p: float
    p_holm: float
    """P-value of Friedman's test after Holm's correction over the aspects."""
    kendall_w: float
    """Friedman's chi-square divided by its greatest value: 0 is no shared preference, 1 means that all rank alike."""
    f: float
    p_f: float
    alpha: dict[str, Interval]
    """Maps a condition to Cronbach's alpha of the questions, each 1 if that condition was chosen, else 0."""
    kappa: float
    """Fleiss' kappa between participants over the questions."""
    pairs: tuple[PairPreference, ...]


@dataclass(frozen=True, slots=True)
class StudyAnalysis:
    """Results of a study. If `simulated_by` is not empty, no person took part."""

    simulated_by: str
    participants: int
    conditions: tuple[str, ...]
    aspects: tuple[AspectPreference, ...]
    positions: dict[int, Interval]
    """Maps a place in the order, from 1, to the mean share of a participant's choices for the condition at
    that place.
    """
    p_positions: float
    """Friedman's test of equal shares of the places: small if the order itself decided."""
    orders: dict[str, int]
    """Maps an order to its number of participants."""


def analyse_study(sheets: Sequence[Sheet], *, resamples: int = RESAMPLES, seed: int = 0) -> StudyAnalysis:
    """Returns the analysis of the sheets of one kind of reader. Raises `RecordError` if they are no single study.

    Args:
        sheets: the sheets.
        resamples: number of bootstrap resamples.
        seed: seed of the bootstrap.
    """
    simulated_by = one_kind(sheets)
    sets = {frozenset(sheet.order) for sheet in sheets}
    if len(sets) > 1:
        raise RecordError(
            f"sheets compare different conditions: {', '.join(sorted(' + '.join(sorted(names)) for names in sets))}; "
            "analyse each comparison by itself"
        )
    conditions = tuple(sorted(sets.pop()))
    aspects = []
    for aspect in ASPECTS:
        choices = choices_of(sheets, conditions, aspect)
        if (choices >= 0).any():
            aspects.append(_aspect(aspect, choices, conditions, resamples, seed))
    if not aspects:
        raise RecordError(f"none of the {len(sheets)} sheets holds an answer that names a condition")
    corrected = holm([aspect.p for aspect in aspects])
    positions, p_positions = _positions(sheets, resamples, seed)
    orders = Counter(", ".join(sheet.order) for sheet in sheets)
    return StudyAnalysis(
        simulated_by=simulated_by,
        participants=len(sheets),
        conditions=conditions,
        aspects=tuple(replace(aspect, p_holm=float(p)) for aspect, p in zip(aspects, corrected, strict=True)),
        positions=positions,
        p_positions=p_positions,
        orders=dict(sorted(orders.items())),
    )


def choices_of(sheets: Sequence[Sheet], conditions: Sequence[str], aspect: str) -> Choices:
    """Returns the number of the condition that each participant chose at each question of an aspect; -1 for none.

    Args:
        sheets: the sheets.
        conditions: the conditions.
        aspect: the aspect.
    """
    number: dict[str | None, int] = {condition: i for i, condition in enumerate(conditions)}
    questions = questions_of(aspect)
    return np.array(
        [[number.get(sheet.answers.get(question.id), -1) for question in questions] for sheet in sheets], dtype=np.int64
    )


def _aspect(aspect: str, choices: Choices, conditions: tuple[str, ...], resamples: int, seed: int) -> AspectPreference:
    k = len(conditions)
    choices = choices[(choices >= 0).any(axis=1)]  # leaves out participants without an answer in this aspect
    n = len(choices)
    counts = counts_of(choices, k)
    shares, totals = shares_of(counts), counts.sum(axis=0)
    weights = cluster_weights(range(n), resamples, seed)
    resemblance = likeness_of(choices, k)
    # Factor by which the totals vary more than those of independent answers; 1 if it is not known.
    mean_size = float(np.square(counts.sum(axis=1)).sum() / counts.sum())
    design_effect = 1.0 if np.isnan(resemblance) else 1 + (mean_size - 1) * resemblance
    statistic, p = friedman(shares) if n >= MIN_PARTICIPANTS else (np.array(np.nan), np.array(np.nan))
    chi_square_plain, p_answers = chi_square(totals)
    f, p_f = repeated_f(shares)
    return AspectPreference(
        aspect=aspect,
        participants=n,
        choices=int(totals.sum()),
        counts={name: int(total) for name, total in zip(conditions, totals, strict=True)},
        shares={name: mean_interval(shares[:, i], weights) for i, name in enumerate(conditions)},
        chi_square=chi_square_plain,
        p_answers=p_answers,
        p_corrected=chi_square(totals, design_effect)[1],
        likeness=resemblance,
        friedman=float(statistic),
        p=float(p),
        p_holm=float(p),
        kendall_w=float(statistic) / (n * (k - 1)),
        f=f,
        p_f=p_f,
        alpha=_alphas(choices, conditions, resamples, seed),
        kappa=fleiss_kappa(choices, k),
        pairs=_pairs(shares, conditions, weights),
    )


def _alphas(choices: Choices, conditions: tuple[str, ...], resamples: int, seed: int) -> dict[str, Interval]:
    """Returns alpha over the participants who answered every question of the aspect; empty if there are too few.

    Args:
        choices: the choices.
        conditions: the conditions.
        resamples: number of bootstrap resamples.
        seed: seed of the bootstrap.
    """
    complete = choices[(choices >= 0).all(axis=1)]
    if len(complete) < MIN_PARTICIPANTS or complete.shape[1] < 2:
        return {}
    weights = cluster_weights(range(len(complete)), resamples, seed)
    alphas = {}
    for number, name in enumerate(conditions):
        items: Floats = (complete == number).astype(np.float64)
        alphas[name] = statistic_interval(lambda weight, items=items: cronbach_alpha(items, weight), weights)  # type: ignore[misc]
    return alphas


def _pairs(shares: Floats, conditions: tuple[str, ...], weights: NDArray[np.int32]) -> tuple[PairPreference, ...]:
    pairs = list(combinations(range(len(conditions)), 2))
    differences = [shares[:, i] - shares[:, j] for i, j in pairs]
    p = [paired_p(difference) for difference in differences]
    deviations = [float(difference.std(ddof=1)) if len(difference) > 1 else 0.0 for difference in differences]
    return tuple(
        PairPreference(
            first=conditions[i],
            second=conditions[j],
            difference=mean_interval(difference, weights),
            standardized=float(difference.mean() / deviation) if deviation > 0 else float("nan"),
            p=p_value,
            p_holm=float(corrected),
        )
        for (i, j), difference, deviation, p_value, corrected in zip(
            pairs, differences, deviations, p, holm(p), strict=True
        )
    )


def _positions(sheets: Sequence[Sheet], resamples: int, seed: int) -> tuple[dict[int, Interval], float]:
    """Returns the mean share of choices for each place in the order, and the p-value that all places are alike.

    Args:
        sheets: the sheets.
        resamples: number of bootstrap resamples.
        seed: seed of the bootstrap.
    """
    place_count = len(sheets[0].order)
    counts = np.array(
        [[sum(chosen == name for chosen in sheet.answers.values()) for name in sheet.order] for sheet in sheets]
    )
    shares = shares_of(counts[counts.sum(axis=1) > 0])
    weights = cluster_weights(range(len(shares)), resamples, seed)
    p = float(friedman(shares)[1]) if len(shares) >= MIN_PARTICIPANTS else float("nan")
    return {place + 1: mean_interval(shares[:, place], weights) for place in range(place_count)}, p
