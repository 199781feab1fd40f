"""The server's addresses and the functions that answer them. Requests and answers are read as bytes, bounded, and
passed unchanged.
"""

import asyncio
import logging
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from metaprobe.api import Panel, StreamingGate, SuccessEstimator
from metaprobe.production.dashboard.routes import dashboard_routes
from metaprobe.production.http.bodies import (
    LOOP_BYTES,
    MEMORY_IN_BODIES,
    REQUESTS,
    Leasing,
    Refusal,
    Scoring,
    aside,
    json_response,
    read_json_body,
)
from metaprobe.production.http.completion_json import batch, model_of
from metaprobe.production.http.decisions import DecisionDesk
from metaprobe.production.http.feedback import FeedbackDesk
from metaprobe.production.http.guard import Guard, trial_id
from metaprobe.production.http.judges import Allowance, Judges, JudgesHolder
from metaprobe.production.http.keys import Keys
from metaprobe.production.http.metrics import Metrics, say_out_of_files_once
from metaprobe.production.http.openapi import ALL_ADDRESSES, openapi
from metaprobe.production.http.panels import PANEL_COST, PanelDesk
from metaprobe.production.http.proxy import CHAT, FORWARDED, Chooser, Proxy
from metaprobe.production.http.request_log import SCOPE_CALLER, RequestLog, ServerLog
from metaprobe.production.http.second_answer import SecondAnswers
from metaprobe.production.http.settings import MAX_BATCH, Settings
from metaprobe.production.http.success import READING_COST, SuccessDesk
from metaprobe.production.http.upstream import UpstreamClient
from metaprobe.production.monitoring.labeller import Labeller
from metaprobe.production.monitoring.log import ScoreLog
from metaprobe.production.monitoring.tables import LogError

logger = logging.getLogger(__name__)

PRUNE_EVERY_S = 3600.0
TURN_BYTES = 256 << 10
"""Bytes of a batch that are scored before other requests get a turn: a few milliseconds, tenths of a second
at worst.
"""


