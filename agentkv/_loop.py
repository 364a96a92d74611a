"""The event-loop side of the step loop: submits commands, settles their outcomes, cancels, stops.

Two directions, each batched:

- Commands go to the thread in flushes. The first command schedules one, and it puts itself off, tick by tick, until a
  whole tick of the event loop passed without a new command; so tasks that wake together ride together.
- Outcomes come back in one post per step. A post that woke tasks is answered by such a flush even when there is
  nothing to send, and the thread waits for that answer, within bounds, before the next forward: the tasks it woke may
  come back. That is how per-token loops in many tasks share their forwards, without a timer.

No Python runs per token here: a generation lives inside the engine, and a step costs the same for 1 or 64 of them.
"""

from __future__ import annotations

import atexit
import itertools
import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, TypeVar

import anyio
from anyio.lowlevel import checkpoint_if_cancelled

from ._commands import Awaited, Call, Cancel, Command, Job, Release, Resume, StreamJob, Undo
from ._errors import ContextClosed, from_native
from ._host import current_host
from ._trace import StepRecord
from ._worker import Batch, EngineWorker, Post, Stop

if TYPE_CHECKING:
    from agentkv_runtime.engine import Engine

    from ._model import Session

T = TypeVar("T")

MAX_QUIET_TICKS = 32  # a flush is put off at most this often

_numbers = itertools.count()


