"""A request that is not answered, in the shape in which OpenAI's API says so."""

from collections.abc import Mapping

import msgspec
from starlette.responses import Response


class Refusal(Exception):
    """Ends a request with `status`. `code` is for programs, `message` for people; neither is ever logged."""

    def __init__(self, status: int, code: str, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.headers = dict(headers or {})

    def response(self) -> Response:
        return Response(
            msgspec.json.encode({"error": error_object(self.status, self.code, self.message)}),
            self.status,
            self.headers,
            media_type="application/json",
        )


def error_object(status: int, code: str, message: str) -> dict[str, object]:
    """Returns the object under `error`, as OpenAI's clients read it."""
    kind = "invalid_request_error" if status < 500 else "upstream_error" if code.startswith("upstream") else "error"
    return {"message": message, "type": kind, "param": None, "code": code}
