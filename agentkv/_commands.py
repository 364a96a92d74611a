"""What the event loop asks of the step loop's thread.

A command is made on the event loop, applied once on the thread between two forwards, and settled once back on the
event loop. Whoever awaits it waits for `settled`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeAlias, TypeVar

import anyio

from ._errors import AgentKVError, BranchClosed, from_kind, from_native

if TYPE_CHECKING:
    from agentkv_runtime.engine import Emitted, Engine, Finished

T = TypeVar("T")


class Worker(Protocol):
    """What a command may use of the thread."""

    engine: Engine
    jobs: dict[int, Job[Any]]

    def report(self, settle: Callable[[], None]) -> None:
        """Has `settle` run on the event loop with the next post."""
        ...


class Command(ABC):
    """Something the thread does between two forwards. Nobody awaits a plain command."""

    __slots__ = ()

    @abstractmethod
    def apply(self, worker: Worker) -> None:
        """Runs on the thread."""

    def refuse(self, worker: Worker, error: BaseException) -> None:  # noqa: B027 - nobody waits for a plain command
        """Instead of `apply`, once the step loop cannot go on."""


class Awaited(Command, Generic[T]):
    """A command with a result, or an error, that a task awaits."""

    __slots__ = ("_error", "_result", "abandoned", "settled", "undo", "undoing")

    def __init__(self) -> None:
        self.settled = anyio.Event()
        self.abandoned = False  # the awaiting task was cancelled
        self.undo: Undo[T] | None = None  # what to do with a result that nobody receives
        self.undoing: Awaited[Any] | None = None  # what that takes, if anything
        self._result: T | None = None
        self._error: BaseException | None = None

    def succeed(self, result: T) -> None:
        """Settles with a result; on the event loop."""
        self._result = result
        if self.abandoned:
            self.take_back()
        self.settled.set()

    def fail(self, error: BaseException) -> None:
        """Settles with an error; on the event loop."""
        self._error = error
        self.settled.set()

    def refuse(self, worker: Worker, error: BaseException) -> None:
        worker.report(lambda: self.fail(error))

    def take_back(self) -> None:
        """Undoes what succeeded for nobody; on the event loop."""
        if self.undo is not None and self._error is None:
            self.undoing = self.undo(self._result)  # type: ignore[arg-type]

    @property
    def failed(self) -> bool:
        """Did it settle with an error?"""
        return self._error is not None

    def result(self) -> T:
        """The result; raises the error it settled with."""
        if self._error is not None:
            raise self._error
        return self._result  # type: ignore[return-value]


Undo: TypeAlias = Callable[[T], Awaited[Any] | None]


class Call(Awaited[T]):
    """A verb that is done as soon as it is applied.

    `then` runs on the event loop, in the order of the verbs, whether or not the awaiting task still lives.
    """

    __slots__ = ("_then", "_verb")

    def __init__(self, verb: Callable[[Engine], T], then: Callable[[T], None] | None = None) -> None:
        super().__init__()
        self._verb = verb
        self._then = then

    def apply(self, worker: Worker) -> None:
        if self.abandoned:
            worker.report(lambda: self.fail(AgentKVError("cancelled before it began")))
            return
        try:
            result = self._verb(worker.engine)
        except Exception as error:
            failure = from_native(error)
            worker.report(lambda: self.fail(failure))
        else:
            worker.report(lambda: self._settle(result))

    def _settle(self, result: T) -> None:
        try:
            if self._then is not None:
                self._then(result)
        except Exception as error:
            self.fail(error)
        else:
            self.succeed(result)


class Job(Awaited[T]):
    """Work that takes steps: `start` hands it to the engine, `finish` makes the result of what the engine reports.

    `finish` runs on the event loop, in the order of the engine's reports, whether or not anyone still waits.
    """

    __slots__ = ("_finish", "_start", "id")

    def __init__(self, start: Callable[[Engine], int], finish: Callable[[Finished], T]) -> None:
        super().__init__()
        self._start = start
        self._finish = finish
        self.id: int | None = None  # the engine's, once applied

    def apply(self, worker: Worker) -> None:
        if self.abandoned:
            worker.report(lambda: self.fail(AgentKVError("cancelled before it began")))
            return
        try:
            self.id = self._start(worker.engine)
        except Exception as error:
            failure = from_native(error)
            worker.report(lambda: self.fail(failure))
        else:
            worker.jobs[self.id] = self
            self.accepted(worker)

    def accepted(self, worker: Worker) -> None:
        """The engine took it; on the thread."""

    def end(self, finished: Finished) -> None:
        """Settles with what the engine reported; on the event loop."""
        try:
            result = self._finish(finished)
        except Exception as error:
            self.fail(error)
        else:
            self.succeed(result)


class StreamJob(Job[T]):
    """A generation whose tokens are handed out as they come, at most `limit` ahead of the reader.

    The thread pauses the generation at the limit; the reader has it resumed when half is taken.
    """

    __slots__ = ("_feed", "limit", "paused", "sent", "started", "taken")

    def __init__(
        self,
        start: Callable[[Engine], int],
        finish: Callable[[Finished], T],
        feed: Callable[[list[Emitted]], None],
        limit: int,
    ) -> None:
        super().__init__(start, finish)
        self._feed = feed
        self.limit = limit
        self.started = anyio.Event()
        self.sent = 0  # written by the thread
        self.taken = 0  # written by the reader
        self.paused = False

    def accepted(self, worker: Worker) -> None:
        worker.report(self.started.set)

    def fail(self, error: BaseException) -> None:
        super().fail(error)
        self.started.set()

    def feed(self, items: list[Emitted]) -> None:
        """Hands tokens to the reader; on the event loop."""
        self._feed(items)

    @property
    def drained(self) -> bool:
        """Has the reader taken enough for the generation to go on?"""
        return self.sent - self.taken <= self.limit // 2

    def throttle(self, worker: Worker) -> None:
        """Pauses at the limit; on the thread, after tokens were sent."""
        if self.paused or self.id is None or self.sent - self.taken < self.limit:
            return
        worker.engine.pause(self.id, True)
        self.paused = True
        if self.drained:  # the reader looked before `paused` was set: nobody else would resume it
            Resume(self).apply(worker)


class Cancel(Command):
    """Ends a job at the next step boundary; one that is already over is left alone."""

    __slots__ = ("_job",)

    def __init__(self, job: Job[Any]) -> None:
        self._job = job

    def apply(self, worker: Worker) -> None:
        if self._job.id is not None and self._job.id in worker.jobs:
            worker.engine.cancel(self._job.id)


class Resume(Command):
    """Lets a paused stream go on."""

    __slots__ = ("_job",)

    def __init__(self, job: StreamJob[Any]) -> None:
        self._job = job

    def apply(self, worker: Worker) -> None:
        if self._job.paused and self._job.id in worker.jobs:
            self._job.paused = False
            worker.engine.pause(self._job.id, False)


class Release(Command):
    """Frees a branch and what it runs; nobody waits for it."""

    __slots__ = ("_branch",)

    def __init__(self, branch: int) -> None:
        self._branch = branch

    def apply(self, worker: Worker) -> None:
        worker.engine.close(self._branch)


def check_finished(finished: Finished) -> None:
    """Raises what ended a job: its failure, or the close of its branch. A cut-short generation is not a failure."""
    if finished.error is not None:
        kind, message = finished.error
        raise from_kind(kind, message)
    if finished.finish_reason == "cancelled" and finished.kind != "generate":
        raise BranchClosed(f"the branch was closed during {finished.kind}; close it after what it runs")
