"""What import lines say of answers that a store already holds, put in the place of what was said before."""

from collections.abc import Container, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from metaprobe.records.importer import Line
from metaprobe.records.schema import as_stored
from metaprobe.records.store import RunStore
from metaprobe.records.types import Run

_OF_RUN = {"labels": ("labels", "outcome"), "verbalized_confidence": ("statements",)}
_OF_ITEM = {"group": ("group",), "task": ("task",), "messages": ("question",)}
_OF_CALL = {key: (key,) for key in ("messages", "model", "stage", "agent", "sampling", "logprobs_mode")}
"""Fields that the keys of a line fill."""


def relabel(store: RunStore, lines: Sequence[Line], shards: Container[Path] | None = None) -> tuple[int, list[Line]]:
    """(how many runs now say something else, the lines whose id is stored with another answer or prompt).

    `shards`: the files that hold these runs, by default looked for in all.
    """
    if not lines:
        return 0, []
    left = {line.run.id: line for line in lines}
    others: list[Line] = []
    relabelled = 0

    def told(stored: Run) -> Run:
        nonlocal relabelled
        line = left.pop(stored.id, None)
        if line is None:
            return stored
        run = as_stored(line.run)  # a store mends broken characters, which must not count as another prompt
        # A key of null or of nothing says nothing, but a confidence of null says that none was stated.
        keys = {key for key, value in line.record.items() if value not in (None, "", [], {})}
        keys |= line.record.keys() & {"verbalized_confidence"}
        if all(not call.tokens for call in stored.calls):
            keys -= {"messages"}  # a store kept without texts stays one
        if not _same_answer(stored, run, keys):
            others.append(line)
            return stored
        now = _updated(stored, run, keys)
        relabelled += now is not stored
        return now

    store.rewrite(told, shards)
    return relabelled, sorted(others, key=lambda line: line.number)


def _same_answer(stored: Run, told: Run, keys: Container[str]) -> bool:
    """Hidden states stay with the call, so a prompt may come late, but not change."""
    if stored.system != told.system or len(stored.calls) != 1:
        return False
    (old,), (new,) = stored.calls, told.calls
    if "messages" in keys and old.messages and old.messages != new.messages:
        return False
    if old.logprobs is None or new.logprobs is None:
        alike = old.text in ("", new.text)  # a store kept without texts does not know them
        return old.logprobs is new.logprobs and alike
    return np.array_equal(old.logprobs, new.logprobs)


def _updated(stored: Run, told: Run, keys: Container[str]) -> Run:
    """The stored run with what is told under these keys; itself where that is nothing new."""
    (old,), (new,) = stored.calls, told.calls
    of_run, of_item, of_call = (
        {
            field: getattr(now, field)
            for key, filled in fields.items()
            for field in filled
            if key in keys and getattr(now, field) != getattr(was, field)
        }
        for fields, was, now in (
            (_OF_RUN, stored, told),
            (_OF_ITEM, stored.item, told.item),
            (_OF_CALL, old, new),
        )
    )
    if not (of_run or of_item or of_call):
        return stored
    return replace(stored, item=replace(stored.item, **of_item), calls=(replace(old, **of_call),), **of_run)
