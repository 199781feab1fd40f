"""Simulated readers with known preferences, to check the analysis, and how many participants a difference needs.

A reader draws its own preferences around the planted shares (a Dirichlet distribution), and answers every question by
them. `likeness` says how much one reader's answers resemble each other: 0 not at all, near 1 always the same.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from metaprobe.records.errors import RecordError
from metaprobe_writing_assistant.study.answers import Sheet
from metaprobe_writing_assistant.study.choice_tests import MIN_PARTICIPANTS, friedman
from metaprobe_writing_assistant.study.survey import ASPECTS, QUESTIONS, balanced_orders, questions_of

SIMULATED_BY = "random numbers"
STUDY_COUNT = 2000
"""Number of simulated studies for each number of participants."""
MAX_PARTICIPANTS = 2000
"""Most participants; a difference that needs more is called too small."""


@dataclass(frozen=True, slots=True)
class Power:
    """How many participants show a difference."""

    shares: tuple[float, ...]
    questions: int
    """Number of questions of the aspect."""
    likeness: float
    alpha: float
    """Level of the test: how often it may see a difference that does not exist."""
    wanted: float
    """Share of studies that must find the difference."""
    participants: int | None
    """Fewest participants that reach `wanted`, in whole rounds of orders; None if even `MAX_PARTICIPANTS` do not."""
    curve: dict[int, float]
    """Maps a number of participants to the share of simulated studies whose Friedman test found the difference."""


def simulate_sheets(
    shares: Mapping[str, Mapping[str, float]], participants: int, *, likeness: float = 0.2, seed: int = 0
) -> list[Sheet]:
    """Returns sheets of simulated readers, marked as such.

    Args:
        shares: maps an aspect to planted shares by condition.
        participants: number of readers.
        likeness: how much one reader's answers resemble each other.
        seed: seed of the simulation.
    """
    if unknown := sorted(set(shares) - set(ASPECTS)):
        raise RecordError(f"shares name the aspects {unknown}; expected some of {', '.join(ASPECTS)}")
    generator = np.random.default_rng(seed)
    conditions = tuple(sorted({name for planted in shares.values() for name in planted}))
    orders = balanced_orders(conditions)
    choices_of_aspect: dict[str, NDArray[np.int64]] = {}
    for aspect, planted in shares.items():
        preferences = _draw_preferences(
            _check_shares([planted[name] for name in conditions]), likeness, (participants,), generator
        )
        draws = generator.random((participants, len(questions_of(aspect)), 1))
        choices_of_aspect[aspect] = (draws > preferences.cumsum(axis=-1)[:, None, :-1]).sum(axis=-1)
    sheets = []
    for reader in range(participants):
        answers: dict[str, str | None] = {}
        for question in QUESTIONS:
            if question.aspect in choices_of_aspect:
                question_index = questions_of(question.aspect).index(question)
                answers[question.id] = conditions[int(choices_of_aspect[question.aspect][reader, question_index])]
        sheets.append(Sheet(f"SIM-{reader + 1:04d}", orders[reader % len(orders)], answers, SIMULATED_BY))
    return sheets


def power_of(
    shares: Sequence[float],
    participants: int,
    *,
    questions: int,
    likeness: float,
    alpha: float = 0.05,
    studies: int = STUDY_COUNT,
    seed: int = 0,
) -> float:
    """Returns the share of simulated studies whose Friedman test is below `alpha`.

    Args:
        shares: the planted shares.
        participants: number of participants.
        questions: number of questions of the aspect.
        likeness: how much one participant's answers resemble each other.
        alpha: level of the test.
        studies: number of simulated studies.
        seed: seed of the simulation.
    """
    generator = np.random.default_rng([seed, participants])
    preferences = _draw_preferences(_check_shares(shares), likeness, (studies, participants), generator)
    counts = generator.multinomial(questions, preferences)
    p = friedman(counts)[1]
    return float(np.mean(p < alpha))  # where nobody prefers anything, p is nan: not found


def participants_needed(
    shares: Sequence[float],
    *,
    questions: int,
    likeness: float = 0.2,
    alpha: float = 0.05,
    wanted: float = 0.8,
    studies: int = STUDY_COUNT,
    seed: int = 0,
) -> Power:
    """Returns the fewest participants with which `wanted` of the studies find these shares to differ.

    Args:
        shares: the planted shares.
        questions: number of questions of the aspect.
        likeness: how much one participant's answers resemble each other.
        alpha: level of the test.
        wanted: share of studies that must find the difference.
        studies: number of simulated studies.
        seed: seed of the simulation.
    """
    if not 0 < wanted < 1 or not 0 < alpha < 1 or not 0 <= likeness < 1 or questions < 1:
        raise RecordError(
            f"power {wanted}, alpha {alpha}, likeness {likeness}, {questions} questions: expected power and alpha "
            "between 0 and 1, likeness from 0 to below 1, and at least one question"
        )
    curve: dict[int, float] = {}
    step = len(balanced_orders(range(len(shares)))) if len(shares) > 1 else 1  # type: ignore[arg-type]

    def is_reached(rounds: int) -> bool:
        n = rounds * step
        if n not in curve:
            curve[n] = power_of(
                shares, n, questions=questions, likeness=likeness, alpha=alpha, studies=studies, seed=seed
            )
        return curve[n] >= wanted

    low, high = 0, max(1, -(-MIN_PARTICIPANTS // step))
    while not is_reached(high) and high * step < MAX_PARTICIPANTS:
        low, high = high, high * 2
    is_found = is_reached(high)
    while is_found and high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_reached(middle) else (middle, high)
    return Power(
        shares=tuple(shares),
        questions=questions,
        likeness=likeness,
        alpha=alpha,
        wanted=wanted,
        participants=high * step if is_found else None,
        curve=dict(sorted(curve.items())),
    )


def _draw_preferences(
    shares: Sequence[float], likeness: float, shape: tuple[int, ...], generator: np.random.Generator
) -> NDArray[np.float64]:
    """Returns each reader's own shares, shape (*shape, k).

    Args:
        shares: the planted shares.
        likeness: how much one reader's answers resemble each other.
        shape: shape of the readers.
        generator: source of random numbers.
    """
    if likeness == 0:
        return np.broadcast_to(np.asarray(shares), (*shape, len(shares)))
    return generator.dirichlet(np.asarray(shares) * (1 / likeness - 1), size=shape)


def _check_shares(shares: Sequence[float]) -> list[float]:
    if len(shares) < 2 or min(shares) <= 0 or abs(sum(shares) - 1) > 0.005:
        raise RecordError(
            f"shares are {list(shares)}, whose sum is {sum(shares):g}; expected two or more above 0 that add up to 1"
        )
    return [share / sum(shares) for share in shares]
