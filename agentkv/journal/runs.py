"""Rows of branches and turns in a journal. All functions are for the journal's thread."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from pydantic import TypeAdapter

from .._types.errors import JournalError, SnapshotMismatch
from .._types.run import CallRecord, CallRequest
from .._types.show import safe_str
from ..agents.turn_state import TurnStart, TurnState
from .files import USED_VERSIONS
from .records import UNREADABLE, record_of, request_of, start_of, state_of

RUNNING = "running"


class UnreadableRun(ValueError):
    """A turn has an entry that says what cannot be."""

    def __init__(self, run: object, error: Exception) -> None:
        self.run = run
        super().__init__(f"run {run} cannot be read ({type(error).__name__}: {safe_str(error)})")


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """A call of a turn in a journal.

    Attributes:
        request: the call.
        asked: whether a person was asked for approval.
        decided: whether that person decided.
        denied: reason of a denial; None for an approval, and where nobody decided.
        started: whether its function was about to be called.
        record: its outcome; None where it has not ended.
    """

    request: CallRequest
    asked: bool
    decided: bool
    denied: str | None
    started: bool
    record: CallRecord | None


@dataclass(frozen=True, slots=True)
class RunInfo:
    """A turn in a journal.

    Attributes:
        id: its identifier.
        status: "running" (or left by a process that ended), "finished", "failed" or "cancelled".
        branch: name of its branch, or the identifier that the journal gave it.
        parent: id of the turn whose call began it; None for none.
        start: its beginning.
        answer: text of its answer; why it failed; None while it runs.
        began: Unix time of its beginning, in seconds.
        ended: Unix time of its end, in seconds; None while it runs.
        calls: its calls, by number.
        rounds: number of its messages with calls.
    """

    id: str
    status: str
    branch: str
    parent: str | None
    start: TurnStart
    answer: str | None
    began: float
    ended: float | None
    calls: Mapping[int, RecordedCall] = field(default_factory=dict)
    rounds: int = 0


@dataclass(frozen=True, slots=True)
class LastMessage:
    """The last complete message with calls of a turn.

    Attributes:
        branch_state: id of the branch's state behind it.
        turn_state: the turn's state behind it.
    """

    branch_state: int
    turn_state: TurnState


def begin_run(connection: sqlite3.Connection, run: str, parent: str | None, branch: str, start: str, base: int) -> None:
    """Enters a turn that begins; what an earlier attempt of the same call left is removed."""
    _remove_run(connection, run)
    connection.execute(
        "INSERT INTO runs (id, branch, parent, start, base, status, began) VALUES (?, ?, ?, ?, ?, ?, ?)",
        (run, branch, parent, start, base, RUNNING, time.time()),
    )


def copy_run(connection: sqlite3.Connection, run: str, branch: str, source: str, n_messages: int, n_calls: int) -> None:
    """Enters a fork of a turn, with the first messages and calls of that; its branch is as it was before the turn."""
    connection.execute(
        "INSERT INTO runs (id, branch, parent, start, base, status, began) "
        "SELECT ?, ?, parent, start, base, ?, ? FROM runs WHERE id = ?",
        (run, branch, RUNNING, time.time(), source),
    )
    connection.execute(
        "INSERT INTO messages SELECT ?, round, branch_state, turn_state FROM messages WHERE run = ? AND round <= ?",
        (run, source, n_messages),
    )
    connection.execute(
        "INSERT INTO calls SELECT ?, number, request, CASE WHEN denied IS NULL THEN NULL ELSE asked END, denied, "
        "started, ended, record FROM calls WHERE run = ? AND number < ?",  # only the turn itself asks for its approvals
        (run, source, n_calls),
    )
    connection.execute("UPDATE branches SET state = (SELECT base FROM runs WHERE id = ?) WHERE id = ?", (run, branch))


def _remove_run(connection: sqlite3.Connection, run: str) -> None:
    """Deletes a turn, if there is one, with those that its calls began."""
    for table, column in (("messages", "run"), ("calls", "run"), ("run_files", "run"), ("runs", "id")):
        connection.execute(  # of ids that begin with this one and "-", as "." is the character behind that
            f"DELETE FROM {table} WHERE {column} = ? OR ({column} > ? AND {column} < ?)", (run, f"{run}-", f"{run}.")
        )


def end_run(connection: sqlite3.Connection, run: str, status: str, answer: str | None) -> None:
    """Enters the end of a turn."""
    connection.execute(
        "UPDATE runs SET status = ?, answer = ?, ended = ? WHERE id = ?", (status, answer, time.time(), run)
    )


def set_branch(
    connection: sqlite3.Connection, branch: str, state: int, model: str, name: str | None, parent: str | None
) -> None:
    """Enters the present state of a branch; a `name` is taken from the branch that has it."""
    if name is not None:
        connection.execute("UPDATE branches SET name = NULL WHERE name = ? AND id != ?", (name, branch))
    connection.execute(
        "INSERT INTO branches (id, name, parent, model, state, updated) VALUES (?, ?, ?, ?, ?, ?) "
        "ON CONFLICT (id) DO UPDATE SET state = excluded.state, updated = excluded.updated, "
        "name = coalesce(excluded.name, name)",
        (branch, name, parent, model, state, time.time()),
    )


def add_message(connection: sqlite3.Connection, run: str, number: int, branch_state: int, turn_state: str) -> None:
    """Enters a complete message with calls, or words that have entered, by its number in the turn."""
    connection.execute("INSERT INTO messages VALUES (?, ?, ?, ?)", (run, number, branch_state, turn_state))
    connection.execute("DELETE FROM run_files WHERE run = ?", (run,))  # the state has them


def note_call(connection: sqlite3.Connection, run: str, number: int, request: str, **values: object) -> None:
    """Enters something of a call: `started`, or `ended` and `record`."""
    add_call(connection, run, number, request)
    columns = ", ".join(f"{name} = ?" for name in values)
    connection.execute(f"UPDATE calls SET {columns} WHERE run = ? AND number = ?", (*values.values(), run, number))


def add_call(connection: sqlite3.Connection, run: str, number: int, request: str) -> None:
    """Enters a call, unless it is there."""
    replaced = connection.execute(
        "DELETE FROM calls WHERE run = ? AND number = ? AND request != ?", (run, number, request)
    ).rowcount
    if replaced:  # the message that made another call was lost, and written otherwise: nothing of that one holds
        _remove_run(connection, f"{run}-{number}")
    connection.execute("INSERT OR IGNORE INTO calls (run, number, request) VALUES (?, ?, ?)", (run, number, request))


def calls_of(connection: sqlite3.Connection, run: str) -> dict[int, RecordedCall]:
    """Calls of a turn, by number."""
    rows = connection.execute(
        "SELECT number, request, asked, denied, started, record FROM calls WHERE run = ? ORDER BY number", (run,)
    )
    return {
        number: RecordedCall(
            request=request_of(request),
            asked=asked is not None,
            decided=denied is not None,
            denied=None if denied is None else checked_text(denied) or None,
            started=started is not None,
            record=None if record is None else record_of(record),
        )
        for number, request, asked, denied, started, record in rows
    }


def checked_text(value: object) -> str:
    """A text of the database. Raises TypeError for what is none."""
    if not isinstance(value, str):
        raise TypeError(f"a decision is a {type(value).__name__}, and no text")
    return value


def last_message(connection: sqlite3.Connection, run: str) -> LastMessage | None:
    """The last complete message with calls of a turn; None before the first."""
    rows = connection.execute(
        "SELECT branch_state, turn_state FROM messages WHERE run = ? ORDER BY round", (run,)
    ).fetchall()
    return LastMessage(rows[-1][0], state_of([text for _, text in rows])) if rows else None


_ROW = TypeAdapter(tuple[str, str, str, str | None, str, str | None, float, float | None])
_COLUMNS = (
    "SELECT runs.id, status, coalesce(name, branch), runs.parent, start, answer, began, ended FROM runs "
    "LEFT JOIN branches ON branches.id = branch "
)


def list_runs(connection: sqlite3.Connection, status: str | None = None) -> list[RunInfo]:
    """Turns, oldest first; only those of one `status` where that is given. Without calls."""
    where, given = ("WHERE status = ? ", (status,)) if status else ("", ())
    rows = connection.execute(f"{_COLUMNS}{where}ORDER BY began, runs.rowid", given).fetchall()
    return [_info(row) for row in rows]


def find_run(connection: sqlite3.Connection, run: str) -> RunInfo | None:
    """The turn of an id, with its calls; None if there is none."""
    row = connection.execute(f"{_COLUMNS}WHERE runs.id = ?", (run,)).fetchone()
    if row is None:
        return None
    (rounds,) = connection.execute(
        "SELECT count(*) FROM messages WHERE run = ? "
        "AND json_array_length(turn_state, '$.messages[0].calls') > 0",  # else they are words of a person
        (run,),
    ).fetchone()
    with _reading(run):
        return replace(_info(row), calls=calls_of(connection, run), rounds=rounds)


def _info(row: tuple[object, ...]) -> RunInfo:
    with _reading(row[0]):
        id, status, branch, parent, start, answer, began, ended = _ROW.validate_python(row, strict=True)
        return RunInfo(id, status, branch, parent, start_of(start), answer, began, ended)


@contextmanager
def _reading(run: object) -> Iterator[None]:
    """Scope in which the entries of a turn are read. Raises UnreadableRun."""
    try:
        yield
    except UNREADABLE as error:
        raise error if isinstance(error, UnreadableRun) else UnreadableRun(run, error) from error


def remove_unused(connection: sqlite3.Connection) -> None:
    """Deletes states and conversations that nothing needs any more."""
    connection.execute(
        "WITH RECURSIVE used (id) AS (SELECT state FROM branches UNION SELECT base FROM runs "
        "UNION SELECT branch_state FROM messages UNION "
        "SELECT base FROM states JOIN used ON states.id = used.id WHERE base IS NOT NULL) "
        "DELETE FROM states WHERE id NOT IN used"
    )
    connection.execute(
        "WITH RECURSIVE used (id) AS (SELECT conversation FROM states UNION "
        "SELECT previous FROM conversations JOIN used ON conversations.id = used.id WHERE previous IS NOT NULL) "
        "DELETE FROM conversations WHERE id NOT IN used"
    )
    connection.execute(
        f"WITH RECURSIVE used (id) AS ({USED_VERSIONS} UNION "
        "SELECT base FROM file_versions JOIN used ON file_versions.id = used.id) "
        "DELETE FROM file_versions WHERE id NOT IN (SELECT id FROM used WHERE id IS NOT NULL)"
    )


@dataclass(frozen=True, slots=True)
class BranchRow:
    """A branch in a journal.

    Attributes:
        id: its identifier.
        model: identity of its tokenizer.
        state: id of its present state.
    """

    id: str
    model: str
    state: int


# The last turn of its branch, which is as it was before it.
_CANCELLED = (
    "status = 'cancelled' AND branches.state = base AND runs.parent IS NULL AND "
    "NOT EXISTS (SELECT 1 FROM runs AS later WHERE later.branch = runs.branch AND later.rowid > runs.rowid)"
)


def unfinished_runs(connection: sqlite3.Connection, model: str, cancelled: bool) -> list[RunInfo]:
    """Turns that run or were left, of branches of this tokenizer, oldest first, with their calls; without those that a
    call of another one began. With `cancelled` those as well that were cancelled and can go on."""
    left = f"(status = 'running' OR ({_CANCELLED}))" if cancelled else "status = 'running'"
    rows = connection.execute(
        f"SELECT runs.id FROM runs JOIN branches ON branches.id = branch WHERE {left} AND model = ? "
        "AND NOT EXISTS (SELECT 1 FROM runs AS caller WHERE caller.id = runs.parent AND caller.status = 'running') "
        "ORDER BY began, runs.rowid",
        (model,),
    ).fetchall()
    found = [find_run(connection, run) for (run,) in rows]
    return [info for info in found if info is not None]


def find_branch(connection: sqlite3.Connection, name: str) -> BranchRow | None:
    """The branch of a name; None if there is none."""
    row = connection.execute("SELECT id, model, state FROM branches WHERE name = ?", (name,)).fetchone()
    return None if row is None else BranchRow(*row)


def branch_names(connection: sqlite3.Connection) -> list[str]:
    """Names of the branches, in order."""
    rows = connection.execute("SELECT name FROM branches WHERE name IS NOT NULL ORDER BY name")
    return [repr(name) for (name,) in rows]


@dataclass(frozen=True, slots=True)
class LeftRun:
    """A turn that a process left.

    Attributes:
        info: the turn, with its calls.
        branch: identifier of its branch.
        base: id of the branch's state before the turn.
        base_length: tokens of that.
        last: its last complete message with calls; None before the first.
    """

    info: RunInfo
    branch: str
    base: int
    base_length: int
    last: LastMessage | None


def left_run(connection: sqlite3.Connection, run: str) -> LeftRun:
    """The turn of an id, which has not ended, or was cancelled; it runs again. Raises JournalError."""
    info = find_run(connection, run)
    if info is None or info.status not in (RUNNING, "cancelled"):
        raise JournalError(f"run {run} is not left unfinished any more; read the journal again")
    connection.execute("UPDATE runs SET status = 'running', answer = NULL, ended = NULL WHERE id = ?", (run,))
    branch, base, length = connection.execute(
        "SELECT branch, runs.base, kept + length(tokens) / 4 FROM runs JOIN states ON states.id = runs.base "
        "WHERE runs.id = ?",
        (run,),
    ).fetchone()
    return LeftRun(info, branch, base, length, last_message(connection, run))


def branch_of_run(connection: sqlite3.Connection, run: str) -> tuple[str, int]:
    """The branch of a turn, and the id of its present state."""
    branch, state = connection.execute(
        "SELECT branch, state FROM runs JOIN branches ON branches.id = branch WHERE runs.id = ?", (run,)
    ).fetchone()
    return branch, state


def model_of_run(connection: sqlite3.Connection, run: str) -> str:
    """The model of the branch of a turn."""
    (model,) = connection.execute(
        "SELECT model FROM runs JOIN branches ON branches.id = branch WHERE runs.id = ?", (run,)
    ).fetchone()
    return str(model)


def drop_runs(connection: sqlite3.Connection, ids: Collection[str]) -> None:
    """Removes turns, and those that their calls began. Raises JournalError if there is no such turn."""
    for run in ids:
        if connection.execute("SELECT 1 FROM runs WHERE id = ?", (run,)).fetchone() is None:
            raise JournalError(f"the journal has no run {run}")
    for run in ids:
        _remove_run(connection, run)
    remove_unused(connection)


def check_model(recorded: str, present: str, what: str) -> None:
    """Raises SnapshotMismatch where the tokenizers differ."""
    if recorded != present:
        raise SnapshotMismatch(
            f"{what} was recorded with another tokenizer, in which its tokens mean something else; open its own model"
        )
