"""Recorded answers as traffic with a planted shift: what came before it, and what comes after."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from metaprobe.probes.features import TERMS
from metaprobe.training.calibrators import fit_platt
from research.quality.data import lines
from research.travel.sets import BREADTH, Answers, join, of_stores, others, recorded

Floats = NDArray[np.float64]

QUANTISED = Path("recorded", "quantised")
"""Stores of models whose weights were quantised further."""
FREE = "total"
"""Score that the bundled predictor begins with: the total log-probability over the root of the length."""
CONSISTENCY = "math_sampling_uncertainty5"


@dataclass(frozen=True, slots=True, eq=False)
class Traffic:
    """Answers that a predictor has scored, none of which it learned from."""

    score: Floats
    """(n,): calibrated before the shift."""
    y: NDArray[np.int64]
    tokens: Floats
    task: NDArray[np.str_]
    half: NDArray[np.bool_]
    """(n,): one half of the groups, for what is fitted on some answers and measured on others."""

    def __len__(self) -> int:
        return len(self.y)

    def rows(self, chosen: NDArray[np.int64] | NDArray[np.bool_]) -> "Traffic":
        return Traffic(*(getattr(self, name)[chosen] for name in ("score", "y", "tokens", "task", "half")))


@dataclass(frozen=True, slots=True, eq=False)
class World:
    """Traffic before and after a shift."""

    name: str
    shift: str
    before: Traffic
    after: Traffic


def build_worlds(root: Path, data: Path) -> Iterator[World]:
    """Yields the worlds: a model swapped, a mix of tasks changed, a prompt changed, a model quantised."""
    wide, said = recorded(root), others(data)
    wide = wide.rows(wide.source == BREADTH)
    trivia = said.rows(said.source == "token_logprobs_qa")
    way, model, task = _variant(wide), wide.model, wide.task
    coder = np.char.find(model, "0.5b") >= 0
    little = np.char.find(model, "smollm") >= 0
    first = np.isin(task, np.unique(task)[::2])
    yield _world("57 task families", "model swapped: 0.5B coder to 135M", wide, coder, little)
    yield _world(
        "57 task families, 0.5B coder",
        "task mix: one half of the families to the other",
        wide,
        coder & first,
        coder & ~first,
    )
    yield _world(
        "57 task families, 0.5B coder",
        "prompt: answer only to one sentence of working",
        wide,
        coder & (way == "direct"),
        coder & (way == "worked"),
    )
    way, model = _variant(trivia), trivia.model
    llama = (model == "Llama-3.2-1B") & (np.char.find(way, "short") >= 0)
    given = np.char.find(way, "without") < 0
    yield _world(
        "TriviaQA, then three sets",
        "model and sets swapped: Llama 1B to Qwen3 8B",
        trivia,
        llama & given,
        np.char.find(model, "Qwen3") >= 0,
    )
    yield _world("TriviaQA, Llama 1B", "prompt: the context is no longer given", trivia, llama & given, llama & ~given)
    both = join([wide, of_stores(BREADTH, sorted((root / QUANTISED).iterdir()))])
    direct, model = _variant(both) == "direct", both.model
    yield _world(
        "57 task families, 135M",
        "quantised: weights of Q4_1 to Q4_0",
        both,
        direct & (model == "smollm2-135m"),
        direct & (model == "smollm2-135m-q4_0"),
    )


def read_consistency(data: Path) -> Iterator[tuple[str, Floats, NDArray[np.int64]]]:
    """Yields the strongest signals at hand: how many of ten samples agree, with the label of the answer, by model."""
    rows = lines(data / CONSISTENCY / "data.jsonl.gz")
    for name in rows[0]["models"]:
        known = [row["models"][name] for row in rows if row["models"][name]["consistency"] is not None]
        score = np.array([one["consistency"] for one in known], dtype=np.float64)
        y = np.array([int(one["judge_correct"]) for one in known], dtype=np.int64)
        home = np.random.default_rng(0).random(len(y)) < 0.5
        platt = fit_platt(score[home], y[home])
        yield name, platt.probability(score[~home]), y[~home]


def _world(name: str, shift: str, answers: Answers, before: NDArray[np.bool_], after: NDArray[np.bool_]) -> World:
    """The predictor is calibrated before the shift: each half of the groups on the other, what comes after on both."""
    number = -answers.features()[:, TERMS.index(FREE)].astype(np.float64)
    groups = np.unique(answers.group)
    half = np.isin(answers.group, groups[np.random.default_rng(0).random(len(groups)) < 0.5])
    score = np.full(len(answers), np.nan)
    for fitted, scored in ((before & half, before & ~half), (before & ~half, before & half), (before, after)):
        score[scored] = fit_platt(number[fitted], answers.y[fitted]).probability(number[scored])
    tokens = np.array([len(one) for one in answers.logprobs], dtype=np.float64)
    whole = Traffic(score, answers.y, tokens, answers.task, half)
    return World(name, shift, whole.rows(before), whole.rows(after))


def _variant(answers: Answers) -> NDArray[np.str_]:
    return np.array([run.rsplit("|", 1)[-1] for run in answers.run.tolist()])
