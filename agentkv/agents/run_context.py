"""Context of the turn that a tool receives with a call."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from .._types.errors import InvalidInput

if TYPE_CHECKING:
    from pathlib import Path

    from .._context.branch import Branch
    from .._types.run import CallRecord, CallRequest
    from .agent import Agent
    from .events import ApprovalAsked
    from .turn_log import TurnLog

DepsT_co = TypeVar("DepsT_co", covariant=True)


@dataclass(frozen=True, slots=True)
class RunContext(Generic[DepsT_co]):
    """Context of a call, for a tool whose first parameter has this type: `async def f(ctx: kv.RunContext[Deps], ...)`.

    Attributes:
        deps: the `deps` of the turn.
        branch: the branch of the turn. Its verbs raise BranchBusy while the turn runs, except `fork`.
        agent: the agent that takes the turn.
        call: the call: id, name, arguments; None for a hook.
        attempt: number of this attempt at the call, from 1; `retries` count on.
        call_key: identifier of the call that no other call of any turn has. It stays the same in all attempts, and in
            a process that resumes the turn: the idempotency key for services that take one.
        calls: records of the calls that ended before the current message of the turn.
    """

    deps: DepsT_co
    branch: Branch
    agent: Agent[Any, Any]
    call: CallRequest | None = None
    attempt: int = 1
    call_key: str = ""
    calls: tuple[CallRecord, ...] = ()
    _asked_at: int = field(default=0, repr=False)  # length of the branch before the message that calls
    _log: TurnLog | None = field(default=None, repr=False)  # of the turn; None for a hook
    _ask: Callable[[ApprovalAsked], Awaitable[str | None]] | None = field(default=None, repr=False)  # a person

    @property
    def workspace(self) -> Path:
        """The folder with the files of the branch; its own copy of the workspace's folder.

        Raises:
            InvalidInput: the branch was made without a workspace.
            WorkspaceError: the files cannot be written.
        """
        view = self.branch.workspace
        if view is None:
            raise InvalidInput(
                "the branch has no workspace; make it with one: `ctx.branch(..., workspace=kv.Workspace(folder))`, or "
                "`agent.trunk(ctx, workspace=...)`"
            )
        return view.path
