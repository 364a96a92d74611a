"""Conversion of errors of servers and of the network to the SDK's errors."""

from __future__ import annotations

import json
import ssl
import time
from collections.abc import Iterator, Mapping
from email.utils import parsedate_to_datetime
from typing import Any

import httpx
from pydantic import ValidationError

from .._types.errors import (
    WIRE_CODES,
    AgentKVError,
    BranchNotFound,
    ContextClosed,
    InvalidInput,
    ModelError,
    PositionsExhausted,
    RemoteError,
)

BUSY = frozenset({429, 502, 503, 504})  # statuses on which a request is retried later, or elsewhere

_OF_POSITIONS = {"input_tokens", "max_tokens"}  # parameters that vLLM names when positions run out
_WHICH = 'is it what `backend` of connect names ("vllm": vLLM, "agentkv": agentkv serve), and is its URL like http://host:8000/v1?'


class RetryableError(Exception):
    """A failure after which the request can be retried: the server is busy or does not answer.

    Attributes:
        error: the error for users once there is no further attempt.
        seconds: seconds to wait before the next attempt; None where the server gives none.
    """

    def __init__(self, error: AgentKVError, seconds: float | None = None) -> None:
        super().__init__()
        self.error = error
        self.seconds = seconds

    def __str__(self) -> str:
        return str(self.error)


def error_of(host: str, error: Mapping[str, Any], status: int | None = None) -> AgentKVError:
    """The SDK's error for an error object of a server."""
    code = error.get("code")
    says = error.get("message")
    answered = f"answered with status {status}" if status else "reports an error"
    message = f"{host} says: {says}" if says else f"{host} {answered}, and says no more; its log may"
    if code == "invalid_api_key" or status in (401, 403):
        return RemoteError(f"{message}; pass api_key to connect", status)
    if isinstance(code, str) and code in WIRE_CODES:
        return WIRE_CODES[code](message)
    if error.get("type") == "invalid_request_error":
        return InvalidInput(message)
    if status == 400:
        return PositionsExhausted(message) if error.get("param") in _OF_POSITIONS else InvalidInput(message)
    return RemoteError(message, status)


def event_error(host: str, error: Mapping[str, Any], status: int | None = None, got_on: bool = False) -> Exception:
    """The SDK's error, or a RetryableError, for an error event within a stream.

    It is retryable where the server shuts down, where it has no room and nothing was generated, and where its time
    ran out after some tokens (`got_on`).
    """
    told = error_of(host, error, status)
    if not got_on and error.get("type") == "rate_limit_error":
        return RetryableError(told)
    if isinstance(told, ContextClosed) or (got_on and error.get("code") == "timeout"):
        return RetryableError(RemoteError(str(told), status))
    return told


def refusal(response: httpx.Response, body: bytes) -> Exception:
    """The SDK's error for a response with an error status; RetryableError for 429, 502, 503 and 504."""
    status, host = response.status_code, response.url.netloc.decode()
    try:
        told = json.loads(body)["error"]
        error = error_of(host, told if isinstance(told, Mapping) else {"message": told}, status)
    except (ValueError, KeyError, TypeError, RecursionError):
        error = error_of(host, {}, status)
    if isinstance(error, ContextClosed):  # the server's, which is not ours
        error = RemoteError(str(error), status)
    if status == 404 and not isinstance(error, BranchNotFound | ModelError):
        error = RemoteError(f"{error}; {_WHICH}", status)
    return RetryableError(error, _seconds(response)) if status in BUSY else error


def unreachable(error: httpx.RequestError, host: str, silence: float | None) -> Exception:
    """The error for a broken connection: RetryableError, or RemoteError for TLS, where a retry would fail as well."""
    why = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    if any(isinstance(cause, ssl.SSLError) for cause in _causes(error)):
        return RemoteError(f"{host} is not who it must be, or speaks no TLS ({why}); see `verify` of connect")
    if isinstance(error, httpx.ReadTimeout):
        return RetryableError(
            RemoteError(f"{host} went silent for {silence:g} s; if it only takes long, pass a larger timeout")
        )
    return RetryableError(RemoteError(f"{host} cannot be reached, or hung up ({why}); is the server running?"))


def no_way(error: Exception, host: str) -> RemoteError:
    """The error for a request that cannot be sent, such as for an impossible port of a proxy."""
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    why = f"{type(error).__name__}: {error}"
    return RemoteError(
        f"{host} cannot be asked ({why}); are HTTP_PROXY, HTTPS_PROXY and ALL_PROXY in the environment right?"
    )


def schema_mismatch(error: ValidationError) -> str:
    """Describes how an answer differs from the expected shape."""
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    if first["type"] == "json_invalid":
        return f"oddly (it is no JSON: {first['msg'][:100]})"
    where = ".".join(map(str, first["loc"])) or "it"
    return f"oddly ({where}: {first['msg'][:200]})"


def bad_response(host: str, what: str) -> RemoteError:
    """The error for an answer that does not follow the protocol."""
    return RemoteError(f"{host} answered {what}; {_WHICH}")


def cut_off(host: str, reason: str = "") -> RetryableError:
    """The error for a stream that ended before its generation did."""
    why = f" ({reason})" if reason else ""
    return RetryableError(RemoteError(f"{host} ended a generation in the middle{why}"))


def _seconds(response: httpx.Response) -> float | None:
    """Seconds of `retry-after`, which is a count or a date (RFC 9110); None without one."""
    told = response.headers.get("retry-after", "")
    if told.isdecimal():
        return float(told[:9])
    try:
        return max(0.0, parsedate_to_datetime(told).timestamp() - time.time())
    except (ValueError, OverflowError):
        return None


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
