"""Extends a branch by messages: in place if they continue its tokens, else on a draft branch that it adopts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from .._chat.tool_results import check_answered
from .._engine.commands import Job, Worker, check_finished
from .._types.errors import ContextFull, PositionsExhausted
from .adapters import keep_adapter
from .overflow import OverflowHandler

if TYPE_CHECKING:
    from .._chat.conversation import Conversation
    from .._chat.rerender import PromptUpdate
    from .._engine.interface import FinishedJob, StepEngine
    from .._engine.loop import StepLoop
    from .._state.branch_state import BranchState
    from .branch import Branch


@dataclass(frozen=True, slots=True)
class Extended:
    """Result of `Branch.extend`: the change of the branch's tokens.

    Attributes:
        kept: number of tokens that stayed, at the front.
        added: number of tokens added after those.
        rewritten: number of tokens removed because the chat template renders the conversation differently now, as
            without the reasoning of earlier turns. 0 if the branch only grew.
    """

    kept: int
    added: int
    rewritten: int


class BranchChanged(Exception):
    """Another task changed the branch since the update for it was made."""


class ExtendJob(Job[None]):
    """Extends a branch by a rendered conversation, if the branch is unchanged since the rendering."""

    __slots__ = ("_check", "_conversation", "_state")

    def __init__(
        self, branch: int, state: BranchState, update: PromptUpdate, check: Callable[[StepEngine], None]
    ) -> None:
        super().__init__(lambda engine: engine.extend(branch, update.added), self._end)
        self._check = check
        self._state = state
        self._conversation = update.conversation

    def apply(self, worker: Worker) -> None:
        self._check(worker.engine)
        super().apply(worker)
        worker.report(self._begin)

    def _begin(self) -> None:
        self._state.pending_conversation = self._conversation

    def _end(self, finished: FinishedJob) -> None:
        self._state.pending_conversation = None
        check_finished(finished)
        assert self._conversation is not None
        self._state.set_conversation(self._conversation)


async def extend_by(branch: Branch, make: Callable[[], Awaitable[PromptUpdate]]) -> Extended:
    """Extends a branch by an update that `make` renders from its history. All or nothing. Raises as `make` and the
    engine do."""
    handle, room = branch._handle, None
    while True:
        await handle.ready()
        update = await make()
        await handle.ready()
        try:
            return await ExtendOperation(handle.loop, handle.id, handle.state, update).run()
        except BranchChanged:
            pass  # render again
        except (ContextFull, PositionsExhausted):
            room = room or OverflowHandler(branch, len(update.added))
            if not await room.make():
                raise


async def open_turn(branch: Branch) -> None:
    """Prepares a branch for generation: opens the assistant's turn after messages that do not ask for a reply (a
    system's, say), or continues its own last message. Raises as `Branch.extend`, and InvalidInput if calls of it lack
    results."""
    handle = branch._handle
    state = handle.state
    if state.conversation.awaits_reply_at(len(state)):
        check_answered([entry.message for entry in state.conversation.entries])
    while state.conversation.needs_turn_at(len(state)):
        await extend_by(branch, partial(handle.core.chat.encoder.turn, state))


class ExtendOperation:
    """Applies one update to one branch."""

    def __init__(self, loop: StepLoop, branch: int, state: BranchState, update: PromptUpdate) -> None:
        self._loop = loop
        self._branch = branch
        self._state = state
        self._update = update
        self._tip = state.tip

    async def run(self) -> Extended:
        """All or nothing. Raises BranchChanged if the branch was changed meanwhile."""
        with self._state.running():
            return await self._run()

    async def _run(self) -> Extended:
        update, length = self._update, self._tip[0]
        conversation = update.conversation
        if conversation is None:
            job = Job(lambda engine: engine.extend(self._branch, update.added), check_finished)
            await self._loop.run(job)
        elif not update.added:  # the chat template writes it with the first question
            await self._loop.call(self._check, on_result=lambda _: self._state.set_conversation(conversation))
        elif update.kept == length:
            await self._loop.run(ExtendJob(self._branch, self._state, update, self._check))
        else:
            with self._state.in_use():
                await self._rewrite(conversation)
        return Extended(update.kept, len(update.added), length - update.kept)

    def _check(self, engine: StepEngine) -> None:
        if engine.tip(self._branch) != self._tip:
            raise BranchChanged

    async def _rewrite(self, conversation: Conversation) -> None:
        """Builds the new history on a draft branch, then adopts it; the branch is unchanged until then."""
        drafts: list[int] = []  # by the thread
        rewritten: list[tuple[int, int]] = []  # the branch's end then

        def draft(engine: StepEngine) -> int:
            self._check(engine)
            branch = engine.copy(self._branch)
            try:
                engine.rollback(branch, self._update.kept, keep_forgotten=True)
                keep_adapter(engine, branch, self._state.adapter)
                job = engine.extend(branch, self._update.added)
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
                    worker.report(partial(self._state.set_conversation, conversation_before))
            finally:
                worker.close(before)

        conversation_before = self._state.conversation
        await self._loop.run(Job(draft, check_finished, undo=lambda worker: worker.close(drafts[0])))
        try:
            before = await self._loop.call(adopt, undo, on_result=lambda _: self._state.set_conversation(conversation))
        finally:
            self._loop.close(drafts[0])
        lease = self._state.lease
        if lease is None or not lease.take_over_copy(self._update.kept, before):
            self._loop.close(before)
