"""Durable record of a turn, as the turn writes it, and what it says of calls that an earlier process began."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, cast

import anyio

if TYPE_CHECKING:
    from .._context.branch import Branch
    from .._context.core import ContextCore
    from .._types.run import CallRecord, CallRequest, Run
    from .turn_state import TurnStart, TurnState


@dataclass(frozen=True, slots=True)
class EarlierCall:
    """What an earlier process recorded of a call.

    Attributes:
        record: its outcome; None where it did not end.
        started: whether its function was about to be called.
        decided: whether a person had decided on it.
        denied: reason of a denial; None for an approval.
        outcome: waits for the outcome of a call that another turn makes; None where that was cancelled.
    """

    record: CallRecord | None = None
    started: bool = False
    decided: bool = False
    denied: str | None = None
    outcome: Callable[[], Awaitable[CallRecord | None]] | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """What a person decided on a call.

    Attributes:
        denied: reason of a denial; None for an approval.
    """

    denied: str | None


class TurnLog(Protocol):
    """Record of one turn. Each method returns once its entry is durable; what it records happens afterwards.

    `index` counts the calls of the turn, from 0.
    """

    @property
    def is_durable(self) -> bool:
        """Whether the turn outlives its process."""
        ...

    @property
    def run_id(self) -> str:
        """Identifier of the turn, the same in a process that resumes it."""
        ...

    def fork(self, n_messages: int, n_calls: int) -> TurnLog:
        """The record of a fork of the turn, which begins with the first messages and calls of this one."""
        ...

    def earlier(self, index: int, request: CallRequest) -> EarlierCall:
        """What an earlier process recorded of this call."""
        ...

    async def began(self, branch: Branch, start: TurnStart) -> None:
        """The turn begins on a branch that it leases."""

    async def wrote(self, branch: Branch, state: TurnState) -> None:
        """A message with calls is complete, or words have entered; they are on the branch."""

    async def asked(self, index: int, request: CallRequest) -> Decision | None:
        """A person is about to be asked for approval of a call. Returns what somebody has decided already."""

    async def answered(self, index: int) -> Decision:
        """Waits until somebody decides on the call elsewhere."""
        ...

    async def decided(self, index: int, request: CallRequest, decision: Decision) -> Decision:
        """A person approved a call, or denied it. Returns the decision that counts: the first one."""
        ...

    async def starts(self, index: int, request: CallRequest) -> None:
        """The function of a call is about to be called."""

    async def ended(self, index: int, request: CallRequest, record: CallRecord) -> None:
        """A call has ended; the model reads its result afterwards."""

    async def finished(self, branch: Branch, run: Run[Any]) -> None:
        """The turn is done; its answer is on the branch."""

    async def gave_up(self, branch: Branch, error: BaseException, kept: bool) -> None:
        """The turn ended early; the branch is as it stays, with its work where that is `kept`."""

    def of_call(self, call_key: str, core: ContextCore) -> TurnLog:
        """The record of a turn that a call of this one begins, on a branch of that Context."""
        ...

    async def left_by_call(self, call_key: str, attempt: int, core: ContextCore) -> Any:
        """The turn that this attempt at a call, from 1, began in an earlier process (`kv.UnfinishedRun`), and that goes
        on in that Context; None for none."""


@dataclass(frozen=True, slots=True)
class NoTurnLog:
    """Record of a turn without a journal: it keeps nothing."""

    run_id: str = field(default_factory=lambda: uuid.uuid4().hex)

    @property
    def is_durable(self) -> bool:
        """See TurnLog."""
        return False

    def fork(self, n_messages: int, n_calls: int) -> TurnLog:
        """See TurnLog."""
        return NoTurnLog()

    def earlier(self, index: int, request: CallRequest) -> EarlierCall:
        """See TurnLog."""
        return EarlierCall()

    async def began(self, branch: Branch, start: TurnStart) -> None:
        """See TurnLog."""

    async def wrote(self, branch: Branch, state: TurnState) -> None:
        """See TurnLog."""

    async def asked(self, index: int, request: CallRequest) -> Decision | None:
        """See TurnLog."""
        return None

    async def answered(self, index: int) -> Decision:
        """See TurnLog. Nobody can."""
        await anyio.sleep_forever()
        raise AssertionError("it sleeps for ever")

    async def decided(self, index: int, request: CallRequest, decision: Decision) -> Decision:
        """See TurnLog."""
        return decision

    async def starts(self, index: int, request: CallRequest) -> None:
        """See TurnLog."""

    async def ended(self, index: int, request: CallRequest, record: CallRecord) -> None:
        """See TurnLog."""

    async def finished(self, branch: Branch, run: Run[Any]) -> None:
        """See TurnLog."""

    async def gave_up(self, branch: Branch, error: BaseException, kept: bool) -> None:
        """See TurnLog."""

    def of_call(self, call_key: str, core: ContextCore) -> NoTurnLog:
        """See TurnLog. What nobody resumes begins nothing that is to be resumed."""
        return NoTurnLog(call_key)

    async def left_by_call(self, call_key: str, attempt: int, core: ContextCore) -> None:
        """See TurnLog."""


def new_turn_log(core: ContextCore) -> TurnLog:
    """The record of a new turn in a Context."""
    return NoTurnLog() if core.journal is None else cast(TurnLog, core.journal.turn_log(core))
