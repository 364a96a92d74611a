"""Thread side of the step loop: owns the engine, drains commands between forwards, steps, reports."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from itertools import islice
from queue import Empty, SimpleQueue
from time import perf_counter
from typing import TYPE_CHECKING, Any

from .._types.errors import ContextClosed, StepFailed, from_native
from .._types.info import EngineCounters, StepRecord
from .._types.log import log
from .commands import Command, Job
from .jobs import StreamJob
from .mailbox import CommandQueue, Flush, PostAcks

if TYPE_CHECKING:
    from .interface import CellStore, Emitted, EngineHost, LogListener, StepEngine, StepReport

TIDY_AFTER_S = 1.0  # idle time after which unneeded memory is returned to the system
MAX_STEPS = 4096  # steps remembered; older ones are dropped
STATS_EVERY_S = 0.05  # how often steps that only stream refresh the statistics


class OutcomeBatch:
    """Outcomes of one round, in settlement order; with a number if they wake tasks."""

    __slots__ = ("number", "settlements")

    def __init__(self, settlements: Iterable[Callable[[], None]], number: int | None) -> None:
        self.settlements = deque(settlements)
        self.number = number


class Shutdown:
    """End marker of the queue."""

    __slots__ = ()


class StepHistory:
    """The last steps; the step loop's thread appends, any thread reads."""

    def __init__(self) -> None:
        self._rows: deque[tuple[int, int, int, int, float, float, float, float]] = deque(maxlen=MAX_STEPS)

    def add(self, report: StepReport) -> None:
        """Adds a step if it ran a forward."""
        if report.forwards:
            rows = (report.branches, report.decode_rows, report.prefill_rows, report.forwards)
            seconds = report.seconds
            times = (perf_counter() - seconds, seconds, report.forward_seconds, report.draft_seconds)
            self._rows.append(rows + times)

    def records(self, last: int = MAX_STEPS) -> list[StepRecord]:
        """The last so many steps, oldest first."""
        rows = islice(reversed(self._rows.copy()), last)
        return [StepRecord(*row) for row in rows][::-1]


def _feed(streamed: dict[StreamJob[Any], list[Emitted]]) -> None:
    for job, items in streamed.items():
        job.feed(items)


