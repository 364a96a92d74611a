"""Stream of the events of a turn."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import anyio
from anyio.lowlevel import checkpoint

from .._aio.scope import move_on_after
from .._context.handle import handle_of
from .._types.errors import AgentKVError, BranchBusy, ContextClosed
from .approval import Approve, approver_of
from .control import Ending, SteerableTurn, TurnControl, Words
from .events import ApprovalAsked, Event, Finished, ReasoningDelta, RolledBack, TextDelta

if TYPE_CHECKING:
    from .._engine.loop import StepLoop
    from .._types.run import Run
    from .running import RunningTurn
    from .tool_runner import Ask, Emit, TakeBack
    from .turn import Turn

Out_co = TypeVar("Out_co", covariant=True)

_AHEAD = 64  # events that a turn may be ahead of its reader, unless that waits for it


class AgentStream(SteerableTurn, Generic[Out_co]):
    """An async context manager and iterator of `kv.events`, made by `Agent.stream`.

    The turn runs in its own task, at most 64 events ahead of the reader. An error of the turn is raised to the reader.
    Leaving the block before `Finished` was read cancels the turn and rolls its branch back. With `keep_partial` the
    turn waits for its reader, and the branch keeps exactly the text that was read. Calls that were written have their
    results there, or a note that they were cancelled; half a call does not stay.

    The block may be inside of an async generator: one that is closed there cancels the turn, whose branch is free soon
    after. Leaving the Context's block ends a turn that runs with ContextClosed.

    `steer`, `pause`, `resume` and `stop` act on the turn, from this task or from others.
    """

    def __init__(
        self,
        begin: Callable[[Emit, Ask, TakeBack, TurnControl], Awaitable[Turn[Out_co]]],
        play: Callable[[Turn[Out_co]], Awaitable[Run[Out_co]]],
        approve: Approve | None,
        waits: bool,
    ) -> None:
        """Private: use `Agent.stream`."""
        super().__init__()
        self._begin = begin
        self._play = play
        self._approve = approve
        self._waits = waits  # for the reader to come back for the next event, after each text
        self._moved = anyio.Event()  # set, and replaced, when the reader or the turn has moved
        self._entered = False
        self._scope: move_on_after | None = None  # of the turn, once it has begun
        self._loop: StepLoop | None = None  # of its Context
        self._run: Run[Out_co] | None = None
        self._error: BaseException | None = None
        self._last: Event | None = None  # the reader has it, and has not come back
        self._pending: deque[Event] = deque()  # told, and not read yet
        self._is_read = False  # a task waits for the next event
        self._reader = 0  # that task, or the last one
        self._is_away = False  # it waits for the turn, and reads nothing meanwhile
        self._may_end = False  # the turn, though the reader does not know of its end
        self._heard = anyio.Event()  # the reader knows of the last event
        self._ended = anyio.Event()

    async def __aenter__(self) -> AgentStream[Out_co]:
        if self._entered:
            raise AgentKVError("this stream was entered before; call `agent.stream` again for another turn")
        self._entered = True
        ask = self._show if self._approve is None else approver_of(self._approve)
        try:
            turn = await self._begin(self._tell, ask, self._take_back, self._control)
        except BaseException:
            self._control.over.set()
            raise
        core = handle_of(turn.branch).core
        self._scope, self._loop = move_on_after(math.inf), core.loop
        # Not in a task group: that would be this task's, which a generator that is closed elsewhere could not leave.
        core.background.start(lambda: self._take(turn), self._end_with_context, f"stream on branch {turn.branch.id}")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._scope is not None
        assert self._loop is not None
        self._scope.cancel()
        if kind is GeneratorExit:  # the coroutine is torn down: nothing can be awaited any more
            return
        try:
            await self._loop.wait_shielded(self._ended)
        finally:
            self._pending.clear()
            unread, self._error = self._error, None
        try:
            if isinstance(unread, KeyboardInterrupt | SystemExit):
                raise unread
        finally:
            del unread  # no cycle with the traceback

    def __aiter__(self) -> AgentStream[Out_co]:
        return self

    async def __anext__(self) -> Event:
        """Returns the next event; raises the error that ended the turn early."""
        if self._scope is None:
            raise AgentKVError("the stream has not begun; use `async with agent.stream(...) as events`")
        if self._is_read:
            raise BranchBusy("two tasks read one stream; let one of them hand events on")
        if isinstance(self._last, ApprovalAsked):
            self._last.passed_on()
        self._last = None
        self._move()
        self._is_read, self._reader = True, anyio.get_current_task().id
        try:
            self._last = await self._next()
        finally:
            self._is_read = False
        return self._last

    def steer(self, text: str, at_once: bool = False) -> Words:
        """Has words enter the turn, as `RunningTurn.steer` does.

        Raises as that one; awaiting it raises AgentKVError in the task that reads a stream with `keep_partial`.
        """
        words = super().steer(text, at_once)
        words.waiting = lambda: self._waiting("await steer (the words enter all the same)")
        return words

    def stop(self, keep: bool | None = None) -> Ending:
        """Ends the turn, as `RunningTurn.stop` does. One that is done and waits for its reader stays as it is."""
        ending = super().stop(keep)
        if self._control.ended:
            self._wait_no_more()
        return ending

    async def fork(self, n: int) -> list[RunningTurn[Any]]:
        """Forks the turn in flight, as `RunningTurn.fork` does.

        Raises as that one, and AgentKVError in the task that reads a stream with `keep_partial`.
        """
        with self._waiting("fork"):
            return await super().fork(n)

    @contextmanager
    def _waiting(self, verb: str) -> Iterator[None]:
        """Scope of a task that waits for the turn: where it is the reader's, the turn gets ahead of it."""
        if anyio.get_current_task().id != self._reader or self._ended.is_set():
            yield
            return
        if self._waits:
            raise AgentKVError(
                f"{verb}: a turn with keep_partial waits for its reader, which would wait here for the turn; do it in "
                "another task while this one reads on"
            )
        self._is_away = True
        self._move()
        try:
            yield
        finally:
            self._is_away = False

    async def _next(self) -> Event:
        """Waits for the next event and takes it in one go: a reader that is cancelled, however that is, has missed none
        when it comes back."""
        await checkpoint()
        while True:
            if self._pending and isinstance(self._pending[0], Finished):
                self._heard.set()
                with move_on_after(math.inf, shield=True):  # a tick, after which the branch is free
                    await self._ended.wait()
            if self._pending:
                return self._pending.popleft()
            if self._ended.is_set():
                error, self._error = self._error, None
                if error is None:
                    raise StopAsyncIteration
                try:
                    raise error
                finally:
                    del error  # no cycle with the traceback
            await self._moved.wait()

    @property
    def run(self) -> Run[Out_co]:
        """The record of the turn; where the turn ended early, of its work until then. AgentKVError while it runs."""
        if self._run is not None:
            return self._run
        if self._scope is None:
            raise AgentKVError("the stream has not begun; use `async with agent.stream(...) as events`")
        raise AgentKVError("the turn still runs; read the stream to its end or leave its block first")

    async def _take(self, turn: Turn[Out_co]) -> None:
        assert self._scope is not None
        try:
            with self._scope:
                self._run = await self._play(turn)
        except (Exception, KeyboardInterrupt, SystemExit) as error:
            self._error = error
        except BaseException:
            self._error = ContextClosed("the event loop ended while the turn ran; read the stream inside its Context")
            raise
        finally:
            if self._run is None:
                self._run = turn.failed
            self._ended.set()
            self._control.over.set()
            self._move()

    def _end_with_context(self) -> None:
        self._control.leave()
        self._wait_no_more()

    def _wait_no_more(self) -> None:
        """Has a turn that is done end, though its reader has not read on until then."""
        self._may_end = True
        self._heard.set()
        self._move()

    def _move(self) -> None:
        self._moved.set()
        self._moved = anyio.Event()

    async def _tell(self, event: Event) -> None:
        if self._control.stopped and isinstance(event, RolledBack):
            return  # nobody need read on for the turn to end
        if isinstance(event, Finished):
            await self._tell_of_the_end(event)
            return
        await self._hand(event)
        if self._waits and isinstance(event, TextDelta | ReasoningDelta):
            while self._last is event or self._is_unread(event):  # calls tell of other events meanwhile
                await self._moved.wait()

    async def _tell_of_the_end(self, event: Finished) -> None:
        """Returns once the reader knows: the turn is not done before. One that is cancelled instead is not finished."""
        try:
            await self._hand(event)
            await self._heard.wait()
        except BaseException:
            self._take_back(event)
            raise

    async def _hand(self, event: Event) -> None:
        """Puts an event behind those that the reader is to get, and waits until it is not too far ahead."""
        self._pending.append(event)
        self._move()
        await checkpoint()
        while len(self._pending) > _AHEAD and not (self._is_away or self._may_end):
            await self._moved.wait()

    def _is_unread(self, event: Event) -> bool:
        return any(pending is event for pending in self._pending)

    def _take_back(self, event: Event) -> bool:
        """Takes back an event that the reader has not got. Returns whether it did."""
        was_unread = self._is_unread(event)
        self._pending = deque(pending for pending in self._pending if pending is not event)
        return was_unread

    async def _show(self, asked: ApprovalAsked) -> str | None:
        await self._hand(asked)
        return await asked.answer()
