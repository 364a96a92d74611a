"""Exclusive use of a branch by one turn: methods on other handles raise BranchBusy."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass, replace
from types import TracebackType
from typing import TYPE_CHECKING

import anyio

from .._engine.commands import EngineCall
from .._types.errors import BranchClosed, ContextClosed, WorkspaceError
from .._types.log import log
from .files import checkpoint, go_back

if TYPE_CHECKING:
    from .._engine.interface import StepEngine
    from .._state.branch_state import Lease
    from ..workspaces.version import Version
    from .handle import BranchHandle


acting_lease: ContextVar[Lease | None] = ContextVar("acting_lease", default=None)
"""Lease that an overflow policy acts for while it runs: methods of the branch itself work then."""


@dataclass(frozen=True, slots=True)
class EarlierWork:
    """Work of a block that its branch holds before the block is entered, as of a turn that another process began.

    Attributes:
        start: number of tokens from before the work that are still in the branch.
        n_messages_dropped: number of messages from before the work that were dropped to make room.
        before: a branch as it was before the work, which the lease closes; None where the first `start` tokens are all.
        files: the version of the branch's files before the work; None without a workspace.
    """

    start: int
    n_messages_dropped: int = 0
    before: BranchHandle | None = None
    files: Version | None = None


class TurnLease:
    """Takes a branch for the length of an `async with` block, which is a transaction.

    The block gets a handle of the branch, which alone may change it: tasks and tools that the block starts need that
    handle, too. If the block raises anything, cancellation included, the branch is rolled back to where it was; with
    `keep` it stays as the block left it.

    Attributes:
        keep: whether the branch stays as a block leaves it that raises.
        start: number of tokens from before the block that are still in the branch.
        n_messages_dropped: number of messages from before the block that were dropped to make room.
        files: the version of the branch's files before the block; None without a workspace.

    Raises BranchBusy if the branch runs something, or has a lease.
    """

    def __init__(self, handle: BranchHandle, *, keep: bool = False, earlier: EarlierWork | None = None) -> None:
        self._handle = handle
        self._loop = handle.loop
        self._state = handle.state
        self.keep = keep
        self._earlier = earlier
        self._length = 0
        self.start = 0
        self.n_messages_dropped = 0
        self._conversation = self._state.conversation
        self.files: Version | None = None
        self._copy: int | None = None  # a copy with the tokens that a rewrite removed

    async def __aenter__(self) -> BranchHandle:
        id = self._handle.id
        await self._handle.ready()
        self._state.lease = self
        try:
            # All earlier commands are applied after this, and it raises BranchBusy if something still runs: a branch
            # that adopts itself changes nothing.
            await self._loop.call(lambda engine: engine.adopt(id, id))
            self.files = await checkpoint(self._handle)
        except BaseException:
            self._state.lease = None
            raise
        self._length = self.start = len(self._state)
        self._conversation = self._state.conversation
        if self._earlier is not None:
            self._take_over(self._earlier)
        return replace(self._handle, lease=self)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if kind is not None and not self.keep:
                await self._roll_back(waits=kind is not GeneratorExit)
                await self._take_files_back(waits=kind is not GeneratorExit)
        finally:
            self._state.lease = None
            self._state.touch()  # its task may be about to close it
            if self._copy is not None:
                self._loop.close(self._copy)

    def _take_over(self, earlier: EarlierWork) -> None:
        self._length = self.start = earlier.start
        self.n_messages_dropped = earlier.n_messages_dropped
        self.files = earlier.files or self.files
        if earlier.before is None:
            self._conversation = self._conversation.cut(earlier.start)
            return
        before = earlier.before
        self._length, self._conversation, self._copy = len(before.state), before.state.conversation, before.id
        before.record.close()  # closed by this lease in the engine

    def take_over_copy(self, kept: int, copy: int) -> bool:
        """Called when the branch lost all but its first `kept` tokens; the branch `copy` is a copy with them. Takes
        that over and returns True if it is needed for a rollback."""
        takes = self.needs_copy(kept)
        self.start = min(self.start, kept)
        if takes:
            self._copy = copy
        return takes

    def needs_copy(self, kept: int) -> bool:
        """Returns whether to copy the branch before it loses all but its first `kept` tokens."""
        return kept < self.start and self._copy is None

    def note_room_made(self, tokens: int, messages: int, copy: int | None) -> None:
        """Called when tokens and messages from before the block were dropped: `tokens` is the change in length,
        `messages` the number dropped; `copy` is the copy, if any."""
        self.start += tokens
        self.n_messages_dropped += messages
        if copy is not None:
            self._copy = copy

    async def _roll_back(self, *, waits: bool) -> None:
        rollback = EngineCall(self._restore, on_result=lambda _: self._state.set_conversation(self._conversation))
        try:
            self._loop.submit(rollback)
            if waits:  # a coroutine that is torn down can await nothing
                with anyio.CancelScope(shield=True):
                    await self._loop.wait_shielded(rollback.settled)
                rollback.result()
        except (BranchClosed, ContextClosed):
            pass  # nothing is left to go back on

    async def _take_files_back(self, *, waits: bool) -> None:
        view = self._handle.record.view
        if view is None or view.closed or self.files is None:
            return
        try:
            if waits:
                with anyio.CancelScope(shield=True):
                    await go_back(self._handle, self.files)
            else:
                view.go_back(self.files, len(self._state))
        except (
            WorkspaceError,
            BranchClosed,
        ) as error:  # the turn has an error already; the next use of the files tries again
            log.warning("files could not be taken back yet", branch=self._handle.id, why=str(error))

    def _restore(self, engine: StepEngine) -> None:
        if self._copy is not None:
            engine.adopt(self._handle.id, self._copy)
        engine.rollback(self._handle.id, self._length)
