"""One line of the score log: what was said of one answer, and what is known of it besides."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """What a checkpoint said of one answer. What is not known is None; texts are None unless they are to be logged."""

    request_id: str
    """What the server or the integration calls this answer; unique in a log."""
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
    """What the gate did: empty, `stop` or `escalate`."""
    prompt_tokens: int | None = None
    tokens: int | None = None
    """Tokens of the answer."""
    tokens_saved: int | None = None
    """Tokens that the gate spared, estimated from the lengths of other answers (`monitoring.answer_lengths`)."""
    cost_usd: float | None = None
    """What the answer cost by its price and the tokens that the upstream counted; of several answers to one request
    the first bears it all, and the others 0."""
    latency_s: float | None = None
    shadow_of: str = ""
    """Request id of the verdict that was given to the caller, where this one was only compared with it."""
    tags: Mapping[str, str] = field(default_factory=dict)
    """What the caller said of the request, such as `{"task": "faq", "prompt": "v7"}`; `task` is the task's name."""
    callers_id: str = ""
    """What the caller itself calls this answer; two answers may have the same, and two callers too."""
    key_name: str = ""
    """The name of the key with which the answer was asked for; empty for a key without a name, or none."""
    logprobs: Sequence[float] | None = None
    """Of the answer's tokens, in nats, where they are kept."""
    question: str | None = None
    answer: str | None = None
