"""The queue of commands for the step loop's thread, and the handshake that keeps both sides in step without a timer.

The event loop's half: `Quiet` delays a flush tick by tick until a whole tick passes without new commands, so that tasks
that wake together share a forward. The thread's half: `Answers` counts the posts that woke tasks. The event loop
answers each with a flush, even an empty one, once those tasks have run; the thread waits for the answer, within bounds,
before its next forward.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from time import perf_counter

from .commands import Command


class Flush:
    """All commands up to one are to be applied now; and the number of the last post that this answers."""

    __slots__ = ("answers", "upto")

    def __init__(self, upto: int, answers: int) -> None:
        self.upto = upto
        self.answers = answers


class Outbox:
    """Commands on their way to the thread. One stays here until it is done with, so that no exception loses it."""

    def __init__(self) -> None:
        self.submitted = 0  # ever; written by the event loop
        self._done = 0  # ever; written by the thread
        self._commands: deque[Command] = deque()

    def put(self, command: Command) -> None:
        """On the event loop."""
        self._commands.append(command)
        self.submitted += 1

    def take(self, upto: int, apply: Callable[[Command], None]) -> None:
        """On the thread: applies the commands up to the one with this number."""
        while self._done < upto and self._commands:
            apply(self._commands[0])
            self._commands.popleft()
            self._done += 1

    def left(self) -> list[Command]:
        """Those that are not done with."""
        return list(self._commands)

    def __bool__(self) -> bool:
        return bool(self._commands)


MAX_QUIET_TICKS = 32  # a flush is put off at most this often
COME_BACK_S = 0.005  # how long a forward waits at most for the tasks that the last posts woke


class Quiet:
    """The event loop's half.

    Args:
        soon: runs a callback on the next tick of the event loop.
        send: flushes; called once it is quiet.
    """

    def __init__(self, soon: Callable[[Callable[[], None]], None], send: Callable[[], None]) -> None:
        self._soon = soon
        self._send = send
        self._ticking = False
        self._ticks = 0
        self._came = False  # something new since the last tick

    def ask(self) -> None:
        """There is something to send."""
        self._came = True
        if not self._ticking:
            self.restart()

    def restart(self) -> None:
        """Tasks were woken: they get a tick to run, whatever was put off before."""
        self._ticks = 0
        self._came = True
        if not self._ticking:
            self._ticking = True
            self._soon(self._tick)

    def _tick(self) -> None:
        if self._came and self._ticks < MAX_QUIET_TICKS:
            self._came = False
            self._ticks += 1
            self._soon(self._tick)
            return
        self._ticking = False
        try:
            self._send()
        except BaseException:  # a signal's, or no memory: what was to be sent is sent later
            self.restart()
            raise


class Answers:
    """The thread's half: which of the posts that woke tasks the event loop has answered."""

    def __init__(self) -> None:
        self._posted = 0
        self._answered = 0
        self._deadline: float | None = None

    def posted(self) -> int:
        """A post goes out that wakes tasks; returns its number, which its answer names."""
        self._posted += 1
        return self._posted

    def answered(self, number: int) -> None:
        """The event loop has run what the posts up to this one woke."""
        self._answered = max(self._answered, number)

    def patience(self) -> float:
        """Seconds that a forward that is due still waits for answers; 0 once it should begin."""
        if self._answered >= self._posted:
            self._deadline = None
            return 0.0
        now = perf_counter()
        if self._deadline is None:
            self._deadline = now + COME_BACK_S
        if now >= self._deadline:
            self._answered, self._deadline = self._posted, None
            return 0.0
        return self._deadline - now
