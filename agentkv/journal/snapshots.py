"""Files of saved branches that a journal knows, whose keys and values spare a restored branch their computation."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import xxhash

from .._context.store import load_branches
from .._types.errors import AgentKVError
from .._types.log import log

if TYPE_CHECKING:
    from .._context.branch import Branch
    from .._context.core import ContextCore

_TOKEN = 4  # bytes


class Snapshot(NamedTuple):
    """A branch in a file."""

    path: Path
    name: str


class SnapshotTable:
    """Files of saved branches by the tokens that they hold."""

    def add(self, connection: sqlite3.Connection, path: Path, tokens: Mapping[str, bytes]) -> None:
        """Enters a file, with the tokens (int32) of its branches by name. For the journal's thread."""
        connection.execute("DELETE FROM snapshots WHERE path = ?", (str(path),))
        connection.executemany(
            "INSERT INTO snapshots VALUES (?, ?, ?, ?)",
            [(str(path), name, len(held) // _TOKEN, xxhash.xxh3_128_digest(held)) for name, held in tokens.items()],
        )

    def find(self, connection: sqlite3.Connection, tokens: bytes) -> Snapshot | None:
        """The file that holds most of the first of these tokens (int32). For the journal's thread."""
        rows = connection.execute(
            "SELECT path, name, length, digest FROM snapshots WHERE length <= ? ORDER BY length DESC",
            (len(tokens) // _TOKEN,),
        ).fetchall()
        for path, name, length, digest in rows:
            if Path(path).is_file() and xxhash.xxh3_128_digest(tokens[: length * _TOKEN]) == digest:
                return Snapshot(Path(path), name)
        return None

    @staticmethod
    @asynccontextmanager
    async def loaded(core: ContextCore, snapshot: Snapshot | None) -> AsyncIterator[Branch | None]:
        """Has the branch of a file in the cache in this block; None where there is none, or its file does not fit."""
        if snapshot is None:
            yield None
            return
        try:
            branches = await load_branches(core, snapshot.path, False, False, None, one=False)
        except AgentKVError as error:
            log.warning("a snapshot cannot be used; its tokens are computed", path=str(snapshot.path), why=str(error))
            yield None
            return
        try:
            yield branches.get(snapshot.name)
        finally:
            for branch in branches.values():
                branch.close()
