"""Stream of the events of a turn."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import TYPE_CHECKING, Generic, TypeVar

import anyio
from anyio.abc import TaskGroup
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from .._aio.tasks import FirstErrorGroup
from .._types.errors import AgentKVError, BranchBusy
from .approval import Approve, approver_of
from .control import SteerableTurn, TurnControl
from .events import ApprovalAsked, Event, Finished, ReasoningDelta, RolledBack, TextDelta

if TYPE_CHECKING:
    from .._types.run import Run
    from .tool_runner import Ask, Emit, TakeBack
    from .turn import Turn

Out_co = TypeVar("Out_co", covariant=True)

_AHEAD = 64  # events that a turn may be ahead of its reader


class AgentStream(SteerableTurn, Generic[Out_co]):
    """An async context manager and iterator of `kv.events`, made by `Agent.stream`.

    The turn runs in its own task, at most 64 events ahead of the reader. An error of the turn is raised to the reader.
    Leaving the block before `Finished` was read cancels the turn and rolls its branch back. With `keep_partial` the
    turn waits for its reader, and the branch keeps exactly the text that was read. Calls that were written have their
    results there, or a note that they were cancelled; half a call does not stay.

    `steer`, `pause`, `resume` and `stop` act on the turn, from this task or from others.
    """

    _send: MemoryObjectSendStream[Event]  # both are set by __aenter__
    _receive: MemoryObjectReceiveStream[Event]

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
        self._ask = self._show if approve is None else approver_of(approve)
        self._waits = waits  # for the reader to come back for the next event, after each text
        self._back = anyio.Event()  # the reader comes back; another one each time
        self._together = FirstErrorGroup()
        self._group: TaskGroup | None = None
        self._turn: Turn[Out_co] | None = None
        self._run: Run[Out_co] | None = None
        self._error: Exception | None = None
        self._last: Event | None = None
        self._pending: list[Event] = []  # sent, and not read yet
        self._heard = anyio.Event()  # the reader has the last event
        self._ended = anyio.Event()
        self._over = False

    async def __aenter__(self) -> AgentStream[Out_co]:
        if self._group is not None:
            raise AgentKVError("this stream was entered before; call `agent.stream` again for another turn")
        self._turn = turn = await self._begin(self._tell, self._ask, self._take_back, self._control)
        self._send, self._receive = anyio.create_memory_object_stream[Event](_AHEAD)
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
            self._control.over.set()
            self._send.close()
            self._receive.close()

    def __aiter__(self) -> AgentStream[Out_co]:
        return self

    async def __anext__(self) -> Event:
        """Returns the next event; raises the error that ended the turn early."""
        if self._group is None:
            raise AgentKVError("the stream has not begun; use `async with agent.stream(...) as events`")
        if isinstance(self._last, ApprovalAsked):
            self._last.passed_on()
        back, self._back, self._last = self._back, anyio.Event(), None
        back.set()
        try:
            self._last = await self._next()
        except anyio.EndOfStream:
            error, self._error = self._error, None
            if error is not None:
                raise error from None
            raise StopAsyncIteration from None
        except anyio.BusyResourceError:
            raise BranchBusy("two tasks read one stream; let one of them hand events on") from None
        if isinstance(self._last, Finished):
            self._heard.set()
            with anyio.CancelScope(shield=True):  # a tick, after which the branch is free
                await self._ended.wait()
        return self._last

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

    async def _next(self) -> Event:
        """Receives the next event that was not taken back."""
        while True:
            event = await self._receive.receive()
            if self._take_back(event):
                return event

    async def _take(self, turn: Turn[Out_co]) -> None:
        with self._send:
            try:
                self._run = await self._play(turn)
            except Exception as error:
                self._error = error
            finally:
                self._ended.set()
                self._control.over.set()
            self._over = True

    async def _tell(self, event: Event) -> None:
        if self._control.stopped and isinstance(event, RolledBack):
            return  # nobody need read on for the turn to end
        self._pending.append(event)
        await self._send.send(event)
        if isinstance(event, Finished):
            await self._heard.wait()  # the turn is not done before its reader knows
        elif self._waits and isinstance(event, TextDelta | ReasoningDelta):
            while self._last is event or self._is_unread(event):  # calls tell of other events meanwhile
                await self._back.wait()

    def _is_unread(self, event: Event) -> bool:
        return any(pending is event for pending in self._pending)

    def _take_back(self, event: Event) -> bool:
        """Takes an event out of those on their way to the reader; returns False where it was none of them."""
        if not self._is_unread(event):
            return False
        self._pending = [pending for pending in self._pending if pending is not event]
        return True

    async def _show(self, asked: ApprovalAsked) -> str | None:
        self._pending.append(asked)
        await self._send.send(asked)
        return await asked.answer()
