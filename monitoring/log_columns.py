"""The log by columns: arrays with an entry for each answer, read in SQL."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metaprobe.monitoring.log_rows import CONTEXT
from metaprobe.monitoring.tables import Row, Tables

Floats = NDArray[np.float64]
Texts = NDArray[np.object_]

NUMBERS = ("time score flagged critical label propensity tokens prompt_tokens tokens_saved cost_usd latency_s").split()
"""Columns that are float64, NaN where there is no value; flagged and label are 0 or 1."""

STRENGTH = "CASE source WHEN 'judge' THEN 2 WHEN 'program' THEN 1 ELSE 0 END"
"""Rank of a label by who gave it: 0 for a person, and for labels that do not say."""

CURRENT_LABELS = (
    "SELECT request_id, value, who, time, source FROM (SELECT request_id, value, who, time, source, ROW_NUMBER() OVER "
    f"(PARTITION BY request_id ORDER BY {STRENGTH}, id DESC) AS place FROM labels) ranked WHERE place = 1"
)
"""Of each request the label that counts: of the strongest source the one that came last. The clocks of those who label
play no part."""

FIRST_LABELS = (
    "SELECT request_id, value, who, time, source FROM "
    "(SELECT id, request_id, value, who, time, source, ROW_NUMBER() OVER "
    "(PARTITION BY request_id ORDER BY id) AS place FROM labels WHERE value IS NOT NULL) ranked WHERE place = 1 "
    "ORDER BY id"
)
"""Of each request the first label that came and says right or wrong, in the order in which they came; no correction
changes it."""

_FROM = (
    f"FROM scores s LEFT JOIN ({CURRENT_LABELS}) l ON l.request_id = s.request_id "
    "LEFT JOIN samples p ON p.request_id = s.request_id"
)
_COLUMNS = {"label": "l.value", "propensity": "p.propensity"}


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
    _context: NDArray[np.int64]
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
        """What the gate did: empty, `stop` or `escalate`."""
        return self._text("action")

    def rows(self, chosen: NDArray[np.bool_]) -> "LogColumns":
        """The answers at which the mask (n,) is true."""
        ids = self.request_id[chosen] if len(self.request_id) == len(self) else self.request_id
        arrays = {name: getattr(self, name)[chosen] for name in NUMBERS}
        return LogColumns(**arrays, request_id=ids, _context=self._context[chosen], _contexts=self._contexts)

    def tag(self, name: str) -> Texts:
        """Each answer's tag of that name; empty where it was not given."""
        place = CONTEXT.index("tags")
        return self._spread({at: str(json.loads(held[place]).get(name, "")) for at, held in self._contexts.items()})

    def _text(self, name: str) -> Texts:
        place = CONTEXT.index(name)
        return self._spread({at: held[place] for at, held in self._contexts.items()})

    def _spread(self, named: Mapping[int, str]) -> Texts:
        """The names at their contexts' numbers. Answers of one context share one string."""
        known, where = np.unique(self._context, return_inverse=True)
        names = np.empty(len(known), dtype=object)
        names[:] = [named[int(at)] for at in known]
        return names[where]


def read_columns(
    tables: Tables, contexts: Mapping[int, Row], where: Sequence[str], values: Mapping[str, Any], *, ids: bool
) -> LogColumns:
    """Returns the answers that meet all conditions `where`, which name `values`, in the order of their times.

    `contexts` must hold the context of each of them (`chosen_contexts`), but for those that were stored since. Without
    `ids` their request ids are left out.
    """
    names = [_COLUMNS.get(name, f"s.{name}") for name in NUMBERS]
    asked = f"SELECT {', '.join(names)}, s.context{', s.request_id' * ids} {_FROM}"
    asked += (f" WHERE {' AND '.join(where)}" if where else "") + " ORDER BY s.time, s.id"
    parts = [_arrays(rows, ids) for rows in tables.read_chunks(asked, values)]
    numbers = np.concatenate([part[0] for part in parts], axis=1) if parts else np.empty((len(NUMBERS), 0))
    codes = np.concatenate([part[1] for part in parts]) if parts else np.empty(0, dtype=np.int64)
    named = np.concatenate([part[2] for part in parts]) if parts else np.empty(0, dtype=object)
    if not contexts.keys() >= set(codes.tolist()):
        contexts = {**chosen_contexts(tables, model=None, checkpoint=None, tags=None), **contexts}
    return LogColumns(**dict(zip(NUMBERS, numbers, strict=True)), request_id=named, _context=codes, _contexts=contexts)


def chosen_contexts(
    tables: Tables, *, model: str | None, checkpoint: str | None, tags: Mapping[str, str] | None
) -> dict[int, Row]:
    """Of each context that fits: its number, and its values in the order of `CONTEXT`."""
    fitting: dict[int, Row] = {}
    for at, *held in tables.read(f"SELECT id, {', '.join(CONTEXT)} FROM contexts"):
        known = dict(zip(CONTEXT, held, strict=True))
        if model not in (None, known["model"]) or checkpoint not in (None, known["checkpoint"]):
            continue
        if tags and not tags.items() <= json.loads(known["tags"]).items():
            continue
        fitting[int(at)] = held
    return fitting


def in_contexts(contexts: Mapping[int, Row]) -> str:
    """Returns the condition that a row `s` of the table of scores has one of these contexts."""
    return f"s.context IN ({', '.join(map(str, contexts)) or 'NULL'})"


def conditions(
    since: float | None, until: float | None, *, shadow: bool, labelled: bool = False, gated: bool = False
) -> tuple[list[str], dict[str, Any]]:
    """Returns conditions on rows `s` of the table of scores, and their values. `gated`: with those the gate ended."""
    where, values = [f"s.shadow_of IS {'NOT ' * shadow}NULL"], {}
    if not gated:
        where.append("s.context NOT IN (SELECT id FROM contexts WHERE action <> '')")
    if since is not None:
        where.append("s.time >= :since")
        values["since"] = float(since)
    if until is not None:
        where.append("s.time < :until")
        values["until"] = float(until)
    if labelled:
        where.append("s.request_id IN (SELECT request_id FROM labels UNION SELECT request_id FROM samples)")
    return where, values


def _arrays(rows: Sequence[Row], ids: bool) -> tuple[Floats, NDArray[np.int64], Texts]:
    """Numbers of shape (columns, rows), contexts, and ids where they were asked for."""
    by_column = list(zip(*rows, strict=True))
    numbers = np.array(by_column[: len(NUMBERS)], dtype=np.float64)  # None becomes NaN
    names = np.array(by_column[len(NUMBERS) + 1], dtype=object) if ids else np.empty(0, dtype=object)
    return numbers, np.array(by_column[len(NUMBERS)], dtype=np.int64), names
