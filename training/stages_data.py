"""Recorded runs as what the stage heads learn from: every answer with what was known of it, and whether it was right.

Only runs that tried everything will do (`collect --policy exhaustive`; MetaCrit's variant `every-stage`): where a
policy stopped early, what another cycle would have given is not known.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from metaprobe.checkpoints import Generator
from metaprobe.eval.systems.mgv import attempts
from metaprobe.eval.table import group_of
from metaprobe.pipelines.answers import canonical, final_answer
from metaprobe.pipelines.session import READ
from metaprobe.probes.signals import Signal, signals_of
from metaprobe.records.errors import RecordError
from metaprobe.records.fingerprint import fingerprint
from metaprobe.records.types import Call, Run
from metaprobe.routing.policy import State
from metaprobe.routing.stages import SYSTEM_POINTS
from metaprobe.routing.stages_state import COLUMNS, answer_rows, measured
from metaprobe.training.evidence import generator_of

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

MONITOR_GENERATE_VERIFY, METACRIT = SYSTEM_POINTS
FEWEST_GROUPS = 50
STAGES_OF = (
    ("synthesis-without-both",),
    ("monitor", "synthesis-without-control"),
    ("monitor", "control", "synthesis"),
)
"""What is generated after A1's answer by each of `routing.stages.ACTIONS`; the last stage gives the answer."""


@dataclass(frozen=True, slots=True, eq=False)
class Cycles:
    """n problems with T cycles of Monitor-Generate-Verify each, whatever the evaluations said."""

    groups: tuple[str, ...]
    rows: NDArray[np.float32]
    """(n, T, T, len(COLUMNS)): [i, t, c] is answer c as it looks after t + 1 cycles; NaN for c > t."""
    correct: Floats
    """(n, T), 0 or 1."""
    quality: Floats
    """(n, T): the mean evaluation, NaN where none was given."""
    tokens: Floats
    """(n, T): generated in the cycle, by all stages."""
    lengths: Floats
    """(n, T): generated tokens of the answer alone."""
    limits: Floats
    """(n, T): the max_tokens that the answer had."""
    answers: tuple[tuple[str, ...], ...]
    """In a form in which equal answers are equal; "" where none can be read."""
    fingerprint: str = ""
    generator: Generator | None = None

    def __len__(self) -> int:
        return len(self.groups)

    @property
    def cycles(self) -> int:
        return int(self.correct.shape[1])

    def take(self, chosen: Ints) -> "Cycles":
        """Those problems alone."""
        arrays = {name: getattr(self, name)[chosen] for name in ("rows", "correct", "quality", "tokens", "lengths")}
        return replace(
            self,
            **arrays,
            limits=self.limits[chosen],
            groups=tuple(self.groups[i] for i in chosen),
            answers=tuple(self.answers[i] for i in chosen),
        )


@dataclass(frozen=True, slots=True, eq=False)
class Critics:
    """n questions that MetaCrit answered with each choice of critics."""

    groups: tuple[str, ...]
    rows: NDArray[np.float32]
    """(n, len(COLUMNS)): A1's answer."""
    first: Floats
    """(n,): whether A1's own answer was right, 0 or 1."""
    correct: Floats
    """(n, 3): whether the synthesis was, after each of `routing.stages.ACTIONS`."""
    tokens: Floats
    """(n, 3): generated after A1's answer."""
    fingerprint: str = ""
    generator: Generator | None = None

    def __len__(self) -> int:
        return len(self.groups)

    def take(self, chosen: Ints) -> "Critics":
        """Those questions alone."""
        arrays = {name: getattr(self, name)[chosen] for name in ("rows", "first", "correct", "tokens")}
        return replace(self, **arrays, groups=tuple(self.groups[i] for i in chosen))


def stage_data(runs: Sequence[Run]) -> Cycles | Critics:
    """What runs of one system teach. Raises `RecordError` for several systems, another one, or too few whole runs."""
    systems = {run.system for run in runs}
    if len(systems) != 1 or not systems <= SYSTEM_POINTS.keys():
        raise RecordError(
            f"runs of {', '.join(sorted(systems)) or 'no system'}; a stage policy learns from the runs of one of "
            f"{', '.join(SYSTEM_POINTS)}: name stores of one system, and train another checkpoint for another"
        )
    return cycles_of(runs) if systems == {MONITOR_GENERATE_VERIFY} else critics_of(runs)


