"""Events of a turn, as `agent.stream` yields them: `kv.events`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import anyio
from agentkv_runtime.formats.parsed import ReasoningDelta, TextDelta

from .._types.errors import ApprovalPending, InvalidInput
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


MOST_OF_A_DENIAL = 16_384
"""Characters: the model has to read them, and an answer in a journal cannot be taken back."""


def checked_denial(why: str | None) -> str:
    """Reason of a denial as the model reads it. Raises InvalidInput for one that is no text, or too long."""
    if why is not None and not isinstance(why, str):
        raise InvalidInput(f"why is {preview(why)}, but it must be a str that says why the call is denied")
    if why is not None and len(why) > MOST_OF_A_DENIAL:
        raise InvalidInput(f"why has {len(why)} characters, but may have {MOST_OF_A_DENIAL}; say it in fewer words")
    said = spellable(why or "")
    return said if said.strip() else "it was not approved"


def pending(keys: Sequence[str]) -> ApprovalPending:
    """The error that leaves a turn to approvals with these keys."""
    these = "an approval" if len(keys) == 1 else "approvals"
    return ApprovalPending(
        f"the turn waits for {these}: {', '.join(keys)}; decide by Journal.answer, and resume the turn", keys
    )


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
        kept: text of the message under way that stays before them; "" where they entered between messages. A RolledBack
            before this event says that readers were told more of that message than stays.
    """

    text: str
    at_once: bool
    kept: str = ""


@dataclass(slots=True, eq=False)
class ApprovalAsked:
    """A call waits for a person's decision: `approve()` or `deny(why)`, the first of which counts. In a Context with a
    journal `Journal.answer` decides as well, from any process, and `leave()` ends the turn until it has.

    A reader that goes on to the next event without an answer denies the call, unless it called `later()`.

    Attributes:
        call: the call that would run.
        key: identifier of the approval, for `Journal.answer`; the same as the call's `RunContext.call_key`.
    """

    call: CallRequest
    key: str = ""
    _leavable: bool = field(default=False, repr=False, kw_only=True)
    _denied: str | None = field(default=None, init=False, repr=False)
    _answered: anyio.Event = field(default_factory=anyio.Event, init=False, repr=False)
    _later: bool = field(default=False, init=False, repr=False)
    _left: bool = field(default=False, init=False, repr=False)

    @property
    def answered(self) -> bool:
        """Whether there is an answer."""
        return self._answered.is_set()

    def approve(self) -> bool:
        """Allows the call to run. Returns False where there was an answer before."""
        return self.settle(None)

    def deny(self, why: str | None = None) -> bool:
        """Forbids the call; the model reads why. Returns False where there was an answer before.

        Raises InvalidInput for a `why` that is no text, or longer than 16,384 characters.
        """
        return self.settle(checked_denial(why))

    def leave(self) -> bool:
        """Leaves the turn unfinished in its journal: once its other calls have ended, it ends with ApprovalPending. It
        is resumed when `Journal.answer` has decided, or asks again. Returns False where there was an answer before.

        Raises InvalidInput for a turn without a journal, which goes on to wait for its answer.
        """
        if not self._leavable:
            raise InvalidInput(
                "the turn has no journal to be left in; open its Context with journal=, or answer by approve() or "
                "deny(why)"
            )
        return self.settle(None, left=True)

    def settle(self, denied: str | None, *, left: bool = False) -> bool:
        """Private: the first answer, None for an approval. Returns whether it is that."""
        if self._answered.is_set():
            return False
        self._denied, self._left = denied, left
        self._answered.set()
        return True

    def later(self) -> None:
        """Lets the call wait for an answer that comes while other events are read, or from another task."""
        self._later = True

    def passed_on(self) -> None:
        """Denies the call when its reader goes on to the next event, unless `later` was called."""
        if not self._later:
            self.deny()

    async def answer(self) -> str | None:
        """Waits for the decision. Returns None for an approval, else the reason of the denial.

        Raises ApprovalPending where the turn is left.
        """
        await self._answered.wait()
        if self._left:
            raise pending([self.key])
        return self._denied


@dataclass(frozen=True, slots=True)
class Finished:
    """The last event: the turn is done."""

    run: Run[Any]


Event: TypeAlias = (
    TextDelta | ReasoningDelta | CallStarted | CallFinished | Retried | RolledBack | Steered | ApprovalAsked | Finished
)
