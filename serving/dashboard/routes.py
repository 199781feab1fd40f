"""`/dashboard`: a page that is the same for everyone, and what it shows, for who has a key."""

import asyncio
import time
from pathlib import Path

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from metaprobe.monitoring.log import ScoreLog
from metaprobe.monitoring.overview import Span, flagged_queue, overview
from metaprobe.serving.http.refusal import Refusal

PAGE = Path(__file__).with_name("page.html")
DAY = 86400.0
MAX_DAYS = 3660.0
HEADERS = {
    "cache-control": "no-store",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "connect-src 'self'; img-src data:; frame-ancestors 'none'",
}
_AT_ONCE = 2
"""Pages that are computed at one time; others wait, so that lookers do not slow down what is served."""


def dashboard_routes(log: ScoreLog | None) -> list[Route]:
    """The page and its two addresses."""
    turns = asyncio.Semaphore(_AT_ONCE)

    def there() -> ScoreLog:
        if log is None:
            raise Refusal(404, "no_log", "this server keeps no log; start it with --log to have a dashboard")
        return log

    async def page(_: Request) -> Response:
        """The page. It holds nothing of the log."""
        there()
        return Response(PAGE.read_bytes(), media_type="text/html; charset=utf-8", headers=HEADERS)

    async def data(request: Request) -> Response:
        """Sums, estimates and events of the time, model and task that are asked for."""
        span, found = span_of(request), there()
        async with turns:
            return _json(await asyncio.to_thread(overview, found, span))

    async def queue(request: Request) -> Response:
        """Flagged answers that nobody has labelled, the lowest score first."""
        span, found = span_of(request), there()
        async with turns:
            return _json({"answers": await asyncio.to_thread(flagged_queue, found, span)})

    return [Route("/dashboard", page), Route("/dashboard/data", data), Route("/dashboard/queue", queue)]


def span_of(request: Request) -> Span:
    """Which answers `?days=30&model=m&task=faq` means. Raises `Refusal` for days that are no number above 0."""
    given = request.query_params
    try:
        days = float(given.get("days", "30"))
    except ValueError:
        days = 0.0
    if not 0 < days <= MAX_DAYS:
        raise Refusal(400, "invalid_days", f"days is {given['days'][:40]!r}; expected a number up to {MAX_DAYS:g}")
    now = time.time()
    return Span(now - days * DAY, now, given.get("model", ""), given.get("task", ""))


def _json(value: object) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json", headers={"cache-control": "no-store"})
