"""The upstream's other endpoints: text completions and responses, scored where they have log-probabilities; embeddings.

Requests pass as they came: nothing is asked for that the caller did not ask for, and nothing is hidden.
"""

import json
import time
from collections.abc import Sequence
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from metaprobe.serving.http.aside import REQUESTS, aside
from metaprobe.serving.http.connection import read_json_body, while_connected
from metaprobe.serving.http.guard import request_id
from metaprobe.serving.http.headers import REASON, to_caller
from metaprobe.serving.http.judges import Office
from metaprobe.serving.http.metrics import Metrics
from metaprobe.serving.http.proxy import EVENTS, Streaming
from metaprobe.serving.http.refusal import error_object
from metaprobe.serving.http.request_log import ServerLog
from metaprobe.serving.http.scorer import Scorer
from metaprobe.serving.http.settings import Settings
from metaprobe.serving.http.sse import EventSplitter, data_of, with_data
from metaprobe.serving.http.streamed_answer import DONE, MAX_EVENT_BYTES
from metaprobe.serving.http.upstream import UpstreamClient, redirect
from metaprobe.serving.http.wire import UNREADABLE, VERDICT, choices_of, model_of, with_verdicts

SCORED = ("/completions", "/responses")
FORWARDED = (*SCORED, "/embeddings")
"""Below the upstream's base address."""
_LAST_EVENTS = ("response.completed", "response.incomplete", "response.failed")


class Forwarder:
    """Hands requests on, and adds a verdict to what can be scored."""

    def __init__(
        self, settings: Settings, office: Office, client: UpstreamClient, metrics: Metrics, log: ServerLog | None
    ) -> None:
        self._log = log
        self._settings = settings
        self._office = office
        self._client = client
        self._metrics = metrics

    async def __call__(self, request: Request) -> Response:
        """The upstream's answer. Raises `Refusal` where there is none."""
        body = await read_json_body(request, self._settings)
        return await while_connected(request.receive, self._answer(request, body))

    async def _answer(self, request: Request, body: bytes) -> Response:
        started = time.perf_counter()
        path = "/" + request.url.path.rpartition("/")[2]
        answer = await self._client.ask(request, "POST", path, body)
        scorer = None
        if path in SCORED:
            model = await aside(len(body), lambda: model_of(body), REQUESTS)
            scorer = self._office.now.pick(model, request_id(request))
            scorer = scorer.of(self._log.request(request) if self._log else None)
        passed = to_caller(answer.headers)
        if answer.status == 200 and answer.content_type.startswith(EVENTS) and scorer is not None:
            stream = ForwardedStream(scorer, max_bytes=self._settings.max_answer_bytes)
            return Streaming(answer, stream, passed, self._metrics, started, 0.0)
        whole = await answer.whole(self._settings.max_answer_bytes)
        self._metrics.upstream_seconds.observe(time.perf_counter() - started)
        if 300 <= answer.status < 400:
            raise redirect(answer)
        if answer.status != 200:
            self._metrics.errors.labels("upstream_status").inc()
        elif scorer is not None:
            whole, reason = await aside(len(whole), lambda: _scored(whole, scorer))
            if reason:
                passed[REASON] = reason
        return Response(whole, answer.status, passed)


def _scored(body: bytes, scorer: Scorer) -> tuple[bytes, str]:
    """The answer with its verdict; else as it came, and why."""
    try:
        return with_verdicts(body, [scorer.verdict(choice) for choice in choices_of(body)]), ""
    except UNREADABLE:
        reason = "the upstream's answer is not a JSON object"
        scorer.none(reason)
        return body, reason


class ForwardedStream:
    """A stream of text completions, or of a response's events, that ends with a verdict.

    Chunks of a text completion get one more, before [DONE]; of a response, the last event's `response` gets it.
    """

    action = ""

    def __init__(self, scorer: Scorer, *, max_bytes: int) -> None:
        self._scorer = scorer
        self._max_bytes = max_bytes
        self._events = EventSplitter()
        self._held: list[Any] = []
        self._reason = ""
        self._bytes = 0
        self._said = False
        self.seconds = 0.0

    def feed(self, data: bytes) -> bytes:
        """What to pass on: the events that are whole by now."""
        started = time.perf_counter()
        self._bytes += len(data)
        if self._bytes > self._max_bytes:
            self._give_up(f"the answer is longer than {self._max_bytes} bytes")
        out = [self._passed(event) for event in self._events.feed(data)]
        if self._events.pending > MAX_EVENT_BYTES:
            self._give_up("an event of the stream was too long to be read")
            out.append(self._events.rest())
        self.seconds += time.perf_counter() - started
        return b"".join(out)

    def end(self) -> bytes:
        """What is left when the upstream has closed the stream in good order. No end is made up that did not come."""
        rest = self._events.rest()
        return self._passed(rest) if rest else b""

    def cut(self, status: int, code: str, message: str) -> bytes:
        """What to pass on when the upstream's stream broke: an error that clients raise."""
        if self._said:
            return b""
        self._said = True
        said = {"type": "error", "error": error_object(status, code, message), VERDICT: self._scorer.none(message)}
        return b"event: error\ndata: " + msgspec.json.encode(said) + b"\n\n"

    def _passed(self, event: bytes) -> bytes:
        data = data_of(event)
        if not data or self._said:
            return event
        if data == DONE:
            return self._last_chunk() + event
        try:
            held = json.loads(data)
        except UNREADABLE:
            self._give_up("a chunk of the upstream's stream is not JSON")
            return event
        if not self._reason:
            self._held.append(held)
        if isinstance(held, dict) and held.get("type") in _LAST_EVENTS and isinstance(held.get("response"), dict):
            self._said = True
            response = {**held["response"], VERDICT: self._verdict(self._held)}
            return with_data(event, msgspec.json.encode({**held, "response": response}))
        return event

    def _last_chunk(self) -> bytes:
        self._said = True
        known = next((chunk for chunk in self._held if isinstance(chunk, dict)), {})
        named = {name: known[name] for name in ("id", "object", "created", "model") if name in known}
        choice = {"index": 0, "text": "", "logprobs": None, "finish_reason": None}
        chunk = {**named, "choices": [choice], VERDICT: self._verdict(self._held)}
        return b"data: " + msgspec.json.encode(chunk) + b"\n\n"

    def _verdict(self, held: Sequence[Any]) -> dict[str, Any]:
        return self._scorer.none(self._reason) if self._reason else self._scorer.verdict(held)

    def _give_up(self, reason: str) -> None:
        self._reason = self._reason or reason
        self._held.clear()
