"""Error responses, independent of the protocol: kind and status. Each protocol has its own shape for them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

from ..._types.errors import (
    BranchBusy,
    BranchClosed,
    ContextClosed,
    ContextFull,
    InvalidInput,
    InvalidRollback,
    OutOfMemory,
    OutputIncomplete,
    OutputInvalid,
    PositionsExhausted,
    StepFailed,
    TooManyBranches,
    wire_code,
)
from ..._types.log import log
from ..._types.show import preview

Kind = Literal[
    "invalid",
    "key",
    "denied",
    "missing",
    "method",
    "late",
    "conflict",
    "large",
    "media",
    "mismatch",
    "busy",
    "stopping",
    "failed",
]

_LONGEST = 1000  # characters of a message

STATUS: dict[Kind, int] = {
    "invalid": 400,
    "key": 401,
    "denied": 403,
    "missing": 404,
    "method": 405,
    "late": 408,
    "conflict": 409,
    "large": 413,
    "media": 415,
    "mismatch": 422,
    "busy": 429,
    "stopping": 503,
    "failed": 500,
}


@dataclass(eq=False)
class ApiError(Exception):
    """An error response to a request.

    Attributes:
        kind: kind of error, which decides on the status.
        message: the request's fault, the bound that it breaks, and the remedy.
        code: identifier for programs.
        param: the parameter at fault; None for none.
        headers: headers of the response.
    """

    kind: Kind
    message: str
    code: str | None = None
    param: str | None = None
    headers: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.message = _cut(self.message)  # names from clients, and grammars, have any length

    @property
    def named_message(self) -> str:
        """The message, with the parameter at fault: many clients show nothing else."""
        named = self.param is None or self.param in self.message
        return self.message if named else f"{self.param}: {self.message}"

    @property
    def status(self) -> int:
        """HTTP status."""
        return STATUS[self.kind]


def busy(message: str, seconds: int = 1) -> ApiError:
    """Error for an overloaded server; clients retry after `seconds`."""
    return ApiError("busy", message, "overloaded", headers={"retry-after": str(seconds)})


# Errors whose messages are passed on to clients. The first matching class counts.
_KINDS: tuple[tuple[type[Exception], Kind], ...] = (
    (PositionsExhausted, "invalid"),
    (InvalidRollback, "invalid"),
    (OutputInvalid, "invalid"),
    (OutputIncomplete, "invalid"),
    (InvalidInput, "invalid"),
    (ContextFull, "busy"),
    (OutOfMemory, "busy"),
    (TooManyBranches, "busy"),
    (BranchBusy, "conflict"),
    (BranchClosed, "missing"),
)


# Advice of the SDK to its users, and the advice for clients or operators of a server in its place.
ADVICE: tuple[tuple[str, str], ...] = (
    ("open the Context with a larger capacity", "start the server with a larger --capacity"),
    (
        "raise it, or open the model with less capacity",
        "start the server with a larger --max-memory, or give this model less capacity",
    ),
    ("open a larger cache", "start the server with a larger --capacity"),
    ("make an empty branch with `branch()`", "make an empty branch: leave the prompt out"),
    ("pass a string that spells the conversation out", "send a text that spells the conversation out"),
    ("encode other things with `ctx.tokenizer` first", "encode other things by /tokenize first"),
)


def to_api_error(error: Exception) -> ApiError:
    """Translates an exception for a client. Unexpected ones are logged and give only a general message, since theirs
    may name files of this machine."""
    match error:
        case ApiError():
            return error
        case ContextClosed():
            return ApiError("stopping", "the server is stopping", wire_code(ContextClosed))
        case TimeoutError():
            return ApiError("late", "the request took longer than it may; ask for less, or allow more", "timeout")
    for known, kind in _KINDS:
        if isinstance(error, known):
            headers = {"retry-after": "5"} if kind == "busy" else {}
            return ApiError(kind, advised(str(error)), wire_code(known), headers=headers)
    log.error("request failed", error=f"{type(error).__name__}: {error}", exc_info=error)
    if isinstance(error, StepFailed):
        return ApiError("failed", "the model failed; the server's log says more", wire_code(StepFailed))
    return ApiError("failed", "the server failed; its log says more", "internal_error")


def advised(message: str) -> str:
    """Replaces advice to users of the SDK by advice to clients of a server."""
    for ours, theirs in ADVICE:
        message = message.replace(ours, theirs)
    return message


@contextmanager
def error_param(param: str) -> Iterator[None]:
    """Attributes an ApiError of kind "invalid", or InvalidInput, raised in this block to that parameter."""
    try:
        yield
    except ApiError as known:
        if known.kind == "invalid" and known.param is None:
            known.param = param
        raise
    except InvalidInput as error:
        told = to_api_error(error)
        told.param = param
        raise told from error


def check_ids(tokens: Sequence[int], vocab_size: int, param: str) -> None:
    """Raises ApiError for a token id outside the vocabulary."""
    wrong = next((index for index, token in enumerate(tokens) if not 0 <= token < vocab_size), None)
    if wrong is not None:
        which = f"{preview(tokens[wrong]).removeprefix('int ')} at index {wrong}"
        told = f"token {which} is not in the vocabulary; ids are from 0 to {vocab_size - 1}"
        raise ApiError("invalid", told, "invalid_value", param)


def _cut(text: str) -> str:
    """Shortens a message to a readable length."""
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} ..."
