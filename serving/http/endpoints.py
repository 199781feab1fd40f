"""What is answered at which address. Requests and answers are read as bytes: they are bounded, and passed on as is."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import msgspec
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from metaprobe.probes.quality import QualityPredictor
from metaprobe.serving.gating import Gates
from metaprobe.serving.http.aside import aside
from metaprobe.serving.http.connection import read_json_body
from metaprobe.serving.http.guard import Guard
from metaprobe.serving.http.keys import Keys
from metaprobe.serving.http.metrics import Metrics
from metaprobe.serving.http.proxy import Proxy
from metaprobe.serving.http.refusal import Refusal
from metaprobe.serving.http.scorer import Allowance, Scorer
from metaprobe.serving.http.seldom import say_out_of_files_once
from metaprobe.serving.http.settings import Settings
from metaprobe.serving.http.wire import batch

THERE = "POST /v1/score, POST /v1/chat/completions, GET /v1/models, GET /v1/models/MODEL, GET /metrics, GET /healthz"


def application(settings: Settings, predictor: QualityPredictor, gates: Gates | None) -> Starlette:
    """The application with everything it needs; see `metaprobe.serving.http.app.create_app`."""
    metrics, keys = Metrics(), Keys.of(settings)
    scorer = Scorer(predictor, metrics, max_tokens=settings.max_scored_tokens)
    proxy = Proxy(settings, scorer, gates, keys, metrics) if settings.upstream else None

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        say_out_of_files_once(asyncio.get_running_loop())
        yield
        if proxy is not None:
            await proxy.close()

    def asked_upstream() -> Proxy:
        if proxy is None:
            raise Refusal(404, "no_upstream", "this server has no upstream; it was started for scoring only")
        return proxy

    async def score(request: Request) -> Response:
        """The verdict on one response (422 where it cannot be scored), or on each of `{"responses": [...]}`."""
        body = await read_json_body(request, settings)
        return _json(await _verdicts(body, scorer, settings))

    async def chat(request: Request) -> Response:
        """The upstream's answer, with its verdict."""
        return await asked_upstream()(request)

    async def models(request: Request) -> Response:
        """The upstream's models, as it lists them, or what it says of one."""
        return await asked_upstream().models(request)

    async def counts(_: Request) -> Response:
        """Counts and times, for Prometheus."""
        return Response(metrics.exposition(), media_type=CONTENT_TYPE_LATEST)

    async def health(_: Request) -> Response:
        """That it is ready, and with which checkpoint."""
        return _json({"status": "ok", "checkpoint": scorer.digest, "upstream": proxy is not None})

    return Starlette(
        routes=[
            Route("/v1/score", score, methods=["POST"]),
            Route("/v1/chat/completions", chat, methods=["POST"]),
            Route("/v1/models", models),
            Route("/v1/models/{model:path}", models),
            Route("/metrics", counts),
            Route("/healthz", health),
        ],
        middleware=[Middleware(Guard, settings=settings, keys=keys, metrics=metrics)],
        exception_handlers={HTTPException: _unknown},
        lifespan=lifespan,
    )


async def _unknown(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
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
