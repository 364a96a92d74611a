"""A turn that an earlier process left unfinished."""

from __future__ import annotations

from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from .._context.files import take_files
from .._context.handle import handle_of
from .._types.errors import InvalidInput
from .._types.show import preview
from ..agents.agent import Agent
from ..agents.approval import approver_of
from ..agents.resuming import TakenUp, check_tools, recorded_output, resume_turn, stream_resumed
from ..agents.tool_runner import EarlierFailure
from ..agents.turn_state import RecordedTurn
from . import runs
from .turns import JournalTurnLog

if TYPE_CHECKING:
    from .._context.branch import Branch
    from .._context.core import ContextCore
    from .._types.checks import Prompt
    from .._types.run import Run
    from ..agents.approval import Approve
    from ..agents.stream import AgentStream
    from ..agents.tool_runner import Ask
    from .files import SavedFiles
    from .journal import Journal
    from .runs import RecordedCall, RunInfo

Deps = TypeVar("Deps")
Out = TypeVar("Out")


class UnfinishedRun:
    """A turn that a process left, by `Journal.unfinished`. It goes on by `resume`, once.

    Attributes:
        id: identifier of the turn, the same as in `agentkv runs`.
    """

    def __init__(self, journal: Journal, core: ContextCore, info: RunInfo) -> None:
        """Private: use `Journal.unfinished`."""
        self.id = info.id
        self._journal = journal
        self._core = core
        self._info = info

    def __repr__(self) -> str:
        return f"<UnfinishedRun {self.id} of {self.branch!r}: {self.rounds} rounds, {len(self.calls)} calls>"

    @property
    def branch(self) -> str:
        """Name of its branch as `Journal.track` has it; without one, an identifier."""
        return self._info.branch

    @property
    def prompt(self) -> Prompt | None:
        """The question; None where its branch held that."""
        return self._info.start.prompt

    @property
    def instructions(self) -> str:
        """Instructions of its agent."""
        return self._info.start.instructions

    @property
    def tools(self) -> list[str]:
        """Names of the tools of its agent."""
        return list(self._info.start.tools)

    @property
    def began(self) -> float:
        """Unix time of its beginning, in seconds."""
        return self._info.began

    @property
    def rounds(self) -> int:
        """Number of its complete messages with calls."""
        return self._info.rounds

    @property
    def calls(self) -> list[RecordedCall]:
        """Its calls so far, in the order of the model."""
        return list(self._info.calls.values())

    async def resume(self, agent: Agent[Deps, Out], *, deps: Any = None, approve: Approve | None = None) -> Run[Out]:
        """Goes on with the turn from its last complete step, to its end. The record of it is that of the whole turn.

        Calls that ended are not made again. A call that had started is made again if its tool is `idempotent`, else the
        model reads that its outcome is not known. A message under way is written again: with the same model and
        sampling seed, the same one. Approvals that were given count.

        Args:
            agent: the agent of the turn, or one with the same tools. Its limits apply to the whole turn, but for
                `max_seconds`, which counts anew.
            deps: see `Agent.run`.
            approve: see `Agent.run`.

        Raises:
            InvalidInput: the agent lacks tools that the turn has called, or the turn was taken up already.
            JournalError: the journal cannot be read or written.
            AgentKVError: as `Agent.run` does; also ContextFull, while the branch is restored.
        """
        ask = approver_of(approve)
        taken = await self._taken_up(agent)
        async with taken.closed_after():
            return await resume_turn(agent, taken, deps, ask)

    def stream(self, agent: Agent[Deps, Out], *, deps: Any = None, approve: Approve | None = None) -> AgentStream[Out]:
        """Goes on with the turn as `resume` does, and yields its events, as `Agent.stream` does."""
        return stream_resumed(agent, partial(self._taken_up, agent), deps, approve, self._info.start.keep)

    async def drop(self) -> None:
        """Gives the turn up; its branch is as it was before the turn. Raises JournalError."""
        await self._journal.drop(self.id)

    async def output_of(self, agent: Agent[Any, Out], deps: Any, ask: Ask, caller: Branch) -> Out:
        """Output of the turn, which a call on the branch `caller` began. Goes on with it, unless it is finished.
        What it changed in its files is brought into the caller's.

        Raises EarlierFailure for one that failed, and as `resume`.
        """
        if self._info.status == "failed":
            raise EarlierFailure(self._info.answer or "")
        if self._info.status != "finished":
            taken = await self._taken_up(agent)
            async with taken.closed_after():
                output = (await resume_turn(agent, taken, deps, ask)).output
                await take_files(handle_of(caller), taken.branch.workspace)
                return output
        await self._journal.take_files_of_run(self._core, self.id, caller)
        calls = [call.record for call in self.calls if call.record is not None]
        has_tools = bool(self._info.start.tools)
        return recorded_output(agent, self._info.answer or "", calls, self._core.chat.format, has_tools)

    async def _taken_up(self, agent: Agent[Any, Any]) -> TakenUp:
        if not isinstance(agent, Agent):
            raise InvalidInput(f"agent is {preview(agent)}, but it must be an Agent")
        if self.id in self._journal.at_work:
            raise InvalidInput(f"run {self.id} goes on already; each is resumed once")
        self._journal.at_work[self.id] = log = JournalTurnLog(self._journal, self._core, self.id)
        try:
            await check_tools(agent, {call.request.name for call in self.calls if call.started or call.decided})
            return await self._restored(log)
        except BaseException:
            self._journal.at_work.pop(self.id, None)
            raise

    async def _restored(self, log: JournalTurnLog) -> TakenUp:
        left = await self._journal.write(self._core, partial(runs.left_run, run=self.id))
        log.go_on(left.info.calls)
        records = {number: call.record for number, call in left.info.calls.items() if call.record is not None}
        files = await self._journal.write(self._core, partial(self._journal.files.of_run, run=self.id))
        start, last = left.info.start, left.last
        async with AsyncExitStack() as made:  # closed again where the turn is not taken up

            async def restored(state: int, files: SavedFiles | None = None) -> Branch:
                branch = await self._journal.restore(self._core, left.branch, state, files=files, waits=True)
                return await made.enter_async_context(branch)

            if last is None:
                taken = TakenUp(RecordedTurn(start, None, records), await restored(left.base), log)
            else:
                room_was_made = last.turn_state.base < left.base_length
                before = await restored(left.base) if room_was_made else None
                branch = await restored(last.branch_state, files)
                version = await self._journal.version_in(self._core, branch, left.branch, left.base)
                taken = TakenUp(RecordedTurn(start, last.turn_state, records, before, version), branch, log)
            made.pop_all()
        return taken
