"""The proxy: the upstream's answer, passed on with a verdict; or several upstreams, among which a panel chooses.

What a caller gets is what the upstream gave. Added are the verdict, under `metaprobe`, and log-probabilities in the
request for a chat completion where the caller asked for none, which are then taken out of the answer again. Text
completions and responses are scored where they have log-probabilities; like embeddings, they pass as they came. An
error of the upstream passes with its status and body.

Among several upstreams the panel chooses whom to ask, asks on, and keeps one answer. Every upstream that is asked gets
the caller's request with its own model, for one whole answer. An upstream that fails costs its answer, and the others
go on. Each answer that came is scored and logged, kept or not.
"""

import logging
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from metaprobe.llms.pricing import price_of, read_prices
from metaprobe.records.errors import RecordError
from metaprobe.routing.gate import StreamingGate
from metaprobe.routing.panel import Panel, spent_on
from metaprobe.serving.http.bodies import (
    REQUESTS,
    Refusal,
    aside,
    json_response,
    read_json_body,
    while_connected,
)
from metaprobe.serving.http.exchange import (
    Declined,
    Question,
    UpstreamExchange,
    failure_in,
    failure_of_whole,
    no_logprobs,
)
from metaprobe.serving.http.guard import trial_id
from metaprobe.serving.http.judges import Judges, Office
from metaprobe.serving.http.keys import Keys
from metaprobe.serving.http.metrics import Metrics, log_unexpected
from metaprobe.serving.http.panels import PanelDesk, with_panel
from metaprobe.serving.http.request_log import SCOPE_CALLERS_ID, RequestLog, ServerLog, tags_of
from metaprobe.serving.http.settings import Settings, SettingsError
from metaprobe.serving.http.upstream import EVENTS, UpstreamClient, redirect, to_caller
from metaprobe.serving.http.wire import UNREADABLE, ChatRequest, asked, for_one, hide, model_of, with_verdict

logger = logging.getLogger(__name__)

CHAT = "/chat/completions"
MODEL = "panel"
"""Name under which the list of models shows the panel. A request may name any model."""
DIMENSION = "dimension"
"""Tag of a request that names the question's dimension."""


class UpstreamCompletion(dict[str, Any]):
    """An upstream's completion, decoded, with the bytes as they came."""

    def __init__(self, raw: bytes, agent: str, seconds: float, without: str) -> None:
        super().__init__(msgspec.json.decode(raw, type=dict[str, Any]))
        self.raw, self.agent, self.seconds = raw, agent, seconds
        self.without = without
        """Why the answer has no log-probabilities, where that is known."""


class _Message(msgspec.Struct):
    tool_calls: list[dict[str, Any]] | None = None


class _Choice(msgspec.Struct):
    message: _Message


class _Completion(msgspec.Struct):
    """Names the fields that an upstream's answer must have, so that it can be handed on, also as a stream."""

    choices: Annotated[list[_Choice], msgspec.Meta(min_length=1)]


class UpstreamFailed(Refusal):
    """An upstream answered with a status from 400 on."""

    def __init__(self, status: int, body: bytes, headers: Mapping[str, str]) -> None:
        super().__init__(status, "upstream_status", f"the upstream answered {status}", headers)
        self.body = body

    @property
    def of_request(self) -> bool:
        """Whether the request is at fault: not the upstream, nor the key or the credit that this server has there."""
        return self.status < 500 and self.status not in (401, 402, 403, 407)


