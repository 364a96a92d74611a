"""Event-loop side of the step loop: submits commands, settles their outcomes, cancels, stops.

Both directions are batched: commands go to the thread in flushes, outcomes come back in one batch per step. `mailbox`
keeps the two in step, so that per-token loops in many tasks share their forwards.

No Python runs per token here: generations run inside the engine, and a step costs the same for 1 or 64 of them.
"""

from __future__ import annotations

import atexit
import itertools
import threading
from collections import deque
from collections.abc import Callable, Generator
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, TypeVar

import anyio
from anyio.lowlevel import checkpoint_if_cancelled

from .._aio.host import current_event_loop, step_thread
from .._aio.lock import Semaphore
from .._aio.scope import move_on_after
from .._types.errors import ContextClosed, StepFailed, WrongEventLoop, from_native
from .._types.info import EngineCounters, StepRecord
from .._types.log import log
from .commands import Awaited, Cancel, Close, Command, EngineCall, Release, ThreadCall, Unpin, Wakeup, Worker
from .interface import SPARE_SEQUENCES
from .jobs import Ack, StreamJob
from .mailbox import CommandQueue, Flush, FlushDebouncer
from .watchdog import StrategyWatchdog
from .worker import MAX_STEPS, EngineWorker, OutcomeBatch, Shutdown

if TYPE_CHECKING:
    from .interface import CellStore, EngineHost, LogListener, StepEngine


T = TypeVar("T")


async def in_thread(loop: StepLoop, work: Callable[[], T]) -> T:
    """Runs `work` in a thread and returns its result. A cancelled wait still waits for the thread to end, so that no
    half-written file is left to it."""
    done = anyio.Event()
    outcome: list[T] = []
    failures: list[BaseException] = []

    def run() -> None:
        nonlocal work
        try:
            outcome.append(work())
        except BaseException as error:
            failures.append(error)
        del work  # the thread may end long after the wait: its references do not outlive the call
        loop.post(done.set)

    threading.Thread(target=run, name="agentkv-file", daemon=True).start()
    await loop.wait_shielded(done)
    if failures:
        raise failures.pop()
    return outcome.pop()


class Closing:
    """Result of `Branch.close`. The branch is closed already; awaiting this waits until its cells are free."""

    __slots__ = ("_loop", "_released")

    def __init__(self, loop: StepLoop, released: Awaited[None] | None) -> None:
        self._loop = loop
        self._released = released

    def __await__(self) -> Generator[Any, None, None]:
        return self._wait().__await__()

    async def _wait(self) -> None:
        if self._released is not None:
            self._loop.check_event_loop()
            await self._loop.wait_shielded(self._released.settled)


WATCH_INTERVAL_S = 0.5  # interval at which uninterruptible waits check for a strategy that blocks the thread

_numbers = itertools.count()
_WAKEUP = Wakeup()


