"""What makes two requests the same question."""

import dataclasses
import hashlib
import json
from collections.abc import Sequence
from typing import Any

from metaprobe.records.types import Message, Sampling


def question_key(messages: Sequence[Message], sampling: Sampling, *more: Any) -> str:
    """SHA-256 over what is asked, how tokens are drawn, and whatever else matters (as JSON)."""
    said = [[message.role, message.content] for message in messages]
    # 1 and 1.0 draw alike, and a store gives back 1.0 for either.
    drawn = dataclasses.asdict(sampling) | {
        "temperature": float(sampling.temperature),
        "top_p": float(sampling.top_p),
    }
    return hashlib.sha256(json.dumps([said, drawn, *more]).encode()).hexdigest()
