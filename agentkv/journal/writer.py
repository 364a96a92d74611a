"""The thread that writes a journal. Entries that wait at the same time are committed together."""

from __future__ import annotations

import queue
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

import anyio

from .._engine.loop import StepLoop
from .._types.errors import JournalError, SnapshotError
from .._types.show import safe_str
from .answers import AnswerWatch
from .records import UNREADABLE
from .schema import journal_error, open_database

T = TypeVar("T")
Entry = Callable[[sqlite3.Connection], T]

MOST_AT_ONCE = 256  # entries of one commit


class JournalWriter:
    """One connection to a journal, on a thread of its own.

    `on_failure` is called on that thread when a commit failed: none of its entries is in the database. `answers` looks
    there for answers of others.
    """

    def __init__(self, path: Path, sync: str, on_failure: Callable[[], None], answers: AnswerWatch) -> None:
        """Raises JournalError where the database cannot be opened."""
        self._path = path
        self._on_failure = on_failure
        self._answers = answers
        self._file: tuple[int, int] | None = None  # which one was opened
        self._queue: queue.SimpleQueue[tuple[Entry[Any], Future[Any]] | None] = queue.SimpleQueue()
        opened: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, args=(sync, opened), name="agentkv-journal", daemon=True)
        self._thread.start()
        opened.result()

    def submit(self, entry: Entry[T]) -> Future[T]:
        """Queues an entry; the future has its result once it is committed, or raises JournalError."""
        done: Future[T] = Future()
        self._queue.put((entry, done))
        return done

    async def write(self, loop: StepLoop, entry: Entry[T]) -> T:
        """Writes an entry, and returns its result once it is committed. A cancellation waits for that.

        Raises JournalError.
        """
        done, written = self.submit(entry), anyio.Event()
        done.add_done_callback(lambda _: loop.post(written.set))
        await loop.wait_shielded(written)
        return done.result()

    def close(self) -> None:
        """Commits what is queued and ends the thread. Idempotent."""
        self._queue.put(None)
        self._thread.join()

    def _run(self, sync: str, opened: Future[None]) -> None:
        try:
            connection = open_database(self._path, sync)
        except BaseException as error:
            opened.set_exception(error)
            return
        self._file = _identity(self._path)
        opened.set_result(None)
        try:
            while entries := self._next_entries(connection):
                self._commit(connection, entries)
                self._answers.look(connection)
        finally:
            connection.close()

    def _next_entries(self, connection: sqlite3.Connection) -> list[tuple[Entry[Any], Future[Any]]]:
        """Entries that wait, once there are any; none at the end."""
        entries = []
        item = self._first_item(connection)
        while item is not None:
            entries.append(item)
            if len(entries) == MOST_AT_ONCE or self._queue.empty():
                return entries
            item = self._queue.get()
        if entries:
            self._queue.put(None)
        return entries

    def _first_item(self, connection: sqlite3.Connection) -> tuple[Entry[Any], Future[Any]] | None:
        """Waits for what is queued, and looks for answers meanwhile."""
        while True:
            try:
                return self._queue.get(timeout=self._answers.pause)
            except queue.Empty:
                self._answers.look(connection)

    def _commit(self, connection: sqlite3.Connection, entries: list[tuple[Entry[Any], Future[Any]]]) -> None:
        """Commits all of the entries or none."""
        results = []
        try:
            self._check_file()
            connection.execute("BEGIN IMMEDIATE")
            for entry, _ in entries:
                results.append(entry(connection))
            connection.execute("COMMIT")
        except BaseException as error:
            failure = self._failure(error)
            if connection.in_transaction:
                connection.rollback()
            self._on_failure()
            if len(entries) == 1:
                entries[0][1].set_exception(failure)
                return
            for each in entries:  # one of them may be at fault
                self._commit(connection, [each])
            return
        for (_, done), result in zip(entries, results, strict=True):
            done.set_result(result)

    def _check_file(self) -> None:
        """SQLite goes on writing to a file that has no name any more, and nobody could read it. Raises JournalError."""
        if _identity(self._path) != self._file:
            raise JournalError(
                f"the journal {self._path} was removed or replaced while it is in use: what is written to it would be "
                "lost; put it back, or open a Context with a journal anew"
            )

    def _failure(self, error: BaseException) -> BaseException:
        match error:
            case sqlite3.Error():
                return journal_error(self._path, error)
            case JournalError() | SnapshotError():
                return error
        return unreadable(self._path, error) if isinstance(error, UNREADABLE) else error


def _identity(path: Path) -> tuple[int, int] | None:
    """Which file is at a path; None for none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def unreadable(path: Path, error: Exception) -> JournalError:
    """The error for an entry that says what cannot be."""
    why = " ".join(safe_str(error).split())
    failure = JournalError(f"the journal {path} has an entry that cannot be read: {why}; drop its run")
    failure.__cause__ = error
    return failure
