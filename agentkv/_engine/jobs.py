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

    __slots__ = ("_changed", "_waits_for_room")

    def __init__(self, start: Callable[[StepEngine], int], finish: Callable[[FinishedJob], T]) -> None:
        super().__init__(start, finish)
        self._waits_for_room = False
        self._changed = anyio.Event()

    def wait_for_room(self) -> None:
        self._waits_for_room = True
        self._changed.set()

    def succeed(self, result: T) -> None:
        super().succeed(result)
        self._changed.set()

    def fail(self, error: BaseException) -> None:
        super().fail(error)
        self._changed.set()

    async def wait_full_or_done(self) -> bool:
        """Waits until it waits for room (returns True) or has ended (False)."""
        await self._changed.wait()
        if not self.settled.is_set():
            self._changed = anyio.Event()
        full, self._waits_for_room = self._waits_for_room and not self.settled.is_set(), False
        return full


def _nothing(*_: Any) -> Any:
    """Stands for callbacks that are not called any more."""


class StreamJob(Job[T]):
    """A generation whose tokens are handed out as they come. `on_change` is called whenever it ends or waits for room.

    `started` is set once it has begun. `wake_tokens` are the tokens that wake the reader, who then gets all before them
    as well; None for every token. A reader with `wake_tokens` is not woken for the beginning either. `keep_tokens` is
    the number of tokens that stay when it is revoked, None for all; `was_truncated` says whether the others were
    removed.
    """

    __slots__ = ("_on_change", "_wake_tokens", "feed", "keep_tokens", "started", "waits_for_room", "was_truncated")

    def __init__(
        self,
        start: Callable[[StepEngine], int],
        finish: Callable[[FinishedJob], T],
        feed: Callable[[list[Emitted]], None],
        on_change: Callable[[], None],
        wake_tokens: Container[int] | None = None,
    ) -> None:
        super().__init__(start, finish)
        self._wake_tokens = wake_tokens
        self.feed = feed  # hands tokens to the reader; on the event loop
        self._on_change = on_change
        self.started = anyio.Event()
        if wake_tokens is not None:
            self.started.set()
        self.keep_tokens: int | None = None
        self.was_truncated = False
        self.waits_for_room = False  # the reader has to make it

    def forget_reader(self) -> None:
        """Drops the reader's callbacks, once it is settled: the reader and what it reads are in no cycle then."""
        self._start = self._finish = self.feed = self._on_change = _nothing

    def wait_for_room(self) -> None:
        self.waits_for_room = True
        self._on_change()

    def wakes(self, token: int) -> bool:
        """Returns whether this token wakes the reader."""
        return self._wake_tokens is None or token in self._wake_tokens

    def apply(self, worker: Worker) -> None:
        super().apply(worker)
        if self._wake_tokens is None:
            worker.report(self.started.set)

    def revoke(self, worker: Worker) -> None:
        if self.id is None:
            return  # it never began
        if self.keep_tokens is None:
            worker.engine.cancel(self.id)
        else:
            # A second time nothing is left to remove.
            self.was_truncated |= worker.engine.undo(self.id, self.keep_tokens)

    def succeed(self, result: T) -> None:
        super().succeed(result)
        self._on_change()

    def fail(self, error: BaseException) -> None:
        super().fail(error)
        self.started.set()
        self._on_change()


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
