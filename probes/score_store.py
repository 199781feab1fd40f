"""Scores the answers of a run store: each by a quality predictor, or a run's answers among themselves by a blend."""

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from metaprobe.probes.base_rates import name_of_run
from metaprobe.probes.blend import TravellingBlend
from metaprobe.probes.quality import QualityPredictor
from metaprobe.probes.score_file import of_its_run, verdict_or_reason
from metaprobe.records.errors import InvalidResponse, RecordError
from metaprobe.records.extras import require
from metaprobe.records.types import Call, Run


def quality_lines(
    predictor: QualityPredictor, path: Path, *, by_run: bool = True, stage: str | None = None
) -> Iterator[dict[str, Any]]:
    """Yields an object for each answer with log-probabilities: run, id, call, stage and what a verdict says.

    In stored order. `by_run`: each answer is scored by the base rate of its own run, MODEL|TASK|VARIANT, where the
    checkpoint knows it; otherwise all as the predictor would. An answer that cannot be scored has null for all that is
    unknown, and the reason. Raises `RecordError` for a store that holds no such answer.
    """
    predictors: dict[str, QualityPredictor] = {}
    for name, run, call in _answers(_open(path), stage):
        if name not in predictors:
            predictors[name] = of_its_run(predictor, run, call) if by_run else predictor
        verdict = verdict_or_reason(predictors[name].predict, call)
        yield {"run": name, "id": run.id, "call": call.id, "stage": call.stage, **verdict}


def blend_lines(blend: TravellingBlend, path: Path, *, stage: str | None = None) -> Iterator[dict[str, Any]]:
    """Yields an object for each answer with log-probabilities: run, id, call, stage, score and reason.

    `run` is MODEL|TASK|VARIANT, within which scores compare. A score is in standard deviations above the run's average.
    Where a run has fewer than twenty answers with log-probabilities the score is None, with the reason. Answers
    without a hidden state are scored by the free number alone, which `reason` says. Raises `RecordError` for a store
    that holds no answer with log-probabilities.
    """
    store = _open(path)
    of_run: dict[str, list[tuple[Run, Call]]] = defaultdict(list)
    for name, run, call in _answers(store, stage):
        of_run[name].append((run, call))
    for name, answers in sorted(of_run.items()):
        yield from _lines_of_run(blend, store, name, answers)


def _open(path: Path) -> Any:
    return require("metaprobe.records.store", "fit").RunStore(path)  # heavy: this room does without


def _answers(store: Any, stage: str | None) -> Iterator[tuple[str, Run, Call]]:
    """Yields the name of its run, the run and the call of each answer with log-probabilities, of the stage if any."""
    stages, none = set(), True
    for run in store.runs():
        for call in run.calls:
            stages.add(call.stage)
            if stage in (None, call.stage) and call.logprobs is not None and len(call.logprobs):
                none = False
                yield name_of_run(call.model, run.item.task, run.variant), run, call
    if none:
        of = "" if stage is None else f" of stage {stage} (the stages are {', '.join(sorted(stages)) or 'none'})"
        raise RecordError(f"{store.path} holds no answer with log-probabilities{of}; expected some")


def _lines_of_run(
    blend: TravellingBlend, store: Any, name: str, answers: list[tuple[Run, Call]]
) -> Iterator[dict[str, Any]]:
    calls = [call for _, call in answers]
    logprobs = [call.logprobs for call in calls if call.logprobs is not None]  # none is; `_answers` has looked
    reason, states = "", None
    model = calls[0].model
    try:
        if not blend.reads(model):
            raise RecordError(f"the probe reads states of {blend.read_model}, and {model} answered")
        held = store.activations([c.id for c in calls], layers=[blend.layer], positions=[blend.position])
        states = held.values[:, 0, 0]
    except RecordError as error:
        reason = f"log-probabilities alone: {error}"
    try:
        scores = blend.standing(states, logprobs).tolist()
    except InvalidResponse as error:
        scores, reason = [None] * len(calls), str(error)
    for (run, call), score in zip(answers, scores, strict=True):
        yield {"run": name, "id": run.id, "call": call.id, "stage": call.stage, "score": score, "reason": reason}
