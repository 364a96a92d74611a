"""The record of one turn in a journal, as its turn writes it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from .._types.errors import AgentKVError, ApprovalPending, ContextClosed
from .._types.log import log
from ..agents.tool_runner import described
from ..agents.turn_log import Decision, EarlierCall
from . import approvals, runs
from .records import text_of_record, text_of_request, text_of_start, text_of_state

if TYPE_CHECKING:
    import sqlite3

    from .._context.branch import Branch
    from .._context.core import ContextCore
    from .._types.run import CallRecord, CallRequest, Run
    from ..agents.turn_state import TurnStart, TurnState
    from ..workspaces.view import WorkspaceView
    from .journal import Journal
    from .runs import RecordedCall
    from .unfinished import UnfinishedRun


class JournalTurnLog:
    """Record of one turn. See `TurnLog`.

    Attributes:
        run_id: id of the turn.
    """

    def __init__(self, journal: Journal, core: ContextCore, run_id: str) -> None:
        self.run_id = run_id
        self._journal = journal
        self._core = core
        self._goes_on = False
        self._has_begun = False
        self._view: WorkspaceView | None = None
        self._earlier: dict[int, RecordedCall] = {}
        self._fork_of: tuple[str, int, int] | None = None  # a turn, and its messages and calls that this one has

    @property
    def is_durable(self) -> bool:
        """See TurnLog."""
        return True

    def fork(self, n_messages: int, n_calls: int) -> JournalTurnLog:
        """See TurnLog. Where it is resumed, it goes on behind the last of these messages."""
        fork = self._journal.turn_log(self._core)
        fork._fork_of = self.run_id, n_messages, n_calls
        return fork

    def go_on(self, earlier: Mapping[int, RecordedCall]) -> None:
        """Makes it the record of a turn that goes on; `earlier` are the calls that an earlier process recorded."""
        self._goes_on = True
        self._earlier = dict(earlier)

    def earlier(self, index: int, request: CallRequest) -> EarlierCall:
        """See TurnLog. A call that the model now makes otherwise is another one."""
        found = self._earlier.pop(index, None)
        if found is None:
            return EarlierCall()
        if text_of_request(found.request) != text_of_request(request):
            log.warning("a call ran before the process ended, and is made otherwise now", tool=found.request.name)
            return EarlierCall()
        return EarlierCall(found.record, found.started, found.decided, found.denied)

    async def began(self, branch: Branch, start: TurnStart) -> None:
        """See TurnLog. A turn that goes on has begun."""
        self._journal.at_work[self.run_id] = self
        self._has_begun, self._view = True, branch.workspace
        if self._goes_on:
            return
        parent, _, _ = self.run_id.rpartition("-")  # the id of a call's turn is the call's key
        text = text_of_start(start)

        def enter(connection: sqlite3.Connection, key: str, state: int) -> None:
            if self._fork_of is None:
                runs.begin_run(connection, self.run_id, parent or None, key, text, state)
            else:
                runs.copy_run(connection, self.run_id, key, *self._fork_of)
                self._journal.files.note(connection, self.run_id, branch.workspace)

        await self._journal.write_branch(branch, enter, present=True)

    async def wrote(self, branch: Branch, state: TurnState) -> None:
        """See TurnLog."""
        text = text_of_state(state)

        def enter(connection: sqlite3.Connection, key: str, row: int) -> None:
            runs.add_message(connection, self.run_id, len(state.messages), row, text)

        await self._journal.write_branch(branch, enter, present=False)

    async def asked(self, index: int, request: CallRequest) -> Decision | None:
        """See TurnLog."""
        text = text_of_request(request)
        return await self._journal.write(
            self._core, lambda connection: approvals.ask(connection, self.run_id, index, text)
        )

    async def answered(self, index: int) -> Decision:
        """See TurnLog."""
        return await self._journal.answered(self._core, self.run_id, index)

    async def decided(self, index: int, request: CallRequest, decision: Decision) -> Decision:
        """See TurnLog."""
        text = text_of_request(request)
        return await self._journal.write(
            self._core, lambda connection: approvals.decide(connection, self.run_id, index, text, decision)
        )

    async def starts(self, index: int, request: CallRequest) -> None:
        """See TurnLog."""
        await self._note(index, request, started=time.time())

    async def ended(self, index: int, request: CallRequest, record: CallRecord) -> None:
        """See TurnLog."""
        text, done, view = text_of_request(request), text_of_record(record), self._view

        def enter(connection: sqlite3.Connection) -> None:
            runs.note_call(connection, self.run_id, index, text, ended=time.time(), record=done)
            self._journal.files.note(connection, self.run_id, view)

        await self._journal.write(self._core, enter)

    async def finished(self, branch: Branch, run: Run[Any]) -> None:
        """See TurnLog."""

        def enter(connection: sqlite3.Connection, key: str, state: int) -> None:
            runs.end_run(connection, self.run_id, "finished", run.text)

        await self._journal.write_branch(branch, enter, present=True)
        self._journal.at_work.pop(self.run_id, None)

    async def gave_up(self, branch: Branch, error: BaseException, kept: bool) -> None:
        """See TurnLog. A turn that ends with its Context or its process, or waits for an approval, is left as it is. A
        failure to write is logged: the turn has an error already."""
        self._journal.at_work.pop(self.run_id, None)
        if isinstance(error, ContextClosed | KeyboardInterrupt | SystemExit):
            return
        if isinstance(error, ApprovalPending) and error.is_of(self.run_id):
            return
        status, why = "failed" if isinstance(error, Exception) else "cancelled", described(error)

        def end(connection: sqlite3.Connection) -> None:
            runs.end_run(connection, self.run_id, status, why)

        try:
            if self._has_begun and kept and not branch.closed:
                await self._journal.write_branch(branch, lambda connection, key, state: end(connection), present=True)
            else:  # the branch is as it was
                await self._journal.write(self._core, end)
        except AgentKVError as failure:
            self._journal.owe(end)
            log.warning("the end of a turn could not be recorded yet", run=self.run_id, why=str(failure))

    def of_call(self, call_key: str, core: ContextCore) -> JournalTurnLog:
        """See TurnLog."""
        return JournalTurnLog(self._journal, core, call_key)

    async def left_by_call(self, call_key: str, attempt: int, core: ContextCore) -> UnfinishedRun | None:
        """See TurnLog."""
        return await self._journal.left_by_call(core, call_key, attempt)

    async def _note(self, index: int, request: CallRequest, **values: object) -> None:
        text = text_of_request(request)
        await self._journal.write(
            self._core, lambda connection: runs.note_call(connection, self.run_id, index, text, **values)
        )
