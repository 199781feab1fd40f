"""Serves `/dashboard`: a page that is the same for everyone, and its data, for callers with a key."""

import asyncio
import logging
import math
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from metaprobe.production.http.bodies import RETRY_AFTER_S, Refusal, json_response
from metaprobe.production.http.metrics import Seldom
from metaprobe.production.monitoring.log import ScoreLog
from metaprobe.production.monitoring.overview import Span, flagged_queue, overview
from metaprobe.production.monitoring.tables import LogError

DASHBOARD_PAGE = Path(__file__).with_name("page.html")
DAY = 86400.0
MAX_DAYS = 3660.0
MAX_TIME = 1e11
"""Latest time that is accepted, in seconds since 1970. A time in milliseconds is larger, and refused."""
NO_STORE = {"cache-control": "no-store"}
DASHBOARD_HEADERS = {
    **NO_STORE,
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "connect-src 'self'; img-src data:; frame-ancestors 'none'",
}
_seldom = Seldom(logging.getLogger(__name__))
Result = TypeVar("Result")
_MAX_QUERIES = 2
"""Number of pages that are computed at one time. Others wait, so that the dashboard does not slow down the service."""
PAGE_LIMIT_S = 60.0
"""Seconds after which a page is refused if the database does not answer.

The page keeps its turn until the database answers. So a database that hangs blocks two threads, and not one more for
every request.
"""


def dashboard_routes(log: ScoreLog | None) -> list[Route]:
    """Returns the routes of the page and of its two data addresses."""
    turns = asyncio.Semaphore(_MAX_QUERIES)

    def required_log() -> ScoreLog:
        if log is None:
            raise Refusal(404, "no_log", "this server keeps no log; start it with --log to have a dashboard")
        return log

    async def page(_: Request) -> Response:
        """Returns the page. It holds no data of the log."""
        required_log()
        return Response(DASHBOARD_PAGE.read_bytes(), media_type="text/html; charset=utf-8", headers=DASHBOARD_HEADERS)

    async def data(request: Request) -> Response:
        """Returns sums, estimates and events for the requested time, model, task and checkpoint."""
        span, log = requested_span(request), required_log()
        return json_response(await query_log(partial(overview, log, span), turns), headers=NO_STORE)

    async def queue(request: Request) -> Response:
        """Returns flagged answers without labels, the lowest score first."""
        span, log = requested_span(request), required_log()
        answers = await query_log(partial(flagged_queue, log, span), turns)
        return json_response({"answers": answers}, headers=NO_STORE)

    return [Route("/dashboard", page), Route("/dashboard/data", data), Route("/dashboard/queue", queue)]


async def query_log(query: Callable[[], Result], turns: asyncio.Semaphore) -> Result:
    """Returns the result of `query` on the log. Raises `Refusal` (503) if the database does not answer, or not in time.

    `turns` limits how many queries run at one time.
    """
    try:
        async with asyncio.timeout(PAGE_LIMIT_S):
            await turns.acquire()
            query_task = asyncio.ensure_future(asyncio.to_thread(query))
            query_task.add_done_callback(partial(_end_query, turns))
            return await asyncio.shield(query_task)
    except (LogError, TimeoutError) as error:
        reason = str(error) or f"it did not answer within {PAGE_LIMIT_S:g} s"
        _seldom(f"the dashboard could not read the score log: {reason}")
        message = "the score log cannot be read now; the server's log says why"
        raise Refusal(503, "log_unavailable", message, {"retry-after": str(RETRY_AFTER_S)}) from error


def _end_query(turns: asyncio.Semaphore, query: "asyncio.Future[Any]") -> None:
    turns.release()
    if not query.cancelled():
        query.exception()  # the waiting caller got the error; this call keeps Python from warning about it


def requested_span(request: Request) -> Span:
    """Returns the answers that `?days=30&model=m&task=faq&checkpoint=DIGEST` selects, or `?since=S&until=S` in seconds
    since 1970.

    Raises `Refusal` for invalid days or times.
    """
    query = request.query_params
    names = {name: query.get(name, "") for name in ("model", "task", "checkpoint")}
    now = time.time()
    if query.get("since"):
        since, until = _number_or_nan(query["since"]), _number_or_nan(query.get("until") or str(now))
        if not (0 <= since < until <= MAX_TIME and until - since <= MAX_DAYS * DAY):
            expected = f"expected seconds since 1970, the second later, up to {MAX_DAYS:g} days"
            raise Refusal(400, "invalid_time", f"since and until are no times; {expected}")
        return Span(since, until, **names)
    days = _number_or_nan(query.get("days", "30"))
    if not 0 < days <= MAX_DAYS:
        raise Refusal(400, "invalid_days", f"days is {query['days'][:40]!r}; expected a number up to {MAX_DAYS:g}")
    return Span(now - days * DAY, now, **names)


def _number_or_nan(text: str) -> float:
    """Returns the number in a text; NaN for any other text."""
    try:
        return float(text)
    except ValueError:
        return math.nan
