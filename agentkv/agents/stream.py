"""Stream of the events of a turn."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import anyio
from anyio.abc import TaskGroup
from anyio.lowlevel import checkpoint

from .._aio.tasks import FirstErrorGroup
from .._types.errors import AgentKVError, BranchBusy
from .approval import Approve, approver_of
from .control import SteerableTurn, TurnControl, Words
from .events import ApprovalAsked, Event, Finished, ReasoningDelta, RolledBack, TextDelta

if TYPE_CHECKING:
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
        self._together = FirstErrorGroup()
        self._group: TaskGroup | None = None
        self._turn: Turn[Out_co] | None = None
        self._run: Run[Out_co] | None = None
        self._error: Exception | None = None
        self._last: Event | None = None  # the reader has it, and has not come back
        self._pending: deque[Event] = deque()  # told, and not read yet
        self._is_read = False  # a task waits for the next event
        self._reader = 0  # that task, or the last one
        self._is_away = False  # it waits for the turn, and reads nothing meanwhile
        self._heard = anyio.Event()  # the reader knows of the last event
        self._ended = anyio.Event()
        self._over = False

    async def __aenter__(self) -> AgentStream[Out_co]:
        if self._group is not None:
            raise AgentKVError("this stream was entered before; call `agent.stream` again for another turn")
        ask = self._show if self._approve is None else approver_of(self._approve)
        self._turn = turn = await self._begin(self._tell, ask, self._take_back, self._control)
        self._group = await self._together.__aenter__()
        self._group.start_soon(self._take, turn)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        assert self._group is not None
        self._group.cancel_scope.cancel()
        if kind is GeneratorExit:  # the coroutine is torn down: nothing can be awaited any more
            return None
        try:
            return await self._together.__aexit__(kind, error, traceback)
        finally:
            self._over = True
            self._pending.clear()
            self._end()  # the task may have been cancelled before it began
            if self._turn is not None:  # it refers to this: a cycle would keep its branch
                self._run, self._turn = self.run, None

    def __aiter__(self) -> AgentStream[Out_co]:
        return self

    async def __anext__(self) -> Event:
        """Returns the next event; raises the error that ended the turn early."""
        if self._group is None:
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

    async def fork(self, n: int) -> list[RunningTurn[Any]]:
        """Forks the turn in flight, as `RunningTurn.fork` does.

        Raises as that one, and AgentKVError in the task that reads a stream with `keep_partial`.
        """
        with self._waiting("fork"):
            return await super().fork(n)

    @contextmanager
    def _waiting(self, verb: str) -> Iterator[None]:
        """Scope of a task that waits for the turn: where it is the reader's, the turn gets ahead of it."""
        if anyio.get_current_task().id != self._reader or self._over:
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
                with anyio.CancelScope(shield=True):  # a tick, after which the branch is free
                    await self._ended.wait()
            if self._pending:
                return self._pending.popleft()
            if self._ended.is_set():
                error, self._error = self._error, None
                if error is None:
                    raise StopAsyncIteration
                try:
                    raise error from None
                finally:
                    del error  # no cycle with the traceback
            await self._moved.wait()

    @property
    def run(self) -> Run[Out_co]:
        """The record of the turn; where the turn ended early, of its work until then. AgentKVError while it runs."""
        if self._run is not None:
            return self._run
        if self._turn is None:
            raise AgentKVError("the stream has not begun; use `async with agent.stream(...) as events`")
        if not self._over:
            raise AgentKVError("the turn still runs; read the stream to its end or leave its block first")
        return self._turn.failed

    async def _take(self, turn: Turn[Out_co]) -> None:
        try:
            self._run = await self._play(turn)
        except Exception as error:
            self._error = error
        finally:
            self._end()
        self._over = True

    def _end(self) -> None:
        self._ended.set()
        self._control.over.set()
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
        while len(self._pending) > _AHEAD and not self._is_away:
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
