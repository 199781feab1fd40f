"""The log by columns: arrays with an entry for each answer, read in SQL."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from metaprobe.monitoring.entry import CONTEXT
from metaprobe.monitoring.schema import contexts, current_labels, labels, sa, samples, scores
from metaprobe.monitoring.tables import Row, Tables

Floats = NDArray[np.float64]
Texts = NDArray[np.object_]

NUMBERS = ("time score flagged critical label propensity tokens prompt_tokens tokens_saved cost_usd latency_s").split()
"""Columns that are float64, NaN where there is no value; flagged and label are 0 or 1."""

_WHOLE = ("row", "number", "context")
"""Columns that are int64."""
_ELSEWHERE = {"label": current_labels.c.value, "propensity": samples.c.propensity}
_READ = [_ELSEWHERE[name].label(name) if name in _ELSEWHERE else scores.c[name] for name in NUMBERS]
_FROM = scores.outerjoin(current_labels, current_labels.c.request_id == scores.c.request_id).outerjoin(
    samples, samples.c.request_id == scores.c.request_id
)


@dataclass(frozen=True)
class LogColumns:
    """Answers of a log in the order of their times; every array has one entry for each."""

    time: Floats
    """Seconds since 1970."""
    score: Floats
    flagged: Floats
    critical: Floats
    label: Floats
    """0 or 1; NaN where nobody has said, or whoever looked was unsure."""
    propensity: Floats
    """How likely the answer was to be put on a sheet for labelling; NaN where it was not put on one."""
    tokens: Floats
    prompt_tokens: Floats
    tokens_saved: Floats
    cost_usd: Floats
    latency_s: Floats
    request_id: Texts
    """Empty where `columns` was asked to leave the ids out."""
    row: NDArray[np.int64]
    """Ids of the rows in the table of scores."""
    number: NDArray[np.int64]
    """Numbers in the order of commits; see `metaprobe.monitoring.tables`."""
    context: NDArray[np.int64]
    """Numbers of what answers share with others."""
    _contexts: Mapping[int, Sequence[str]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.time)

    @cached_property
    def model(self) -> Texts:
        """Names of the models that answered."""
        return self._text("model")

    @cached_property
    def checkpoint(self) -> Texts:
        """Digests of the checkpoints that gave the scores."""
        return self._text("checkpoint")

    @cached_property
    def task(self) -> Texts:
        """The tag `task`; empty where it was not given."""
        return self._text("task")

    @cached_property
    def finish_reason(self) -> Texts:
        return self._text("finish_reason")

    @cached_property
    def action(self) -> Texts:
        """Action of the gate: empty, `stop` or `escalate`."""
        return self._text("action")

    def rows(self, chosen: NDArray[np.bool_]) -> "LogColumns":
        """The answers at which the mask (n,) is true."""
        ids = self.request_id[chosen] if len(self.request_id) == len(self) else self.request_id
        arrays = {name: getattr(self, name)[chosen] for name in (*NUMBERS, *_WHOLE)}
        return LogColumns(**arrays, request_id=ids, _contexts=self._contexts)

    def tag(self, name: str) -> Texts:
        """Each answer's tag of that name; empty where it was not given."""
        place = CONTEXT.index("tags")
        return self._spread({at: str(json.loads(held[place]).get(name, "")) for at, held in self._contexts.items()})

    def _text(self, name: str) -> Texts:
        place = CONTEXT.index(name)
        return self._spread({at: held[place] for at, held in self._contexts.items()})

    def _spread(self, named: Mapping[int, str]) -> Texts:
        """The names at their contexts' numbers. Answers of one context share one string."""
        known, where = np.unique(self.context, return_inverse=True)
        names = np.empty(len(known), dtype=object)
        names[:] = [named[int(at)] for at in known]
        return names[where]


