"""Commands: requests of the event loop to the step loop's thread.

A command is made on the event loop, applied once on the thread between two forwards, and settled once back on the
event loop, even if it or others raise. Its awaiting task waits for `settled`.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import anyio

from .._types.errors import BranchClosed, ContextClosed, from_native

if TYPE_CHECKING:
    from .interface import CellStore, FinishedJob, StepEngine

T = TypeVar("T")
THREAD_WAIT_S = 0.5  # between two looks of a waiting thread at whether the Context is still open


class Worker(Protocol):
    """The part of the thread that a command may use."""

    engine: StepEngine
    cells: CellStore
    jobs: dict[int, Job[Any]]

    def report(self, settle: Callable[[], None]) -> None:
        """Schedules `settle` on the event loop with the next batch of outcomes."""
        ...

    def close(self, branch: int) -> None:
        """Frees a branch and ends its job. Idempotent."""
        ...


class Command(ABC):
    """An action of the thread between two forwards. Nobody awaits a plain command."""

    __slots__ = ()

    @abstractmethod
    def apply(self, worker: Worker) -> None:
        """Runs on the thread. An exception from it fails the command."""

    def fail(self, error: BaseException) -> None:  # noqa: B027 - nobody waits for a plain command
        """Reports that the command failed; runs on the event loop."""


class Awaited(Command, Generic[T]):
    """A command whose result or error a task awaits."""

    __slots__ = ("_error", "_result", "settled")

    def __init__(self) -> None:
        self.settled = anyio.Event()
        self._result: T | None = None
        self._error: BaseException | None = None

    def succeed(self, result: T) -> None:
        """Settles with a result; runs on the event loop."""
        if not self.settled.is_set():
            self._result = result
            self.settled.set()

    def fail(self, error: BaseException) -> None:
        """Settles with an error; runs on the event loop."""
        if not self.settled.is_set():
            self._error = error
            self.settled.set()

    def revoke(self, worker: Worker) -> None:
        """Cancels or undoes the command, since nobody receives the result; runs on the thread after `apply`."""

    @property
    def failed(self) -> bool:
        """Whether it settled with an error."""
        return self._error is not None

    def result(self) -> T:
        """The result; raises the error it settled with."""
        if self._error is not None:
            raise self._error
        return self._result  # type: ignore[return-value]

    def take(self) -> T:
        """The result; raises the error it settled with, and forgets it.

        The error's traceback has frames that refer to the command: together they would keep a branch, and its cells,
        until they are collected.
        """
        error, self._error = self._error, None
        if error is not None:
            try:
                raise error
            finally:
                del error
        return self._result  # type: ignore[return-value]


class ImmediateCommand(Awaited[T]):
    """A command that is complete once applied.

    `undo` reverts it if nobody receives the result; `on_result` gets every result, on the event loop, in the engine's
    order.
    """

    __slots__ = ("_done", "_on_result", "_undo")

    def __init__(
        self, undo: Callable[[Worker, T], None] | None = None, on_result: Callable[[T], None] | None = None
    ) -> None:
        super().__init__()
        self._undo = undo
        self._on_result = on_result
        self._done: list[T] = []

    def apply(self, worker: Worker) -> None:
        result = self._do(worker)
        self._done.append(result)
        if self._on_result is not None:
            worker.report(partial(self._on_result, result))
        worker.report(partial(self.succeed, result))

    def revoke(self, worker: Worker) -> None:
        for result in self._done:
            if self._undo is not None:
                self._undo(worker, result)

    @abstractmethod
    def _do(self, worker: Worker) -> T: ...


class EngineCall(ImmediateCommand[T]):
    """A call of the engine."""

    __slots__ = ("_verb",)

    def __init__(
        self,
        verb: Callable[[StepEngine], T],
        undo: Callable[[Worker, T], None] | None = None,
        on_result: Callable[[T], None] | None = None,
    ) -> None:
        super().__init__(undo, on_result)
        self._verb = verb

    def _do(self, worker: Worker) -> T:
        return self._verb(worker.engine)


class CellsCall(ImmediateCommand[T]):
    """A call that reads or writes the contents of cells."""

    __slots__ = ("_verb",)

    def __init__(
        self,
        verb: Callable[[StepEngine, CellStore], T],
        undo: Callable[[Worker, T], None] | None = None,
        on_result: Callable[[T], None] | None = None,
    ) -> None:
        super().__init__(undo, on_result)
        self._verb = verb

    def _do(self, worker: Worker) -> T:
        return self._verb(worker.engine, worker.cells)


class ThreadCall(Command, Generic[T]):
    """A call that reads or writes the contents of cells, for a thread that waits for it outside of the event loop."""

    __slots__ = ("_done", "_error", "_result", "_verb")

    def __init__(self, verb: Callable[[StepEngine, CellStore], T]) -> None:
        self._verb = verb
        self._done = threading.Event()
        self._result: list[T] = []
        self._error: BaseException | None = None

    def apply(self, worker: Worker) -> None:
        self._result.append(self._verb(worker.engine, worker.cells))
        self._done.set()

    def fail(self, error: BaseException) -> None:
        self._error = error
        self._done.set()

    def wait(self, is_open: Callable[[], bool]) -> T:
        """The result, for another thread than those of the Context; raises the call's error, and ContextClosed where
        nobody applies it any more."""
        while not self._done.wait(THREAD_WAIT_S):
            if not is_open():
                raise ContextClosed("the Context was left while a thread was using its cells")
        if self._error is not None:
            raise self._error
        return self._result.pop()


class Job(Awaited[T]):
    """Work that takes steps: `start` hands it to the engine, `finish` converts the engine's report to the result.

    `finish` runs on the event loop, in the order of the engine's reports. `undo` runs on the thread if the job failed,
    or its result has no receiver; without one, the engine undoes jobs that are all or nothing.
    """

    __slots__ = ("_finish", "_start", "_undo", "id")

    def __init__(
        self,
        start: Callable[[StepEngine], int],
        finish: Callable[[FinishedJob], T],
        undo: Callable[[Worker], None] | None = None,
    ) -> None:
        super().__init__()
        self._start = start
        self._finish = finish
        self._undo = undo
        self.id: int | None = None  # the engine's, once applied

    def apply(self, worker: Worker) -> None:
        self.id = self._start(worker.engine)
        worker.jobs[self.id] = self

    def wait_for_room(self) -> None:
        """Called on the event loop when the engine has no room for the job."""

    def end(self, worker: Worker, finished: FinishedJob) -> None:
        """Called on the thread when the engine has ended the job."""
        if self._undo is not None and (finished.error is not None or finished.finish_reason == "cancelled"):
            self._undo(worker)
        worker.report(partial(self._settle, finished))

    def revoke(self, worker: Worker) -> None:
        if self.id is None:
            return  # it never began
        if self.id in worker.jobs:
            worker.engine.cancel(self.id)
        elif self._undo is not None:
            self._undo(worker)
        else:
            worker.engine.undo(self.id)

    def _settle(self, finished: FinishedJob) -> None:
        if self.settled.is_set():
            return
        try:
            result = self._finish(finished)
        except BaseException as error:  # raised in the awaiting task; the settlements after this one go on
            self.fail(error)
        else:
            self.succeed(result)


class Cancel(Awaited[None]):
    """Revokes a command submitted before; settles when that is done."""

    __slots__ = ("_command",)

    def __init__(self, command: Awaited[Any]) -> None:
        super().__init__()
        self._command = command

    def apply(self, worker: Worker) -> None:
        self._command.revoke(worker)
        worker.report(partial(self.succeed, None))


class Close(Awaited[None]):
    """Frees a branch and ends its job."""

    __slots__ = ("_branch",)

    def __init__(self, branch: int) -> None:
        super().__init__()
        self._branch = branch

    def apply(self, worker: Worker) -> None:
        worker.close(self._branch)
        worker.report(partial(self.succeed, None))


class Release(Command):
    """Frees a branch that nobody refers to any more; made by finalizers, on any thread."""

    __slots__ = ("_branch",)

    def __init__(self, branch: int) -> None:
        self._branch = branch

    def apply(self, worker: Worker) -> None:
        worker.close(self._branch)


class Wakeup(Command):
    """Wakes the thread to settle events that reached the engine from elsewhere."""

    __slots__ = ()

    def apply(self, worker: Worker) -> None:
        pass


class Unpin(Command):
    """Unpins cells."""

    __slots__ = ("_pin",)

    def __init__(self, pin: int) -> None:
        self._pin = pin

    def apply(self, worker: Worker) -> None:
        worker.engine.unpin(self._pin)


def check_finished(finished: FinishedJob) -> None:
    """Raises the error that ended a job: its failure, or the close of its branch. A truncated generation is not a
    failure."""
    if finished.error is not None:
        raise from_native(finished.error)
    if finished.finish_reason == "cancelled" and finished.kind != "generate":
        raise BranchClosed(f"the branch was closed during {finished.kind}; close it after what it runs")
