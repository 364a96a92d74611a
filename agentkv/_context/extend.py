"""Extending a branch by messages: in place where they go on from its tokens, else on a draft that it adopts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from .._chat.tool_results import check_answered
from .._engine.commands import Job, Worker, check_finished
from .._types.errors import ContextFull, PositionsExhausted
from .overflow import RoomMaker

if TYPE_CHECKING:
    from .._chat.conversation import Conversation
    from .._chat.rerender import Continuation
    from .._engine.interface import Finished, StepEngine
    from .._engine.loop import StepLoop
    from .._state.branch_state import History
    from .branch import Branch


@dataclass(frozen=True, slots=True)
class Extended:
    """What `Branch.extend` did to a branch's tokens.

    Attributes:
        kept: so many of them stayed, at the front.
        added: so many were added behind those.
        rewritten: so many were forgotten, because the chat template spells the conversation otherwise now: it leaves
            out what the model thought in earlier turns, say. 0 where the branch only grew.
    """

    kept: int
    added: int
    rewritten: int


class Moved(Exception):
    """The branch is not any more what its continuation was made for: another task was at it."""


class ExtendJob(Job[None]):
    """Extends a branch by what comes of a conversation, if the branch still holds what it was made for."""

    __slots__ = ("_check", "_coming", "_history")

    def __init__(self, branch: int, history: History, made: Continuation, check: Callable[[StepEngine], None]) -> None:
        super().__init__(lambda engine: engine.extend(branch, made.added), self._end)
        self._check = check
        self._history = history
        self._coming = made.conversation

    def apply(self, worker: Worker) -> None:
        self._check(worker.engine)
        super().apply(worker)
        worker.report(self._begin)

    def _begin(self) -> None:
        self._history.coming = self._coming

    def _end(self, finished: Finished) -> None:
        self._history.coming = None
        check_finished(finished)
        assert self._coming is not None
        self._history.converse(self._coming)


async def extend_by(branch: Branch, make: Callable[[], Awaitable[Continuation]]) -> Extended:
    """Extends a branch by what is made of its history. All or nothing. Raises as `make` and the engine do."""
    handle, room = branch._handle, None
    while True:
        await handle.ready()
        made = await make()
        await handle.ready()
        try:
            return await Extending(handle.loop, handle.id, handle.state, made).run()
        except Moved:
            pass  # it is made anew
        except (ContextFull, PositionsExhausted):
            room = room or RoomMaker(branch, len(made.added))
            if not await room.make():
                raise


async def open_turn(branch: Branch) -> None:
    """Before the model speaks on a branch: behind messages whose last asks for nothing, a system's say, the assistant's
    turn is opened; within a message of its own it goes on. Raises as `Branch.extend` does, and InvalidInput where some
    of its calls wait for results."""
    handle = branch._handle
    history = handle.state
    if history.conversation.is_opened_at(len(history)):
        check_answered([entry.message for entry in history.conversation.entries])
    while history.conversation.awaits_turn(len(history)):
        await extend_by(branch, partial(handle.core.chat.encoding.turn, history))


class Extending:
    """One continuation of one branch."""

    def __init__(self, loop: StepLoop, branch: int, history: History, made: Continuation) -> None:
        self._loop = loop
        self._branch = branch
        self._history = history
        self._made = made
        self._before = history.end

    async def run(self) -> Extended:
        """All or nothing. Raises Moved where the branch was changed meanwhile."""
        made, length = self._made, self._before[0]
        conversation = made.conversation
        if conversation is None:
            job = Job(lambda engine: engine.extend(self._branch, made.added), check_finished)
            await self._loop.run(job)
        elif not made.added:  # the chat template writes it with the first question
            await self._loop.call(self._check, told=lambda _: self._history.converse(conversation))
        elif made.kept == length:
            await self._loop.run(ExtendJob(self._branch, self._history, made, self._check))
        else:
            await self._rewrite(conversation)
        return Extended(made.kept, len(made.added), length - made.kept)

    def _check(self, engine: StepEngine) -> None:
        if engine.tip(self._branch) != self._before:
            raise Moved

    async def _rewrite(self, conversation: Conversation) -> None:
        """The branch keeps what it has until the whole of it stands on a draft."""
        drafts: list[int] = []  # by the thread
        rewritten: list[tuple[int, int]] = []  # the branch's end then

        def draft(engine: StepEngine) -> int:
            self._check(engine)
            branch = engine.copy(self._branch)
            try:
                engine.rollback(branch, self._made.kept, keep_forgotten=True)
                job = engine.extend(branch, self._made.added)
            except Exception:
                engine.close(branch)
                raise
            drafts.append(branch)
            return job

        def adopt(engine: StepEngine) -> int:
            self._check(engine)
            before = engine.copy(self._branch)
            try:
                engine.adopt(self._branch, drafts[0])
            except Exception:
                engine.close(before)
                raise
            rewritten.append(engine.tip(self._branch))
            return before

        def undo(worker: Worker, before: int) -> None:
            try:  # the branch may be closed, or busy: then it went on, and stays
                if worker.engine.tip(self._branch) == rewritten[0]:
                    worker.engine.adopt(self._branch, before)
                    worker.report(partial(self._history.converse, held))
            finally:
                worker.close(before)

        held = self._history.conversation
        await self._loop.run(Job(draft, check_finished, undo=lambda worker: worker.close(drafts[0])))
        try:
            before = await self._loop.call(adopt, undo, told=lambda _: self._history.converse(conversation))
        finally:
            self._loop.close(drafts[0])
        hold = self._history.hold
        if hold is None or not hold.rewritten(self._made.kept, before):
            self._loop.close(before)