def read_columns(
    tables: Tables, known: Mapping[int, Row], where: Sequence[sa.ColumnElement[bool]], *, ids: bool
) -> LogColumns:
    """Returns the answers that meet all conditions `where`, in the order of their times.

    `known` must hold the context of each of them (`chosen_contexts`), but for those that were stored since. Without
    `ids` their request ids are left out.
    """
    columns = [*_READ, scores.c.id, tables.number, scores.c.context, *([scores.c.request_id] if ids else [])]
    asked = sa.select(*columns).select_from(_FROM).where(*where).order_by(scores.c.time, scores.c.id)
    parts = [_arrays(rows, ids) for rows in tables.read_chunks(asked)]
    numbers = np.concatenate([part[0] for part in parts], axis=1) if parts else np.empty((len(NUMBERS), 0))
    whole = np.concatenate([part[1] for part in parts], axis=1) if parts else np.empty((len(_WHOLE), 0), np.int64)
    named = np.concatenate([part[2] for part in parts]) if parts else np.empty(0, dtype=object)
    if not known.keys() >= set(whole[-1].tolist()):
        known = {**chosen_contexts(tables, model=None, checkpoint=None, tags=None), **known}
    arrays = dict(zip((*NUMBERS, *_WHOLE), (*numbers, *whole), strict=True))
    return LogColumns(**arrays, request_id=named, _contexts=known)


def chosen_contexts(
    tables: Tables, *, model: str | None, checkpoint: str | None, tags: Mapping[str, str] | None
) -> dict[int, Row]:
    """Returns the number of each context that fits, and its values in the order of `CONTEXT`."""
    asked = sa.select(contexts.c.id, *(contexts.c[name] for name in CONTEXT))
    if model is not None:
        asked = asked.where(contexts.c.model == model)
    if checkpoint is not None:
        asked = asked.where(contexts.c.checkpoint == checkpoint)
    place = CONTEXT.index("tags")
    return {
        int(at): held for at, *held in tables.read(asked) if not tags or tags.items() <= json.loads(held[place]).items()
    }


def contexts_of_sheet(tables: Tables, sheet: Row) -> dict[int, Row]:
    """Returns the contexts of the answers that could be on a sheet, as `chosen_contexts`."""
    names = {"model": sheet.model or None, "checkpoint": sheet.checkpoint or None}
    return chosen_contexts(tables, **names, tags=json.loads(sheet.tags))


def conditions(
    since: float | None,
    until: float | None,
    *,
    shadow: bool = False,
    labelled: bool = False,
    gated: bool = False,
    by_time: bool = True,
) -> list[sa.ColumnElement[bool]]:
    """Returns conditions on rows of the table of scores.

    `gated`: with those that the gate ended. `by_time`: whether the rows may be looked up by time, rather than by
    another order that ends sooner.
    """
    where: list[sa.ColumnElement[bool]] = [scores.c.shadow_of.is_not(None) if shadow else scores.c.shadow_of.is_(None)]
    if not gated:
        where.append(scores.c.context.not_in(sa.select(contexts.c.id).where(contexts.c.action != "")))
    time = scores.c.time if by_time else scores.c.time + 0.0  # an index is not used for a sum
    if since is not None:
        where.append(time >= float(since))
    if until is not None:
        where.append(time < float(until))
    if labelled:
        where.append(scores.c.request_id.in_(sa.select(labels.c.request_id).union(sa.select(samples.c.request_id))))
    return where


def _arrays(rows: Sequence[Row], ids: bool) -> tuple[Floats, NDArray[np.int64], Texts]:
    """Numbers and whole numbers of shape (columns, rows), and ids where they were asked for."""
    by_column, end = list(zip(*rows, strict=True)), len(NUMBERS) + len(_WHOLE)
    numbers = np.array(by_column[: len(NUMBERS)], dtype=np.float64)  # None becomes NaN
    names = np.array(by_column[end], dtype=object) if ids else np.empty(0, dtype=object)
    return numbers, np.array(by_column[len(NUMBERS) : end], dtype=np.int64), names
