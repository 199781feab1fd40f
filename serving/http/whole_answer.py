"""The verdict into a chat completion that came whole."""

from typing import Any

from metaprobe.serving.http.scorer import Scorer
from metaprobe.serving.http.wire import UNREADABLE, ChatRequest, choices_of, hide, with_verdicts


def with_own_verdict(scorer: Scorer, body: bytes, question: ChatRequest, refused: str = "") -> tuple[bytes, str]:
    """The answer with its verdict, without log-probabilities that were not asked for; else as it came, and why.

    `refused`: why it holds no log-probabilities, where that is known.
    """
    try:
        choices = choices_of(body)
    except UNREADABLE:
        reason = "the upstream's answer is not a JSON object"
        scorer.none(reason)
        return body, reason
    verdicts: list[dict[str, Any]] = [scorer.none(refused) if refused else scorer.verdict(choice) for choice in choices]
    return with_verdicts(hide(body, question), verdicts), ""
