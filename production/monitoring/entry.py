"""The records of a score log, without its database: an entry, as a line and as a row, and scores with their labels.

An entry holds the verdict on one answer, and all else that is known of it. `LabelledScores` are scores with the labels
that came back for them. Nothing here needs SQLAlchemy.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import numpy as np

MAX_TEXT = 200_000
"""Characters of a question or an answer that are kept."""
MAX_NOTE = 2_000
"""Characters of a reason, an id or a tag that are kept."""
MAX_TIME = 1e11
"""Seconds since 1970. A larger number is in milliseconds, and refused."""

CONTEXT = ("model", "checkpoint", "task", "finish_reason", "action", "tags")
"""Fields that many entries share: their values are written once."""
ENTRY_COLUMNS = (
    "request_id time context score flagged critical heads reason prompt_tokens tokens tokens_saved cost_usd "
    "latency_s shadow_of callers_id key_name logprobs question answer"
).split()
"""Columns of an entry's own row. `context` is the number of what it shares with others."""


_TAGS = json.JSONEncoder(sort_keys=True, ensure_ascii=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """Verdict of a checkpoint on one answer. Unknown values are None; texts are None unless they are to be logged."""

    request_id: str
    """The answer's id from the server or the integration; unique in a log."""
    time: float
    """Seconds since 1970, when the answer ended."""
    model: str
    """The model that answered; empty where it is not known."""
    checkpoint: str
    """Digest of the checkpoint that gave the verdict."""
    score: float | None
    """In [0, 1]; None where there was no verdict, for `reason`."""
    flagged: bool | None = None
    critical: float | None = None
    heads: Mapping[str, float] = field(default_factory=dict)
    reason: str = ""
    finish_reason: str = ""
    action: str = ""
    """Action of the gate: empty, `stop` or `escalate`."""
    prompt_tokens: int | None = None
    tokens: int | None = None
    """Tokens of the answer."""
    tokens_saved: int | None = None
    """Tokens that the gate spared, estimated from the lengths of other answers."""
    cost_usd: float | None = None
    """Cost of the answer, by its price and the tokens that the upstream counted. Where a request has several answers,
    the first bears the whole cost, and the others 0."""
    latency_s: float | None = None
    shadow_of: str = ""
    """Request id of the verdict that was given to the caller, where this one was only compared with it."""
    tags: Mapping[str, str] = field(default_factory=dict)
    """Tags that the caller gave the request, such as `{"task": "faq", "prompt": "v7"}`; `task` is the task's name."""
    callers_id: str = ""
    """The caller's own name of this answer. Two answers may have the same name, and two callers may use it."""
    key_name: str = ""
    """The name of the key with which the answer was asked for; empty for a key without a name, or none."""
    logprobs: Sequence[float] | None = None
    """Log-probabilities of the answer's tokens, in nats, where they are kept."""
    question: str | None = None
    answer: str | None = None


def row_of(entry: Entry) -> dict[str, Any]:
    """The entry's values under the names of the table's columns, with those of `CONTEXT` beside them.

    Raises `ValueError` for a time that is none.
    """
    if not 0 <= entry.time < MAX_TIME:
        raise ValueError(f"time {entry.time}; expected seconds since 1970")
    tags = {loggable_text(name, MAX_NOTE): loggable_text(value, MAX_NOTE) for name, value in entry.tags.items()}
    return {
        "request_id": loggable_text(entry.request_id, MAX_NOTE),
        "time": float(entry.time),
        "score": _number(entry.score),
        "flagged": None if entry.flagged is None else int(entry.flagged),
        "critical": _number(entry.critical),
        "heads": json.dumps({name: _number(value) for name, value in entry.heads.items()}) if entry.heads else None,
        "reason": loggable_text(entry.reason, MAX_NOTE) or None,
        "prompt_tokens": _count(entry.prompt_tokens),
        "tokens": _count(entry.tokens),
        "tokens_saved": _count(entry.tokens_saved),
        "cost_usd": _number(entry.cost_usd),
        "latency_s": _number(entry.latency_s),
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
    """The entry that a row holds: the values of `ENTRY_COLUMNS` without `context`, and those of `CONTEXT`."""
    names = [*(name for name in ENTRY_COLUMNS if name != "context"), *CONTEXT]
    known: Mapping[str, Any] = dict(zip(names, row, strict=True))
    given = {name: known[name] for name in names if name != "task"}
    logprobs = known["logprobs"]
    return Entry(
        **given
        | {
            "flagged": None if known["flagged"] is None else bool(known["flagged"]),
            "heads": json.loads(known["heads"] or "{}"),
            "reason": known["reason"] or "",
            "shadow_of": known["shadow_of"] or "",
            "callers_id": known["callers_id"] or "",
            "tags": json.loads(known["tags"]),
            "logprobs": None if logprobs is None else np.frombuffer(logprobs, dtype="<f4").tolist(),
        }
    )


def loggable_text(value: object, most: int) -> str:
    """Returns what the log holds for a text: its first `most` characters, and nothing that a database refuses.

    Half of a surrogate pair and the character 0 can be in JSON, and not in a database: they are written out.
    """
    text = str(value)[:most]
    if text.isascii() and "\0" not in text:
        return text
    return text.encode("utf-8", "backslashreplace").decode().replace("\0", "\\x00")


def moment(seconds: float) -> str:
    """Returns a time in seconds since 1970 as messages show it, and as `--since` takes it."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _number(value: float | None) -> float | None:
    if value is None or not math.isfinite(value):
        return None
    return float(value)


def _count(value: int | None) -> int | None:
    """Returns None for a count that no database holds: an upstream may report any number of tokens."""
    return None if value is None or not 0 <= value < 1 << 53 else int(value)


MOST_UNLABELLED = 0.02
"""Share of the answers that may lack a label where labels count as those of all answers, so that a few answers without
a clear verdict do not end a census. A share of right answers moves by at most 0.02, less than 100 labels can tell."""


def is_census(labels: int, answers: int) -> bool:
    """Returns whether so many labels of so many answers are those of (nearly) all, so that nobody chose among them."""
    return labels > 0 and answers - labels <= MOST_UNLABELLED * answers
