"""What the server answers at which address, as an OpenAPI document."""

from importlib.metadata import version
from typing import Any

from metaprobe.monitoring.labels import EXPECTED, SOURCES

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
_LABEL = {
    "type": "object",
    "required": ["request_id", "label"],
    "properties": {
        "request_id": {"type": "string", "description": "The id that came with the verdict, or the caller's own."},
        "label": {"type": ["number", "boolean", "string", "null"], "description": f"{EXPECTED}."},
        "who": {"type": "string", "description": "Who says so; a later label of the same request counts."},
        "time": {"type": "number", "description": "Seconds since 1970; now where it is left out."},
        "source": {
            "enum": list(SOURCES),
            "description": "What gave the label. One of a judge never replaces a person's; without it: a person.",
        },
        "comment": {"type": "string", "description": "Not stored."},
    },
    "additionalProperties": False,
}
_LABELS = {
    "type": "object",
    "required": ["feedback"],
    "properties": {"feedback": {"type": "array", "items": {"$ref": "#/components/schemas/Label"}}},
}
_STORED = {
    "type": "object",
    "required": ["stored", "unknown"],
    "properties": {
        "stored": {"type": "integer", "description": "Labels in the log now."},
        "unknown": {"type": "integer", "description": "Of these, labels of requests that the log does not hold."},
    },
}
_ASKED: dict[str, dict[str, Any]] = {
    "/v1/feedback": {"oneOf": [{"$ref": "#/components/schemas/Label"}, {"$ref": "#/components/schemas/Labels"}]}
}
"""What is sent where it is no upstream's business."""
_PASSED = "The upstream's answer as it came"

_POSTS = {
    "/v1/score": "The verdict on one response, or on each of {'responses': [...]}.",
    "/v1/panel": "Which of {'responses': [...]} to keep, or of the choices of one response, and how sure it is.",
    "/v1/chat/completions": f"{_PASSED}, with the verdict under `metaprobe`; streamed too.",
    "/v1/completions": f"{_PASSED}, with the verdict under `metaprobe` where log-probabilities were asked for.",
    "/v1/responses": f"{_PASSED}, with the verdict under `metaprobe` where log-probabilities were asked for.",
    "/v1/embeddings": f"{_PASSED}.",
    "/v1/feedback": "Stores a label for an answer that was logged, or several.",
}
_GETS = {
    "/v1/models": "The upstream's models.",
    "/v1/models/{model}": "What the upstream says of one model.",
    "/metrics": "Counts and times, for Prometheus.",
    "/openapi.json": "This document.",
    "/healthz": "That it is ready, and with which checkpoints.",
    "/readyz": "The same.",
    "/livez": "That the process answers.",
    "/dashboard": "A page on which the log is looked at.",
}
_OPEN = ("/healthz", "/readyz", "/livez", "/dashboard")
_KINDS = {"/metrics": "text/plain", "/dashboard": "text/html"}


def openapi() -> dict[str, Any]:
    """The document, as JSON's own types."""
    paths: dict[str, Any] = {
        path: {"post": _operation(said, path) | {"requestBody": _body(path)}} for path, said in _POSTS.items()
    }
    paths |= {path: {"get": _operation(said, path)} for path, said in _GETS.items()}
    key = {"type": "http", "scheme": "bearer"}
    schemas = {"Verdict": _VERDICT, "Error": _ERROR, "Label": _LABEL, "Labels": _LABELS, "Stored": _STORED}
    return {
        "openapi": "3.1.0",
        "info": {"title": "metaprobe", "version": version("metaprobe")},
        "paths": paths,
        "components": {"schemas": schemas, "securitySchemes": {"key": key}},
        "security": [{"key": []}],
    }


def _body(path: str) -> dict[str, Any]:
    schema = _ASKED.get(path, {"type": "object"})
    return {"content": {"application/json": {"schema": schema}}, "required": True}


def _operation(said: str, path: str) -> dict[str, Any]:
    answer: dict[str, Any] = {"type": "object"}
    if path == "/v1/score":
        answer = {"$ref": "#/components/schemas/Verdict"}
    elif path == "/v1/feedback":
        answer = {"$ref": "#/components/schemas/Stored"}
    elif "`metaprobe`" in said:
        answer["properties"] = {"metaprobe": {"$ref": "#/components/schemas/Verdict"}}
    kind = _KINDS.get(path, "application/json")
    refused = {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}}
    operation: dict[str, Any] = {
        "summary": said,
        "responses": {
            "200": {"description": "Answered.", "content": {kind: {"schema": answer}}},
            "default": {"description": "Refused, and why.", **refused},
        },
    }
    if path in _OPEN:
        operation["security"] = []
    if "{model}" in path:
        operation["parameters"] = [{"name": "model", "in": "path", "required": True, "schema": {"type": "string"}}]
    return operation
