"""Journals read and pruned from outside of the process that writes them: `agentkv runs`."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Literal

from .._types.errors import JournalError
from .._types.run import CallRequest
from . import approvals, runs
from .approvals import WaitingApproval
from .files import remove_unused_contents
from .lock import acquired_lock
from .records import UNREADABLE
from .runs import RunInfo, UnreadableRun
from .schema import check_is_journal, journal_error, open_database

SHORTEST = 8  # characters of a shortened id


def run_ids(path: Path) -> list[str]:
    """Ids of all turns in a journal, oldest first. Needs no lock. Raises JournalError."""
    with _opened(path) as connection:
        return _ids(connection, path)


def run_ids_over(path: Path) -> list[str]:
    """Ids of the turns that cannot go on, without those that calls of other ones began: these go with them.

    Raises JournalError.
    """
    with _opened(path) as connection:
        rows = connection.execute(
            "SELECT id FROM runs WHERE status IN ('finished', 'failed') "
            "AND (parent IS NULL OR parent NOT IN (SELECT id FROM runs)) ORDER BY began, rowid"
        )
        return [id for (id,) in rows]


def read_runs(path: Path) -> list[RunInfo]:
    """All turns in a journal, oldest first, with their calls. Needs no lock. Raises JournalError."""
    with _opened(path) as connection:
        return [_read(connection, id, path) for id in _ids(connection, path)]


def _ids(connection: sqlite3.Connection, path: Path) -> list[str]:
    ids = [id for (id,) in connection.execute("SELECT id FROM runs ORDER BY began, rowid")]
    if not all(isinstance(id, str) for id in ids):
        raise JournalError(f"the journal {path} is damaged: the id of a run is no text; move it away")
    return ids


def _read(connection: sqlite3.Connection, id: str, path: Path) -> RunInfo:
    with _naming_damage(path):
        info = runs.find_run(connection, id)
    assert info is not None  # all reads are of one moment
    return info


@contextmanager
def _naming_damage(path: Path) -> Iterator[None]:
    """Scope in which entries of turns are read. Raises JournalError, which says what to drop."""
    try:
        yield
    except UnreadableRun as error:
        raise JournalError(
            f"the journal {path} is damaged: {' '.join(str(error).split())}; drop it, and the others can be read: "
            f"agentkv runs drop {path} {error.run}"
        ) from error


def remove_runs(path: Path, ids: Collection[str]) -> None:
    """Removes turns, with those that their calls began, and gives back the space in the file.

    Raises JournalError if there is no such turn, or another process uses the journal.
    """
    with _opened(path):  # a file that is no journal stays as it is
        pass
    with acquired_lock(path), closing(open_database(path, "full")) as connection:
        try:
            connection.execute("BEGIN IMMEDIATE")
            runs.drop_runs(connection, ids)
            connection.execute("COMMIT")
            remove_unused_contents(connection, path)
            connection.execute("VACUUM")  # nothing of what was dropped stays in free pages
        except sqlite3.Error as error:
            raise journal_error(path, error) from error


def waiting_approvals(path: Path) -> list[WaitingApproval]:
    """Approvals in a journal that wait, the oldest first. Needs no lock. Raises JournalError."""
    with _opened(path) as connection, _naming_damage(path):
        return approvals.waiting(connection)


def approval_keys(path: Path) -> list[str]:
    """Keys of all approvals that a journal has, those that wait last. Needs no lock. Raises JournalError."""
    with _opened(path) as connection:
        return approvals.asked_keys(connection)


def answer_approval(
    path: Path, sync: str, key: str, approved: bool, denial: str | None, call: CallRequest | None = None
) -> None:
    """Answers an approval; see `approvals.answer`. Needs no lock: who has it hears of the answer.

    Raises JournalError.
    """
    with _opened(path):  # a file that is no journal stays as it is
        pass
    with closing(open_database(path, sync)) as connection, _naming_damage(path):
        try:
            connection.execute("BEGIN IMMEDIATE")
            approvals.answer(connection, key, approved, denial, call)
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            raise journal_error(path, error) from error
        except UNREADABLE as error:
            raise UnreadableRun(key.rpartition("-")[0], error) from error


def short_ids(ids: Collection[str]) -> dict[str, str]:
    """Ids without what is not needed to tell the turns apart: `run_called` finds each by it."""
    roots = {id.partition("-")[0] for id in ids}
    length = SHORTEST
    while len({root[:length] for root in roots}) < len(roots):
        length += 1
    return {id: _shortened(id, length) for id in ids}


def _shortened(id: str, length: int) -> str:
    root, dash, calls = id.partition("-")
    return f"{root[:length]}{dash}{calls}"


def run_called(ids: Sequence[str], called: str, path: Path, what: Literal["run", "approval"] = "run") -> str:
    """The id that is this one or begins so; that of a call's turn has the number of the call behind it, as in `1f6e-0`,
    and so has the key of an approval, which may leave it out where its turn has asked for one alone.

    Raises JournalError for none, and for several.
    """
    root, dash, calls = called.partition("-")
    found = [id for id in ids if root and id.startswith(root) and id.partition("-")[2] == calls]
    if what == "approval" and not dash and not found:  # the turn alone is named
        found = [id for id in ids if root and id.startswith(root)]
    if len(found) == 1:
        return found[0]
    shorts = short_ids(ids)
    if found:
        raise JournalError(f"several {what}s begin with {called}: {', '.join(shorts[id] for id in found)}")
    there = ", ".join(shorts[id] for id in ids[-5:]) or "none"
    raise JournalError(f"the journal {path} has no {what} {called!r}; the last ones: {there}")


@contextmanager
def _opened(path: Path) -> Iterator[sqlite3.Connection]:
    """A journal that is only read. Raises JournalError, also for what is damaged in it."""
    if not path.is_file():
        found = f"{path} is no file" if path.exists() else f"no journal {path}"
        raise JournalError(f"{found}; give the path of a journal")
    try:
        connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None)
        with closing(connection):
            check_is_journal(connection, path)
            connection.execute("BEGIN")  # all that is read is of one moment
            yield connection
    except sqlite3.Error as error:
        raise journal_error(path, error) from error
