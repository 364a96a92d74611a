"""Answers to approvals that others write into a journal while a turn waits for them."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable

from .._types.log import log
from .._types.show import safe_str
from ..agents.turn_log import Decision
from . import approvals
from .records import UNREADABLE

POLL_S = 0.25  # between two looks at the database


class AnswerWatch:
    """Hears of answers that other connections commit: by looking whether the database has changed, a few times a second
    while an approval waits. `add` and `look` are for the journal's thread."""

    def __init__(self) -> None:
        self._waiting: dict[tuple[str, int], Callable[[Decision], None]] = {}
        self._seen: int | None = None  # version of the database at the last look
        self._failed = False

    @property
    def pause(self) -> float | None:
        """Seconds until the next look; None where nothing waits."""
        return POLL_S if self._waiting else None

    def add(self, run: str, number: int, tell: Callable[[Decision], None]) -> None:
        """Has `tell` called with the answer to an approval, once."""
        self._waiting[run, number] = tell
        self._seen = None  # it may be there already

    def remove(self, run: str, number: int) -> None:
        """Looks for that answer no longer. From any thread; idempotent."""
        self._waiting.pop((run, number), None)

    def look(self, connection: sqlite3.Connection) -> None:
        """Tells of answers that have come. A database that cannot be read is logged: the next look may read it."""
        if not self._waiting:
            return
        try:
            self._tell_of_new(connection)
            self._failed = False
        except (sqlite3.Error, *UNREADABLE) as error:
            self._seen = None
            if not self._failed:
                log.warning("answers to approvals cannot be read from the journal", why=safe_str(error))
            self._failed = True

    def _tell_of_new(self, connection: sqlite3.Connection) -> None:
        (version,) = connection.execute("PRAGMA data_version").fetchone()  # of what others have committed
        if version == self._seen:
            return
        self._seen = version
        for (run, number), tell in list(self._waiting.items()):
            decision = approvals.decision_on(connection, run, number)
            if decision is not None:
                self.remove(run, number)
                tell(decision)