class StepLoop:
    """Runs one engine on one thread for the life of a Context. Made and used on one event loop."""

    def __init__(self) -> None:
        self._host = current_host()
        self._queue: SimpleQueue[Batch | Command | Stop] = SimpleQueue()
        self._posts: deque[Post] = deque()
        self._worker = EngineWorker(self._queue, self._post)
        self._thread: threading.Thread | None = None
        self._ended = anyio.Event()
        self._open = False
        self._outbox: list[Command] = []
        self._submitted = 0  # commands, ever
        self._seen = 0  # sequence of the last post that was settled
        self._ticking = False
        self._ticks = 0
        self._submitted_at_tick = -1

    @property
    def stats(self) -> dict[str, Any]:
        """The engine's statistics as of the last post."""
        return self._worker.stats

    @property
    def steps(self) -> list[StepRecord]:
        """The last steps, oldest first."""
        return self._worker.trace.records()

    async def start(self, open_session: Callable[[], Session]) -> None:
        """Starts the thread and has it open the engine; raises what that raised.

        Opening cannot be interrupted: a cancelled start waits for it, then stops the thread.
        """
        ready = anyio.Event()
        failures: list[BaseException] = []

        def opened(error: BaseException | None) -> None:
            if error is not None:
                failures.append(error)
            ready.set()

        self._thread = threading.Thread(
            target=self._worker.run,
            args=(open_session, opened, self._ended.set),
            name=f"agentkv-{next(_numbers)}",
            daemon=True,  # `_at_exit` ends it where a Context was never left
        )
        self._open = True
        self._thread.start()
        atexit.register(self._at_exit)
        try:
            await _settled(ready)
        except BaseException:
            await self.stop()
            raise
        if failures:
            await self.stop()
            raise from_native(failures[0])

    async def stop(self) -> None:
        """Fails what is under way, frees the engine on its thread and joins it. Idempotent; not interrupted."""
        if not self._open or self._thread is None:
            return
        self._flush()
        self._open = False
        self._queue.put(Stop())
        try:
            await _settled(self._ended)
        finally:
            self._thread.join()
            atexit.unregister(self._at_exit)

    def _at_exit(self) -> None:
        """Native code must not outlive the interpreter where a Context was never left."""
        self._queue.put(Stop())
        if self._thread is not None:
            self._thread.join()

    @property
    def is_open(self) -> bool:
        """Is the Context inside its block?"""
        return self._open

    def check_open(self) -> None:
        """Raises ContextClosed once the Context was left."""
        if not self._open:
            raise ContextClosed("the Context was left; do this inside its `async with` block")

    async def call(
        self,
        verb: Callable[[Engine], T],
        then: Callable[[T], None] | None = None,
        undo: Undo[T] | None = None,
    ) -> T:
        """Runs a verb between two forwards.

        `then` runs on the event loop in the order of the verbs. A cancelled call is settled before the cancellation
        goes on: it was not applied, or it was and `undo` gets the result that nobody receives.
        """
        return await self.run(Call(verb, then), undo)

    async def run(self, command: Awaited[T], undo: Undo[T] | None = None) -> T:
        """Runs a command to its end. Nothing begins in a scope that is cancelled already.

        A cancelled job is settled at the step boundary before the cancellation goes on, and `undo` gets the result of
        one that had succeeded by then.
        """
        await checkpoint_if_cancelled()
        self.submit(command)
        return await self.wait(command, undo)

    def submit(self, command: Command) -> None:
        """Sends a command with the next flush."""
        self.check_open()
        self._outbox.append(command)
        self._submitted += 1
        if not self._ticking:
            self._await_quiet()

    async def wait(self, command: Awaited[T], undo: Undo[T] | None = None) -> T:
        """Waits until a submitted command is settled, and returns its result."""
        try:
            await command.settled.wait()
        except GeneratorExit:  # the coroutine is torn down: nothing can be awaited any more
            self._abandon(command, undo)
            raise
        except BaseException:
            self._abandon(command, undo)
            await _settled(command.settled)
            if command.undoing is not None:
                await _settled(command.undoing.settled)
            raise
        return command.result()

    async def cancel(self, job: Job[Any]) -> None:
        """Cancels a submitted job and waits, uninterrupted, until it is settled."""
        self._abandon(job, None)
        await _settled(job.settled)

    def _abandon(self, command: Awaited[T], undo: Undo[T] | None) -> None:
        command.undo = undo
        if command.settled.is_set():
            command.take_back()
            return
        command.abandoned = True
        if self._open:
            if isinstance(command, Job):
                self._outbox.append(Cancel(command))
            self._flush()

    def release(self, branch: int) -> None:
        """Frees a branch; callable from any thread, a finalizer included."""
        self._queue.put(Release(branch))

    def resume(self, job: StreamJob[Any]) -> None:
        """Lets a paused stream go on."""
        self._queue.put(Resume(job))

    def _await_quiet(self) -> None:
        self._ticks = 0
        self._submitted_at_tick = -1
        if not self._ticking:
            self._ticking = True
            self._host.soon(self._tick)

    def _tick(self) -> None:
        if self._submitted != self._submitted_at_tick and self._ticks < MAX_QUIET_TICKS:
            self._submitted_at_tick = self._submitted
            self._ticks += 1
            self._host.soon(self._tick)
            return
        self._ticking = False
        if self._outbox or self._worker.answers:
            self._flush(self._seen)

    def _flush(self, seen: int = 0) -> None:
        self._queue.put(Batch(self._outbox, seen))
        self._outbox = []

    def _post(self, post: Post) -> bool:
        self._posts.append(post)
        return self._host.post(self._settle_posts)

    def _settle_posts(self) -> None:
        woke = False
        while self._posts:
            post = self._posts.popleft()
            for job, items in post.streamed.items():
                job.feed(items)
            for settle in post.settlements:
                settle()
            woke = woke or bool(post.settlements)
            self._seen = post.sequence
        if woke:
            self._await_quiet()


async def _settled(event: anyio.Event) -> None:
    """Waits for an event that will come, whatever is cancelled meanwhile; then lets the cancellation go on."""
    cancelled: BaseException | None = None
    while not event.is_set():
        try:
            with anyio.CancelScope(shield=True):
                await event.wait()
        except anyio.get_cancelled_exc_class() as error:  # asyncio's own cancel() goes through shields
            cancelled = error
    if cancelled is not None:
        raise cancelled
