"""Scores the answers of a run store by a blend: each run's answers are standardised among themselves."""

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from metaprobe.probes.blend import TravellingBlend
from metaprobe.records.errors import InvalidResponse, RecordError
from metaprobe.records.extras import require
from metaprobe.records.types import Call, Run


def store_lines(blend: TravellingBlend, path: Path) -> Iterator[dict[str, Any]]:
    """Yields an object for each answer with log-probabilities: run, id, score and reason, best known order within runs.

    `run` is MODEL|TASK|VARIANT, within which scores compare. A score is in standard deviations above the run's average.
    Where a run has fewer than twenty answers with log-probabilities the score is None, with the reason. Answers
    without a hidden state are scored by the free number alone, which `reason` says. Raises `RecordError` for a store
    that holds no answer with log-probabilities.
    """
    store = require("metaprobe.records.store", "fit").RunStore(path)  # heavy: this room does without
    of_run: dict[str, list[tuple[Run, Call]]] = defaultdict(list)
    for run in store.runs():
        for call in run.calls:
            if call.logprobs is not None and len(call.logprobs):
                of_run[f"{call.model}|{run.item.task}|{run.variant}"].append((run, call))
    if not of_run:
        raise RecordError(f"{path} holds no answer with log-probabilities; expected some")
    for name, answers in sorted(of_run.items()):
        yield from _lines_of_run(blend, store, name, answers)


def _lines_of_run(
    blend: TravellingBlend, store: Any, name: str, answers: list[tuple[Run, Call]]
) -> Iterator[dict[str, Any]]:
    calls = [call for _, call in answers]
    logprobs = [call.logprobs for call in calls if call.logprobs is not None]  # none is; `store_lines` has looked
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
