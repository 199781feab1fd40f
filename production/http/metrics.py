"""Counts for Prometheus, and the format of log lines.

Metrics hold only numbers: no text, and nothing that a caller chose. Names are those that the server was given.
"""

import asyncio
import json
import logging
import os
import time
import traceback
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest, multiprocess

logger = logging.getLogger(__name__)

MULTIPROCESS_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
"""Environment variable through which prometheus_client shares counts between workers."""

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
_SHORT_SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1)


class Metrics:
    """Counts of one server."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        counter, histogram = partial(Counter, registry=registry), partial(Histogram, registry=registry)
        # Requests.
        self.requests = counter("metaprobe_requests", "Requests answered.", ["endpoint", "status"])
        self.key_requests = counter(
            "metaprobe_key_requests", "Requests answered, by the name of the key.", ["key", "status"]
        )
        self.errors = counter("metaprobe_errors", "What went wrong, by code.", ["code"])
        self.upstream_seconds = histogram(
            "metaprobe_upstream_seconds", "From asking the upstream to its last byte.", buckets=_SECONDS
        )
        self.added_seconds = histogram(
            "metaprobe_added_seconds",
            "Own work on a proxied request: reading, scoring, rewriting.",
            buckets=_SHORT_SECONDS,
        )
        # Verdicts.
        self.scores = histogram("metaprobe_score", "Scores given.", buckets=[i / 10 for i in range(1, 11)])
        self.flagged = counter("metaprobe_flagged", "Answers whose score lay below the threshold.")
        self.abstained = counter("metaprobe_abstained", "Answers without a score.")
        self.verdicts = counter("metaprobe_verdicts", "Verdicts, by who gave them.", ["role"])
        self.shadow_difference = histogram(
            "metaprobe_shadow_difference",
            "How far the scores of a checkpoint and of that in its shadow are apart.",
            buckets=(0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1),
        )
        self.reloads = counter("metaprobe_reloads", "Reloads of the checkpoints.", ["outcome"])
        # Upstreams, the gate and the score log.
        self.agent_requests = counter(
            "metaprobe_agent_requests", "Requests to one of several upstreams, by how they ended.", ["agent", "outcome"]
        )
        self.agent_state = Gauge(
            "metaprobe_agent_state",
            "Whether one of several upstreams is asked: 0 asked, 1 tried again by one request, 2 left out. Of several"
            " workers the last change.",
            ["agent"],
            registry=registry,
            multiprocess_mode="mostrecent",
        )
        self.panel_questions = counter(
            "metaprobe_panel_questions", "Requests whose spending counts for a panel's budget."
        )
        self.panel_spent = counter("metaprobe_panel_spent_usd", "US dollars that these requests cost.")
        self.panel_correction = Gauge(
            "metaprobe_panel_correction",
            "Factor between the budget that plans are made for and the panel's budget, by what was spent before. Of"
            " several workers the last change.",
            registry=registry,
            multiprocess_mode="mostrecent",
        )
        self.gated = counter("metaprobe_gated", "Streams the gate acted on.", ["action"])
        self.asked_again = counter(
            "metaprobe_asked_again",
            "Questions drawn to be asked once more (--teach-rate), by the outcome: same, different, or why not.",
            ["outcome"],
        )
        self.asked_again_tokens = counter(
            "metaprobe_asked_again_tokens", "Tokens of these second requests, by the upstream's count.", ["kind"]
        )
        self.log_dropped = counter("metaprobe_log_dropped", "Verdicts that the score log could not take.")
        self.log_repeated = counter("metaprobe_log_repeated", "Verdicts whose request id the score log held already.")
        self.log_spooled = counter(
            "metaprobe_log_spooled",
            "Verdicts that were put into a file because the score log's database did not take them.",
        )
        self._log_counters = (self.log_dropped, self.log_repeated, self.log_spooled)
        self._log_counts = (0, 0, 0)

    def count_log(self, dropped: int, repeated: int, spooled: int = 0) -> None:
        """Takes in the totals that the score log has counted since it was opened.

        Args:
            dropped: entries that were dropped.
            repeated: entries that were already in the log.
            spooled: entries that were spooled.
        """
        totals = (dropped, repeated, spooled)
        if totals != self._log_counts:
            for counter, now, before in zip(self._log_counters, totals, self._log_counts, strict=True):
                counter.inc(now - before)
            self._log_counts = totals

    def exposition(self) -> bytes:
        """Returns the counts in Prometheus' text format, summed over all workers."""
        if not os.environ.get(MULTIPROCESS_VARIABLE):
            return generate_latest(self._registry)
        all_workers = CollectorRegistry()
        multiprocess.MultiProcessCollector(all_workers)  # type: ignore[no-untyped-call]
        return generate_latest(all_workers)


SAY_AGAIN_S = 60.0
"""Seconds after which an event that repeats is logged again, with the number of repetitions."""


class Seldom:
    """Logs the first of many equal events at once, and then once a minute the number of further ones."""

    def __init__(self, log: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._clock = clock
        self._last_said: dict[str, tuple[float, int]] = {}
        """Maps an event to the time of its last log line, and how often it happened since then."""

    def __call__(self, event: str) -> None:
        now = self._clock()
        last, unsaid = self._last_said.get(event, (-SAY_AGAIN_S, 0))
        if now - last < SAY_AGAIN_S:
            self._last_said[event] = (last, unsaid + 1)
            return
        self._log.warning("%s%s", event, f" ({unsaid + 1} times since it was last said)" if unsaid else "")
        self._last_said[event] = (now, 0)


def say_out_of_files_once(loop: asyncio.AbstractEventLoop) -> None:
    """Logs one line if no more connections can be accepted, instead of a traceback for every attempt."""
    seldom = Seldom(logger)
    default_handler = loop.get_exception_handler() or type(loop).default_exception_handler

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if str(context.get("message", "")).startswith("socket.accept() out of system resource"):
            seldom(f"no new connection can be taken in: {context.get('exception')}")
        else:
            default_handler(loop, context)

    loop.set_exception_handler(handle)


RECORD_ATTRIBUTE = "metaprobe"
"""Attribute of a log record with the facts about its request."""


class JsonLine(logging.Formatter):
    """Formats a record as one JSON object a line: time (UTC, ISO 8601), level, logger, message, and facts about the
    request.
    """

    def format(self, record: logging.LogRecord) -> str:
        fields = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, RECORD_ATTRIBUTE, {}),
        }
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json.dumps(fields)


def log_unexpected(log: logging.Logger, where: str, error: BaseException) -> None:
    """Logs type and place of an error. Its message is left out: it may quote a model's or a caller's text.

    Args:
        log: the logger.
        where: what failed.
        error: the error.
    """
    stack_text = "".join(traceback.format_tb(error.__traceback__))
    log.error("%s failed: %s\n%s", where, type(error).__name__, stack_text)