def cycles_of(runs: Sequence[Run]) -> Cycles:
    """The runs that have as many cycles as most have."""
    answers = {run.id: sorted((c for c in run.calls if c.stage == "answer"), key=lambda c: c.round) for run in runs}
    T = Counter(map(len, answers.values())).most_common(1)[0][0]
    whole = [run for run in runs if len(answers[run.id]) == T]
    _check_enough(whole, runs, T > 1, "as many cycles, two at least", "collect with `--policy exhaustive`")
    tried = [attempts(run) for run in whole]
    forms = [_forms(run, answers[run.id]) for run in whole]
    return Cycles(
        groups=tuple(group_of(run.item) for run in whole),
        rows=np.stack([cycle_rows(run, answers[run.id], f) for run, f in zip(whole, forms, strict=True)]),
        correct=np.array([[a.correct for a in each] for each in tried]),
        quality=np.array([[np.nan if a.quality is None else a.quality for a in each] for each in tried]),
        tokens=np.array([[a.tokens for a in each] for each in tried]),
        lengths=np.array([[_length(call) for call in answers[run.id]] for run in whole]),
        limits=np.array([[float(call.sampling.max_tokens) for call in answers[run.id]] for run in whole]),
        answers=tuple(map(tuple, forms)),
        fingerprint=fingerprint(whole),
        generator=generator_of([call for run in whole for call in answers[run.id]]),
    )


def cycle_rows(run: Run, calls: Sequence[Call], forms: Sequence[str]) -> NDArray[np.float32]:
    """(T, T, len(COLUMNS)) of one run, as `Cycles.rows`: by the states that the policy was shown after each cycle."""
    T = len(calls)
    rows = np.full((T, T, len(COLUMNS)), np.nan, dtype=np.float32)
    signals = {
        str(place): replace(
            signals_of(call),
            difficulty=_signal(_difficulty(run, call.round, attempt.difficulty)),
            quality=_signal(attempt.quality),
        )
        for place, (call, attempt) in enumerate(zip(calls, attempts(run), strict=True))
    }
    for t in range(T):
        shown = {str(place): signals[str(place)] for place in range(t + 1)}
        features = measured(run.item.question, calls[: t + 1], forms[: t + 1])
        rows[t, : t + 1] = answer_rows(State("", "select", candidates=shown, features=features, round=t + 1))
    return rows


def critics_of(runs: Sequence[Run]) -> Critics:
    """The runs that hold a checked answer after every choice of critics."""
    calls = {run.id: {call.stage: call for call in run.calls} for run in runs}
    needed = {"answer"}.union(*STAGES_OF)
    whole = [run for run in runs if needed <= calls[run.id].keys() and run.outcome is not None]
    _check_enough(whole, runs, True, "an answer after every stage", "collect with `--variant every-stage`")
    first = [calls[run.id]["answer"] for run in whole]
    return Critics(
        groups=tuple(group_of(run.item) for run in whole),
        rows=np.concatenate([critic_row(run, call) for run, call in zip(whole, first, strict=True)]),
        first=np.array([_checked(run, call) for run, call in zip(whole, first, strict=True)]),
        correct=np.array([[_checked(run, calls[run.id][stages[-1]]) for stages in STAGES_OF] for run in whole]),
        tokens=np.array(
            [[sum(_length(calls[run.id][stage]) for stage in stages) for stages in STAGES_OF] for run in whole]
        ),
        fingerprint=fingerprint(whole),
        generator=generator_of(first),
    )


def critic_row(run: Run, answer: Call) -> NDArray[np.float32]:
    """(1, len(COLUMNS)): A1's answer as the policy was shown it."""
    read = {name: _signal(_read(run, answer, name)) for name in ("difficulty", "confidence", "quality")}
    features = measured(run.item.question, [answer], _forms(run, [answer]))
    return answer_rows(State("", "regulate", signals=replace(signals_of(answer), **read), features=features))


def _check_enough(whole: Sequence[Run], runs: Sequence[Run], usable: bool, what: str, remedy: str) -> None:
    groups = len({group_of(run.item) for run in whole})
    if not usable or groups < FEWEST_GROUPS:
        raise RecordError(
            f"{len(whole)} of {len(runs)} runs, in {groups} groups, have {what}; a stage policy needs "
            f"{FEWEST_GROUPS} groups of them: {remedy}"
        )


def _forms(run: Run, calls: Sequence[Call]) -> list[str]:
    return [canonical(run.item, final_answer(run.item, call.text)) for call in calls]


def _difficulty(run: Run, number: int, stated: float | None) -> float | None:
    """What a probe read of the executor's prompt in that cycle, where one did; else what the monitor stated."""
    prompts = [call for call in run.calls if call.stage == READ and call.round == number]
    read = _read(run, prompts[-1], "difficulty") if prompts else None
    return stated if read is None else read


def _read(run: Run, call: Call, name: str) -> float | None:
    """What a checkpoint in place of a stated number read of the call (`pipelines.session.Session.signal`)."""
    return run.label(f"signal:{name}", call.id)


def _signal(value: float | None) -> Signal | None:
    return None if value is None else Signal(value, "recorded")


def _checked(run: Run, call: Call) -> float:
    correct = run.label("correct", call.id)
    if correct is None:
        raise RecordError(f"answer {call.id} has no label 'correct': collect a task that a program can check")
    return correct


def _length(call: Call) -> float:
    return float(call.usage.completion_tokens or (0 if call.logprobs is None else len(call.logprobs)))
