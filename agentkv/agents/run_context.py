"""What a tool may know of the turn that calls it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from .._context.branch import Branch
    from .._types.run import CallRecord, CallRequest
    from .agent import Agent
    from .events import ApprovalAsked

DepsT_co = TypeVar("DepsT_co", covariant=True)


@dataclass(frozen=True, slots=True)
class RunContext(Generic[DepsT_co]):
    """Given to a tool whose first parameter asks for one: `async def tool(ctx: kv.RunContext[Deps], city: str)`.

    Attributes:
        deps: what the turn was given as `deps`.
        branch: the branch of the turn. Its verbs raise BranchBusy while the turn runs; `fork` does not mind.
        agent: whose turn it is.
        call: the call: id, name, arguments; None for a hook.
        attempt: 1 for the first attempt at this call; `retries` count on.
        calls: of the turn, those that had ended before the message that is written now.
    """

    deps: DepsT_co
    branch: Branch
    agent: Agent[Any, Any]
    call: CallRequest | None = None
    attempt: int = 1
    calls: tuple[CallRecord, ...] = ()
    _asked_at: int = field(default=0, repr=False)  # length of the branch before the message that calls
    _ask: Callable[[ApprovalAsked], Awaitable[str | None]] | None = field(default=None, repr=False)  # a person
