"""The upstream's other endpoints: text completions and responses, scored where they have log-probabilities; embeddings.

Requests pass as they came: nothing is asked for that the caller did not ask for, and nothing is hidden.
"""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from metaprobe.serving.http.aside import REQUESTS, aside
from metaprobe.serving.http.connection import read_json_body
from metaprobe.serving.http.declined import Declined
from metaprobe.serving.http.exchange import Exchange
from metaprobe.serving.http.guard import trial_id
from metaprobe.serving.http.judges import Office
from metaprobe.serving.http.metrics import Metrics
from metaprobe.serving.http.refusal import error_object
from metaprobe.serving.http.request_log import ServerLog
from metaprobe.serving.http.scorer import Scorer
from metaprobe.serving.http.settings import Settings
from metaprobe.serving.http.sse import EventSplitter, data_of, with_data
from metaprobe.serving.http.streamed_answer import DONE, MAX_EVENT_BYTES, is_unfinished
from metaprobe.serving.http.upstream import UpstreamClient
from metaprobe.serving.http.wire import UNREADABLE, VERDICT, choices_of, model_of, with_verdicts

SCORED = ("/completions", "/responses")
FORWARDED = (*SCORED, "/embeddings")
"""Below the upstream's base address."""
_LAST_EVENTS = ("response.completed", "response.incomplete", "response.failed")


@dataclass(frozen=True, slots=True)
class ForwardedQuestion:
    """A request that passes as it came, and who judges its answer: nobody where there is nothing to score."""

    path: str
    body: bytes
    scorer: Scorer | None
    max_answer_bytes: int

    model = ""
    added = ""

    @property
    def sent(self) -> bytes:
        return self.body

    def stream(self, without: str) -> "ForwardedStream | None":
        """What reads a streamed answer along."""
        return None if self.scorer is None else ForwardedStream(self.scorer, max_bytes=self.max_answer_bytes)

    def whole(self, body: bytes, without: str) -> tuple[bytes, str]:
        """A whole answer with its verdict; else as it came, and why."""
        return (body, "") if self.scorer is None else _scored(body, self.scorer)


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
        self._declined = Declined()

    async def __call__(self, request: Request) -> Response:
        """The upstream's answer. Raises `Refusal` for a request that is not to be asked."""
        judges = self._office.now  # a reload while the request comes in does not change who judges it
        body = await read_json_body(request, self._settings)
        path = "/" + request.url.path.rpartition("/")[2]
        scorer = None
        if path in SCORED:
            model = await aside(len(body), lambda: model_of(body), REQUESTS)
            scorer = judges.pick(model, trial_id(request))
            scorer = scorer.of(self._log.request(request) if self._log else None)
        return Exchange(
            request,
            ForwardedQuestion(path, body, scorer, self._settings.max_answer_bytes),
            settings=self._settings,
            client=self._client,
            metrics=self._metrics,
            declined=self._declined,
        )


def _scored(body: bytes, scorer: Scorer) -> tuple[bytes, str]:
    """The answer with its verdict; else as it came, and why."""
    try:
        return with_verdicts(body, [scorer.verdict(choice) for choice in choices_of(body)]), ""
    except UNREADABLE:
        reason = "the upstream's answer is not a JSON object"
        scorer.none(reason)
        return body, reason


def _with_verdict(data: bytes, held: dict[str, Any], verdict: dict[str, Any]) -> bytes:
    """The JSON of a response's last event with a verdict, and all else as it came. `held`: what `data` holds."""
    try:
        fields = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
        fields["response"] = msgspec.Raw(with_verdicts(bytes(fields["response"]), [verdict]))
        return msgspec.json.encode(fields)
    except UNREADABLE:  # NaN or half of a surrogate pair, which Python reads and writes
        return json.dumps({**held, "response": {**held["response"], VERDICT: verdict}}).encode()


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
        self._over = False
        """Whether the last event has passed."""
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
        if rest.strip() and is_unfinished(rest):
            return self.cut(502, "upstream_cut", "the upstream's stream ended in the middle of an event")
        return self._passed(rest) if rest else b""

    def cut(self, status: int, code: str, message: str) -> bytes:
        """What to pass on when the upstream's stream broke: an error that clients raise, unless all was there."""
        if self._over:
            return b""
        self._over = True
        said: dict[str, Any] = {"type": "error", "error": error_object(status, code, message)}
        if not self._said:
            said[VERDICT] = self._scorer.none(message)
        self._said = True
        return b"event: error\ndata: " + msgspec.json.encode(said) + b"\n\n"

    def _passed(self, event: bytes) -> bytes:
        data = data_of(event)
        if data == DONE:
            self._over = True
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
            self._said = self._over = True  # after its last event a response has nothing more to say
            return with_data(event, _with_verdict(data, held, self._verdict(self._held)))
        return event

    def _last_chunk(self) -> bytes:
        self._said = True
        known = next((chunk for chunk in self._held if isinstance(chunk, dict)), {})
        # As Python writes it: half of a surrogate pair can be read here, and msgspec would not write it.
        named = {
            name: msgspec.Raw(json.dumps(known[name]).encode())
            for name in ("id", "object", "created", "model")
            if name in known
        }
        choice = {"index": 0, "text": "", "logprobs": None, "finish_reason": None}
        chunk = {**named, "choices": [choice], VERDICT: self._verdict(self._held)}
        return b"data: " + msgspec.json.encode(chunk) + b"\n\n"

    def _verdict(self, held: Sequence[Any]) -> dict[str, Any]:
        return self._scorer.none(self._reason) if self._reason else self._scorer.verdict(held)

    def _give_up(self, reason: str) -> None:
        self._reason = self._reason or reason
        self._held.clear()
