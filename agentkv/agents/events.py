"""Events of a turn, as `agent.stream` yields them: `kv.events`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeAlias

import anyio
from agentkv_runtime.formats.parsed import ReasoningDelta, TextDelta

from .._types.errors import InvalidInput
from .._types.run import CallRecord, CallRequest, Run
from .._types.show import preview, spellable

__all__ = [
    "ApprovalAsked",
    "CallFinished",
    "CallStarted",
    "Event",
    "Finished",
    "ReasoningDelta",
    "Retried",
    "RolledBack",
    "Steered",
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
    """A retry: of a call, after an exception or because it raised kv.Retry, or of the turn's output.

    Attributes:
        what: the name of the tool, or "output".
        why: reason of the failure.
        attempt: number of the attempt that failed, 1 for the first.
    """

    what: str
    why: str
    attempt: int


@dataclass(frozen=True, slots=True)
class RolledBack:
    """A rollback of the branch: to the start of a turn that failed, to before an output that was refused, or to the
    last whole sentence of a message that words came into at once.

    Attributes:
        length: tokens of the branch after the rollback.
        why: reason of the rollback.
    """

    length: int
    why: str


@dataclass(frozen=True, slots=True)
class Steered:
    """Words of `steer` are on the branch, as a user's message.

    Attributes:
        text: the words.
        at_once: whether they were to enter at once.
        kept: text of the message under way that stays before them; "" where they entered between messages.
    """

    text: str
    at_once: bool
    kept: str = ""


@dataclass(slots=True, eq=False)
class ApprovalAsked:
    """A call waits for a person's decision: `approve()` or `deny(why)`, the first of which counts.

    A reader that goes on to the next event without an answer denies the call, unless it called `later()`.

    Attributes:
        call: the call that would run.
    """

    call: CallRequest
    _denied: str | None = field(default=None, init=False, repr=False)
    _answered: anyio.Event = field(default_factory=anyio.Event, init=False, repr=False)
    _later: bool = field(default=False, init=False, repr=False)

    def approve(self) -> None:
        """Allows the call to run."""
        self._answered.set()

    def deny(self, why: str | None = None) -> None:
        """Forbids the call; the model reads why. Raises InvalidInput for a `why` that is no text."""
        if why is not None and not isinstance(why, str):
            raise InvalidInput(f"why is {preview(why)}, but it must be a str that says why the call is denied")
        if not self._answered.is_set():
            said = spellable(why or "")
            self._denied = said if said.strip() else "it was not approved"
            self._answered.set()

    def later(self) -> None:
        """Lets the call wait for an answer that comes while other events are read, or from another task."""
        self._later = True

    def passed_on(self) -> None:
        """Denies the call when its reader goes on to the next event, unless `later` was called."""
        if not self._later:
            self.deny()

    async def answer(self) -> str | None:
        """Waits for the decision. Returns None for an approval, else the reason of the denial."""
        await self._answered.wait()
        return self._denied


@dataclass(frozen=True, slots=True)
class Finished:
    """The last event: the turn is done."""

    run: Run[Any]


Event: TypeAlias = (
    TextDelta | ReasoningDelta | CallStarted | CallFinished | Retried | RolledBack | Steered | ApprovalAsked | Finished
)
