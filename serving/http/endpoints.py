"""What is answered at which address. Requests and answers are read as bytes: they are bounded, and passed on as is."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import msgspec
from fastapi import FastAPI
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from metaprobe.monitoring.log import ScoreLog
from metaprobe.monitoring.tables import LogError
from metaprobe.probes.quality import QualityPredictor
from metaprobe.serving.dashboard.routes import add_dashboard
from metaprobe.serving.gating import Gates
from metaprobe.serving.http.aside import aside
from metaprobe.serving.http.connection import read_json_body
from metaprobe.serving.http.feedback import add_feedback
from metaprobe.serving.http.guard import Guard
from metaprobe.serving.http.metrics import Metrics
from metaprobe.serving.http.proxy import Proxy
from metaprobe.serving.http.refusal import Refusal
from metaprobe.serving.http.request_log import ServerLog
from metaprobe.serving.http.scorer import Allowance, Scorer
from metaprobe.serving.http.seldom import say_out_of_files_once
from metaprobe.serving.http.settings import Settings
from metaprobe.serving.http.wire import batch

THERE = (
    "POST /v1/score, POST /v1/chat/completions, POST /v1/feedback, GET /v1/models, GET /v1/models/MODEL, GET /metrics, "
    "GET /healthz, GET /dashboard"
)
logger = logging.getLogger(__name__)

PRUNE_EVERY_S = 3600.0


def application(settings: Settings, predictor: QualityPredictor, gates: Gates | None) -> FastAPI:
    """The application with everything it needs; see `metaprobe.serving.http.app.create_app`."""
    metrics = Metrics()
    scorer = Scorer(predictor, metrics, max_tokens=settings.max_scored_tokens)
    log = ServerLog(ScoreLog.open(settings.log), settings, metrics) if settings.log else None
    proxy = Proxy(settings, scorer, gates, metrics, log) if settings.upstream else None

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        say_out_of_files_once(asyncio.get_running_loop())
        pruning = asyncio.ensure_future(_prune(log.log, settings.log_days)) if log and settings.log_days else None
        yield
        if proxy is not None:
            await proxy.close()
        if pruning is not None:
            pruning.cancel()
        if log is not None:
            await asyncio.to_thread(log.log.close)

    app = FastAPI(title="metaprobe", lifespan=lifespan, openapi_url=None)
    app.add_middleware(Guard, settings=settings, metrics=metrics)

    _explain_errors(app, metrics)

    def asked_upstream() -> Proxy:
        if proxy is None:
            raise Refusal(404, "no_upstream", "this server has no upstream; it was started for scoring only")
        return proxy

    @app.post("/v1/score")
    async def score(request: Request) -> Response:
        """The verdict on one response (422 where it cannot be scored), or on each of `{"responses": [...]}`."""
        body = await read_json_body(request, settings)
        return _json(await _verdicts(body, scorer.of(log.request(request) if log else None), settings))

    @app.post("/v1/chat/completions")
    async def chat(request: Request) -> Response:
        """The upstream's answer, with its verdict."""
        return await asked_upstream()(request)

    @app.get("/v1/models")
    async def models(request: Request) -> Response:
        """The upstream's models, as it lists them."""
        return await asked_upstream().models(request)

    @app.get("/v1/models/{model:path}")
    async def model(request: Request) -> Response:
        """What the upstream says of one model."""
        return await asked_upstream().models(request)

    add_feedback(app, settings, log.log if log else None)
    add_dashboard(app, log.log if log else None)

    @app.get("/metrics")
    async def counts() -> Response:
        """Counts and times, for Prometheus."""
        return Response(metrics.exposition(), media_type=CONTENT_TYPE_LATEST)

    @app.api_route("/healthz", methods=["GET", "HEAD"])
    async def health() -> Response:
        """That it is ready, and with which checkpoint."""
        return _json({"status": "ok", "checkpoint": scorer.digest, "upstream": proxy is not None})

    return app


async def _prune(log: ScoreLog, days: float) -> None:
    """Takes away old entries, for as long as the server runs."""
    while True:
        try:
            await asyncio.to_thread(log.prune, days)
        except LogError as error:
            logger.error("old entries stay in the score log: %s", error)
        await asyncio.sleep(PRUNE_EVERY_S)


def _explain_errors(app: FastAPI, metrics: Metrics) -> None:
    @app.exception_handler(Refusal)
    async def refused(_: Request, refusal: Refusal) -> Response:
        metrics.errors.labels(refusal.code).inc()
        return refusal.response()

    @app.exception_handler(HTTPException)
    async def unknown(request: Request, error: HTTPException) -> Response:
        code = {404: "unknown_endpoint", 405: "wrong_method"}.get(error.status_code, "refused")
        message = f"there is no {request.method} at this address; there are {THERE}"
        return Refusal(error.status_code, code, message, error.headers).response()


async def _verdicts(body: bytes, scorer: Scorer, settings: Settings) -> dict[str, Any]:
    responses = await aside(len(body), lambda: batch(body))
    allowance = scorer.allowance()
    if responses is None:
        verdict = await aside(len(body), lambda: scorer.verdict(body, allowance))
        _check_tokens(allowance)
        if verdict["score"] is None and not verdict["heads"]:
            raise Refusal(422, "unscorable", verdict["reason"])
        return verdict
    if len(responses) > settings.max_batch:
        raise Refusal(
            413,
            "batch_too_large",
            f"{len(responses)} responses in one request; at most {settings.max_batch} are scored at once",
        )
    verdicts = []
    for response in responses:
        verdicts.append(await aside(len(response), partial(scorer.verdict, response, allowance)))
        _check_tokens(allowance)
        await asyncio.sleep(0)  # others have their turn between two responses of a large batch
    return {"verdicts": verdicts}


def _check_tokens(allowance: Allowance) -> None:
    if allowance.exceeded:
        raise Refusal(
            413,
            "too_many_tokens",
            f"the request holds {allowance.asked} tokens or more, and at most {allowance.most} are scored in one; send"
            " fewer or shorter responses, or start the server with a larger --max-scored-tokens",
        )


def _json(value: object) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")
