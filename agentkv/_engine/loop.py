"""The event-loop side of the step loop: submits commands, settles their outcomes, cancels, stops.

Both directions are batched: commands go to the thread in flushes, outcomes come back in one post per step. `mailbox`
keeps the two in step, so that per-token loops in many tasks share their forwards.

No Python runs per token here: a generation lives inside of the engine, and a step costs the same for 1 or 64 of them.
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

from .._aio.host import current_host, step_thread
from .._aio.lock import Semaphore
from .._aio.scope import move_on_after
from .._types.errors import ContextClosed, StepFailed, WrongEventLoop, from_native
from .._types.info import Snapshot
from .._types.log import log
from .commands import Awaited, Call, Cancel, Close, Command, LetGo, News, Release, Worker
from .interface import SPARE_SEQUENCES
from .jobs import StreamJob, Taken
from .mailbox import Flush, Outbox, Quiet
from .step_history import StepRecord
from .watchdog import BlockedStrategy
from .worker import EngineWorker, Post, Stop

if TYPE_CHECKING:
    from .interface import EngineHost, LogListener, StepEngine


T = TypeVar("T")


async def in_thread(loop: StepLoop, work: Callable[[], T]) -> T:
    """The result of `work`, which runs in a thread. A cancelled wait waits all the same: what the thread has in hand,
    such as half a file, is never left to it."""
    done = anyio.Event()
    outcome: list[T] = []
    failures: list[BaseException] = []

    def run() -> None:
        nonlocal work
        try:
            outcome.append(work())
        except BaseException as error:
            failures.append(error)
        del work  # the thread may end long after the wait: nothing that it kept outlives the call
        loop.post(done.set)

    threading.Thread(target=run, name="agentkv-file", daemon=True).start()
    await loop.until(done)
    if failures:
        raise failures.pop()
    return outcome.pop()


class Closing:
    """What `Branch.close` returns. The branch is closed already; awaiting this waits until its cells are free."""

    __slots__ = ("_loop", "_released")

    def __init__(self, loop: StepLoop, released: Awaited[None] | None) -> None:
        self._loop = loop
        self._released = released

    def __await__(self) -> Generator[Any, None, None]:
        return self._wait().__await__()

    async def _wait(self) -> None:
        if self._released is not None:
            self._loop.check_here()
            await self._loop.until(self._released.settled)


PATIENCE_S = 0.5  # how often those who must wait for the thread look whether a strategy blocks it

_numbers = itertools.count()
_NEWS = News()


class StepLoop:
    """Runs one engine on one thread for the life of a Context. Made and used on one event loop, where `listener`
    hears how the branches' tokens change."""

    def __init__(self, listener: LogListener) -> None:
        self._host = current_host()
        self._queue: SimpleQueue[Flush | Command | Stop] = SimpleQueue()
        self._outbox = Outbox()
        self._posts: deque[Post] = deque()
        self.holds = Semaphore(SPARE_SEQUENCES)  # what is saved, loaded or set aside at once: see CellHold
        self._worker = EngineWorker(self._queue, self._outbox, self._post, listener)
        self._thread: threading.Thread | None = None
        self._ended = anyio.Event()
        self._open = False
        self._lost = False  # the thread did not come back
        self._quiet = Quiet(self._host.soon, self._send_if_due)
        self._settled = 0  # number of the last post that woke tasks

    @property
    def snapshot(self) -> Snapshot:
        """The engine's counters as of the last post."""
        return self._worker.snapshot

    @property
    def steps(self) -> list[StepRecord]:
        """The last steps, oldest first."""
        return self._worker.trace.records()

    async def start(self, open_engine: Callable[[], EngineHost], give_up: Callable[[], None] | None = None) -> None:
        """Starts the thread and has it open the engine; raises what that raised.

        A cancelled start waits until that ends, sooner where `give_up` ends it, and stops the thread.
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
            await self._opened(ready, give_up)
        except BaseException:
            await self.stop()
            raise
        if failures:
            await self.stop()
            raise from_native(failures[0])

    def _step(self, *how: Any) -> None:
        step_thread.waits_for = self._host
        self._worker.run(*how)

    async def _opened(self, ready: anyio.Event, give_up: Callable[[], None] | None) -> None:
        if give_up is not None:
            try:
                await ready.wait()
            except BaseException:
                give_up()
                raise
        await self.until(ready)

    async def stop(self) -> None:
        """Fails what is under way, frees the engine on its thread and joins it. Idempotent; not interrupted."""
        if not self._open or self._thread is None:
            return
        self._send()
        self._open = False
        self._queue.put(Stop())
        if not self._host.is_current():  # what the thread posts is settled elsewhere, or nowhere any more
            self._at_exit()
            return
        await self.until(self._ended)
        if not self._lost:
            self._thread.join()
            atexit.unregister(self._at_exit)

    def abandon(self) -> None:
        """As `stop`, from a coroutine that is torn down and can await nothing."""
        self._open = False
        self._at_exit()

    def _at_exit(self) -> None:
        """Native code must not outlive the interpreter where a Context was never left."""
        self._queue.put(Stop())
        blocked = BlockedStrategy(self._thread)
        while self._thread is not None and self._thread.is_alive() and not blocked.interrupt():
            self._thread.join(PATIENCE_S)
            if self._lost:
                return  # it had its time, and this was some more: one that just comes back ends in order

    def wake(self) -> None:
        """Has the thread see what came to its engine from elsewhere; from any thread."""
        self._queue.put(_NEWS)

    @property
    def is_open(self) -> bool:
        """Is the Context inside its block?"""
        return self._open

    def check_open(self) -> None:
        """Raises ContextClosed once the Context was left, WrongEventLoop on another event loop than its own."""
        if not self._open:
            raise ContextClosed("the Context was left; do this inside its `async with` block")
        self.check_here()

    def check_here(self) -> None:
        """Raises WrongEventLoop."""
        if not self._host.is_current():
            raise WrongEventLoop(
                "a Context and its branches belong to the event loop that opened it, and this is another one; open a "
                "Context here, or hand the work over to that event loop (asyncio.run_coroutine_threadsafe, say)"
            )

    async def call(
        self,
        verb: Callable[[StepEngine], T],
        undo: Callable[[Worker, T], None] | None = None,
        told: Callable[[T], None] | None = None,
    ) -> T:
        """Runs a verb between two forwards: see `Call`."""
        return await self.run(Call(verb, undo, told))

    async def run(self, command: Awaited[T]) -> T:
        """Runs a command to its end. Nothing begins in a scope that is cancelled already.

        A cancelled command is taken back, and settled at the step boundary, before the cancellation goes on.
        """
        await checkpoint_if_cancelled()
        self.submit(command)
        return await self.wait(command)

    def submit(self, command: Command) -> None:
        """Sends a command with the next flush."""
        self.check_open()
        self._outbox.put(command)
        self._quiet.ask()

    async def wait(self, command: Awaited[T]) -> T:
        """Waits until a submitted command is settled, and returns its result."""
        try:
            await command.settled.wait()
        except GeneratorExit:  # the coroutine is torn down: nothing can be awaited any more
            self.drop(command)
            raise
        except BaseException:
            await self.cancel(command)
            raise
        return command.result()

    async def cancel(self, command: Awaited[Any]) -> None:
        """Takes back a submitted command and waits, uninterrupted, until it and that are settled."""
        cancel = self.drop(command)
        await self.until(command.settled, *([] if cancel is None else [cancel.settled]))

    def drop(self, command: Awaited[Any]) -> Cancel | None:
        """Takes back a submitted command, and returns what there is to wait for.

        None once the Context was left: whatever was under way then fails, and there is nothing to take back.
        """
        if not self._open:
            return None
        cancel = Cancel(command)
        self._outbox.put(cancel)
        self._send()
        return cancel

    def close(self, branch: int) -> Awaited[None] | None:
        """Frees a branch, and returns what there is to wait for; None once the Context was left."""
        if not self._open:
            return None
        close = Close(branch)
        if self._host.is_current():
            self.submit(close)
        else:
            self._queue.put(close)
        return close

    def release(self, branch: int) -> None:
        """Frees a branch; callable from any thread, a finalizer included."""
        self._queue.put(Release(branch))

    def let_go(self, hold: int) -> None:
        """Lets held cells go; callable from any thread."""
        self._queue.put(LetGo(hold))

    def post(self, callback: Callable[[], None]) -> None:
        """Runs `callback` on the event loop, from any thread; does nothing when that is gone."""
        self._host.post(callback)

    def taken(self, job: StreamJob[Any], count: int) -> None:
        """The reader of a stream has taken so many more of its tokens."""
        self._queue.put(Taken(job, count))

    def _send_if_due(self) -> None:
        if self._outbox or self._worker.awaits_answers:
            self._send(self._settled)

    def _send(self, answers: int = 0) -> None:
        self._queue.put(Flush(self._outbox.submitted, answers))

    def _post(self, post: Post) -> bool:
        self._posts.append(post)
        return self._host.post(self._settle_posts)

    def _settle_posts(self) -> None:
        woke = False
        try:
            while self._posts:
                post = self._posts[0]
                while post.settlements:  # one that is broken off runs again: settling twice changes nothing
                    post.settlements[0]()
                    post.settlements.popleft()
                if post.number is not None:
                    self._settled, woke = post.number, True
                self._posts.popleft()
        finally:
            if self._posts:  # a signal's exception may come anywhere: what is left is settled all the same
                self._host.soon(self._settle_posts)
            if woke:
                self._quiet.restart()

    async def until(self, *events: anyio.Event) -> None:
        """Waits for events that will come, whatever is cancelled meanwhile; then lets the cancellation go on.

        A strategy that does not return is interrupted, and at last given up with the thread that runs it.
        """
        blocked = BlockedStrategy(self._thread)
        cancelled: BaseException | None = None
        for event in events:
            while not event.is_set():
                try:
                    with move_on_after(PATIENCE_S, shield=True):
                        await event.wait()
                    if not event.is_set():
                        self._revive()
                        if blocked.interrupt():
                            self._give_up()
                except anyio.get_cancelled_exc_class() as error:  # asyncio's own cancel() goes through shields
                    cancelled = error
        if cancelled is not None:
            raise cancelled

    def _revive(self) -> None:
        """What a signal's exception kept from being sent or settled, as it may come before any line of a callback."""
        if self._outbox:
            self._send()
        if self._posts:
            self._settle_posts()

    def _give_up(self) -> None:
        """The thread will not come back: everything under way fails, and the Context ends without it."""
        log.error("a strategy does not return; its thread is left behind", thread=self._thread and self._thread.name)
        error = StepFailed(
            "a strategy did not return from `propose` or `observe`; see kv.spec.Strategy, open the Context again"
        )
        self._lost = True
        self._open = False
        for command in (*self._worker.jobs.values(), *self._outbox.left()):
            command.fail(error)
        self._queue.put(Stop())  # for the case that it does return
        self._ended.set()