class Chooser:
    """Answers requests for chat completions by a panel of upstreams."""

    def __init__(
        self, settings: Settings, office: Office, panel: Panel, keys: Keys, metrics: Metrics, log: ServerLog | None
    ) -> None:
        """Raises `SettingsError` where the panel cannot choose among the settings' upstreams."""
        upstreams = settings.named_upstreams
        if strange := sorted(set(upstreams) - set(panel.agents.names)):
            raise SettingsError(
                f"the panel knows no agent {', '.join(strange)}; expected --upstream NAME=URL with names among "
                f"{', '.join(panel.agents.names)}"
            )
        several = len(upstreams) > 1 or not panel.settings
        try:
            if several:
                panel.ask_plan(price=settings.panel_price, budget=settings.panel_budget)
            elif settings.panel_budget is not None:
                raise RecordError("a panel's budget is for several upstreams, and one is given: give a price")
            else:
                panel.plan(price=settings.panel_price)
        except RecordError as error:
            raise SettingsError(str(error)) from error
        table = None if settings.prices is None else read_prices(settings.prices)
        known = {name: price_of(one.model, one.host, table) for name, one in upstreams.items()}
        self.settings, self.office, self.panel, self.metrics, self.log = settings, office, panel, metrics, log
        self.upstreams = upstreams
        self.clients = {name: UpstreamClient(settings, keys, only=one) for name, one in upstreams.items()}
        self.prices = {name: price for name, price in known.items() if price is not None}
        """Agent -> price of its tokens, where it is known."""
        self.declined = {name: Declined() for name in upstreams}

    async def complete(self, request: Request) -> Response:
        """The kept answer with its verdict, and what was asked for it. Raises `Refusal` where no upstream answers."""
        judges = self.office.now  # a reload while the request comes in does not change who judges it
        body = await read_json_body(request, self.settings)
        chat = await aside(len(body), lambda: asked(body), REQUESTS)
        if chat.several:
            message = "n is not 1, and the panel decides how many answers it asks for; leave n out"
            raise Refusal(400, "invalid_request", message)
        tags = tags_of(request, chat)
        log = RequestLog(self.log, request, chat, one_usage=False, tags=tags) if self.log else None
        return await while_connected(request.receive, _Asking(self, request, chat, judges, log, tags).answer())

    async def models(self, request: Request) -> Response:
        """The panel as the one model of the list."""
        model = {"id": MODEL, "object": "model", "created": 0, "owned_by": "metaprobe"}
        if "model" not in request.path_params:
            return json_response({"object": "list", "data": [model]})
        if request.path_params["model"] != MODEL:
            raise Refusal(404, "unknown_model", f"there is one model, {MODEL}")
        return json_response(model)

    async def close(self) -> None:
        """Closes the connections to all upstreams."""
        for client in self.clients.values():
            await client.close()


