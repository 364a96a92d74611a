"""The queue of commands for the step loop's thread, and the handshake that keeps both sides in step without a timer.

The event loop's half: `FlushDebouncer` delays a flush tick by tick until a whole tick passes without new commands, so
that tasks that wake together share a forward. The thread's half: `PostAcks` counts the outcome batches that woke tasks.
The event loop answers each with a flush, even an empty one, once those tasks have run; the thread waits for the answer,
within bounds, before its next forward."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from time import perf_counter

from .commands import Command


class Flush:
    """Request to apply all commands up to number `upto`, and the number of the last outcome batch that it answers."""

    __slots__ = ("answers", "upto")

    def __init__(self, upto: int, answers: int) -> None:
        self.upto = upto
        self.answers = answers


class CommandQueue:
    """Commands on their way to the thread. Each stays here until it is applied, so that no exception loses it."""

    def __init__(self) -> None:
        self.submitted = 0  # total; written by the event loop
        self._n_applied = 0  # total; written by the thread
        self._commands: deque[Command] = deque()

    def put(self, command: Command) -> None:
        """Adds a command; called on the event loop."""
        self._commands.append(command)
        self.submitted += 1

    def take(self, upto: int, apply: Callable[[Command], None]) -> None:
        """Applies the commands up to number `upto`; called on the thread."""
        while self._n_applied < upto and self._commands:
            apply(self._commands[0])
            self._commands.popleft()
            self._n_applied += 1

    def unfinished(self) -> list[Command]:
        """Commands not applied yet."""
        return list(self._commands)

    def __bool__(self) -> bool:
        return bool(self._commands)


MAX_QUIET_TICKS = 32  # maximum number of ticks that a flush is delayed
WAKEUP_GRACE_S = 0.005  # maximum wait of a forward for the tasks that the last batches woke


class FlushDebouncer:
    """Delays a flush until one event-loop tick passes without new commands (32 ticks at most), so that tasks woken
    together share a forward.

    Args:
        call_soon: runs a callback on the next tick of the event loop.
        send: flushes; called after a tick without new commands.
    """

    def __init__(self, call_soon: Callable[[Callable[[], None]], None], send: Callable[[], None]) -> None:
        self._call_soon = call_soon
        self._send = send
        self._ticking = False
        self._ticks = 0
        self._has_new = False  # something new since the last tick

    def request(self) -> None:
        """Requests a flush for a new command."""
        self._has_new = True
        if not self._ticking:
            self.restart()

    def restart(self) -> None:
        """Restarts the delay after tasks were woken, so that they get a tick to run."""
        self._ticks = 0
        self._has_new = True
        if not self._ticking:
            self._ticking = True
            self._call_soon(self._tick)

    def _tick(self) -> None:
        if self._has_new and self._ticks < MAX_QUIET_TICKS:
            self._has_new = False
            self._ticks += 1
            self._call_soon(self._tick)
            return
        self._ticking = False
        try:
            self._send()
        except BaseException:  # from a signal, or no memory: flushed later
            self.restart()
            raise


class PostAcks:
    """Tracks, on the thread, the outcome batches that woke tasks and whether the event loop has answered them."""

    def __init__(self) -> None:
        self._posted = 0
        self._answered = 0
        self._deadline: float | None = None

    def posted(self) -> int:
        """Counts a batch that wakes tasks; returns its number, which its answer names."""
        self._posted += 1
        return self._posted

    def answered(self, number: int) -> None:
        """Notes that the event loop has run the tasks that batches up to this one woke."""
        self._answered = max(self._answered, number)

    def seconds_to_wait(self) -> float:
        """Seconds that a due forward still waits for answers; 0 once it should begin."""
        if self._answered >= self._posted:
            self._deadline = None
            return 0.0
        now = perf_counter()
        if self._deadline is None:
            self._deadline = now + WAKEUP_GRACE_S
        if now >= self._deadline:
            self._answered, self._deadline = self._posted, None
            return 0.0
        return self._deadline - now
