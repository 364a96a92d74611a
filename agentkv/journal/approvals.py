"""Approvals in a journal: what is asked, what was decided, which wait. All functions are for a connection's thread."""

from __future__ import annotations

import sqlite3
import time
from dataclasses import dataclass

from .._types.errors import JournalError
from .._types.run import CallRequest
from .._types.show import preview, shortened
from ..agents.turn_log import Decision
from . import runs
from .records import UNREADABLE, request_of, text_of_request


@dataclass(frozen=True, slots=True)
class WaitingApproval:
    """A call in a journal that waits for a person's decision: `Journal.answer` takes it.

    Attributes:
        key: identifier of the approval, as `ApprovalAsked.key`.
        run: id of the turn to resume once it is answered (`UnfinishedRun.id`); for a call of a sub-agent, that of its
            manager.
        branch: name of that turn's branch, or the identifier that the journal gave it.
        call: the call that would run.
        since: Unix time at which a person was first asked, in seconds.
    """

    key: str
    run: str
    branch: str
    call: CallRequest
    since: float


def ask(connection: sqlite3.Connection, run: str, number: int, request: str) -> Decision | None:
    """Enters that a person is asked about a call; returns what somebody has decided already."""
    runs.add_call(connection, run, number, request)
    connection.execute(
        "UPDATE calls SET asked = coalesce(asked, ?) WHERE run = ? AND number = ?", (time.time(), run, number)
    )
    return decision_on(connection, run, number)


def decide(connection: sqlite3.Connection, run: str, number: int, request: str, decision: Decision) -> Decision:
    """Enters what a person decided on a call, unless somebody has before; returns what counts."""
    runs.add_call(connection, run, number, request)
    _enter(connection, run, number, decision)
    counts = decision_on(connection, run, number)
    assert counts is not None
    return counts


def decision_on(connection: sqlite3.Connection, run: str, number: int) -> Decision | None:
    """What a person has decided on a call; None where nobody has, or there is no such call. Raises TypeError."""
    row = connection.execute("SELECT denied FROM calls WHERE run = ? AND number = ?", (run, number)).fetchone()
    return None if row is None else _decision_of(row[0])


def waiting(connection: sqlite3.Connection) -> list[WaitingApproval]:
    """Approvals that wait, the oldest first. Raises UnreadableRun."""
    rows = connection.execute(
        "SELECT calls.run, number, request, asked FROM calls JOIN runs ON runs.id = calls.run "
        "WHERE status = 'running' AND asked IS NOT NULL AND denied IS NULL AND record IS NULL "
        "ORDER BY asked, calls.run, number"
    ).fetchall()
    return [_waiting(connection, *row) for row in rows]


def asked_keys(connection: sqlite3.Connection) -> list[str]:
    """Keys of all approvals that were ever asked for, those that wait last."""
    rows = connection.execute(
        "SELECT run, number FROM calls WHERE asked IS NOT NULL ORDER BY denied IS NULL, asked, run, number"
    )
    return [f"{run}-{number}" for run, number in rows]


def answer(
    connection: sqlite3.Connection, key: str, approved: bool, denial: str | None, call: CallRequest | None
) -> None:
    """Enters an answer to an approval, unless the same one is there.

    `denial`: reason of a denial; None for any. `call`: the call that the answer is meant for, where that is known.

    Raises JournalError for an approval that is not there, is for another call by now, was answered otherwise, or is
    over.
    """
    run, number = _parts(key)
    row = connection.execute(
        "SELECT request, denied, record, status FROM calls JOIN runs ON runs.id = run "
        "WHERE run = ? AND number = ? AND asked IS NOT NULL",
        (run, number),
    ).fetchone()
    if row is None:
        raise JournalError(f"the journal has no approval {preview(key)}: nobody was asked, or its run was dropped")
    request, denied, record, status = row
    if call is not None and text_of_request(call) != request:
        raise JournalError(f"approval {key} is for another call by now; read the approvals again")
    earlier = _decision_of(denied)
    if earlier is not None:
        if _is_same(earlier, approved, denial):
            return
        said = "it was approved" if earlier.denied is None else f"it was denied: {shortened(earlier.denied)}"
        raise JournalError(f"approval {key} was answered before: {said}")
    if status != runs.RUNNING:
        how = "was cancelled" if status == "cancelled" else f"has {status}"
        raise JournalError(f"approval {key} is over: run {run} {how}")
    if record is not None:
        raise JournalError(f"approval {key} is over: its call has ended")
    _enter(connection, run, number, Decision(None if approved else denial or "it was not approved"))


def _enter(connection: sqlite3.Connection, run: str, number: int, decision: Decision) -> None:
    connection.execute(
        "UPDATE calls SET denied = coalesce(denied, ?) WHERE run = ? AND number = ?",
        (decision.denied or "", run, number),
    )


def _is_same(earlier: Decision, approved: bool, denial: str | None) -> bool:
    if approved or earlier.denied is None:
        return approved and earlier.denied is None
    return denial in (None, earlier.denied)


def _decision_of(denied: object) -> Decision | None:
    """A decision as the database has it. Raises TypeError for what is none."""
    return None if denied is None else Decision(runs.checked_text(denied) or None)


def _parts(key: str) -> tuple[str, int]:
    """Run and number of a key; of none that there is, where it is no key."""
    run, _, number = key.rpartition("-")
    is_key = key.isascii() and number.isdecimal() and len(number) < 10 and number == str(int(number))
    return (run, int(number)) if is_key else ("", -1)


def _waiting(connection: sqlite3.Connection, run: str, number: int, request: str, asked: float) -> WaitingApproval:
    try:
        top, branch = _resumed(connection, run)
        return WaitingApproval(f"{run}-{number}", top, branch, request_of(request), float(asked))
    except UNREADABLE as error:
        raise runs.UnreadableRun(run, error) from error


def _resumed(connection: sqlite3.Connection, run: str) -> tuple[str, str]:
    """The turn that is resumed for this one to go on, and its branch: the outermost one whose calls began it.

    Raises ValueError for turns that began each other.
    """
    query = (
        "SELECT coalesce(name, branch), runs.parent FROM runs LEFT JOIN branches ON branches.id = branch "
        "WHERE runs.id = ? AND status = 'running'"
    )
    row, seen = connection.execute(query, (run,)).fetchone(), {run}
    while row[1] is not None and (outer := connection.execute(query, (row[1],)).fetchone()) is not None:
        run, row = row[1], outer
        if run in seen:
            raise ValueError("it began itself")
        seen.add(run)
    return run, row[0]
