"""The trace that a request belongs to (W3C Trace Context), and its span for OpenTelemetry where that is asked for."""

import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from metaprobe.records.extras import require

_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")


@dataclass(frozen=True, slots=True)
class Trace:
    """A request's place in a trace."""

    trace_id: str
    """32 hexadecimal digits."""
    span_id: str
    """16 hexadecimal digits: of this server's own work on the request."""
    flags: str = "01"

    @property
    def traceparent(self) -> str:
        """The header that tells the next server."""
        return f"00-{self.trace_id}-{self.span_id}-{self.flags}"


def trace_of(traceparent: str) -> Trace:
    """A new span in the caller's trace; in a new trace where the header is empty or names none."""
    found = _TRACEPARENT.fullmatch(traceparent.strip())
    if found is None:
        return Trace(secrets.token_hex(16), secrets.token_hex(8))
    return Trace(found[1], secrets.token_hex(8), found[3])


class NoSpans:
    """Traces are passed on, and nobody is told of them."""

    @contextmanager
    def span(self, endpoint: str, traceparent: str) -> Iterator[tuple[Trace, dict[str, Any]]]:
        """The request's trace, and what will be known of it at the end."""
        yield trace_of(traceparent), {}


class Spans(NoSpans):
    """A span a request, by OpenTelemetry. Who starts the server says where they go (`opentelemetry-instrument`)."""

    def __init__(self) -> None:
        self._api = require("opentelemetry.trace", "otel")
        self._propagator = require("opentelemetry.trace.propagation.tracecontext", "otel")
        self._tracer = self._api.get_tracer("metaprobe")

    @contextmanager
    def span(self, endpoint: str, traceparent: str) -> Iterator[tuple[Trace, dict[str, Any]]]:
        """As of `NoSpans`; in the context of the span, whose attributes are then what is known."""
        carrier = {"traceparent": traceparent} if traceparent else {}
        context = self._propagator.TraceContextTextMapPropagator().extract(carrier)
        known: dict[str, Any] = {}
        with self._tracer.start_as_current_span(
            endpoint, context=context, kind=self._api.SpanKind.SERVER, attributes={"url.path": endpoint}
        ) as span:
            found = span.get_span_context()
            trace = trace_of(traceparent)
            if found.is_valid and span.is_recording():
                trace = Trace(f"{found.trace_id:032x}", f"{found.span_id:016x}", f"{int(found.trace_flags):02x}")
            try:
                yield trace, known
            finally:
                status = known.get("http.response.status_code", 0)
                span.set_attributes(known)
                if status >= 500:
                    span.set_status(self._api.StatusCode.ERROR)
