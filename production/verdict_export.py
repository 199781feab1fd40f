"""Writes verdicts into a score log, and exports them from it to the program that keeps the traces.

    log = ScoreLog.open("scores.sqlite")
    watch(stream, predictor, on_verdict=log_verdicts(log))

The log is exported as Langfuse scores, MLflow assessments, or OpenTelemetry log records. A file holds one request body
a line, and `poster` sends such bodies to the product itself. Labels come back in the other direction
(`metaprobe.production.monitoring.label_files`), by the same ids.
"""

import base64
import os
import re
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

from metaprobe.api import InvalidResponse, OnVerdict, RecordError, Scored, parse_response
from metaprobe.production.evaluation_events import EVENT, SCOPE, evaluation_attributes, named_value
from metaprobe.production.monitoring.entry import Entry
from metaprobe.production.monitoring.label_mapping import OWN_NAME
from metaprobe.production.monitoring.posting import checked_url, post_json
from metaprobe.production.monitoring.rows import batches

if TYPE_CHECKING:
    from metaprobe.production.monitoring.log import ScoreLog

Tags = Mapping[str, str] | Callable[[Scored], Mapping[str, str]]
_CALL_ID_KEYS = ("litellm_call_id", "run_id")
"""Keys under which an integration names a call whose answer has no id of its own."""


def log_verdicts(
    log: "ScoreLog", *, tags: Tags | None = None, texts: bool = False, logprobs: bool = False
) -> OnVerdict:
    """Returns an `on_verdict` function that passes each verdict to the log, which never waits.

    An answer is logged under its server's id, else under LiteLLM's or LangChain's id of the call, else under a new one.

    Args:
        log: the score log.
        tags: tags of every answer, or a function that returns an answer's tags.
        texts: whether the answer's text is logged too.
        logprobs: whether its log-probabilities are logged too.
    """

    def hand_over(scored: Scored) -> None:
        tags_of_answer = tags(scored) if callable(tags) else tags or {}
        log.write(entry_of_scored(scored, tags=tags_of_answer, texts=texts, logprobs=logprobs))

    return hand_over


def entry_of_scored(scored: Scored, *, tags: Mapping[str, str], texts: bool, logprobs: bool) -> Entry:
    """Returns the entry for one verdict; see `log_verdicts`.

    Args:
        scored: the verdict.
        tags: tags of the answer.
        texts: whether the answer's text is logged.
        logprobs: whether its log-probabilities are logged.
    """
    verdict, answer = scored.verdict, None
    if scored.response is not None:
        with suppress(InvalidResponse):
            answer = parse_response(scored.response, top=False)
    call_ids = [str(scored.context[name]) for name in _CALL_ID_KEYS if scored.context.get(name)]
    return Entry(
        request_id=scored.response_id or (call_ids[0] if call_ids else uuid.uuid4().hex),
        time=time.time(),
        model=scored.model or (answer.model if answer else ""),
        checkpoint=verdict.checkpoint if verdict else "",
        score=verdict.score if verdict else None,
        flagged=verdict.flagged if verdict else None,
        critical=verdict.critical if verdict else None,
        heads=verdict.heads if verdict else {},
        reason=scored.as_metadata()["reason"],
        finish_reason=answer.finish_reason if answer else "",
        action=scored.action,
        prompt_tokens=(answer.usage.prompt_tokens or None) if answer else None,
        tokens=len(answer.logprobs) if answer else None,
        tags=tags,
        logprobs=answer.logprobs.tolist() if answer and logprobs else None,
        answer=answer.text if answer and texts else None,
    )