def application(
    settings: Settings, metrics: Metrics, load_judges: Callable[[], Judges], gates: StreamingGate | None = None
) -> Starlette:
    """Returns the application with everything it needs; see `metaprobe.production.http.app.create_app`.

    Args:
        settings: the settings.
        metrics: the metrics.
        load_judges: returns the judges; called again for every reload.
        gates: the streaming gate; None if the server has none.
    """
    # The parts that answer requests.
    keys, judges_holder, upstreams_by_name = (
        Keys.of(settings),
        JudgesHolder(load_judges, settings.pins, metrics),
        settings.named_upstreams,
    )
    named = [f"{name}={upstream.url}" for name, upstream in upstreams_by_name.items()]
    judges_holder.log_start([*filter(None, [settings.upstream]), *named])
    client = UpstreamClient(settings, keys)
    log = ServerLog.open(settings, metrics, gated=gates is not None) if settings.log else None
    second_answers = SecondAnswers(settings, client, metrics, log) if log and settings.teach_rate else None
    if log is not None and second_answers is not None:
        log = replace(log, offer=second_answers.offer)
    panels = None if settings.panel is None else PanelDesk(Panel.load(settings.panel))
    success = None
    if settings.success is not None:
        success = SuccessDesk(SuccessEstimator.load(settings.success, max_age=settings.max_age))
    proxy = Proxy(settings, judges_holder, gates, client, metrics, log, panels)
    chooser = (
        Chooser(settings, judges_holder, panels.panel, keys, metrics, log) if panels and upstreams_by_name else None
    )
    feedback_desk = FeedbackDesk(log.log, max_labels=MAX_BATCH) if log else None
    own_answers = OwnAnswers(settings, judges_holder, metrics, log, feedback_desk, panels, success)

    def to_upstream(answer: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
        async def answered(request: Request) -> Response:
            if upstreams_by_name:
                message = "several upstreams are chosen among for POST /v1/chat/completions only"
                raise Refusal(404, "no_upstream", message)
            if not settings.upstream:
                raise Refusal(404, "no_upstream", "this server has no upstream; it was started for scoring only")
            return await answer(request)

        return answered

    # The addresses.
    chat = chooser.complete if chooser else to_upstream(proxy)
    models = chooser.models if chooser else to_upstream(proxy.models)
    app = Starlette(
        routes=[
            Route("/v1/score", own_answers.score, methods=["POST"]),
            Route("/v1/panel", own_answers.panel, methods=["POST"]),
            Route("/v1/success", own_answers.success, methods=["POST"]),
            Route("/v1/decisions", own_answers.decisions, methods=["POST"]),
            Route(f"/v1{CHAT}", chat, methods=["POST"]),
            *(Route(f"/v1{path}", to_upstream(proxy), methods=["POST"]) for path in FORWARDED if path != CHAT),
            Route("/v1/feedback", own_answers.feedback, methods=["POST"]),
            Route("/v1/models", models),
            Route("/v1/models/{model:path}", models),
            Route("/metrics", own_answers.counts),
            Route("/openapi.json", own_answers.described),
            *dashboard_routes(log.log if log else None),
            Route("/healthz", own_answers.health),
            Route("/readyz", own_answers.health),
            Route("/livez", own_answers.alive),
        ],
        middleware=[
            Middleware(Guard, settings=settings, keys=keys, metrics=metrics),
            Middleware(Leasing, max_bytes=MEMORY_IN_BODIES * settings.max_body_bytes),
        ],
        exception_handlers={HTTPException: _unknown},
        lifespan=lambda _: _running(settings, judges_holder, chooser or client, log, second_answers),
    )
    # A redirect would send the caller to the address in `Host` by http, with the question and perhaps the key.
    app.router.redirect_slashes = False
    return app


SWITCH_S = 0.001
"""Seconds for which Python runs a thread while another waits.

While threads read answers, the event loop waits this long after every read and write of a socket. With Python's default
of 5 ms it gets half as many turns.
"""


@asynccontextmanager
async def _running(
    settings: Settings,
    judges_holder: JudgesHolder,
    client: UpstreamClient | Chooser,
    log: ServerLog | None,
    second_answers: SecondAnswers | None,
) -> AsyncIterator[None]:
    """Runs the background work while the server runs, and closes everything at its end.

    Args:
        settings: the settings.
        judges_holder: reloads the judges when asked.
        client: the upstream's client.
        log: the log; None for none.
        second_answers: asks questions again; None for none.
    """
    say_out_of_files_once(asyncio.get_running_loop())
    switch_interval_before = sys.getswitchinterval()
    sys.setswitchinterval(min(switch_interval_before, SWITCH_S))
    pruning = asyncio.ensure_future(_prune(log.log, settings.log_days)) if log and settings.log_days else None
    if second_answers is not None:
        second_answers.begin()
    async with judges_holder.watching():
        yield
    sys.setswitchinterval(switch_interval_before)
    if second_answers is not None:
        await second_answers.close()
    await client.close()
    if pruning is not None:
        pruning.cancel()
    if log is not None:
        await asyncio.to_thread(log.log.close)


@dataclass(frozen=True, slots=True)
class OwnAnswers:
    """The endpoints that this server answers itself, without its upstream."""

    settings: Settings
    judges_holder: JudgesHolder
    metrics: Metrics
    log: ServerLog | None
    feedback_desk: FeedbackDesk | None
    """Stores labels; None without a log."""
    panels: PanelDesk | None = None
    success_desk: SuccessDesk | None = None
    """Estimates P(success) before asking; None without `--success`."""
    scoring: Scoring = field(default_factory=Scoring)

    async def score(self, request: Request) -> Response:
        """Returns the verdict on one response (422 if it cannot be scored), or on each of `{"responses": [...]}`."""
        judges = self.judges_holder.current  # a reload while the request comes in does not change who judges it
        body = await read_json_body(request, self.settings)
        request_log = RequestLog(self.log, request, one_usage=False) if self.log else None
        allowance = Allowance(self.settings.max_scored_tokens)

        def judge_one(response: bytes) -> dict[str, Any]:
            model_in_query = request.query_params.get("model", "")
            model = model_in_query if model_in_query or judges.only else model_of(response)
            return judges.pick(model, trial_id(request)).of(request_log).verdict(response, allowance)

        # Judge the responses, in a thread if they are long.
        def judge_all(piece: Sequence[bytes]) -> list[dict[str, Any]]:
            verdicts = []
            for response in piece:
                verdicts.append(judge_one(response))
                if allowance.exceeded:
                    break
            return verdicts

        async def verdicts_on(responses: Sequence[bytes]) -> list[dict[str, Any]]:
            size = sum(map(len, responses))
            if len(body) > LOOP_BYTES:
                verdicts = await REQUESTS.run(partial(judge_all, responses), size, begun=True)
            else:
                verdicts = []
                for response in responses:
                    if not allowance.exceeded:
                        verdicts.append(await self.scoring.of(len(response), partial(judge_one, response)))
            if allowance.exceeded:
                raise Refusal(
                    413,
                    "too_many_tokens",
                    f"the request holds {allowance.taken} tokens or more, and at most {allowance.max_tokens} are"
                    " scored in one; send fewer or shorter responses, or start the server with a larger"
                    " --max-scored-tokens",
                )
            return verdicts

        # Several responses, or one.
        responses = await aside(len(body), lambda: batch(body, MAX_BATCH), REQUESTS)
        if responses is not None:
            pieces = in_pieces(responses)
            return json_response({"verdicts": [verdict for piece in pieces for verdict in await verdicts_on(piece)]})
        (verdict,) = await verdicts_on([body])
        if verdict["score"] is None and not verdict["heads"]:
            raise Refusal(422, "unscorable", verdict["reason"])
        return json_response(verdict)

    async def panel(self, request: Request) -> Response:
        """Returns which of several answers to keep, and how sure this is."""
        if self.panels is None:
            raise Refusal(404, "no_panel", "this server has no panel; start it with --panel CHECKPOINT")
        body = await read_json_body(request, self.settings)
        # A small body goes to a thread too: the time grows with the square of the number of answers.
        return json_response(await REQUESTS.run(partial(self.panels.judge, body), PANEL_COST * len(body)))

    async def success(self, request: Request) -> Response:
        """Returns P(success) of each candidate, before any candidate is asked."""
        if self.success_desk is None:
            raise Refusal(404, "no_estimator", "this server estimates nothing; start it with --success CHECKPOINT")
        body = await read_json_body(request, self.settings)
        # A short prompt goes to a thread too, because a language model reads it.
        return json_response(await REQUESTS.run(partial(self.success_desk.estimate, body), READING_COST + len(body)))

    async def decisions(self, request: Request) -> Response:
        """Answers typed questions about an answer, and refuses those that no checkpoint here answers."""
        judges = self.judges_holder.current
        body = await read_json_body(request, self.settings)
        desk = DecisionDesk(self.settings, judges, self.log, self.scoring)
        return json_response(await desk.answer(body, request))

    async def feedback(self, request: Request) -> Response:
        """Stores one or several labels for answers."""
        if self.feedback_desk is None:
            raise Refusal(404, "no_log", "this server keeps no log; start it with --log to take feedback")
        body, caller = await read_json_body(request, self.settings), request.scope[SCOPE_CALLER]
        return json_response(await self.feedback_desk.take(body, Labeller(caller.name, caller.admin)))

    async def counts(self, _: Request) -> Response:
        """Returns counts and times, for Prometheus."""
        if self.log is not None:
            self.log.count()  # shows dropped entries although nothing is written any more
        return Response(self.metrics.exposition(), media_type=CONTENT_TYPE_LATEST)

    async def described(self, _: Request) -> Response:
        """Returns a description of the addresses, as OpenAPI."""
        return json_response(openapi())

    async def health(self, _: Request) -> Response:
        """Returns whether the server is ready, with its checkpoints."""
        judges = self.judges_holder.current
        health = {"status": "ok", "checkpoint": judges.default.digest, "upstream": bool(self.settings.upstreams)}
        if not judges.only or judges.texts:
            health["checkpoints"] = {name: digest for name, digest in judges.digests().items() if name}
        return json_response(health | ({"reload_refused": True} if self.judges_holder.refused else {}))

    async def alive(self, _: Request) -> Response:
        """Returns that the process answers."""
        return json_response({"status": "ok"})


def in_pieces(responses: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    """Yields the responses in order, in groups of about `TURN_BYTES`, so that other requests get a turn in between."""
    start, size = 0, 0
    for index, response in enumerate(responses):
        if size and size + len(response) > TURN_BYTES:
            yield responses[start:index]
            start, size = index, 0
        size += len(response)
    yield responses[start:]


async def _unknown(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    code = {404: "unknown_endpoint", 405: "wrong_method"}.get(error.status_code, "refused")
    message = f"there is no {request.method} at this address; there are {ALL_ADDRESSES}"
    return Refusal(error.status_code, code, message, error.headers).response()


async def _prune(log: ScoreLog, days: float) -> None:
    """Deletes old entries, while the server runs."""
    while True:
        try:
            await asyncio.to_thread(log.prune, days)
        except LogError as error:
            logger.error("old entries stay in the score log: %s", error)
        await asyncio.sleep(PRUNE_EVERY_S)
