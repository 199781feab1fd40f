"""Items that were answered both directly and step by step, and what was known after the direct answer."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from metaprobe.checkpoints import Generator
from metaprobe.probes.signals import Signals, signals_of
from metaprobe.records.errors import RecordError
from metaprobe.records.store import fingerprint
from metaprobe.records.types import Call, Run
from metaprobe.routing.ask_again import signal_row
from metaprobe.training.evidence import generator_of
from metaprobe.training.folds import join_items

DIRECT, STEPS = "direct", "step-by-step"
STATEMENTS = ("difficulty", "confidence")


@dataclass(frozen=True, slots=True, eq=False)
class Paired:
    """n items that were answered both ways."""

    groups: tuple[str, ...]
    signals: tuple[Signals, ...]
    """Known after the direct answer."""
    correct: NDArray[np.int64]
    """(n, 2): direct, step by step."""
    tokens: NDArray[np.float64]
    """(n, 2): generated tokens of the two answers."""
    fingerprint: str
    generator: Generator | None
    statement_tokens: NDArray[np.float64]
    """(n, 2): tokens of the calls that stated difficulty and confidence."""
    regrouped: str = ""
    """Which groups were joined because their questions repeat, in words; empty where none were."""

    def __len__(self) -> int:
        return len(self.groups)

    @property
    def X(self) -> NDArray[np.float32]:  # noqa: N802 - a matrix
        """(n, 6), in the order of `routing.ask_again.INPUTS`, NaN where unknown."""
        return np.stack([signal_row(signals) for signals in self.signals])


def pair_variants(runs: Iterable[Run]) -> Paired:
    """The items that have a labelled answer in both variants. Raises `RecordError` where there are too few."""
    runs = list(runs)
    by_item: dict[str, dict[str, tuple[Run, Call]]] = {}
    for run in runs:
        answers = [call for call in run.calls if run.label("correct", call.id) is not None]
        if run.variant in (DIRECT, STEPS) and answers:
            asked = f"{answers[-1].model}/{run.item.task}/{run.item.id}"
            by_item.setdefault(asked, {})[run.variant] = (run, answers[-1])
    both = [pair for _, pair in sorted(by_item.items()) if len(pair) == 2]
    if len(both) < 50:
        raise RecordError(
            f"{len(both)} items were answered and labelled both directly and step by step; the choice needs at least 50"
        )
    joined = join_items([pair[DIRECT][0].item for pair in both])
    return Paired(
        groups=tuple(joined.groups.tolist()),
        regrouped=joined.note,
        signals=tuple(
            signals_of(call, difficulty=run.stated("difficulty"), confidence=run.stated("confidence"))
            for run, call in (pair[DIRECT] for pair in both)
        ),
        correct=np.array([[int(run.label("correct", call.id) or 0) for run, call in _in_order(pair)] for pair in both]),
        tokens=np.array([[float(call.usage.completion_tokens) for _, call in _in_order(pair)] for pair in both]),
        fingerprint=fingerprint(runs),
        generator=generator_of([call for pair in both for _, call in pair.values()]),
        statement_tokens=np.array([[_stage_tokens(pair[DIRECT][0], s) for s in STATEMENTS] for pair in both]),
    )


def _stage_tokens(run: Run, stage: str) -> float:
    return float(sum(call.usage.completion_tokens for call in run.calls if call.stage == stage))


def _in_order(pair: dict[str, tuple[Run, Call]]) -> list[tuple[Run, Call]]:
    return [pair[DIRECT], pair[STEPS]]
