"""Errors in the shape of OpenAI's API."""

from __future__ import annotations

import json

from starlette.responses import JSONResponse, Response

from ..http.errors import ApiError

_TYPES = {
    "key": "authentication_error",
    "denied": "permission_error",
    "missing": "not_found_error",
    "busy": "rate_limit_error",
    "late": "timeout_error",
    "stopping": "service_unavailable_error",
    "failed": "server_error",
}


class OpenAIErrors:
    """`{"error": {"message", "type", "param", "code"}}`."""

    ping = b": ping\n\n"  # a comment: these protocols have no event that says nothing

    def error_response(self, error: ApiError) -> Response:
        """Returns the error as a whole response."""
        return JSONResponse(_shape(error), error.status, headers=error.headers)

    def error_event(self, error: ApiError) -> tuple[str, str | None]:
        """Returns the error as an event, data and name, in a stream that has begun."""
        return json.dumps(_shape(error)), None


def _shape(error: ApiError) -> dict[str, object]:
    kind = _TYPES.get(error.kind, "invalid_request_error")
    return {"error": {"message": error.named_message, "type": kind, "param": error.param, "code": error.code}}
