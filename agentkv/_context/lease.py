"""A branch in the hands of one turn: its verbs go through here, while everybody else's raise BranchBusy."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING

import anyio

from .._engine.commands import Call
from .._types.errors import BranchClosed, ContextClosed

if TYPE_CHECKING:
    from .._engine.interface import StepEngine
    from .._state.branch_state import Lease
    from .handle import BranchHandle


acting_hold: ContextVar[Lease | None] = ContextVar("acting_hold", default=None)
"""The hold that an overflow policy acts for while it is asked: the branch itself takes its verbs then."""


class Hold:
    """Takes a branch for the length of an `async with` block, which is a transaction.

    The block gets a view of the branch, and it alone may change the branch: who holds a view passes, so tasks and
    tools that the block starts do not. Whatever the block raises, cancellation included, the branch goes back to where
    it was; with `keep` it stays as the block left it.

    Attributes:
        start: tokens of the branch that were there when the block began, as far as they still are.
        messages_gone: messages from before the block that made room since.

    Raises BranchBusy where the branch runs something, or is held.
    """

    def __init__(self, handle: BranchHandle, *, keep: bool = False) -> None:
        self._handle = handle
        self._loop = handle.loop
        self._history = handle.state
        self._keep = keep
        self._length = 0
        self.start = 0
        self.messages_gone = 0
        self._conversation = self._history.conversation
        self._before: int | None = None  # a branch that has what a rewrite took

    async def __aenter__(self) -> BranchHandle:
        id = self._handle.id
        await self._handle.ready()
        self._history.hold = self
        try:
            # All that was submitted before is done with after this, and BranchBusy says if something still runs: a
            # branch that adopts itself changes nothing.
            await self._loop.call(lambda engine: engine.adopt(id, id))
        except BaseException:
            self._history.hold = None
            raise
        self._length = self.start = len(self._history)
        self._conversation = self._history.conversation
        return replace(self._handle, lease=self)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if kind is not None and not self._keep:
                await self._go_back(waits=kind is not GeneratorExit)
        finally:
            self._history.hold = None
            if self._before is not None:
                self._loop.close(self._before)

    def rewritten(self, kept: int, before: int) -> bool:
        """The branch lost all but its first `kept` tokens, and the branch `before` has them. Takes that over, if what
        was lost is needed to go back."""
        takes = self.needs(kept)
        self.start = min(self.start, kept)
        if takes:
            self._before = before
        return takes

    def needs(self, kept: int) -> bool:
        """Is a copy to be taken of the branch before it loses all but its first `kept` tokens?"""
        return kept < self.start and self._before is None

    def moved(self, tokens: int, messages: int, before: int | None) -> None:
        """Tokens from before the block gave way to so many more, messages among them; `before` is the copy, if any."""
        self.start += tokens
        self.messages_gone += messages
        if before is not None:
            self._before = before

    async def _go_back(self, *, waits: bool) -> None:
        back = Call(self._back, told=lambda _: self._history.converse(self._conversation))
        try:
            self._loop.submit(back)
            if waits:  # a coroutine that is torn down can await nothing
                with anyio.CancelScope(shield=True):
                    await self._loop.until(back.settled)
                back.result()
        except (BranchClosed, ContextClosed):
            pass  # nothing is left to go back on

    def _back(self, engine: StepEngine) -> None:
        if self._before is not None:
            engine.adopt(self._handle.id, self._before)
        engine.rollback(self._handle.id, self._length)
