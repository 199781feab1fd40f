"""Labelled answers that a predictor is adapted to, of run stores, files of import lines, and responses in memory."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from metaprobe.records.errors import ImportFileError, RecordError
from metaprobe.records.importer import read_openai_lines
from metaprobe.records.parse import parse_response
from metaprobe.records.reading import without_surrogates
from metaprobe.records.response import answer_of
from metaprobe.records.store import RunStore
from metaprobe.records.types import Call, Item, Label, Run


def read_labelled_runs(labelled: Sequence[str | Path]) -> list[Run]:
    """The runs of run stores and of files of import lines.

    Raises `RecordError` where two of them hold answers of one id, and `ImportFileError` for a line that is none.
    """
    runs = [one for path in labelled for one in _read(Path(path))]
    if len(labelled) > 1:
        _check_ids(runs, labelled)
    return runs


def label_responses(
    responses: Sequence[object], labels: ArrayLike, groups: Sequence[object] | None, target: str
) -> list[Run]:
    """Returns a run for each response, in any format of `parse_response`, with its label of 0 or 1."""
    responses = list(responses)
    try:
        values = np.asarray(labels, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise RecordError(
            f"the labels cannot be read as numbers ({error}); expected 0 or 1 for each response"
        ) from error
    if values.shape != (len(responses),) or (groups is not None and len(groups) != len(responses)):
        raise RecordError(
            f"{len(responses)} responses came with labels of shape {values.shape}"
            f"{'' if groups is None else f' and {len(groups)} groups'}; expected one of each a response"
        )
    found = []
    for i, response in enumerate(responses):
        parsed = answer_of(parse_response(response))
        call = Call(
            id=f"response-{i}",
            stage="answer",
            model=parsed.model or "",
            logprobs=np.asarray(parsed.logprobs, dtype=np.float32),
            logprobs_mode=parsed.logprobs_mode,
            reader=parsed.reader,
            finish_reason=parsed.finish_reason,
        )
        item = Item(id=call.id, task="", group=_group(groups, i) or call.id, question="")
        label = Label(call.id, target, float(values[i]), "caller")
        found.append(Run(id=call.id, system="adapt", variant="", item=item, calls=(call,), labels=(label,)))
    return found


def _group(groups: Sequence[object] | None, i: int) -> str:
    """The group of response i; empty where it has none, which is a group of its own."""
    return "" if groups is None or groups[i] is None else str(groups[i])


def with_whole_names(run: Run) -> Run:
    """The run with names that a manifest can hold, as a store would give it back."""
    names = {"model", "stage", "agent", "reader"}
    calls = tuple(
        replace(call, **{name: without_surrogates(getattr(call, name)) for name in names}) for call in run.calls
    )
    item = replace(run.item, task=without_surrogates(run.item.task), group=without_surrogates(run.item.group))
    return replace(run, item=item, calls=calls, variant=without_surrogates(run.variant))


def _check_ids(runs: Sequence[Run], labelled: Sequence[str | Path]) -> None:
    """Raises `RecordError` where two of the inputs hold answers of one id: they would be counted as one."""
    seen: set[str] = set()
    for one in runs:
        if one.id in seen:
            raise RecordError(
                f"{', '.join(map(str, labelled))} hold the id {one.id!r} more than once; expected every answer in one "
                "of them. Lines without an id are named after their file: rename one, or give the lines ids"
            )
        seen.add(one.id)


def _read(path: Path) -> list[Run]:
    if path.is_dir():
        return list(RunStore(path))
    try:
        return list(read_openai_lines(path))
    except ImportFileError as error:
        raise ImportFileError(
            f"{error}. To go on without: `metaprobe import {path} --out RUNS --skip-bad`, then adapt to RUNS"
        ) from error
