"""Stream of the events of a turn."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import anyio
from anyio.abc import TaskGroup
from anyio.lowlevel import checkpoint
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from .._aio.tasks import FirstErrorGroup
from .._types.errors import AgentKVError, BranchBusy
from .approval import Approve, approver_of
from .control import SteerableTurn, TurnControl, Words
from .events import ApprovalAsked, Event, Finished, ReasoningDelta, RolledBack, TextDelta

if TYPE_CHECKING:
    from .._types.run import Run
    from .running import RunningTurn
    from .tool_runner import Ask, Emit, IsUnread
    from .turn import Turn

Out_co = TypeVar("Out_co", covariant=True)

_AHEAD = 64  # events that a turn may be ahead of its reader, unless that waits for it


class AgentStream(SteerableTurn, Generic[Out_co]):
    """An async context manager and iterator of `kv.events`, made by `Agent.stream`.

    The turn runs in its own task, at most 64 events ahead of the reader. An error of the turn is raised to the reader.
    Leaving the block before `Finished` was read cancels the turn and rolls its branch back. With `keep_partial` the
    turn waits for its reader, and the branch keeps exactly the text that was read. Calls of a complete message have
    their results there, or a note that they were cancelled.

    `steer`, `pause`, `resume` and `stop` act on the turn, from this task or from others.
    """

    _send: MemoryObjectSendStream[Event]  # both are set by __aenter__
    _receive: MemoryObjectReceiveStream[Event]

    def __init__(
        self,
        begin: Callable[[Emit, Ask, IsUnread, TurnControl], Awaitable[Turn[Out_co]]],
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
        self._last: Event | None = None  # is with the reader
        self._reader = 0  # its task
        self._is_away = False  # it waits for the turn, and reads nothing meanwhile
        self._pending: list[Event] = []  # told, and not read yet
        self._heard = anyio.Event()  # the reader has the last event
        self._ended = anyio.Event()
        self._over = False

    async def __aenter__(self) -> AgentStream[Out_co]:
        if self._group is not None:
            raise AgentKVError("this stream was entered before; call `agent.stream` again for another turn")
        self._turn = turn = await self._begin(self._tell, self._ask, self._is_unread, self._control)
        self._send, self._receive = anyio.create_memory_object_stream[Event](math.inf)
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
        self._last, self._reader = None, anyio.get_current_task().id
        self._wake()
        try:
            self._last = await self._receive.receive()
            self._pending = [event for event in self._pending if event is not self._last]
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
        self._wake()
        try:
            yield
        finally:
            self._is_away = False

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
        await self._put(event)
        if isinstance(event, Finished):
            await self._heard.wait()  # the turn is not done before its reader knows
        elif self._waits and isinstance(event, TextDelta | ReasoningDelta):
            while self._last is event or self._is_unread(event):  # calls tell of other events meanwhile
                await self._back.wait()

    async def _put(self, event: Event) -> None:
        self._pending.append(event)
        await checkpoint()
        while not (any(pending is event for pending in self._pending[:_AHEAD]) or self._is_away):
            await self._back.wait()
        self._send.send_nowait(event)

    def _wake(self) -> None:
        """Has those who wait for the reader look again."""
        self._back.set()
        self._back = anyio.Event()

    def _is_unread(self, event: Event) -> bool:
        return any(pending is event for pending in self._pending)

    async def _show(self, asked: ApprovalAsked) -> str | None:
        await self._put(asked)
        return await asked.answer()
