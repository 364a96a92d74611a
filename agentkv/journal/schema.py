"""Tables of a journal, and opening its database."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

from .._types.errors import JournalError
from .files import TABLES as FILE_TABLES

APPLICATION_ID = 0x616B766A  # "akvj", in the header of the file
VERSION = 1
BUSY_MS = 10_000  # wait for another process's commit

TABLES = """
CREATE TABLE tools (id INTEGER PRIMARY KEY, digest BLOB NOT NULL UNIQUE, definitions TEXT NOT NULL);
-- One row for each change of a conversation; `previous` is the one that it continues.
CREATE TABLE conversations (
    id INTEGER PRIMARY KEY, previous INTEGER, tools INTEGER, state TEXT NOT NULL, entries TEXT NOT NULL
);
-- A branch at one moment: the first `kept` tokens of the state `base`, then `tokens` (int32, little endian).
CREATE TABLE states (
    id INTEGER PRIMARY KEY, base INTEGER, kept INTEGER NOT NULL, tokens BLOB NOT NULL,
    conversation INTEGER NOT NULL, rest TEXT NOT NULL
);
CREATE TABLE branches (
    id TEXT PRIMARY KEY, name TEXT UNIQUE, parent TEXT, model TEXT NOT NULL, state INTEGER NOT NULL,
    updated REAL NOT NULL
);
CREATE TABLE runs (
    id TEXT PRIMARY KEY, branch TEXT NOT NULL, parent TEXT, start TEXT NOT NULL, base INTEGER NOT NULL,
    status TEXT NOT NULL, answer TEXT, began REAL NOT NULL, ended REAL
);
CREATE TABLE messages (
    run TEXT NOT NULL, round INTEGER NOT NULL, branch_state INTEGER NOT NULL, turn_state TEXT NOT NULL,
    PRIMARY KEY (run, round)
) WITHOUT ROWID;
-- `denied` is set once a person has decided: '' for an approval, else the reason.
CREATE TABLE calls (
    run TEXT NOT NULL, number INTEGER NOT NULL, request TEXT NOT NULL, asked REAL, denied TEXT, started REAL,
    ended REAL, record TEXT, PRIMARY KEY (run, number)
) WITHOUT ROWID;
CREATE TABLE snapshots (
    path TEXT NOT NULL, name TEXT NOT NULL, length INTEGER NOT NULL, digest BLOB NOT NULL, PRIMARY KEY (path, name)
) WITHOUT ROWID;
CREATE INDEX runs_of_branches ON runs (branch);
CREATE INDEX runs_by_status ON runs (status);
"""


def open_database(path: Path, sync: str) -> sqlite3.Connection:
    """Opens a journal, or makes one.

    With `sync` "full" a commit is on the disk once it returns; with "normal" it outlives the process, not a loss of
    power. Raises JournalError for a file that is no journal, damaged, or cannot be written.
    """
    try:
        if not path.exists():
            os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))  # conversations are private
        connection = sqlite3.connect(path, isolation_level=None, timeout=BUSY_MS / 1000)
    except (OSError, sqlite3.Error) as error:
        raise JournalError(f"the journal {path} cannot be opened: {error}; give a path that can be written") from error
    try:
        _prepare(connection, path, sync)
    except BaseException as error:
        connection.close()
        if isinstance(error, sqlite3.Error):
            raise journal_error(path, error) from error
        raise
    return connection


def check_is_journal(connection: sqlite3.Connection, path: Path) -> None:
    """Raises JournalError for a database of another program, an empty one, and a newer journal."""
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    if application != APPLICATION_ID:
        raise JournalError(f"{path} is a database of another program or empty, and no journal")
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version > VERSION:
        raise JournalError(f"the journal {path} was written by a newer agentkv; install that, or give another path")


def _prepare(connection: sqlite3.Connection, path: Path, sync: str) -> None:
    (n_tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if n_tables:
        check_is_journal(connection, path)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute(f"PRAGMA synchronous = {'FULL' if sync == 'full' else 'NORMAL'}")
    if not n_tables:
        header = f"PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {VERSION};"
        connection.executescript(f"BEGIN IMMEDIATE; {TABLES} {header} COMMIT")
    connection.executescript(FILE_TABLES)  # which older journals lack


def journal_error(path: Path, error: sqlite3.Error) -> JournalError:
    """A JournalError for an error of the database, with advice."""
    advice = "nothing runs that is not recorded"
    match error.sqlite_errorname if hasattr(error, "sqlite_errorname") else "":
        case "SQLITE_FULL":
            advice = "free some space on its disk"
        case "SQLITE_CORRUPT" | "SQLITE_NOTADB":
            advice = "the file is damaged or no journal; give the path of another, or of a file that is not there yet"
        case "SQLITE_READONLY" | "SQLITE_CANTOPEN" | "SQLITE_PERM":
            advice = "give a path that can be written"
        case "SQLITE_BUSY":
            advice = "another process writes to it all the time; give each process a journal of its own"
    return JournalError(f"the journal {path}: {error}; {advice}")
