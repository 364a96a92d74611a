"""Turns that run in a task of their own."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Awaitable, Callable, Generator
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import anyio
from anyio.lowlevel import checkpoint

from .._context.handle import handle_of
from .._types.errors import AgentKVError, ApprovalPending, ContextClosed, TurnStopped
from .._types.log import log
from .._types.results import Usage
from .._types.run import Run
from .._types.show import safe_str
from .control import SteerableTurn, TurnControl

if TYPE_CHECKING:
    from .._context.branch import Branch
    from .events import Event
    from .turn import Turn

Out_co = TypeVar("Out_co", covariant=True)
Out = TypeVar("Out")

_EXPECTED = (TurnStopped, ContextClosed, ApprovalPending)  # ends that nobody need hear of


class TurnTask(Generic[Out]):
    """The task of one turn, and its outcome. It does not refer to the RunningTurn, which users may drop.

    Attributes:
        run: the record of a turn that is done.
        error: what ended the turn early.
        over: set once the turn has ended.
        was_asked: whether anybody has waited for the outcome.
        readers: those who read the turn's events.
        dropped: calls `drop` when the RunningTurn is garbage.
    """

    def __init__(self, branch: Branch, control: TurnControl) -> None:
        self.run: Run[Out] | None = None
        self.error: BaseException | None = None
        self.over = control.over
        self.was_asked = False
        self.readers: weakref.WeakSet[TurnEvents] = weakref.WeakSet()
        self._branch = branch
        self._control = control
        self._is_dropped = False
        self.dropped: weakref.finalize[Any, Any] | None = None

    async def play(
        self, begin: Callable[[], Awaitable[Turn[Out]]], run: Callable[[Turn[Out]], Awaitable[Run[Out]]]
    ) -> None:
        """Takes the turn; its outcome is in `run` or `error`, whatever it is."""
        turn: Turn[Out] | None = None
        try:
            with self._control.bounds(float("inf")):
                turn = await begin()
            if turn is None:
                self._control.check_stopped()
            else:
                self.run = await run(turn)
        except TurnStopped as error:
            self.error = error.with_traceback(None)  # its frames refer to this, and tell nothing
        except (Exception, KeyboardInterrupt, SystemExit) as error:
            self.error = error
        except BaseException:  # the event loop ends
            self.error = ContextClosed("the event loop ended while the turn ran; await the turn inside its Context")
            self.error.run = None if turn is None else turn.failed
            raise
        finally:
            if isinstance(self.error, AgentKVError) and self.error.run is None:
                self.error.run = Run("", (), (), Usage(len(self._branch), 0), 0, 0.0)
            self._control.end()
            self.over.set()
            for reader in self.readers:
                reader.wake()
            if self._is_dropped:
                self._say_unheard()

    async def tell(self, event: Event) -> None:
        """Hands an event to all readers, and waits for none."""
        for reader in self.readers:
            reader.put(event)

    def is_heard(self) -> bool:
        """Whether anybody reads the turn's events."""
        return bool(self.readers)

    def outcome(self) -> Run[Out]:
        """The record of the turn, which has ended; raises the error that ended it."""
        self.was_asked = True
        if self.dropped is not None:  # it would keep the error, whose traceback may refer to the RunningTurn
            self.dropped.detach()
        if isinstance(self.error, TurnStopped):
            raise _again(self.error)
        if self.error is not None:
            raise self.error
        assert self.run is not None
        return self.run

    def drop(self) -> None:
        """Called when nobody can ask for the outcome any more."""
        self._is_dropped = True
        if self.over.is_set():
            self._say_unheard()

    def _say_unheard(self) -> None:
        heard = self.was_asked or self.is_heard()
        if self.error is not None and not heard and not isinstance(self.error, _EXPECTED):
            why = f"{type(self.error).__name__}: {safe_str(self.error)}"
            log.error("a started turn failed, and nobody awaited it", branch=self._branch.id, error=why)


def _again(stopped: TurnStopped) -> TurnStopped:
    """The same error for one who awaits it, whose frames may refer to the turn: it would be in a cycle with them."""
    again = TurnStopped(*stopped.args)
    again.run = stopped.run
    return again


class RunningTurn(SteerableTurn, Generic[Out_co]):
    """A turn in a task of its own, made by `Agent.start`. Awaiting it returns the Run, or raises what ended the turn.

    It may be awaited any number of times and from several tasks; cancelling one that waits does not cancel the turn.
    A turn whose RunningTurn is dropped goes on; an error that nobody awaited is logged. Leaving the Context's block
    cancels the turn and waits for its end; awaiting it raises ContextClosed then.

    `steer`, `pause`, `resume` and `stop` act on the turn, from any task of its event loop.
    """

    def __init__(self, branch: Branch) -> None:
        """Private: use `Agent.start`."""
        super().__init__()
        self._branch = branch
        self._control.check_event_loop = handle_of(branch).loop.check_event_loop
        self._task: TurnTask[Out_co] = TurnTask(branch, self._control)
        self._task.dropped = weakref.finalize(self, self._task.drop)

    @property
    def branch(self) -> Branch:
        """The branch of the turn."""
        return self._branch

    @property
    def done(self) -> bool:
        """Whether the turn has ended, with an answer or without."""
        return self._task.over.is_set()

    def __await__(self) -> Generator[Any, None, Run[Out_co]]:
        return self._wait().__await__()

    async def _wait(self) -> Run[Out_co]:
        await self._task.over.wait()
        return self._task.outcome()

    def events(self) -> TurnEvents:
        """Reads the turn's events from now on: `async for event in run.events(): ...`.

        The turn does not wait for readers, of which there may be several. Approvals are not among the events: the turn
        asks its `approve`. At the end what ended the turn early is raised.
        """
        return TurnEvents(self._task)

    def start(
        self,
        begin: Callable[[TurnTask[Out_co], TurnControl], Awaitable[Turn[Out_co]]],
        run: Callable[[Turn[Out_co]], Awaitable[Run[Out_co]]],
    ) -> RunningTurn[Out_co]:
        """Private: starts the task. The turn is made by `begin` and taken by `run`."""
        task, control = self._task, self._control
        handle_of(self._branch).core.background.start(
            lambda: task.play(lambda: begin(task, control), run), control.leave, f"turn on branch {self._branch.id}"
        )
        return self

    def __repr__(self) -> str:
        state = "done" if self.done else "paused" if self.paused else "running"
        return f"<RunningTurn on branch {self._branch.id}: {state}>"


class TurnEvents:
    """An async iterator of `kv.events`, made by `RunningTurn.events`."""

    def __init__(self, task: TurnTask[Any]) -> None:
        """Private: use `RunningTurn.events`."""
        self._task = task
        self._came: deque[Event] = deque()
        self._wakeup = anyio.Event()
        task.readers.add(self)

    def put(self, event: Event) -> None:
        """Private: one more event."""
        self._came.append(event)
        self.wake()

    def wake(self) -> None:
        """Private: there is something to look at."""
        self._wakeup.set()
        self._wakeup = anyio.Event()

    def __aiter__(self) -> TurnEvents:
        return self

    async def __anext__(self) -> Event:
        """Returns the next event; raises the error that ended the turn early."""
        while not self._came:
            if self._task.over.is_set():
                self._task.outcome()
                raise StopAsyncIteration
            await self._wakeup.wait()
        await checkpoint()
        return self._came.popleft()
