"""Journal: a file in which agents' turns are recorded as they go, so that another process can go on with them."""

from __future__ import annotations

import os
import sqlite3
import threading
import uuid
import weakref
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import closing, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar, cast

import anyio
from anyio import to_thread

from .._context.branch import Branch
from .._context.context import Context
from .._context.files import closed_on_error, take_files
from .._context.handle import core_of, handle_of
from .._context.image import branch_from, image_of
from .._engine.loop import in_thread
from .._types.checks import A_FILE, checked_bool, checked_name, checked_path, checked_word
from .._types.errors import InvalidInput, JournalError
from .._types.show import preview
from ..agents.events import checked_denial
from . import runs
from .answers import AnswerWatch
from .approvals import WaitingApproval
from .files import FileTable, SavedFiles, entries_of, remove_unused_contents
from .lock import acquired_lock
from .reading import answer_approval, waiting_approvals
from .snapshots import SnapshotTable
from .states import StateTable
from .turns import JournalTurnLog
from .unfinished import UnfinishedRun
from .writer import JournalWriter, unreadable

if TYPE_CHECKING:
    from filelock import FileLock

    from .._context.core import ContextCore
    from .._context.handle import BranchRecord
    from .._context.overflow import Overflow
    from .._storage.layout import BranchImage
    from ..agents.turn_log import Decision
    from ..workspaces.version import Version
    from ..workspaces.view import WorkspaceView
    from .runs import RunInfo

T = TypeVar("T")
Sync = Literal["normal", "full"]

_OPEN: weakref.WeakValueDictionary[Path, Journal] = weakref.WeakValueDictionary()
"""Those that Contexts of this process have open, by their files."""


