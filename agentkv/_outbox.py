"""The queue of commands between the event loop and the thread."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from ._commands import Command


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
