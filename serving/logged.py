"""Verdicts of `watch`, LiteLLM and LangChain into a score log.

log = ScoreLog.open("scores.sqlite")
watch(stream, predictor, on_verdict=log_verdicts(log))
"""

import time
import uuid
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from metaprobe.monitoring.entry import Entry
from metaprobe.records.errors import InvalidResponse
from metaprobe.records.parse import parse_response
from metaprobe.records.response import ParsedResponse
from metaprobe.serving.scored import OnVerdict, Scored

if TYPE_CHECKING:
    from metaprobe.monitoring.log import ScoreLog

Tags = Mapping[str, str] | Callable[[Scored], Mapping[str, str]]
_IDS = ("litellm_call_id", "run_id")
"""Under which an integration names a call whose answer has no id of its own."""


def log_verdicts(
    log: "ScoreLog", *, tags: Tags | None = None, texts: bool = False, logprobs: bool = False
) -> OnVerdict:
    """An `on_verdict` that hands each verdict to the log, which never waits.

    An answer is logged under the id that its server gave it, else under LiteLLM's or LangChain's id of the call, else
    under one made up. `tags`: those of every answer, or a function that gives an answer's. `texts`, `logprobs`: whether
    the answer's text and log-probabilities are logged too.
    """

    def hand_over(scored: Scored) -> None:
        given = tags(scored) if callable(tags) else tags or {}
        log.write(entry_of_scored(scored, tags=given, texts=texts, logprobs=logprobs))

    return hand_over


def entry_of_scored(scored: Scored, *, tags: Mapping[str, str], texts: bool, logprobs: bool) -> Entry:
    """The entry for one verdict; see `log_verdicts`."""
    verdict, answer = scored.verdict, _read(scored.response)
    known = [str(scored.context[name]) for name in _IDS if scored.context.get(name)]
    return Entry(
        request_id=scored.response_id or (known[0] if known else uuid.uuid4().hex),
        time=time.time(),
        model=scored.model or (answer.model if answer else ""),
        checkpoint=verdict.checkpoint if verdict else "",
        score=verdict.score if verdict else None,
        flagged=verdict.flagged if verdict else None,
        critical=verdict.critical if verdict else None,
        heads=verdict.heads if verdict else {},
        reason=scored.as_metadata()["reason"],
        finish_reason=answer.finish_reason if answer else "",
        action=scored.action,
        prompt_tokens=(answer.usage.prompt_tokens or None) if answer else None,
        tokens=len(answer.logprobs) if answer else None,
        tags=tags,
        logprobs=answer.logprobs.tolist() if answer and logprobs else None,
        answer=answer.text if answer and texts else None,
    )


def _read(response: object) -> ParsedResponse | None:
    try:
        return None if response is None else parse_response(response, top=False)
    except InvalidResponse:
        return None
