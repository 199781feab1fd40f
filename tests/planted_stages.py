"""What tests of the learned stages share: cycles and critics whose truth was planted, and answers of an evaluator."""

import numpy as np
import pytest
from numpy.typing import NDArray

from metaprobe.training.common.calibrate import sigmoid
from research.stages.data import Critics, Cycles
from research.stages.state import COLUMNS
from research.stages.train import PointStudy, study_stages

T = 3
CYCLE_TOKENS = 100.0
PRICE = 0.02
PLACE = {name: column for column, name in enumerate(COLUMNS)}


# Planted truth: x is the last quarter's log-probability. Every cycle fixes a wrong answer with fix(x) and breaks a
# right one with fix(-x). The mean log-probability, which the tuned threshold reads, tells nothing.


def fix(x: NDArray[np.float64]) -> NDArray[np.float64]:
    return sigmoid(-1 - 3 * x)


def blank_rows(n: int, rng: np.random.Generator) -> NDArray[np.float32]:
    rows = np.full((n, T, T, len(COLUMNS)), np.nan, dtype=np.float32)
    for t in range(T):
        for c in range(t + 1):
            rows[:, t, c] = rng.normal(size=(n, len(COLUMNS)))
            rows[:, t, c, PLACE["round"]] = c
            rows[:, t, c, PLACE["log_tokens"]] = np.log1p(50)
            rows[:, t, c, PLACE["quality"]] = 0.5 + 0.1 * c
            rows[:, t, c, PLACE["quality_change"]] = 0.1 if c else np.nan
            rows[:, t, c, PLACE["agreeing"]] = 0.5 if t else np.nan
    return rows


def planted_cycles(n: int, seed: int) -> tuple[Cycles, NDArray[np.float64]]:
    """Problems, and what the last quarter's log-probability of each tells."""
    rng = np.random.default_rng(seed)
    x, rows = rng.normal(size=n), blank_rows(n, rng)
    rows[..., PLACE["last_logprob"]] = np.where(np.isnan(rows[..., 0]), np.nan, x[:, None, None])
    correct = np.zeros((n, T))
    correct[:, 0] = rng.random(n) < 0.5
    for t in range(1, T):
        fixed, broken = rng.random(n) < fix(x), rng.random(n) < fix(-x)
        correct[:, t] = np.where(correct[:, t - 1] == 1, ~broken, fixed)
    return cycles_with(rows, correct), x


def cycles_with(rows: NDArray[np.float32], correct: NDArray[np.float64]) -> Cycles:
    n = len(rows)
    return Cycles(
        groups=tuple(f"g{i}" for i in range(n)),
        rows=rows,
        correct=correct,
        quality=rows[:, -1, :, PLACE["quality"]].astype(np.float64),
        tokens=np.full((n, T), CYCLE_TOKENS),
        lengths=np.full((n, T), 50.0),
        limits=np.full((n, T), 600.0),
        votes=np.ones((n, T)),
        ran=np.full(n, T),
        fingerprint="f",
    )


@pytest.fixture(scope="module")
def planted() -> tuple[Cycles, dict[str, PointStudy]]:
    data, _ = planted_cycles(300, seed=1)
    return data, study_stages(data, token_price=PRICE, folds=3, seeds=1)


def planted_critics(n: int, seed: int) -> tuple[Critics, NDArray[np.float64]]:
    """The longer the question, the more the critics help; P(right) of each action (n, 3) is known."""
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(n, len(COLUMNS))).astype(np.float32)
    rows[:, PLACE["log_tokens"]] = np.log1p(50)
    for name in ("quality", "difficulty", "agreeing", "quality_change"):
        rows[:, PLACE[name]] = np.nan
    x = rows[:, PLACE["log_question"]].astype(np.float64)
    p = np.stack([sigmoid(-2 * x), np.full(n, 0.5), sigmoid(2 * x)], axis=1)
    tokens = np.tile([100.0, 150.0, 250.0], (n, 1))
    groups = tuple(f"g{i}" for i in range(n))
    return Critics(groups, rows, (rng.random(n) < 0.5).astype(float), (rng.random((n, 3)) < p).astype(float), tokens), p


def scored(*scores: object) -> str:
    names = ("Coherence", "Plausibility", "Consistency", "Goal-conduciveness")
    return "<evaluate>\n" + "\n".join(f"{n}: {s}" for n, s in zip(names, scores, strict=False))
