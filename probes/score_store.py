"""Scores the answers of a run store: each by a quality predictor, or a run's answers among themselves by a blend."""

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from metaprobe.checkpoints import Checkpoint, ContractMismatch
from metaprobe.probes.blend import TravellingBlend
from metaprobe.probes.contract import OnMismatch
from metaprobe.probes.quality import QualityPredictor
from metaprobe.probes.score_file import verdict_fields
from metaprobe.records.errors import InvalidResponse, RecordError
from metaprobe.records.extras import require
from metaprobe.records.types import Call, Run


def quality_lines(
    checkpoint: Checkpoint, path: Path, *, run: str | None = None, on_mismatch: OnMismatch = "warn"
) -> Iterator[dict[str, Any]]:
    """Yields an object for each answer with log-probabilities: run, id, call and what a verdict says, in stored order.

    `run` says by which of the checkpoint's base rates all are scored; by default each answer's own run, MODEL|TASK|
    VARIANT, where the checkpoint knows it. An answer that cannot be scored has null for all that is unknown, and the
    reason. Raises `RecordError` for a store that holds no answer with log-probabilities.
    """
    predictors: dict[str, QualityPredictor] = {}
    for name, of, call in _answers(_open(path)):
        if name not in predictors:
            known = QualityPredictor(checkpoint).runs
            asked = run if run is not None else name if name in known else None
            predictors[name] = QualityPredictor(checkpoint, run=asked, on_mismatch=on_mismatch)
        try:
            said = verdict_fields(predictors[name].predict(call))
        except (InvalidResponse, ContractMismatch) as error:
            said = verdict_fields(None, reason=str(error))
        yield {"run": name, "id": of.id, "call": call.id, **said}


def blend_lines(blend: TravellingBlend, path: Path) -> Iterator[dict[str, Any]]:
    """Yields an object for each answer with log-probabilities: run, id, call, score and reason.

    `run` is MODEL|TASK|VARIANT, within which scores compare. A score is in standard deviations above the run's average.
    Where a run has fewer than twenty answers with log-probabilities the score is None, with the reason. Answers
    without a hidden state are scored by the free number alone, which `reason` says. Raises `RecordError` for a store
    that holds no answer with log-probabilities.
    """
    store = _open(path)
    of_run: dict[str, list[tuple[Run, Call]]] = defaultdict(list)
    for name, run, call in _answers(store):
        of_run[name].append((run, call))
    for name, answers in sorted(of_run.items()):
        yield from _lines_of_run(blend, store, name, answers)


def _open(path: Path) -> Any:
    return require("metaprobe.records.store", "fit").RunStore(path)  # heavy: this room does without


def _answers(store: Any) -> Iterator[tuple[str, Run, Call]]:
    """Yields the name of its run, the run and the call of each answer with log-probabilities."""
    none = True
    for run in store.runs():
        for call in run.calls:
            if call.logprobs is not None and len(call.logprobs):
                none = False
                yield f"{call.model}|{run.item.task}|{run.variant}", run, call
    if none:
        raise RecordError(f"{store.path} holds no answer with log-probabilities; expected some")


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
        yield {"run": name, "id": run.id, "call": call.id, "score": score, "reason": reason}