class StepLoop:
    """Runs one engine on one thread for the life of a Context. Made and used on one event loop, where `listener` gets
    the changes of the branches' tokens."""

    def __init__(self, listener: LogListener) -> None:
        self._event_loop = current_event_loop()
        self._queue: SimpleQueue[Flush | Command | Shutdown] = SimpleQueue()
        self._commands = CommandQueue()
        self._posts: deque[OutcomeBatch] = deque()
        self.pins = Semaphore(SPARE_SEQUENCES)  # concurrent saves, loads and offloads: see PinnedCells
        self._worker = EngineWorker(self._queue, self._commands, self._post, listener)
        self._thread: threading.Thread | None = None
        self._ended = anyio.Event()
        self._open = False
        self._thread_abandoned = False  # the thread did not come back
        self._debouncer = FlushDebouncer(self._event_loop.call_soon, self._send_if_due)
        self._settled = 0  # number of the last post that woke tasks

    @property
    def snapshot(self) -> EngineCounters:
        """The engine's counters as of the last batch of outcomes."""
        return self._worker.snapshot

    @property
    def steps(self) -> list[StepRecord]:
        """The last steps, oldest first."""
        return self.last_steps()

    def last_steps(self, count: int = MAX_STEPS) -> list[StepRecord]:
        """The last so many steps, oldest first."""
        return self._worker.trace.records(count)

    async def start(self, open_engine: Callable[[], EngineHost], abort_open: Callable[[], None] | None = None) -> None:
        """Starts the thread and opens the engine on it; raises the error of opening.

        A cancelled start waits until opening ends, which `abort_open` hastens, and stops the thread.
        """
        ready = anyio.Event()
        failures: list[BaseException] = []

        def opened(error: BaseException | None) -> None:
            if error is not None:
                failures.append(error)
            ready.set()

        self._thread = threading.Thread(
            target=self._step,
            args=(open_engine, opened, self._ended.set),
            name=f"agentkv-{next(_numbers)}",
            daemon=True,  # `_at_exit` ends it where a Context was never left
        )
        self._open = True
        self._thread.start()
        atexit.register(self._at_exit)
        try:
            await self._opened(ready, abort_open)
        except BaseException:
            await self.stop()
            raise
        if failures:
            await self.stop()
            raise from_native(failures[0])

    def _step(self, *how: Any) -> None:
        step_thread.serves = self._event_loop
        self._worker.run(*how)

    async def _opened(self, ready: anyio.Event, abort_open: Callable[[], None] | None) -> None:
        if abort_open is not None:
            try:
                await ready.wait()
            except BaseException:
                abort_open()
                raise
        await self.wait_shielded(ready)

    async def stop(self) -> None:
        """Fails all running commands, frees the engine on its thread and joins it. Idempotent; not interruptible."""
        if not self._open or self._thread is None:
            return
        self._send()
        self._open = False
        self._queue.put(Shutdown())
        if not self._event_loop.is_current():  # outcomes are settled elsewhere, or nowhere any more
            self._at_exit()
            return
        await self.wait_shielded(self._ended)
        if not self._thread_abandoned:
            self._thread.join()
            atexit.unregister(self._at_exit)

    def abandon(self) -> None:
        """Same as `stop`, for a coroutine that is torn down and cannot await."""
        self._open = False
        self._at_exit()

    def _at_exit(self) -> None:
        """Ends the thread of a Context that was never left: native code must not outlive the interpreter."""
        self._queue.put(Shutdown())
        blocked = StrategyWatchdog(self._thread)
        while self._thread is not None and self._thread.is_alive() and not blocked.interrupt():
            self._thread.join(WATCH_INTERVAL_S)
            if self._thread_abandoned:
                return  # abandoned before: the extra wait lets one that just returns end in order

    def wake(self) -> None:
        """Wakes the thread to settle events that reached its engine from elsewhere; callable from any thread."""
        self._queue.put(_WAKEUP)

    @property
    def is_open(self) -> bool:
        """Whether the Context is inside its block."""
        return self._open

    @property
    def is_here(self) -> bool:
        """Whether the Context is open, on the caller's event loop."""
        return self._open and self._event_loop.is_current()

    def check_open(self) -> None:
        """Raises ContextClosed once the Context is closed, WrongEventLoop on another event loop than its own."""
        if not self._open:
            raise ContextClosed("the Context was left; do this inside its `async with` block")
        self.check_event_loop()

    @property
    def is_current(self) -> bool:
        """Whether its event loop runs the caller."""
        return self._event_loop.is_current()

    def check_event_loop(self) -> None:
        """Raises WrongEventLoop on another event loop than the Context's."""
        if not self._event_loop.is_current():
            raise WrongEventLoop(
                "a Context and its branches belong to the event loop that opened it, and this is another one; open a "
                "Context here, or hand the work over to that event loop (asyncio.run_coroutine_threadsafe, say)"
            )

    async def call(
        self,
        verb: Callable[[StepEngine], T],
        undo: Callable[[Worker, T], None] | None = None,
        on_result: Callable[[T], None] | None = None,
    ) -> T:
        """Runs an engine call between two forwards: see `EngineCall`."""
        return await self.run(EngineCall(verb, undo, on_result))

    async def run(self, command: Awaited[T]) -> T:
        """Runs a command to its end and returns its result. Nothing begins in a scope that is cancelled already.

        A cancelled command is revoked, and settled at the step boundary, before the cancellation propagates.
        """
        await checkpoint_if_cancelled()
        self.submit(command)
        return await self.wait(command)

    def submit(self, command: Command) -> None:
        """Sends a command with the next flush."""
        self.check_open()
        self._commands.put(command)
        self._debouncer.request()

    async def wait(self, command: Awaited[T]) -> T:
        """Waits until a submitted command is settled, and returns its result."""
        try:
            await command.settled.wait()
        except BaseException as error:
            await self.cancel(command, error)
            raise
        return command.take()

    async def cancel(self, command: Awaited[Any], error: BaseException | None) -> None:
        """Revokes a submitted command, since `error` ended the wait for it, and waits, uninterruptibly, until both are
        settled."""
        cancel = self.revoke(command)
        if isinstance(error, GeneratorExit):
            return  # the coroutine is torn down: nothing can be awaited any more
        await self.wait_shielded(command.settled, *([] if cancel is None else [cancel.settled]))

    def revoke(self, command: Awaited[Any]) -> Cancel | None:
        """Revokes a submitted command; returns the Cancel to wait for.

        Returns None once the Context is closed: all commands fail then, and there is nothing to revoke.
        """
        if not self._open:
            return None
        cancel = Cancel(command)
        self._commands.put(cancel)
        self._send()
        return cancel

    def close(self, branch: int) -> Awaited[None] | None:
        """Frees a branch; returns the command to wait for, or None once the Context is closed."""
        if not self._open:
            return None
        close = Close(branch)
        if self._event_loop.is_current():
            self.submit(close)
        else:
            self._queue.put(close)
        return close

    def call_in_thread(self, verb: Callable[[StepEngine, CellStore], T]) -> T:
        """Runs a call on cells between two forwards and returns its result, for a thread of neither the event loop nor
        the step loop. Raises what the call raises; ContextClosed."""
        call = ThreadCall(verb)
        self._queue.put(call)
        return call.wait(lambda: self._open)

    def release(self, branch: int) -> None:
        """Frees a branch; callable from any thread, a finalizer included."""
        self._queue.put(Release(branch))

    def unpin(self, pin: int) -> None:
        """Unpins cells; callable from any thread."""
        self._queue.put(Unpin(pin))

    def post(self, callback: Callable[[], None]) -> None:
        """Runs `callback` on the event loop, from any thread; does nothing if the loop is gone."""
        self._event_loop.call_soon_threadsafe(callback)

    def ack(self, job: StreamJob[Any], count: int) -> None:
        """Tells the engine that the reader of a stream has read `count` more tokens."""
        self._queue.put(Ack(job, count))

    def _send_if_due(self) -> None:
        if self._commands or self._worker.awaits_answers:
            self._send(self._settled)

    def _send(self, answers: int = 0) -> None:
        self._queue.put(Flush(self._commands.submitted, answers))

    def _post(self, post: OutcomeBatch) -> bool:
        self._posts.append(post)
        return self._event_loop.call_soon_threadsafe(self._settle_posts)

    def _settle_posts(self) -> None:
        woke = False
        try:
            while self._posts:
                post = self._posts[0]
                while post.settlements:  # an interrupted one runs again: settling twice is harmless
                    post.settlements[0]()
                    post.settlements.popleft()
                if post.number is not None:
                    self._settled, woke = post.number, True
                self._posts.popleft()
        finally:
            if self._posts:  # a signal's exception may come anywhere: the rest is settled all the same
                self._event_loop.call_soon(self._settle_posts)
            if woke:
                self._debouncer.restart()

    async def wait_shielded(self, *events: anyio.Event) -> None:
        """Waits for all events, shielded from cancellation, then re-raises it.

        Interrupts a strategy that blocks the thread; abandons the thread if that does not help.
        """
        blocked = StrategyWatchdog(self._thread)
        cancelled: BaseException | None = None
        for event in events:
            while not event.is_set():
                try:
                    with move_on_after(WATCH_INTERVAL_S, shield=True):
                        await event.wait()
                    if not event.is_set():
                        self._resend_lost()
                        if blocked.interrupt():
                            self._abandon_thread()
                except anyio.get_cancelled_exc_class() as error:  # asyncio's own cancel() goes through shields
                    cancelled = error
        if cancelled is not None:
            try:
                raise cancelled
            finally:
                del cancelled

    def _resend_lost(self) -> None:
        """Sends and settles what an exception from a signal handler, possible at any line of a callback, has
        interrupted."""
        if self._commands:
            self._send()
        if self._posts:
            self._settle_posts()

    def _abandon_thread(self) -> None:
        """Gives up the blocked thread: all running commands fail, and the Context ends without it."""
        log.error("a strategy does not return; its thread is left behind", thread=self._thread and self._thread.name)
        error = StepFailed(
            "a strategy did not return from `propose` or `observe`; see kv.spec.Strategy, open the Context again"
        )
        self._thread_abandoned = True
        self._open = False
        for command in (*self._worker.jobs.values(), *self._commands.unfinished()):
            command.fail(error)
        self._queue.put(Shutdown())  # for the case that it does return
        self._ended.set()
