"""Scores answers of LiteLLM, from any provider.

litellm.callbacks = [VerdictLogger(QualityPredictor.load(path), on_verdict=print)]
litellm.completion(..., logprobs=True)
"""

import inspect
from collections import OrderedDict
from collections.abc import AsyncIterator
from dataclasses import replace
from threading import Lock
from typing import Any

from metaprobe.api import OnVerdict, QualityPredictor, Scored, require, watch

custom_logger: Any = require("litellm.integrations.custom_logger", "litellm>=1.106")

METADATA_KEY = "metaprobe"
ANSWERING_CALLS = frozenset(
    {"completion", "acompletion", "text_completion", "atext_completion", "responses", "aresponses"}
)
"""Types of calls that return an answer. Embeddings, images and the like are ignored."""
MAX_CALLS = 4096
"""Number of calls that are remembered as scored."""
_LOGPROBS_LOST = (
    "LiteLLM rebuilds a streamed answer without its log-probabilities: iterate over"
    " metaprobe.routing.watch_stream.watch(stream, predictor)"
)


class VerdictLogger(custom_logger.CustomLogger):  # type: ignore[misc]
    """A LiteLLM callback, for the library and for its proxy.

    Each verdict goes to `on_verdict`, with `litellm_call_id` and `metadata` as its context. It is also stored in the
    call's metadata under `metaprobe`, where later callbacks find it. LiteLLM runs the callback after the answer was
    delivered, on another thread or later in the event loop. Only asynchronous calls can await the result of
    `on_verdict`. Of two callbacks with one checkpoint LiteLLM keeps the first.

    Streams: the answer that LiteLLM (1.109) rebuilds for its callbacks has no log-probabilities, and chunks reach
    callbacks out of order or not at all. In the proxy the chunks are collected on their way to the caller. In the
    library there is no verdict, with this reason; use `metaprobe.routing.watch_stream.watch` there.
    """

    def __init__(self, predictor: QualityPredictor, *, on_verdict: OnVerdict | None = None) -> None:
        super().__init__()
        self._predictor = predictor
        self.checkpoint = predictor.checkpoint.digest  # LiteLLM takes callbacks with equal public attributes for one
        self._on_verdict = on_verdict
        self._scored: OrderedDict[str, None] = OrderedDict()
        self._lock = Lock()

    def log_success_event(self, kwargs: dict[str, Any], response_obj: Any, start_time: Any, end_time: Any) -> None:
        """Scores a synchronous call that has ended."""
        scored = self._score_once(kwargs, response_obj)
        if scored is not None and self._on_verdict is not None:
            self._on_verdict(scored)

    async def async_log_success_event(
        self, kwargs: dict[str, Any], response_obj: Any, start_time: Any, end_time: Any
    ) -> None:
        """Scores an asynchronous call that has ended."""
        if (scored := self._score_once(kwargs, response_obj)) is not None:
            await hand_on(scored, self._on_verdict)

    async def async_post_call_streaming_iterator_hook(
        self, user_api_key_dict: Any, response: Any, request_data: dict[str, Any]
    ) -> AsyncIterator[Any]:
        """Yields a streamed answer on its way out of the proxy, unchanged, and scores it."""
        context = _context(request_data.get("litellm_call_id"), request_data)
        self._is_new(context["litellm_call_id"])  # the event that LiteLLM logs of it knows less

        async def store_and_hand_on(scored: Scored) -> None:
            scored = replace(scored, context=context)
            context["metadata"][METADATA_KEY] = scored.as_metadata()
            await hand_on(scored, self._on_verdict)

        async for chunk in watch(response, self._predictor, on_verdict=store_and_hand_on):
            yield chunk

    def _score_once(self, kwargs: dict[str, Any], response: Any) -> Scored | None:
        """Returns the verdict; None if there is no answer, or if the call was scored before.

        For some calls LiteLLM logs both events.
        """
        context = _context(kwargs.get("litellm_call_id"), kwargs.setdefault("litellm_params", {}))
        if kwargs.get("call_type") not in ANSWERING_CALLS or not self._is_new(context["litellm_call_id"]):
            return None
        choices = getattr(response, "choices", None)  # only a chat completion has them; other answers keep theirs
        lacks_logprobs = choices and getattr(choices[0], "logprobs", None) is None
        note = _LOGPROBS_LOST if kwargs.get("stream") and lacks_logprobs else ""
        scored = Scored.of(self._predictor, response, context=context, note=note)
        context["metadata"][METADATA_KEY] = scored.as_metadata()
        return scored

    def _is_new(self, call: str) -> bool:
        if call in ("", "None"):  # it has no id by which it could be known again
            return True
        with self._lock:
            if call in self._scored:
                return False
            self._scored[call] = None
            if len(self._scored) > MAX_CALLS:
                self._scored.popitem(last=False)
            return True


def _context(call: object, holder: dict[str, Any]) -> dict[str, Any]:
    """Returns the call's id and metadata. The metadata are those of `holder`, which gets empty ones if it has none."""
    if holder.get("metadata") is None:
        holder["metadata"] = {}
    return {"litellm_call_id": str(call), "metadata": holder["metadata"]}


async def hand_on(scored: Scored, on_verdict: OnVerdict | None) -> None:
    """Calls `on_verdict`, and awaits its result if it is awaitable."""
    if on_verdict is not None and inspect.isawaitable(result := on_verdict(scored)):
        await result
