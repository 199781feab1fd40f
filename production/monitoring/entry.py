"""Records of a score log, without its database: an entry, as a line and as a row, and scores with their labels.

An entry holds the verdict on one answer, with everything else known about the answer. `LabelledScores` are scores with
the labels that arrived for them. Nothing here needs SQLAlchemy.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import numpy as np

MAX_TEXT = 200_000
"""Most characters of a question or an answer that are stored."""
MAX_NOTE = 2_000
"""Most characters of a reason, an id or a tag that are stored."""
MAX_TIME = 1e11
"""Latest time in seconds since 1970. A larger number is in milliseconds, and refused."""

CONTEXT_COLUMNS = ("model", "checkpoint", "task", "finish_reason", "action", "tags")
"""Fields whose values many entries share, so that the values are stored once."""
ENTRY_COLUMNS = (
    "request_id time context score flagged critical heads reason prompt_tokens tokens tokens_saved cost_usd "
    "latency_s shadow_of callers_id key_name logprobs question answer"
).split()
"""Columns of an entry's own row. `context` is the number of the shared values."""


_TAGS = json.JSONEncoder(sort_keys=True, ensure_ascii=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A checkpoint's verdict on one answer. Unknown values are None; texts are None unless they are logged."""

    request_id: str
    """Id of the answer from the server or the integration; unique in a log."""
    time: float
    """Time when the answer ended, in seconds since 1970."""
    model: str
    """Model that answered; empty if it is not known."""
    checkpoint: str
    """Digest of the checkpoint that gave the verdict."""
    score: float | None
    """Score in [0, 1]; None if there was no verdict, see `reason`."""
    flagged: bool | None = None
    critical: float | None = None
    heads: Mapping[str, float] = field(default_factory=dict)
    reason: str = ""
    finish_reason: str = ""
    action: str = ""
    """Action of the gate: empty, `stop` or `escalate`."""
    prompt_tokens: int | None = None
    tokens: int | None = None
    """Number of tokens of the answer."""
    tokens_saved: int | None = None
    """Number of tokens that the gate saved, estimated from the lengths of other answers."""
    cost_usd: float | None = None
    """Cost of the answer, from its price and the tokens that the upstream counted.

    If a request has several answers, the first has the whole cost, and the others 0.
    """
    latency_s: float | None = None
    shadow_of: str = ""
    """Request id of the verdict that the caller got, if this verdict was only compared with it."""
    tags: Mapping[str, str] = field(default_factory=dict)
    """The caller's tags of the request, such as `{"task": "faq", "prompt": "v7"}`; `task` is the task's name."""
    callers_id: str = ""
    """The caller's own id of this answer. It may repeat, within one caller and among callers."""
    key_name: str = ""
    """Name of the key with which the answer was requested; empty for a key without a name, or no key."""
    logprobs: Sequence[float] | None = None
    """Log-probabilities of the answer's tokens, in nats, if they are stored."""
    question: str | None = None
    answer: str | None = None


def row_of(entry: Entry) -> dict[str, Any]:
    """Returns the entry's values under the names of the table's columns, together with those of `CONTEXT_COLUMNS`.

    Raises `ValueError` for an invalid time.
    """
    if not 0 <= entry.time < MAX_TIME:
        raise ValueError(f"time {entry.time}; expected seconds since 1970")
    tags = {loggable_text(name, MAX_NOTE): loggable_text(value, MAX_NOTE) for name, value in entry.tags.items()}
    return {
        "request_id": loggable_text(entry.request_id, MAX_NOTE),
        "time": float(entry.time),
        "score": _finite_or_none(entry.score),
        "flagged": None if entry.flagged is None else int(entry.flagged),
        "critical": _finite_or_none(entry.critical),
        "heads": json.dumps({name: _finite_or_none(value) for name, value in entry.heads.items()})
        if entry.heads
        else None,
        "reason": loggable_text(entry.reason, MAX_NOTE) or None,
        "prompt_tokens": _storable_count(entry.prompt_tokens),
        "tokens": _storable_count(entry.tokens),
        "tokens_saved": _storable_count(entry.tokens_saved),
        "cost_usd": _finite_or_none(entry.cost_usd),
        "latency_s": _finite_or_none(entry.latency_s),
        "shadow_of": loggable_text(entry.shadow_of, MAX_NOTE) or None,
        "callers_id": loggable_text(entry.callers_id, MAX_NOTE) or None,
        "key_name": loggable_text(entry.key_name, MAX_NOTE),
        "logprobs": None if entry.logprobs is None else np.asarray(entry.logprobs, dtype="<f4").tobytes(),
        "question": None if entry.question is None else loggable_text(entry.question, MAX_TEXT),
        "answer": None if entry.answer is None else loggable_text(entry.answer, MAX_TEXT),
        "model": loggable_text(entry.model, MAX_NOTE),
        "checkpoint": loggable_text(entry.checkpoint, MAX_NOTE),
        "task": tags.get("task", ""),
        "finish_reason": loggable_text(entry.finish_reason, MAX_NOTE),
        "action": loggable_text(entry.action, MAX_NOTE),
        "tags": _TAGS.encode(tags) if tags else "{}",
    }


def entry_of(row: Sequence[Any]) -> Entry:
    """Returns the entry of a row, which has the values of `ENTRY_COLUMNS` without `context`, then those of
    `CONTEXT_COLUMNS`.
    """
    names = [*(name for name in ENTRY_COLUMNS if name != "context"), *CONTEXT_COLUMNS]
    values: Mapping[str, Any] = dict(zip(names, row, strict=True))
    fields_given = {name: values[name] for name in names if name != "task"}
    logprobs = values["logprobs"]
    return Entry(
        **fields_given
        | {
            "flagged": None if values["flagged"] is None else bool(values["flagged"]),
            "heads": json.loads(values["heads"] or "{}"),
            "reason": values["reason"] or "",
            "shadow_of": values["shadow_of"] or "",
            "callers_id": values["callers_id"] or "",
            "tags": json.loads(values["tags"]),
            "logprobs": None if logprobs is None else np.frombuffer(logprobs, dtype="<f4").tolist(),
        }
    )


def loggable_text(value: object, max_chars: int) -> str:
    """Returns the first `max_chars` characters of a text, without characters that a database refuses.

    Half of a surrogate pair and the character 0 can occur in JSON, but not in a database. They are escaped.
    """
    text = str(value)[:max_chars]
    if text.isascii() and "\0" not in text:
        return text
    return text.encode("utf-8", "backslashreplace").decode().replace("\0", "\\x00")


def format_time(seconds: float) -> str:
    """Returns a time in seconds since 1970 in the form of messages and of `--since`."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _finite_or_none(value: float | None) -> float | None:
    if value is None or not math.isfinite(value):
        return None
    return float(value)


def _storable_count(value: int | None) -> int | None:
    """Returns None for a count that no database can store: an upstream may report any number of tokens."""
    return None if value is None or not 0 <= value < 1 << 53 else int(value)


MAX_UNLABELLED_SHARE = 0.02
"""Share of the answers that may lack a label if the labels count as a census.

So a few answers without a clear verdict do not end the census. The share of right answers changes by at most 0.02, less
than 100 labels can show.
"""


def is_census(labels: int, answers: int) -> bool:
    """Returns whether this many labels are for (nearly) all answers, so that no choice of answers matters."""
    return labels > 0 and answers - labels <= MAX_UNLABELLED_SHARE * answers
