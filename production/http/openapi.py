"""Lists the server's addresses, and makes their OpenAPI document."""

from importlib.metadata import version
from typing import Any

import msgspec

from metaprobe.production.http.feedback import SentLabel, SentLabels

_ERROR = {"type": "object", "properties": {"error": {"type": "object", "required": ["message", "type", "code"]}}}
_VERDICT = {
    "type": "object",
    "description": "What the checkpoint says of one answer.",
    "required": ["score", "heads", "critical", "flagged", "checkpoint", "reason"],
    "properties": {
        "score": {"type": ["number", "null"], "minimum": 0, "maximum": 1},
        "heads": {"type": "object", "additionalProperties": {"type": "number"}},
        "critical": {"type": ["number", "null"]},
        "flagged": {"type": ["boolean", "null"]},
        "checkpoint": {"type": "string", "description": "Digest."},
        "reason": {"type": "string"},
    },
}
_STORED = {
    "type": "object",
    "required": ["stored", "unknown"],
    "properties": {
        "stored": {"type": "integer", "description": "Labels in the log now."},
        "unknown": {"type": "integer", "description": "Of these, labels of requests that the log does not hold."},
    },
}
_PASSED_ON = "The upstream's answer as it came"

SUMMARY_OF_POST = {
    "/v1/score": "The verdict on one response, or on each of {'responses': [...]}.",
    "/v1/panel": "Which of {'responses': [...]} to keep, or of the choices of one response, and how sure it is.",
    "/v1/success": "P(success) of each candidate on {'messages': [...]}, before any of them is asked.",
    "/v1/decisions": "Predicates and scores about an answer, in the form of openai-python's decisions.create.",
    "/v1/chat/completions": f"{_PASSED_ON}, or the one of several that a panel keeps, with the verdict under"
    " `metaprobe`; streamed too.",
    "/v1/completions": f"{_PASSED_ON}, with the verdict under `metaprobe` where log-probabilities were asked for.",
    "/v1/responses": f"{_PASSED_ON}, with the verdict under `metaprobe` where log-probabilities were asked for.",
    "/v1/embeddings": f"{_PASSED_ON}.",
    "/v1/feedback": "Stores a label for an answer that was logged, or several.",
}
SUMMARY_OF_GET = {
    "/v1/models": "The upstream's models.",
    "/v1/models/{model}": "What the upstream says of one model.",
    "/metrics": "Counts and times, for Prometheus.",
    "/openapi.json": "This document.",
    "/healthz": "That it is ready, and with which checkpoints.",
    "/readyz": "The same.",
    "/livez": "That the process answers.",
    "/dashboard": "A page on which the log is looked at.",
    "/dashboard/data": "Sums, estimates and events of the log, for the page.",
    "/dashboard/queue": "Flagged answers without a label, for the page.",
}
KEYLESS_ADDRESSES = ("/healthz", "/livez", "/readyz", "/dashboard")
"""Addresses that need no key. The dashboard page holds no data of the log, and asks for a key."""
ADMIN_ADDRESSES = ("/metrics", "/dashboard/data", "/dashboard/queue")
"""Addresses that show requests of all callers."""
ENDPOINTS = frozenset({*SUMMARY_OF_POST, *SUMMARY_OF_GET} - {"/v1/models/{model}"})
ALL_ADDRESSES = ", ".join([*(f"POST {path}" for path in SUMMARY_OF_POST), *(f"GET {path}" for path in SUMMARY_OF_GET)])
"""All addresses, for the message about a wrong one."""
_CONTENT_TYPES = {"/metrics": "text/plain", "/dashboard": "text/html"}


def openapi() -> dict[str, Any]:
    """Returns the document, as JSON types."""
    paths: dict[str, Any] = {path: {"get": _operation(summary, path)} for path, summary in SUMMARY_OF_GET.items()}
    for path, summary in SUMMARY_OF_POST.items():
        schema: dict[str, Any] = {"type": "object"}  # what else is sent is the upstream's business
        if path == "/v1/feedback":
            schema = {"oneOf": [{"$ref": f"#/components/schemas/{name}"} for name in ("SentLabel", "SentLabels")]}
        body = {"content": {"application/json": {"schema": schema}}, "required": True}
        paths[path] = {"post": _operation(summary, path) | {"requestBody": body}}
    key = {"type": "http", "scheme": "bearer"}
    _, labels = msgspec.json.schema_components([SentLabel, SentLabels], ref_template="#/components/schemas/{name}")
    schemas = {"Verdict": _VERDICT, "Error": _ERROR, "Stored": _STORED, **labels}
    return {
        "openapi": "3.1.0",
        "info": {"title": "metaprobe", "version": version("metaprobe")},
        "paths": paths,
        "components": {"schemas": schemas, "securitySchemes": {"key": key}},
        "security": [{"key": []}],
    }


def _operation(summary: str, path: str) -> dict[str, Any]:
    answer_schema: dict[str, Any] = {"type": "object"}
    if path == "/v1/score":
        answer_schema = {"$ref": "#/components/schemas/Verdict"}
    elif path == "/v1/feedback":
        answer_schema = {"$ref": "#/components/schemas/Stored"}
    elif "`metaprobe`" in summary:
        answer_schema["properties"] = {"metaprobe": {"$ref": "#/components/schemas/Verdict"}}
    content_type = _CONTENT_TYPES.get(path, "application/json")
    error_content = {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}}
    operation: dict[str, Any] = {
        "summary": summary,
        "responses": {
            "200": {"description": "Answered.", "content": {content_type: {"schema": answer_schema}}},
            "default": {"description": "Refused, and why.", **error_content},
        },
    }
    if path in KEYLESS_ADDRESSES:
        operation["security"] = []
    if "{model}" in path:
        operation["parameters"] = [{"name": "model", "in": "path", "required": True, "schema": {"type": "string"}}]
    return operation
