"""What happens in a turn, as `agent.stream` tells it: `kv.events`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeAlias

import anyio
from agentkv_runtime.formats.parsed import ReasoningDelta, TextDelta

from .._types.run import CallRecord, CallRequest, Run

__all__ = [
    "ApprovalAsked",
    "CallFinished",
    "CallStarted",
    "Event",
    "Finished",
    "ReasoningDelta",
    "Retried",
    "RolledBack",
    "TextDelta",
]


@dataclass(frozen=True, slots=True)
class CallStarted:
    """A tool's function begins; the model may still be writing its message."""

    call: CallRequest


@dataclass(frozen=True, slots=True)
class CallFinished:
    """A call has ended: with a result, or with an error that the model reads."""

    call: CallRecord


@dataclass(frozen=True, slots=True)
class Retried:
    """Something is tried again: a call, after an exception or because it raised kv.Retry, or the turn's output.

    Attributes:
        what: the name of the tool, or "output".
        why: what was wrong.
        attempt: of the attempt that failed, 1 for the first.
    """

    what: str
    why: str
    attempt: int


@dataclass(frozen=True, slots=True)
class RolledBack:
    """The branch went back: to where the turn began, because it failed, or to before an output that was refused.

    Attributes:
        length: tokens that the branch has now.
        why: what was wrong.
    """

    length: int
    why: str


@dataclass(slots=True, eq=False)
class ApprovalAsked:
    """A call waits for a person's decision: `approve()` or `deny(why)`, the first of which counts.

    A reader that goes on to the next event without an answer has denied the call, unless it said `later()`.

    Attributes:
        call: what would run.
    """

    call: CallRequest
    _denied: str | None = field(default=None, init=False, repr=False)
    _answered: anyio.Event = field(default_factory=anyio.Event, init=False, repr=False)
    _later: bool = field(default=False, init=False, repr=False)

    def approve(self) -> None:
        """The call may run."""
        self._answered.set()

    def deny(self, why: str | None = None) -> None:
        """The call must not run; the model reads why."""
        if not self._answered.is_set():
            self._denied = "it was not approved" if why is None else why
            self._answered.set()

    def later(self) -> None:
        """The answer comes while other events are read, or from another task. The call waits for it."""
        self._later = True

    def passed_on(self) -> None:
        """The reader went on to the next event."""
        if not self._later:
            self.deny()

    async def answer(self) -> str | None:
        """Waits for the decision: None, or why it was denied."""
        await self._answered.wait()
        return self._denied


@dataclass(frozen=True, slots=True)
class Finished:
    """The turn is done. The last event."""

    run: Run[Any]


Event: TypeAlias = (
    TextDelta | ReasoningDelta | CallStarted | CallFinished | Retried | RolledBack | ApprovalAsked | Finished
)
