"""The thread side of the step loop: owns the engine, drains commands between forwards, steps, reports."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from time import perf_counter
from typing import TYPE_CHECKING, Any

from .._types.errors import ContextClosed, StepFailed, from_native
from .._types.info import Snapshot
from .._types.log import log
from .commands import Command, Job
from .jobs import StreamJob
from .mailbox import Answers, Flush, Outbox
from .step_history import StepTrace

if TYPE_CHECKING:
    from .interface import CellStore, Emitted, EngineHost, LogListener, StepEngine, StepReport

TIDY_AFTER_S = 1.0  # so long without anything to do, and memory that nobody needs is given back
STATS_EVERY_S = 0.05  # how often steps that only stream refresh the statistics


class Post:
    """Outcomes of one round, in the order to settle them; with a number where they wake tasks."""

    __slots__ = ("number", "settlements")

    def __init__(self, settlements: Iterable[Callable[[], None]], number: int | None) -> None:
        self.settlements = deque(settlements)
        self.number = number


class Stop:
    """The last thing in the queue."""

    __slots__ = ()


def _feed(streamed: dict[StreamJob[Any], list[Emitted]]) -> None:
    for job, items in streamed.items():
        job.feed(items)


class EngineWorker:
    """What the thread of a step loop runs.

    Args:
        queue: flushes of the outbox, and single commands that cannot wait for one.
        outbox: where the event loop puts commands.
        post: hands a Post to the event loop; False when that is gone.
        listener: hears on the event loop how the branches' tokens change.
    """

    def __init__(
        self,
        queue: SimpleQueue[Flush | Command | Stop],
        outbox: Outbox,
        post: Callable[[Post], bool],
        listener: LogListener,
    ) -> None:
        self.engine: StepEngine
        self.cells: CellStore
        self._open_engine: EngineHost | None = None
        self.jobs: dict[int, Job[Any]] = {}
        self.snapshot: Snapshot
        self.trace = StepTrace()
        self.awaits_answers = False  # read by the event loop
        self._queue = queue
        self._post = post
        self._listener = listener
        self._outbox = outbox
        self._settlements: list[Callable[[], None]] = []
        self._streamed: dict[StreamJob[Any], list[Emitted]] = {}
        self._due = False  # is there a reader to wake for it?
        self._answers = Answers()
        self._stats_at = 0.0
        self._stopping = False

    def report(self, settle: Callable[[], None]) -> None:
        """Has `settle` run on the event loop with the next post."""
        self._settlements.append(settle)

    def close(self, branch: int) -> None:
        """Frees a branch and ends what it runs; one that is closed already is left alone."""
        self.engine.close(branch)
        self.report(partial(self._listener.drop, branch))

    def run(
        self,
        open_engine: Callable[[], EngineHost],
        opened: Callable[[BaseException | None], None],
        ended: Callable[[], None],
    ) -> None:
        """Opens the engine, serves until Stop, and frees everything on the thread that made it.

        On the event loop, `opened` gets the error if there was one, and `ended` is the last thing to run.
        """
        try:
            self._open_engine = open_engine()
            self.engine = self._open_engine.engine
            self.cells = self._open_engine.session
            self.snapshot = self._open_engine.snapshot()
        except BaseException as error:
            self.report(partial(opened, error))
        else:
            self.report(partial(opened, None))
            self._publish()
            self._run_engine()
        self.report(ended)
        self._publish()

    def _run_engine(self) -> None:
        try:
            self._serve()
            ending: BaseException = ContextClosed("the Context was left while this was under way; keep it open longer")
        except BaseException as error:
            log.error("step loop failed", exc_info=True)
            ending = StepFailed(f"the step loop failed: {error!r}; open the Context again")
            ending.__cause__ = error
        self._end(ending)

    def _serve(self) -> None:
        idle = True
        while True:
            self._collect(idle)
            if self._stopping:
                return
            report = self.step()
            idle = report.idle
            self.trace.add(report)
            self._absorb(report)

    def step(self) -> StepReport:
        """One step of the engine. Strategies and constraints written in Python run above this frame or `settle`."""
        return self.engine.step()

    def settle(self) -> StepReport:
        """What ends without a forward."""
        return self.engine.settle()

    def _collect(self, idle: bool) -> None:
        """Applies what came in and answers what needs no forward, until a forward is due.

        Waits for work when there is none, and a little for tasks that the last posts woke.
        """
        queue = self._queue
        while True:
            self._publish()
            if idle or not self.jobs:
                self._take(self._awaited())
                idle = False
            while not queue.empty():
                self._take(queue.get())
            if self._stopping:
                return
            self._absorb(self.settle())
            self._publish()
            if not self.jobs:
                continue
            patience = self._answers.patience()
            if not patience:
                return
            with suppress(Empty):
                self._take(queue.get(timeout=patience))

    def _awaited(self) -> Flush | Command | Stop:
        """The next thing to do. Whoever has nothing to do for a while tidies up once."""
        try:
            return self._queue.get(timeout=TIDY_AFTER_S)
        except Empty:
            self._tidy()
            return self._queue.get()

    def _tidy(self) -> None:
        stats = self.engine.stats()
        # Of memory alone: compacting copies what lies in pages of files.
        if 4 * (stats.cells_used + stats.cells_retained) * self.cells.cell_bytes <= 3 * self.cells.kv_bytes:
            with suppress(Exception):  # memory that the system does not have is no reason to end
                self.cells.shrink(self.engine.compact())
            self._refresh_stats(perf_counter())

    def _take(self, item: Flush | Command | Stop) -> None:
        if isinstance(item, Stop):
            self._stopping = True
        elif isinstance(item, Flush):
            self._answers.answered(item.answers)
            self._outbox.take(item.upto, self._apply)
        else:
            self._apply(item)

    def _apply(self, command: Command) -> None:
        before = len(self._settlements)
        try:
            command.apply(self)
        except BaseException as error:  # the command's own: those behind it go on
            self.report(partial(command.fail, from_native(error)))
        self._tell_changes(before)

    def _tell_changes(self, before: int) -> None:
        """What the engine did to the branches' tokens is known before the outcomes from `before` on."""
        changes = self.engine.take_changes()
        if changes:
            self._settlements.insert(before, partial(self._listener.apply, changes))

    def _absorb(self, report: StepReport) -> None:
        self._tell_changes(len(self._settlements))
        for emitted in report.emitted:
            job = self.jobs[emitted.job]
            assert isinstance(job, StreamJob)
            self._streamed.setdefault(job, []).append(emitted)
            self._due = self._due or job.wakes(emitted.token)
        for number in report.out_of_room:
            self.report(self.jobs[number].wait_for_room)
        for finished in report.finished:
            self.jobs[finished.job].end(self, finished)
            del self.jobs[finished.job]

    def _publish(self) -> None:
        if not self._settlements and not self._due:
            return
        now = perf_counter()
        number = self._answers.posted() if self._settlements else None
        if number is not None or now - self._stats_at > STATS_EVERY_S:
            self._refresh_stats(now)
        self.awaits_answers = bool(self.jobs)
        settlements = self._settlements
        if self._streamed:
            settlements = [partial(_feed, self._streamed), *settlements]
            self._streamed, self._due = {}, False
        post = Post(settlements, number)
        self._settlements, settlements = [], []  # what the event loop has settled, nothing here refers to any more
        if not self._post(post):
            self._stopping = True

    def _refresh_stats(self, now: float) -> None:
        if self._open_engine is not None:
            self.snapshot = self._open_engine.snapshot()
            self._stats_at = now

    def _end(self, ending: BaseException) -> None:
        """Fails what is under way and what still comes, until Stop; then lets the engine go."""
        for job in self.jobs.values():
            self.report(partial(job.fail, ending))
        self.jobs.clear()
        while True:
            for command in self._outbox.left():
                self.report(partial(command.fail, ending))
            self._publish()
            if self._stopping:
                break
            self._stopping = isinstance(self._queue.get(), Stop)
        opened, self._open_engine = self._open_engine, None
        del self.engine, self.cells
        with suppress(Exception):  # whoever leaves waits for this thread: it tells them, whatever closing comes to
            if opened is not None:
                opened.close()
