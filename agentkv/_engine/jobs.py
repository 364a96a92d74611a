"""Generations as commands: those that may wait for room, and streamed ones."""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import TYPE_CHECKING, Any, TypeVar

import anyio

from .commands import Command, Job, Worker

if TYPE_CHECKING:
    from .interface import Emitted, FinishedJob, StepEngine

T = TypeVar("T")


class GenerationJob(Job[T]):
    """A generation that may wait for room; its awaiting task makes room and resumes it."""

    __slots__ = ("_full", "_stirred")

    def __init__(self, start: Callable[[StepEngine], int], finish: Callable[[FinishedJob], T]) -> None:
        super().__init__(start, finish)
        self._full = False
        self._stirred = anyio.Event()

    def wait_for_room(self) -> None:
        self._full = True
        self._stirred.set()

    def succeed(self, result: T) -> None:
        super().succeed(result)
        self._stirred.set()

    def fail(self, error: BaseException) -> None:
        super().fail(error)
        self._stirred.set()

    async def paused(self) -> bool:
        """Waits until it waits for room (returns True) or has ended (False)."""
        await self._stirred.wait()
        if not self.settled.is_set():
            self._stirred = anyio.Event()
        full, self._full = self._full and not self.settled.is_set(), False
        return full


class StreamJob(Job[T]):
    """A generation whose tokens are handed out as they come. `heard` is called whenever it ends or waits for room.

    `started` is set once it has begun. `urgent` are the tokens that wake the reader, who then gets all before them as
    well; None for every token. A reader with `urgent` tokens is not woken for the beginning either. `kept` is the
    number of tokens that stay when it is revoked, None for all; `cut` says whether the others were removed.
    """

    __slots__ = ("_heard", "_urgent", "cut", "feed", "full", "kept", "started")

    def __init__(
        self,
        start: Callable[[StepEngine], int],
        finish: Callable[[FinishedJob], T],
        feed: Callable[[list[Emitted]], None],
        heard: Callable[[], None],
        urgent: Container[int] | None = None,
    ) -> None:
        super().__init__(start, finish)
        self._urgent = urgent
        self.feed = feed  # hands tokens to the reader; on the event loop
        self._heard = heard
        self.started = anyio.Event()
        if urgent is not None:
            self.started.set()
        self.kept: int | None = None
        self.cut = False
        self.full = False  # waits for room, which the reader has to make

    def wait_for_room(self) -> None:
        self.full = True
        self._heard()

    def wakes(self, token: int) -> bool:
        """Returns whether this token wakes the reader."""
        return self._urgent is None or token in self._urgent

    def apply(self, worker: Worker) -> None:
        super().apply(worker)
        if self._urgent is None:
            worker.report(self.started.set)

    def revoke(self, worker: Worker) -> None:
        if self.id is None:
            return  # it never began
        if self.kept is None:
            worker.engine.cancel(self.id)
        else:
            self.cut = worker.engine.undo(self.id, self.kept)

    def succeed(self, result: T) -> None:
        super().succeed(result)
        self._heard()

    def fail(self, error: BaseException) -> None:
        super().fail(error)
        self.started.set()
        self._heard()


class Ack(Command):
    """Tells the engine that the reader of a stream has read `count` more tokens."""

    __slots__ = ("_count", "_job")

    def __init__(self, job: StreamJob[Any], count: int) -> None:
        self._job = job
        self._count = count

    def apply(self, worker: Worker) -> None:
        if self._job.id is not None:
            worker.engine.ack(self._job.id, self._count)


class Resume(Command):
    """Resumes a generation that waits for room, or ends it if none was made."""

    __slots__ = ("_job", "_made_room")

    def __init__(self, job: Job[Any], made_room: bool) -> None:
        self._job = job
        self._made_room = made_room

    def apply(self, worker: Worker) -> None:
        if self._job.id is not None:
            worker.engine.resume(self._job.id, self._made_room)
