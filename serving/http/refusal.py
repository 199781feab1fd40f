"""JSON answers of the server itself, and refusals in the shape in which OpenAI's API says them."""

from collections.abc import Mapping

import msgspec
from starlette.responses import Response


def json_response(value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Returns a response that holds the value as JSON."""
    return Response(msgspec.json.encode(value), status, headers, media_type="application/json")


class Refusal(Exception):
    """Ends a request with `status`. `code` is for programs, `message` for people; neither is ever logged."""

    def __init__(self, status: int, code: str, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.headers = dict(headers or {})

    def response(self) -> Response:
        error = error_object(self.status, self.code, self.message)
        return json_response({"error": error}, self.status, self.headers)


def error_object(status: int, code: str, message: str) -> dict[str, object]:
    """Returns the object under `error`, as OpenAI's clients read it."""
    kind = "invalid_request_error" if status < 500 else "upstream_error" if code.startswith("upstream") else "error"
    return {"message": message, "type": kind, "param": None, "code": code}