class EngineWorker:
    """The code that a step loop's thread runs.

    Args:
        queue: flushes of the commands, and single commands that cannot wait for one.
        commands: those of the event loop.
        post: hands an OutcomeBatch to the event loop; returns False when that is gone.
        listener: gets the changes of the branches' tokens, on the event loop.
    """

    def __init__(
        self,
        queue: SimpleQueue[Flush | Command | Shutdown],
        commands: CommandQueue,
        post: Callable[[OutcomeBatch], bool],
        listener: LogListener,
    ) -> None:
        self.engine: StepEngine
        self.cells: CellStore
        self._open_engine: EngineHost | None = None
        self.jobs: dict[int, Job[Any]] = {}
        self.snapshot: EngineCounters
        self.trace = StepHistory()
        self.awaits_answers = False  # read by the event loop
        self._queue = queue
        self._post = post
        self._listener = listener
        self._commands = commands
        self._settlements: list[Callable[[], None]] = []
        self._streamed: dict[StreamJob[Any], list[Emitted]] = {}
        self._has_reader_to_wake = False  # whether a streamed token wakes its reader
        self._answers = PostAcks()
        self._stats_at = 0.0
        self._stopping = False

    def report(self, settle: Callable[[], None]) -> None:
        """Schedules `settle` on the event loop with the next batch of outcomes."""
        self._settlements.append(settle)

    def close(self, branch: int) -> None:
        """Frees a branch and ends its job. Idempotent."""
        self.engine.close(branch)
        self.report(partial(self._listener.drop, branch))

    def run(
        self,
        open_engine: Callable[[], EngineHost],
        opened: Callable[[BaseException | None], None],
        ended: Callable[[], None],
    ) -> None:
        """Opens the engine, serves until Shutdown, and frees everything on the thread that made it.

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
            self._drain_until_forward(idle)
            if self._stopping:
                return
            report = self.step()
            idle = report.idle
            self.trace.add(report)
            self._apply_report(report)

    def step(self) -> StepReport:
        """One step of the engine. Strategies and constraints written in Python run above this frame or `settle`."""
        return self.engine.step()

    def settle(self) -> StepReport:
        """Reports the jobs that end without a forward."""
        return self.engine.settle()

    def _drain_until_forward(self, idle: bool) -> None:
        """Applies incoming items and reports jobs that end without a forward, until a forward is due.

        Waits for work when there is none, and briefly for tasks that the last batches woke.
        """
        queue = self._queue
        while True:
            self._publish()
            if idle or not self.jobs:
                self._handle(self._awaited())
                idle = False
            while not queue.empty():
                self._handle(queue.get())
            if self._stopping:
                return
            self._apply_report(self.settle())
            self._publish()
            if not self.jobs:
                continue
            seconds = self._answers.seconds_to_wait()
            if not seconds:
                return
            with suppress(Empty):
                self._handle(queue.get(timeout=seconds))

    def _awaited(self) -> Flush | Command | Shutdown:
        """The next item of the queue. Compacts once after a second without any."""
        try:
            return self._queue.get(timeout=TIDY_AFTER_S)
        except Empty:
            self._compact_when_idle()
            return self._queue.get()

    def _compact_when_idle(self) -> None:
        stats = self.engine.stats()
        # Counts memory only: compacting copies pages of files.
        if 4 * (stats.cells_used + stats.cells_retained) * self.cells.cell_bytes <= 3 * self.cells.kv_bytes:
            with suppress(Exception):  # lack of memory must not end the loop
                self.cells.shrink(self.engine.compact())
            self._refresh_stats(perf_counter())

    def _handle(self, item: Flush | Command | Shutdown) -> None:
        if isinstance(item, Shutdown):
            self._stopping = True
        elif isinstance(item, Flush):
            self._answers.answered(item.answers)
            self._commands.take(item.upto, self._apply)
        else:
            self._apply(item)

    def _apply(self, command: Command) -> None:
        before = len(self._settlements)
        try:
            command.apply(self)
        except BaseException as error:  # the command's own: those behind it go on
            self.report(partial(command.fail, from_native(error)))
        self._queue_log_changes(before)

    def _queue_log_changes(self, before: int) -> None:
        """Inserts the engine's log changes ahead of the outcomes from `before` on."""
        changes = self.engine.take_changes()
        if changes:
            self._settlements.insert(before, partial(self._listener.apply, changes))

    def _apply_report(self, report: StepReport) -> None:
        self._queue_log_changes(len(self._settlements))
        for emitted in report.emitted:
            job = self.jobs[emitted.job]
            assert isinstance(job, StreamJob)
            self._streamed.setdefault(job, []).append(emitted)
            self._has_reader_to_wake = self._has_reader_to_wake or job.wakes(emitted.token)
        for number in report.out_of_room:
            self.report(self.jobs[number].wait_for_room)
        for finished in report.finished:
            self.jobs[finished.job].end(self, finished)
            del self.jobs[finished.job]

    def _publish(self) -> None:
        if not self._settlements and not self._has_reader_to_wake:
            return
        now = perf_counter()
        number = self._answers.posted() if self._settlements else None
        if number is not None or now - self._stats_at > STATS_EVERY_S:
            self._refresh_stats(now)
        self.awaits_answers = bool(self.jobs)
        settlements = self._settlements
        if self._streamed:
            settlements = [partial(_feed, self._streamed), *settlements]
            self._streamed, self._has_reader_to_wake = {}, False
        post = OutcomeBatch(settlements, number)
        self._settlements, settlements = [], []  # no references to settled outcomes stay here
        if not self._post(post):
            self._stopping = True

    def _refresh_stats(self, now: float) -> None:
        if self._open_engine is not None:
            self.snapshot = self._open_engine.snapshot()
            self._stats_at = now

    def _end(self, ending: BaseException) -> None:
        """Fails running and incoming commands until Shutdown; then frees the engine."""
        for job in self.jobs.values():
            self.report(partial(job.fail, ending))
        self.jobs.clear()
        while True:
            for command in self._commands.unfinished():
                self.report(partial(command.fail, ending))
            self._publish()
            if self._stopping:
                break
            item = self._queue.get()
            self._stopping = isinstance(item, Shutdown)
            if isinstance(item, Command):
                self.report(partial(item.fail, ending))
        opened, self._open_engine = self._open_engine, None
        del self.engine, self.cells
        with suppress(Exception):  # leaving waits for this thread, so an error of closing must not end it
            if opened is not None:
                opened.close()
