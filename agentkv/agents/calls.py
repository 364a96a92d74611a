"""A call of a tool: as the model wrote it, and what became of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

CallStatus = Literal["done", "retry", "failed", "timeout", "invalid", "denied", "repeated", "cancelled"]


@dataclass(frozen=True, slots=True)
class CallRequest:
    """A call, as the model wrote it.

    Attributes:
        id: names the call within its turn.
        name: of the tool.
        arguments: as parsed, before the tool's own checks.
        error: why it cannot run, where it is no complete call; None otherwise.
        rescued: the spelling it was written in, where that is not the format's: "json", "python" or "tag".
    """

    id: str
    name: str
    arguments: Mapping[str, Any]
    error: str | None = None
    rescued: str | None = None


@dataclass(frozen=True, slots=True)
class CallRecord:
    """A call and what became of it.

    Attributes:
        id: names the call within its turn.
        name: of the tool.
        arguments: as the model wrote them.
        result: what the tool returned; None where it did not.
        error: what the model reads instead of a result; None where there is one.
        seconds: from its start to its end, waits for approval and other attempts included.
        status: "done", "retry" (the tool raised kv.Retry), "failed" (another exception), "timeout", "invalid" (no such
            tool, one that may not be called now, or arguments that it does not take), "denied", "repeated" (not run:
            the turn had made the same call, and nothing else since), or "cancelled" (begun, and ended with its turn).
        content: what the model reads.
        attempts: how often the function was called; 0 where it never ran.
        rescued: as of the request.
    """

    id: str
    name: str
    arguments: Mapping[str, Any]
    result: Any
    error: str | None
    seconds: float
    status: CallStatus
    content: str
    attempts: int
    rescued: str | None = None

    @property
    def ran(self) -> bool:
        """Was the function called, so that it may have had effects?"""
        return self.attempts > 0
