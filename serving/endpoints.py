"""What is answered at which address. Requests and answers are read as bytes: they are bounded, and passed on as is."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
from fastapi import FastAPI
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from metaprobe.probes.quality import QualityPredictor
from metaprobe.serving.connection import read_json_body
from metaprobe.serving.gating import Gates
from metaprobe.serving.guard import Guard
from metaprobe.serving.metrics import Metrics
from metaprobe.serving.proxy import Proxy
from metaprobe.serving.refusal import Refusal
from metaprobe.serving.scorer import Scorer
from metaprobe.serving.settings import Settings
from metaprobe.serving.wire import batch


def application(settings: Settings, predictor: QualityPredictor, gates: Gates | None) -> FastAPI:
    """The application with everything it needs; see `metaprobe.serving.app.create_app`."""
    metrics = Metrics()
    scorer = Scorer(predictor, metrics)
    proxy = Proxy(settings, scorer, gates, metrics) if settings.upstream else None

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        if proxy is not None:
            await proxy.close()

    app = FastAPI(title="metaprobe", lifespan=lifespan, openapi_url=None)
    app.add_middleware(Guard, settings=settings, metrics=metrics)

    @app.exception_handler(Refusal)
    async def refused(_: Request, refusal: Refusal) -> Response:
        metrics.errors.labels(refusal.code).inc()
        return refusal.response()

    @app.exception_handler(HTTPException)
    async def unknown(request: Request, error: HTTPException) -> Response:
        there = "POST /v1/score, POST /v1/chat/completions, GET /v1/models, GET /metrics, GET /healthz"
        code = {404: "unknown_endpoint", 405: "wrong_method"}.get(error.status_code, "refused")
        message = f"there is no {request.method} at this address; there are {there}"
        return Refusal(error.status_code, code, message, error.headers).response()

    @app.post("/v1/score")
    async def score(request: Request) -> Response:
        """The verdict on one response (422 where it cannot be scored), or on each of `{"responses": [...]}`."""
        body = await read_json_body(request, settings)
        responses = batch(body)
        if responses is None:
            verdict = scorer.verdict(body)
            if verdict["score"] is None and not verdict["heads"]:
                raise Refusal(422, "unscorable", verdict["reason"])
            return _json(verdict)
        if len(responses) > settings.max_batch:
            raise Refusal(
                413,
                "batch_too_large",
                f"{len(responses)} responses in one request; at most {settings.max_batch} are scored at once",
            )
        verdicts = []
        for response in responses:
            verdicts.append(scorer.verdict(response))
            await asyncio.sleep(0)  # others have their turn between two responses of a large batch
        return _json({"verdicts": verdicts})

    @app.post("/v1/chat/completions")
    async def chat(request: Request) -> Response:
        """The upstream's answer, with its verdict."""
        if proxy is None:
            raise Refusal(404, "no_upstream", "this server has no upstream; it was started for scoring only")
        return await proxy(request)

    @app.get("/v1/models")
    async def models(request: Request) -> Response:
        """The upstream's models, as it lists them."""
        if proxy is None:
            raise Refusal(404, "no_upstream", "this server has no upstream; it was started for scoring only")
        return await proxy.models(request)

    @app.get("/metrics")
    async def counts() -> Response:
        """Counts and times, for Prometheus."""
        return Response(metrics.exposition(), media_type=CONTENT_TYPE_LATEST)

    @app.get("/healthz")
    async def health() -> Response:
        """That it is ready, and with which checkpoint."""
        return _json({"status": "ok", "checkpoint": scorer.digest, "upstream": proxy is not None})

    return app


def _json(value: object) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")
