"""Errors in the shape of Anthropic's API."""

from __future__ import annotations

import json
import secrets

from starlette.responses import JSONResponse, Response

from ..http.errors import ApiError

_TYPES = {
    "key": "authentication_error",
    "denied": "permission_error",
    "missing": "not_found_error",
    "busy": "rate_limit_error",
    "late": "timeout_error",
    "large": "request_too_large",
    "stopping": "overloaded_error",
    "failed": "api_error",
}


class AnthropicErrors:
    """`{"type": "error", "error": {"type", "message", "details"}, "request_id"}`, for one request.

    Attributes:
        request_id: identifier of the request, which each response has in the header `request-id`.
    """

    ping = b'event: ping\ndata: {"type": "ping"}\n\n'

    def __init__(self) -> None:
        self.request_id = f"req_{secrets.token_hex(12)}"

    @property
    def headers(self) -> dict[str, str]:
        """Headers of each response."""
        return {"request-id": self.request_id}

    def error_response(self, error: ApiError) -> Response:
        """Returns the error as a whole response."""
        return JSONResponse(self._shape(error), error.status, headers={**error.headers, **self.headers})

    def error_event(self, error: ApiError) -> tuple[str, str | None]:
        """Returns the error as an event, data and name, in a stream that has begun."""
        return json.dumps(self._shape(error)), "error"

    def _shape(self, error: ApiError) -> dict[str, object]:
        kind = _TYPES.get(error.kind, "invalid_request_error")
        told: dict[str, object] = {"type": kind, "message": error.named_message}
        if error.code is not None:
            told["details"] = {"error_code": error.code}
        return {"type": "error", "error": told, "request_id": self.request_id}
