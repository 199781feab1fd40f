"""The proxy: a chat completion from the upstream, passed on with a verdict.

What a caller gets is what the upstream gave. Added are the verdict, under `metaprobe`, and log-probabilities in the
request where the caller asked for none, which are then taken out of the answer again. An error of the upstream passes
with its status and body.
"""

import re
import time
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from metaprobe.serving.http.bodies import REQUESTS, aside, read_json_body
from metaprobe.serving.http.exchange import Declined, Exchange
from metaprobe.serving.http.guard import trial_id
from metaprobe.serving.http.judges import Office, Scorer
from metaprobe.serving.http.metrics import Metrics
from metaprobe.serving.http.refusal import Refusal
from metaprobe.serving.http.request_log import ServerLog
from metaprobe.serving.http.settings import Settings
from metaprobe.serving.http.streamed_answer import ScoredStream
from metaprobe.serving.http.upstream import UpstreamClient, redirect, to_caller
from metaprobe.serving.http.wire import UNREADABLE, ChatRequest, asked, choices_of, hide, model_of, with_verdicts
from metaprobe.serving.watch_stream import Gates


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


CHAT = "/chat/completions"
_ODD = re.compile(r"[;%\ufffd\x00-\x1f]")
"""What no name of a model holds, and what may mean another path to the upstream."""


@dataclass(frozen=True, slots=True)
class ChatQuestion:
    """A request for a chat completion, and who judges its answer."""

    asked: ChatRequest
    scorer: Scorer
    gates: Gates | None
    settings: Settings

    path = CHAT

    @property
    def body(self) -> bytes:
        return self.asked.body

    @property
    def sent(self) -> bytes:
        return self.asked.sent

    @property
    def model(self) -> str:
        return self.asked.model

    @property
    def added(self) -> str:
        return self.asked.added

    def stream(self, without: str) -> ScoredStream:
        """What reads a streamed answer along."""
        return ScoredStream(
            self.scorer,
            self.asked,
            self.gates,
            gated_reason=self.settings.gate_finish_reason,
            max_bytes=self.settings.max_answer_bytes,
            no_logprobs="" if self.asked.wants_logprobs else without,
        )

    def whole(self, body: bytes, without: str) -> tuple[bytes, str]:
        """A whole answer with its verdict; else as it came, and why."""
        return with_own_verdict(self.scorer, body, self.asked, "" if self.asked.wants_logprobs else without)


class Proxy:
    """Answers requests for chat completions by asking the upstream, and only it."""

    def __init__(
        self,
        settings: Settings,
        office: Office,
        gates: Gates | None,
        client: UpstreamClient,
        metrics: Metrics,
        log: ServerLog | None,
    ) -> None:
        self._settings = settings
        self._log = log
        self._office = office
        self._gates = gates
        self._client = client
        self._metrics = metrics
        self._declined = Declined()

    async def __call__(self, request: Request) -> Response:
        """The upstream's answer with a verdict. Raises `Refusal` for a request that is not to be asked."""
        judges = self._office.now  # a reload while the request comes in does not change who judges it
        body = await read_json_body(request, self._settings)
        started = time.perf_counter()
        top = self._settings.top_logprobs if judges.uses_top else 0
        question = await aside(len(body), lambda: asked(body, top_logprobs=top), REQUESTS)
        scorer = judges.pick(question.model, trial_id(request))
        if log := self._log:
            scorer = scorer.of(await aside(len(body), lambda: log.request(request, question), REQUESTS))
        return Exchange(
            request,
            ChatQuestion(question, scorer, self._gates, self._settings),
            settings=self._settings,
            client=self._client,
            metrics=self._metrics,
            declined=self._declined,
            own=time.perf_counter() - started,
        )

    async def models(self, request: Request) -> Response:
        """The upstream's list of models, or what it says of one, as it is."""
        async with self._client.asking(request, "GET", _model_path(request), None) as answer:
            body = await answer.whole(self._settings.max_answer_bytes)
        if 300 <= answer.status < 400:
            raise redirect(answer)
        return Response(body, answer.status, to_caller(answer.headers))


def _model_path(request: Request) -> str:
    """The path of the model that the caller names, as it was written; of the list where none is named."""
    if "model" not in request.path_params:
        return "/models"
    name = request.path_params["model"]
    # `..` in the path could reach an upstream path other than /models. Servers differ in what they take for `..`: some
    # leave out `;x`, some decode twice (`%252e`), some read bytes that are no UTF-8.
    if {"", ".", ".."} & set(name.replace("\\", "/").split("/")) or _ODD.search(name):
        raise Refusal(404, "unknown_model", "this is no name of a model")
    written: bytes = request.scope["raw_path"].partition(b"/models/")[2]
    return f"/models/{written.decode('latin-1')}"


SCORED = ("/completions", "/responses")
FORWARDED = (*SCORED, "/embeddings")
"""Below the upstream's base address."""


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

    def stream(self, without: str) -> ScoredStream | None:
        """What reads a streamed answer along."""
        return None if self.scorer is None else ScoredStream(self.scorer, max_bytes=self.max_answer_bytes)

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