@dataclass(slots=True, eq=False)
class _Asking:
    """One request: the upstreams are asked, and the answers are scored and logged."""

    chooser: Chooser
    request: Request
    chat: ChatRequest
    judges: Judges
    log: RequestLog | None
    tags: Mapping[str, str]
    came: list[UpstreamCompletion] = field(default_factory=list)
    failed: dict[str, Refusal] = field(default_factory=dict)

    async def answer(self) -> Response:
        """Returns the kept answer, whole or as a stream."""
        chooser = self.chooser
        kept: UpstreamCompletion | None = None
        verdict: dict[str, Any] | None = None
        account: dict[str, Any] = {}
        if (messages := self.chat.messages) is None:
            raise Refusal(400, "invalid_request", "messages is no list; expected a list of role and content")
        models = {name: one.model for name, one in chooser.upstreams.items()}
        dimension = self.tags.get(DIMENSION, "")
        try:
            answered = await chooser.panel.ask(
                {name: partial(self._create, name) for name in models},
                messages,
                model=models,
                price=chooser.settings.panel_price,
                budget=chooser.settings.panel_budget,
                dimension=dimension,
                request_id=str(self.request.scope.get(SCOPE_CALLERS_ID) or ""),
            )
            kept = answered.response or next(iter(answered.responses), None)
            means = chooser.panel.mean_prices(dimension)
            # The panel's budget is kept by the prices that it learned: these only count what was spent.
            spent = spent_on(answered.agents, answered.responses, chooser.prices, means)
            told = answered.verdict
            account = {
                "score": answered.score,
                "none": None if told is None else told.none,
                "asked": list(answered.asked),
                "spent": spent,
                "stopped": answered.stopped,
                "reason": answered.reason,
                "checkpoint": "" if told is None else told.checkpoint,
            }
        except RecordError as error:
            raise Refusal(400, "invalid_request", str(error)) from error
        except Exception as error:  # an answer that came is paid for, and must reach its caller
            log_unexpected(logger, "choosing", error)
            chooser.metrics.errors.labels("choosing").inc()
            kept = next(iter(self.came), None)
            account = {"reason": f"choosing failed ({type(error).__name__}); the server's log has more"}
        finally:  # what came is paid for, also where the caller is gone
            for held in self.came:
                scored = await self._scored(held, kept=held is kept)
                verdict = scored if held is kept else verdict
        if kept is None or verdict is None:
            return self._refused()
        verdict = with_panel(verdict, {"agent": kept.agent, **account}, alone=True)
        body = with_verdict(hide(kept.raw, self.chat), verdict)
        if bytes(self.chat.fields.get("stream", b"")).strip() != b"true":
            return Response(body, media_type="application/json")
        return Response(b"".join(_events(body, self.chat)), media_type=EVENTS)

    async def _create(self, agent: str, *, model: str, **_: Any) -> UpstreamCompletion:
        """Returns an upstream's answer. Raises `Refusal` where it gives none."""
        try:
            held = await self._asked(agent, model)
        except Refusal as refusal:
            self.failed[agent] = refusal
            self.chooser.metrics.errors.labels(refusal.code).inc()
            raise
        self.came.append(held)
        return held

    async def _asked(self, agent: str, model: str) -> UpstreamCompletion:
        """Asks with log-probabilities; where that fails because of them, once more as the caller asked."""
        chat, declined = self.chat, self.chooser.declined[agent]
        why = declined.why(model, chat.added) if chat.added else ""
        again = False
        if not why:
            status, headers, body, seconds = await self._post(agent, for_one(chat.sent, model))
            why = failure_of_whole(status, headers, body) if chat.added else ""
            if not why:
                if chat.added and status == 200:
                    declined.gave(model, chat.added)
                return _held(status, headers, body, agent, seconds, "")
            again = True
            self.chooser.metrics.errors.labels("logprobs_declined").inc()
        status, headers, body, seconds = await self._post(agent, for_one(chat.body, model))
        if again and status == 200:
            declined.failed(model, chat.added, why)
        return _held(status, headers, body, agent, seconds, no_logprobs(why, again=again))

    async def _post(self, agent: str, body: bytes) -> tuple[int, tuple[tuple[bytes, bytes], ...], bytes, float]:
        chooser, started = self.chooser, time.perf_counter()
        async with chooser.clients[agent].asking(self.request, "POST", CHAT, body) as answer:
            came = await answer.whole(chooser.settings.max_answer_bytes)
        if 300 <= answer.status < 400:
            raise redirect(answer)
        seconds = time.perf_counter() - started
        chooser.metrics.upstream_seconds.observe(seconds)
        return answer.status, answer.headers, came, seconds

    async def _scored(self, held: UpstreamCompletion, *, kept: bool) -> dict[str, Any]:
        """Returns the verdict on one answer, logged with the agent's name and whether the answer was kept."""
        model = self.chooser.upstreams[held.agent].model
        scorer = self.judges.pick(model, trial_id(self.request)).of(self.log)
        if self.log is not None:
            self.log.tags = {**self.tags, "agent": held.agent, "kept": str(int(kept))}
            self.log.model, self.log.started = model, time.perf_counter() - held.seconds
        if held.without and not self.chat.wants_logprobs:
            return scorer.none(held.without)
        return await aside(len(held.raw), partial(scorer.verdict, held.raw))

    def _refused(self) -> Response:
        """Returns the error of upstreams that refuse the request. Raises `Refusal` (502) for other failures."""
        failures = list(self.failed.values())
        if failures and all(isinstance(one, UpstreamFailed) and one.of_request for one in failures):
            last = failures[-1]
            assert isinstance(last, UpstreamFailed)
            return Response(last.body, last.status, last.headers)
        told = "; ".join(f"{name}: {one.message}" for name, one in self.failed.items())
        raise Refusal(502, "upstream_all_failed", f"no upstream answered ({told or 'none was asked'})")


