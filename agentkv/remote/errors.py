"""Errors of servers and of the way to them, as the SDK's."""

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
    PositionsExhausted,
    RemoteError,
)

BUSY = frozenset({429, 502, 503, 504})  # statuses that say: later, or elsewhere

_OF_POSITIONS = {"input_tokens", "max_tokens"}  # parameters that vLLM refuses too much of
_WHICH = 'is it what `backend` of connect names ("vllm": vLLM, "agentkv": agentkv serve), and is its URL like http://host:8000/v1?'


class Busy(Exception):
    """A server that answers later, or not at all: what it was asked can be asked again.

    Attributes:
        error: what users get once nobody asks again.
        seconds: that it wants to be left alone; None where it does not say.
    """

    def __init__(self, error: AgentKVError, seconds: float | None = None) -> None:
        super().__init__()
        self.error = error
        self.seconds = seconds

    def __str__(self) -> str:
        return str(self.error)


def error_of(host: str, error: Mapping[str, Any], status: int | None = None) -> AgentKVError:
    """The SDK's error for one of a server's."""
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
    """What an error inside of a stream raises: the SDK's error, or Busy where the server is about to end, gave it too
    little time and it `got_on`, or has no room for it, as its status would say had it not begun to read the prompt."""
    told = error_of(host, error, status)
    if not got_on and error.get("type") == "rate_limit_error":
        return Busy(told)
    if isinstance(told, ContextClosed) or (got_on and error.get("code") == "timeout"):
        return Busy(RemoteError(str(told), status))
    return told


def refusal(response: httpx.Response, body: bytes) -> Exception:
    """What a response with an error's status raises: the SDK's error, or Busy."""
    status, host = response.status_code, response.url.netloc.decode()
    try:
        told = json.loads(body)["error"]
        error = error_of(host, told if isinstance(told, Mapping) else {"message": told}, status)
    except (ValueError, KeyError, TypeError, RecursionError):
        error = error_of(host, {}, status)
    if isinstance(error, ContextClosed):  # the server's, which is not ours
        error = RemoteError(str(error), status)
    if status == 404 and not isinstance(error, BranchNotFound):
        error = RemoteError(f"{error}; {_WHICH}", status)
    return Busy(error, _seconds(response)) if status in BUSY else error


def unreachable(error: httpx.RequestError, host: str, silence: float | None) -> Exception:
    """What a broken connection raises: Busy, or RemoteError where the next attempt would fail as well."""
    why = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    if any(isinstance(cause, ssl.SSLError) for cause in _causes(error)):
        return RemoteError(f"{host} is not who it must be, or speaks no TLS ({why}); see `verify` of connect")
    if isinstance(error, httpx.ReadTimeout):
        return Busy(RemoteError(f"{host} went silent for {silence:g} s; if it only takes long, pass a larger timeout"))
    return Busy(RemoteError(f"{host} cannot be reached, or hung up ({why}); is the server running?"))


def no_way(error: Exception, host: str) -> RemoteError:
    """What raises for an error that is none of the network's, such as a proxy's port that there cannot be."""
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    why = f"{type(error).__name__}: {error}"
    return RemoteError(
        f"{host} cannot be asked ({why}); are HTTP_PROXY, HTTPS_PROXY and ALL_PROXY in the environment right?"
    )


def oddness(error: ValidationError) -> str:
    """How an answer is not of the shape that was asked for."""
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    if first["type"] == "json_invalid":
        return f"oddly (it is no JSON: {first['msg'][:100]})"
    where = ".".join(map(str, first["loc"])) or "it"
    return f"oddly ({where}: {first['msg'][:200]})"


def garbled(host: str, what: str) -> RemoteError:
    """Something that is no protocol of ours."""
    return RemoteError(f"{host} answered {what}; {_WHICH}")


def cut_off(host: str, reason: str = "") -> Busy:
    """A stream that ended before the generation did."""
    why = f" ({reason})" if reason else ""
    return Busy(RemoteError(f"{host} ended a generation in the middle{why}"))


def _seconds(response: httpx.Response) -> float | None:
    """Of `retry-after`, which is a count or a date (RFC 9110)."""
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