class Journal:
    """A durable record of agents' turns, in an SQLite database: `kv.Context.open(..., journal=kv.Journal("runs.db"))`.

    Every turn on a branch of the Context is recorded before it counts: its question, each message with calls once it is
    complete, each call before it starts and its result before the model reads it, approvals asked and given, adopted
    branches, the answer; with token ids. After the process ended, however it did, `unfinished` yields the turns that it
    left, and `UnfinishedRun.resume` goes on with them.

    One process at a time runs turns on a journal; others may read it (`agentkv runs`), and decide on calls that wait
    for an approval: `approvals` and `answer` need no Context. Contexts of one process share a journal that is given to
    all of them; another `Journal` of its path reads and writes it by them.

    Args:
        path: path of the database, made where it does not exist. Its folder must exist. It holds the conversations in
            plain text, readable by its owner.
        sync: "normal": an entry outlives the process, however that ends, but perhaps not a loss of power. "full": it is
            on the disk before anything goes on.

    Raises:
        InvalidInput: an invalid argument.
    """

    def __init__(self, path: str | Path, sync: Sync = "normal") -> None:
        self.path = checked_path(path, "path", A_FILE).absolute()
        self._file = Path(os.path.realpath(self.path))
        self.sync = checked_word(sync, "sync", ("normal", "full"))
        self.at_work: weakref.WeakValueDictionary[str, JournalTurnLog] = weakref.WeakValueDictionary()
        self._keys: weakref.WeakKeyDictionary[BranchRecord, str] = weakref.WeakKeyDictionary()
        self._states = StateTable()
        self._snapshots = SnapshotTable()
        self._answers = AnswerWatch()
        self.files = FileTable(self.path, self.sync)
        self._models: weakref.WeakKeyDictionary[ContextCore, str] = weakref.WeakKeyDictionary()
        self._owed: list[Callable[[sqlite3.Connection], None]] = []
        self._cores: list[ContextCore] = []
        self._opening = threading.Lock()  # Contexts of several threads may share it
        self._lock: FileLock | None = None
        self._writer: JournalWriter | None = None

    def __repr__(self) -> str:
        return f"<Journal {self.path}>"

    async def unfinished(self, context: Context, *, cancelled: bool = False) -> AsyncIterator[UnfinishedRun]:
        """Turns that processes left unfinished, oldest first: `async for left in journal.unfinished(ctx): ...`.

        Those are the turns that ran when their process or their Context ended. Turns of models with another tokenizer
        are left out, and so are those that a call of another unfinished turn began: that one resumes them.

        Args:
            context: a Context that was opened with this journal.
            cancelled: yield turns as well that were cancelled, as by Ctrl-C under asyncio, if each was the last of its
                branch.

        Raises:
            InvalidInput: the Context was opened without this journal.
            JournalError: the journal cannot be read.
        """
        journal, core = self._of(context)
        model = await journal._model(core)
        wanted = checked_bool(cancelled, "cancelled")
        for info in await journal.write(core, partial(runs.unfinished_runs, model=model, cancelled=wanted)):
            if info.id not in journal.at_work:
                yield UnfinishedRun(journal, core, info)

    async def track(self, branch: Branch, name: str) -> None:
        """Records the present state of a branch under a name, for `branch` in a later process; from then on, its state
        after each turn. Another branch of that name loses it.

        Raises:
            InvalidInput: an invalid name, or a branch of a Context without this journal.
            BranchBusy: the branch is in an agent's turn.
            JournalError: the journal cannot be written.
        """
        if not isinstance(branch, Branch):
            raise InvalidInput(f"branch is {preview(branch)}, but it must be a Branch")
        journal, _ = self._of(branch.context)
        checked_name(name, "the name of a branch")
        handle_of(branch).check_free()
        await journal.write_branch(branch, lambda connection, key, state: None, present=True, name=name)

    async def branch(self, context: Context, name: str, *, overflow: Overflow | None = None) -> Branch:
        """The branch that was tracked under a name, as its last turn left it.

        Keys and values are read from a file that `Branch.save` wrote of it, as far as there is one; other tokens are
        computed. An unfinished turn of the branch is not part of it.

        Raises:
            JournalError: no branch has that name, or the journal cannot be read.
            InvalidInput: the Context was opened without this journal.
            SnapshotMismatch: the branch is of a model with another tokenizer.
            ContextFull, PositionsExhausted, TooManyBranches: there is no room for it.
        """
        journal, core = self._of(context)
        checked_name(name, "the name of a branch")
        row = await journal.write(core, partial(runs.find_branch, name=name))
        if row is None:
            names = ", ".join(await journal.write(core, runs.branch_names)) or "none yet"
            raise JournalError(f"the journal {self.path} has no branch {name!r}; there are: {names}")
        runs.check_model(row.model, await journal._model(core), f"branch {name!r}")
        return await journal.restore(core, row.id, row.state, overflow)

    async def runs(self) -> list[RunInfo]:
        """All turns in the journal, oldest first, without their calls. Raises JournalError."""
        journal = self._opened()
        return await journal.write(journal._any_core(), runs.list_runs)

    async def drop(self, run: str) -> None:
        """Removes a turn from the journal, with what only it needs. Raises JournalError for one that runs, or if there
        is none."""
        journal = self._opened()
        if run in journal.at_work:
            raise JournalError(f"run {run} is at work in this process; cancel it first")

        def drop(connection: sqlite3.Connection) -> None:
            runs.drop_runs(connection, [run])
            journal.files.forget()
            journal._states.forget()  # some of what it knows may be gone

        await journal.write(journal._any_core(), drop)
        await journal.write(journal._any_core(), partial(remove_unused_contents, journal=self.path))

    async def approvals(self) -> list[WaitingApproval]:
        """Calls that wait for a person's decision, the one that has waited longest first.

        Needs no Context, and disturbs no process that uses the journal. Raises JournalError.
        """
        return await to_thread.run_sync(waiting_approvals, self.path)

    async def answer(self, approval: WaitingApproval | str, approved: bool, why: str | None = None) -> None:
        """Decides on a call that waits for an approval. The first answer counts: this one, or that of the person whom
        the turn asks. A turn that waits at that moment goes on, also in another process; one that was left goes on when
        it is resumed.

        Needs no Context. Returns once the answer is durable; the same answer again does nothing.

        Args:
            approval: one of `approvals`, or the key of one. The former is refused where another call has its key by
                now.
            approved: whether the call may run.
            why: reason of a denial, which the model reads.

        Raises:
            InvalidInput: an invalid argument.
            JournalError: there is no such approval, it was answered otherwise before, its call or its turn is over, or
                the journal cannot be written.
        """
        key, call = (approval.key, approval.call) if isinstance(approval, WaitingApproval) else (approval, None)
        if not isinstance(key, str):
            raise InvalidInput(f"approval is {preview(key)}, but it must be one of Journal.approvals, or its key")
        if checked_bool(approved, "approved") and why is not None:
            raise InvalidInput("why is the reason of a denial; leave it out of an approval")
        denial = None if why is None else checked_denial(why)
        await to_thread.run_sync(partial(answer_approval, self.path, self.sync, key, approved, denial, call))

    # For the turns of its Contexts.

    def attach(self, core: ContextCore) -> None:
        """Opens the journal for a Context. Raises JournalError if another process has it."""
        with self._opening:
            if self._writer is None:
                self._open()
            self._cores.append(core)

    def detach(self, core: ContextCore) -> None:
        """Closes the journal for a Context; blocks until what is queued is written. Idempotent."""
        with self._opening:
            if core not in self._cores:
                return
            self._cores.remove(core)
            if not self._cores and self._writer is not None:
                self._writer.close()
                self._writer = None
                assert self._lock is not None
                self._lock.release()
                _OPEN.pop(self._file, None)

    def turn_log(self, core: ContextCore) -> JournalTurnLog:
        """Record for a new turn."""
        return JournalTurnLog(self, core, uuid.uuid4().hex)

    async def left_by_call(self, core: ContextCore, call_key: str, attempt: int) -> UnfinishedRun | None:
        """The turn that this attempt at a call began in an earlier process; None for none. A turn that ended early
        belongs to the first attempt: the others find what an attempt in this process left. One of a model with another
        tokenizer does not go on: the call begins another one in its place."""
        info = await self.write(core, partial(runs.find_run, run=call_key))
        if info is not None and not await self._is_of(core, info):
            return None
        if info is None or info.id in self.at_work or (attempt > 1 and info.status in ("failed", "cancelled")):
            return None
        return UnfinishedRun(self, core, info)

    async def _is_of(self, core: ContextCore, info: RunInfo) -> bool:
        """Whether a turn is of the model of a Context."""
        return await self.write(core, partial(runs.model_of_run, run=info.id)) == await self._model(core)

    async def changed(self, branch: Branch) -> None:
        """Records the state of a branch that adopted another one, or whose files were applied, where the journal knows
        it."""
        if handle_of(branch).record in self._keys:
            await self.write_branch(branch, lambda connection, key, state: None, present=True)

    async def saved(self, core: ContextCore, path: Path, tokens: Mapping[str, bytes]) -> None:
        """Records that the keys and values of these tokens (int32) are in a file."""
        await self.write(core, partial(self._snapshots.add, path=path, tokens=tokens))

    async def answered(self, core: ContextCore, run: str, number: int) -> Decision:
        """Waits until somebody answers an approval by the journal."""
        heard = anyio.Event()
        said: list[Decision] = []

        def tell(decision: Decision) -> None:
            said.append(decision)
            core.loop.post(heard.set)

        try:
            await self.write(core, lambda _: self._answers.add(run, number, tell))
            await heard.wait()
        finally:
            self._answers.remove(run, number)
        return said[0]

    async def write_branch(
        self,
        branch: Branch,
        enter: Callable[[sqlite3.Connection, str, int], None],
        *,
        present: bool,
        name: str | None = None,
    ) -> None:
        """Writes the state of a branch, and what `enter` enters with its key and the state's id. `present`: that state
        is the branch's from then on."""
        handle = handle_of(branch)
        model = await self._model(handle.core)
        image, rescued = await image_of(branch), handle.core.chat.habits.rescued
        key = self._keys.setdefault(handle.record, uuid.uuid4().hex)
        parent = None if branch.parent is None else self._keys.get(handle_of(branch.parent).record)

        def entry(connection: sqlite3.Connection) -> None:
            saved = self.files.write(connection, handle.record.view)
            state = self._states.write(connection, key, image, rescued, parent, saved)
            if present:
                runs.set_branch(connection, key, state, model, name, parent)
            enter(connection, key, state)

        await self.write(handle.core, entry)

    async def restore(
        self,
        core: ContextCore,
        key: str,
        state: int,
        overflow: Overflow | None = None,
        files: SavedFiles | None = None,
        waits: bool = False,
    ) -> Branch:
        """Makes a branch in a recorded state; `files` are those that it has then, if not the state's. One that `waits`
        is for a turn, and waits for cells as that does.

        Raises JournalError, ContextFull and so on.
        """
        image, rescued, saved = await self.write(core, lambda connection: self._states.read(connection, key, state))
        view = await self._restored_view(core, files or saved)
        with closed_on_error([] if view is None else [view]):
            branch = await self._restored(core, image, overflow, waits)
        handle_of(branch).record.view = view
        self._keys[handle_of(branch).record] = key
        core.chat.habits.rescued = max(core.chat.habits.rescued, rescued)  # so that the next message is spelled alike
        return branch

    async def version_in(self, core: ContextCore, branch: Branch, key: str, state: int) -> Version | None:
        """The version of a branch's files in a recorded state. Raises JournalError."""
        view = handle_of(branch).record.view
        _, _, saved = await self.write(core, lambda connection: self._states.read(connection, key, state))
        if view is None or saved is None:
            return None
        earlier = await self._restored_view(core, saved)
        assert earlier is not None
        version, _ = earlier.saved()
        earlier.close()
        return version

    async def take_files_of_run(self, core: ContextCore, run: str, caller: Branch) -> None:
        """Brings the files of a turn that is finished into those of the branch whose call began it."""
        if caller.workspace is None:
            return
        key, state = await self.write(core, partial(runs.branch_of_run, run=run))
        _, _, saved = await self.write(core, lambda connection: self._states.read(connection, key, state))
        view = await self._restored_view(core, saved)
        with closing(view) if view is not None else nullcontext():
            await take_files(handle_of(caller), view)

    async def _restored_view(self, core: ContextCore, saved: SavedFiles | None) -> WorkspaceView | None:
        if saved is None:
            return None
        entries = await self.write(core, partial(entries_of, row=saved["version"]))
        base = await self.write(core, partial(entries_of, row=saved["base"]))
        view = await to_thread.run_sync(self.files.restored, saved, entries, base)
        await self.write(core, lambda _: self.files.know(view, saved))
        return view

    async def _restored(self, core: ContextCore, image: BranchImage, overflow: Overflow | None, waits: bool) -> Branch:
        snapshot = await self.write(core, partial(self._snapshots.find, tokens=image.tokens.tobytes()))
        async with self._snapshots.loaded(core, snapshot) as source:
            try:
                return await branch_from(core, image, overflow, source, waits)
            except InvalidInput as error:
                raise unreadable(self.path, error) from error

    async def write(self, core: ContextCore, entry: Callable[[sqlite3.Connection], T]) -> T:
        """Runs an entry on the journal's thread, behind those that are owed; returns once it is committed, on the event
        loop of a Context.

        Raises JournalError.
        """
        if self._writer is None:
            raise JournalError(f"the journal {self.path} is closed; open a Context with journal=")
        owed, self._owed = self._owed, []

        def enter(connection: sqlite3.Connection) -> T:
            for each in owed:
                each(connection)
            return entry(connection)

        try:
            return await self._writer.write(core.loop, enter)
        except JournalError:
            self._owed = owed + self._owed
            raise

    def owe(self, entry: Callable[[sqlite3.Connection], None]) -> None:
        """Has an entry that could not be written go ahead of the next one."""
        self._owed.append(entry)

    def _open(self) -> None:
        if not self.path.parent.is_dir():
            raise JournalError(
                f"the journal {self.path} cannot be made: there is no folder {self.path.parent}; make it"
            )
        if _OPEN.setdefault(self._file, self) is not self:
            raise JournalError(
                f"the journal {self.path} is open in this process by another kv.Journal; pass that one as journal="
            )
        try:
            self._lock = acquired_lock(self.path)
            try:
                self._writer = JournalWriter(self.path, self.sync, self._forget, self._answers)
            except BaseException:
                self._lock.release()
                raise
        except BaseException:
            _OPEN.pop(self._file, None)
            raise

    def _forget(self) -> None:
        self._states.forget()
        self.files.forget()

    def _any_core(self) -> ContextCore:
        """A Context of the running event loop. Raises JournalError where there is none."""
        for core in self._cores:
            if core.loop.is_current:
                return core
        raise JournalError(f"the journal {self.path} is closed; open a Context with journal=")

    def _opened(self) -> Journal:
        """The one of this process that has the file open: this one, or another of the same path."""
        return _OPEN.get(self._file, self)

    def _of(self, context: Context) -> tuple[Journal, ContextCore]:
        """The journal of a Context, which is this one or another of the same file. Raises InvalidInput."""
        if not isinstance(context, Context):
            raise InvalidInput(f"context is {preview(context)}, but it must be a Context")
        core = core_of(context)
        journal = cast(Journal | None, core.journal)
        if journal is None or journal._file != self._file:
            has = "no journal" if journal is None else f"the journal {journal.path}"
            raise InvalidInput(
                f"the Context was opened with {has}, without this journal {self.path}; pass journal= to Context.open"
            )
        core.loop.check_open()
        return journal, core

    async def _model(self, core: ContextCore) -> str:
        """Identity of the tokenizer, which the tokens are of."""
        if core not in self._models:
            self._models[core] = (await in_thread(core.loop, core.model_key)).tokenizer
        return self._models[core]