def _held(
    status: int, headers: tuple[tuple[bytes, bytes], ...], body: bytes, agent: str, seconds: float, without: str
) -> UpstreamCompletion:
    if status >= 400:
        raise UpstreamFailed(status, body, to_caller(headers))
    if status != 200 or failure_in(body):
        raise Refusal(502, "upstream_status", f"the upstream answered {status} without an answer")
    try:
        completion = UpstreamCompletion(body, agent, seconds, without)
    except UNREADABLE as error:
        raise Refusal(502, "upstream_answer", "the upstream's answer is not a JSON object") from error
    try:
        msgspec.convert(completion, _Completion)
    except msgspec.ValidationError as error:
        raise Refusal(502, "upstream_answer", f"the upstream's answer is no chat completion ({error})") from error
    return completion


def _events(body: bytes, chat: ChatRequest) -> Iterator[bytes]:
    """Yields a whole completion as the events of a stream: its message, its end with the verdict, its usage."""
    whole = msgspec.json.decode(body, type=dict[str, Any])
    known = {name: value for name, value in whole.items() if name not in ("choices", "usage", "metaprobe")}
    known["object"] = "chat.completion.chunk"
    choice: dict[str, Any] = whole["choices"][0]
    delta = {name: value for name, value in choice["message"].items() if value is not None}
    if calls := delta.get("tool_calls"):
        delta["tool_calls"] = [{"index": place, **one} for place, one in enumerate(calls)]
    first = {"index": 0, "delta": delta, "logprobs": choice.get("logprobs"), "finish_reason": None}
    last: dict[str, Any] = {"index": 0, "delta": {}, "logprobs": None, "finish_reason": choice.get("finish_reason")}
    chunks = [{**known, "choices": [first]}, {**known, "choices": [last], "metaprobe": whole["metaprobe"]}]
    options = msgspec.json.decode(chat.fields.get("stream_options", b"null"))
    if isinstance(options, dict) and options.get("include_usage") is True:
        chunks.append({**known, "choices": [], "usage": whole.get("usage")})
    yield from (b"data: " + msgspec.json.encode(chunk) + b"\n\n" for chunk in chunks)
    yield b"data: [DONE]\n\n"


EMBEDDINGS = "/embeddings"
FORWARDED = (CHAT, "/completions", "/responses", EMBEDDINGS)
"""Below the upstream's base address."""
_ODD = re.compile(r"[;%\ufffd\x00-\x1f]")
"""Characters that no name of a model holds, and that may mean another path to the upstream."""


@dataclass(frozen=True, slots=True)
class Proxy:
    """Answers requests by asking the upstream, and only it."""

    settings: Settings
    office: Office
    gates: StreamingGate | None
    client: UpstreamClient
    metrics: Metrics
    log: ServerLog | None
    panels: PanelDesk | None
    declined: Declined = field(default_factory=Declined)

    async def __call__(self, request: Request) -> Response:
        """The upstream's answer with a verdict. Raises `Refusal` for a request that is not to be asked."""
        judges = self.office.now  # a reload while the request comes in does not change who judges it
        body = await read_json_body(request, self.settings)
        started = time.perf_counter()
        path = request.url.path.rpartition("/v1")[2]
        chat, scorer, model = None, None, ""
        if path == CHAT:
            chat = await aside(len(body), lambda: asked(body), REQUESTS)
            model = chat.model
        elif path != EMBEDDINGS:
            model = await aside(len(body), lambda: model_of(body), REQUESTS)
        if path != EMBEDDINGS:
            scorer = judges.pick(model, trial_id(request))
            if log := self.log:
                scorer = scorer.of(await aside(len(body), lambda: RequestLog(log, request, chat), REQUESTS))
        gates, panels = (self.gates, self.panels) if chat else (None, None)
        own = time.perf_counter() - started
        question = Question(self.settings, body, scorer, chat, gates, panels)
        known = {"metrics": self.metrics, "declined": self.declined}
        return UpstreamExchange(question, request, path, self.client, own, **known)

    async def models(self, request: Request) -> Response:
        """The upstream's list of models, or what it says of one, as it is."""
        async with self.client.asking(request, "GET", _model_path(request), None) as answer:
            body = await answer.whole(self.settings.max_answer_bytes)
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