VERDICTS_PER_REQUEST = 100
"""Most verdicts in one request to Langfuse or OpenTelemetry. Langfuse takes 3.5 MB, and a verdict is below 10 kB."""
_SCORE_ID_NAMESPACE = uuid.UUID("6d706c47-0000-5000-8000-000000000000")
_TRACE_ID = re.compile(r"(?!0{32})[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class Outgoing:
    """One request to a product."""

    path: str
    """Path below the product's address."""
    body: Mapping[str, Any]
    verdicts: int


def requests_for(destination: str, entries: Iterable[Entry], *, trace_tag: str = "") -> Iterator[Outgoing]:
    """Yields the requests to post to `langfuse`, `mlflow` or `otel`.

    Langfuse has no score without a value, so answers without a verdict are left out for it. Raises `RecordError` for
    another destination.

    Args:
        destination: the destination.
        entries: entries of the log.
        trace_tag: tag with the id of an answer's trace; without the tag the answer's request id is the trace's.
    """
    _check_destination(destination)
    return REQUEST_MAKERS[destination](entries, trace_tag)


def poster(destination: str) -> Callable[[Outgoing], int]:
    """Returns a function that posts a request and returns how many of its verdicts the product refused.

    `destination` is as in `requests_for`. Raises `RecordError` if the environment names no address or no key. The
    function raises `NotPosted` if a request was not accepted.
    """
    _check_destination(destination)
    base, headers = _address_of(destination)

    def post(request: Outgoing) -> int:
        answer = post_json(base + request.path, request.body, headers)
        errors, partial = answer.get("errors"), answer.get("partialSuccess")
        if destination == "langfuse":
            return len(errors) if isinstance(errors, list) else 0
        if destination == "otel" and isinstance(partial, Mapping):
            return int(partial.get("rejectedLogRecords") or 0)
        return 0

    return post


def _check_destination(destination: str) -> None:
    if destination not in REQUEST_MAKERS:
        raise RecordError(f"there is no destination {destination!r}; expected {', '.join(REQUEST_MAKERS)}")


def _langfuse(entries: Iterable[Entry], trace_tag: str) -> Iterator[Outgoing]:
    named_entries = ((entry, *named_value(OWN_NAME, entry.score, entry.heads)) for entry in entries)
    for batch in batches(
        (named_entry for named_entry in named_entries if named_entry[2] is not None), VERDICTS_PER_REQUEST
    ):
        events = []
        for entry, name, value in batch:
            # By its id, a score that is sent again takes the place of the one before.
            score_id = str(uuid.uuid5(_SCORE_ID_NAMESPACE, f"{entry.request_id}\n{entry.checkpoint}"))
            body = {
                "id": score_id,
                "traceId": _trace_of(entry, trace_tag),
                "name": name,
                "value": value,
                "dataType": "NUMERIC",
                "metadata": _metadata_of(entry),
                **({"comment": entry.reason} if entry.reason else {}),
            }
            events.append(
                {"id": str(uuid.uuid4()), "type": "score-create", "timestamp": _iso_time(entry), "body": body}
            )
        yield Outgoing("/api/public/ingestion", {"batch": events}, len(events))


def _mlflow(entries: Iterable[Entry], trace_tag: str) -> Iterator[Outgoing]:
    for entry in entries:
        trace_id = _trace_of(entry, trace_tag)
        name, value = named_value(OWN_NAME, entry.score, entry.heads)
        error = {"error": {"error_code": "not_scored", "error_message": entry.reason or "the answer has no score"}}
        assessment = {
            "assessment_name": name,
            "trace_id": trace_id,
            "source": {"source_type": "CODE", "source_id": OWN_NAME},
            "create_time": _iso_time(entry),
            "last_update_time": _iso_time(entry),
            "feedback": error if value is None else {"value": value},
            "metadata": {name: str(value) for name, value in _metadata_of(entry).items()},
            **({"rationale": entry.reason} if entry.reason else {}),
        }
        path = f"/api/3.0/mlflow/traces/{quote(trace_id, safe='')}/assessments"
        yield Outgoing(path, {"assessment": assessment}, 1)


def _otel(entries: Iterable[Entry], trace_tag: str) -> Iterator[Outgoing]:
    for batch in batches(entries, VERDICTS_PER_REQUEST):
        records = []
        for entry in batch:
            trace_id, time_ns = _trace_of(entry, trace_tag), str(round(entry.time * 1e9))
            name, value = named_value(OWN_NAME, entry.score, entry.heads)
            values = evaluation_attributes(
                name, score=value, flagged=entry.flagged, reason=entry.reason, response_id=entry.request_id
            )
            attributes = [
                {"key": key, "value": {"stringValue": value} if isinstance(value, str) else {"doubleValue": value}}
                for key, value in values.items()
            ]
            record = {
                "timeUnixNano": time_ns,
                "observedTimeUnixNano": time_ns,
                "eventName": EVENT,
                "attributes": attributes,
            }
            records.append(record | ({"traceId": trace_id} if _TRACE_ID.fullmatch(trace_id) else {}))
        service = {"key": "service.name", "value": {"stringValue": OWN_NAME}}
        scope_logs = [{"scope": {"name": SCOPE}, "logRecords": records}]
        body = {"resourceLogs": [{"resource": {"attributes": [service]}, "scopeLogs": scope_logs}]}
        yield Outgoing("", body, len(records))


def _metadata_of(entry: Entry) -> dict[str, Any]:
    facts = {"request_id": entry.request_id, "checkpoint": entry.checkpoint, "model": entry.model}
    flagged = {} if entry.flagged is None else {"flagged": entry.flagged}
    return {name: value for name, value in facts.items() if value} | flagged


def _trace_of(entry: Entry, tag: str) -> str:
    return (entry.tags.get(tag) if tag else "") or entry.request_id


def _iso_time(entry: Entry) -> str:
    return datetime.fromtimestamp(entry.time, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _address_of(destination: str) -> tuple[str, dict[str, str]]:
    """Returns a product's URL and its headers, from environment variables. Raises `RecordError`."""
    if destination == "langfuse":
        base = checked_url(_environment_value("LANGFUSE_BASE_URL", "LANGFUSE_HOST"), "LANGFUSE_BASE_URL", bare=True)
        return base, _basic_auth(_environment_value("LANGFUSE_PUBLIC_KEY"), _environment_value("LANGFUSE_SECRET_KEY"))
    if destination == "mlflow":
        base = checked_url(_environment_value("MLFLOW_TRACKING_URI"), "MLFLOW_TRACKING_URI", bare=True)
        if token := os.environ.get("MLFLOW_TRACKING_TOKEN"):
            return base, {"Authorization": f"Bearer {token}"}
        user = os.environ.get("MLFLOW_TRACKING_USERNAME")
        return base, _basic_auth(user, _environment_value("MLFLOW_TRACKING_PASSWORD")) if user else {}
    if logs_endpoint := os.environ.get("OTEL_EXPORTER_OTLP_LOGS_ENDPOINT"):
        base = checked_url(logs_endpoint, "OTEL_EXPORTER_OTLP_LOGS_ENDPOINT", bare=True)
    else:
        name = "OTEL_EXPORTER_OTLP_ENDPOINT"
        base = checked_url(_environment_value(name), name, bare=True) + "/v1/logs"
    pairs = (
        pair.partition("=") for pair in os.environ.get("OTEL_EXPORTER_OTLP_HEADERS", "").split(",") if pair.strip()
    )
    return base, {name.strip(): unquote(value.strip()) for name, _, value in pairs}


def _environment_value(*names: str) -> str:
    for name in names:
        if value := os.environ.get(name):
            return value
    raise RecordError(
        f"the environment variable {' or '.join(names)} is not set; --post reads addresses and keys there"
    )


def _basic_auth(user: str, password: str) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()}


REQUEST_MAKERS = {"langfuse": _langfuse, "mlflow": _mlflow, "otel": _otel}
"""Maps a destination to the function that makes its requests from entries and the tag of an answer's trace."""
