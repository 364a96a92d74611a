"""Branch states in a journal: each is the difference from the last one of its branch."""

from __future__ import annotations

import json
import sqlite3
from array import array
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, NotRequired

import numpy as np
import xxhash
from pydantic import Field, TypeAdapter
from typing_extensions import TypedDict

from .._chat.conversation import Conversation, Entry
from .._documents.conversations import Count, SavedConversations, SavedEntry, SavedState
from .._storage.layout import BranchImage
from .._types.tokens import common_prefix
from .files import SavedFiles

MOST_KNOWN = 256  # branches whose last state is in memory; others are written whole


class _Rest(TypedDict):
    """What a state has beside its tokens and its conversation; see `BranchImage`."""

    rng_stream: Annotated[int, Field(ge=0, lt=2**64)]
    forks: Annotated[int, Field(ge=0, lt=2**32)]
    marks: dict[str, Count]
    forgotten: list[tuple[Count, Count, Count, bool]]
    rescued: Count
    adapters: NotRequired[list[tuple[Count, str]]]
    files: NotRequired[SavedFiles | None]


_REST = TypeAdapter(_Rest)


@dataclass(slots=True)
class _Known:
    """The last state of a branch that is in the database.

    Attributes:
        row: id of the state.
        tokens: its tokens.
        conversations: ids of the conversations that are in the database, by identity; with what keeps these alive.
    """

    row: int
    tokens: array[int]
    conversations: dict[int, tuple[Conversation, int]] = field(default_factory=dict)


class StateTable:
    """Writes and reads states of branches. All methods are for the journal's thread."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, _Known] = OrderedDict()

    def forget(self) -> None:
        """Forgets what is in the database, after a commit that failed; the next states are written whole."""
        self._known.clear()

    def write(
        self,
        connection: sqlite3.Connection,
        branch: str,
        image: BranchImage,
        rescued: int,
        parent: str | None = None,
        files: SavedFiles | None = None,
    ) -> int:
        """Writes a state of a branch and returns its id. `rescued`: see `CallHabits`; `parent`: the branch that it was
        forked from; `files`: its files."""
        known = self._known.get(branch) or (self._known.get(parent) if parent else None)
        tokens = array("i", image.tokens.tobytes())
        base, kept = (None, 0) if known is None else (known.row, common_prefix(known.tokens, tokens))
        conversations = {} if known is None else known.conversations
        conversation = _write_conversation(connection, image.conversation, conversations)
        rest: _Rest = {
            "rng_stream": image.rng_stream,
            "forks": image.forks,
            "marks": dict(image.marks),
            "forgotten": list(image.forgotten),
            "rescued": rescued,
        }
        if image.adapters:
            rest["adapters"] = list(image.adapters)
        if files is not None:
            rest["files"] = files
        row = connection.execute(
            "INSERT INTO states (base, kept, tokens, conversation, rest) VALUES (?, ?, ?, ?, ?)",
            (base if kept else None, kept, tokens[kept:].tobytes(), conversation, json.dumps(rest)),
        ).lastrowid
        assert row is not None
        self._remember(branch, _Known(row, tokens, dict(conversations)))
        return row

    def _remember(self, branch: str, known: _Known) -> None:
        self._known[branch] = known
        self._known.move_to_end(branch)
        if len(self._known) > MOST_KNOWN:
            self._known.popitem(last=False)

    def read(self, connection: sqlite3.Connection, branch: str, row: int) -> tuple[BranchImage, int, SavedFiles | None]:
        """Reads a state of a branch, `rescued` of then, and its files.

        Raises ValueError or InvalidInput for what cannot be.
        """
        conversation, rest = connection.execute("SELECT conversation, rest FROM states WHERE id = ?", (row,)).fetchone()
        values = _REST.validate_json(rest)
        tokens = array("i", self.tokens(connection, row))
        made = _read_conversation(connection, conversation)
        self._remember(branch, _Known(row, tokens, {id(each): (each, at) for at, each in made.items()}))
        image = BranchImage(
            tokens=np.frombuffer(tokens, np.int32),
            rows=np.zeros((0, 3), np.int32),
            rng_stream=values["rng_stream"],
            forks=values["forks"],
            next_logits=np.zeros(0, np.float32),
            conversation=made[conversation],
            marks=values["marks"],
            forgotten=values["forgotten"],
            adapters=values.get("adapters", ()),
        )
        return image, values["rescued"], values.get("files")

    def tokens(self, connection: sqlite3.Connection, row: int) -> bytes:
        """Tokens of a state, int32."""
        parts: list[bytes] = []
        wanted: int | None = None  # bytes of the front that later states keep
        at: int | None = row
        while at is not None and wanted != 0:
            found = connection.execute("SELECT base, kept, tokens FROM states WHERE id = ?", (at,)).fetchone()
            if found is None:
                raise ValueError(f"state {at} is not there")
            base, kept, added = found
            _check_order("state", at, base)
            at = base
            here = added if wanted is None else added[: max(0, wanted - 4 * kept)]
            parts.append(here)
            wanted = 4 * kept if wanted is None else min(wanted, 4 * kept)
        return b"".join(reversed(parts))


def _write_conversation(
    connection: sqlite3.Connection, conversation: Conversation, known: dict[int, tuple[Conversation, int]]
) -> int:
    """Writes a conversation with those that it continues, as far as they are not `known`; returns its id."""
    chain: list[Conversation] = []
    state: Conversation | None = conversation
    while state is not None and id(state) not in known:
        chain.append(state)
        state = state.previous
    previous = None if state is None else known[id(state)][1]
    for state in reversed(chain):
        previous = _write_one(connection, state, previous)
        known[id(state)] = state, previous
    assert previous is not None
    return previous


def _write_one(connection: sqlite3.Connection, conversation: Conversation, previous: int | None) -> int:
    entries: list[SavedEntry] = []

    def add(entry: Entry) -> int:
        entries.append(SavedEntry.of(entry))
        return len(entries) - 1

    tools = None if conversation.tools is None else _write_tools(connection, conversation.tools)
    state = SavedState.of(conversation, None, add, lambda _: 0)
    row = connection.execute(
        "INSERT INTO conversations (previous, tools, state, entries) VALUES (?, ?, ?, ?)",
        (previous, tools, state.model_dump_json(), SavedConversations(entries=tuple(entries)).model_dump_json()),
    ).lastrowid
    assert row is not None
    return row


def _write_tools(connection: sqlite3.Connection, tools: Sequence[Mapping[str, Any]]) -> int:
    text = json.dumps([dict(tool) for tool in tools])
    digest = xxhash.xxh3_128_digest(text.encode())
    connection.execute("INSERT OR IGNORE INTO tools (digest, definitions) VALUES (?, ?)", (digest, text))
    (row,) = connection.execute("SELECT id FROM tools WHERE digest = ?", (digest,)).fetchone()
    return int(row)


def _read_conversation(connection: sqlite3.Connection, row: int) -> dict[int, Conversation]:
    """Reads a conversation with those that it continues, by row. Raises ValueError or InvalidInput for invalid ones."""
    states: list[SavedState] = []
    entries: list[SavedEntry] = []
    tools: dict[int, int] = {}  # index by row
    chain = _chain(connection, row)
    for _, definitions, state_text, entries_text in chain:
        added = SavedConversations.model_validate_json(entries_text).entries
        if definitions is not None:
            tools.setdefault(definitions, len(tools))
        states.append(
            SavedState.model_validate_json(state_text).model_copy(
                update={
                    "before": len(states) - 1 if states else None,
                    "entries": tuple(range(len(entries), len(entries) + len(added))),
                    "tools": None if definitions is None else tools[definitions],
                }
            )
        )
        entries += added
    read = tuple(_read_tools(connection, id) for id in tools)
    saved = SavedConversations(entries=tuple(entries), tools=read, states=tuple(states))
    return {at: made for (at, *_), made in zip(chain, saved.made(), strict=True)}


def _read_tools(connection: sqlite3.Connection, row: int) -> list[dict[str, Any]]:
    (text,) = connection.execute("SELECT definitions FROM tools WHERE id = ?", (row,)).fetchone()
    tools: list[dict[str, Any]] = json.loads(text)
    return tools


def _check_order(what: str, row: int, earlier: int | None) -> None:
    """Raises ValueError for a row that builds on a later one: such rows may go round in a circle."""
    if earlier is not None and earlier >= row:
        raise ValueError(f"{what} {row} builds on {earlier}, which is none before it")


def _chain(connection: sqlite3.Connection, row: int) -> list[tuple[int, int | None, str, str]]:
    """Rows of a conversation and of those that it continues, oldest first: (id, tools, state, entries)."""
    found: list[tuple[int, int | None, str, str]] = []
    at: int | None = row
    while at is not None:
        here = connection.execute(
            "SELECT previous, tools, state, entries FROM conversations WHERE id = ?", (at,)
        ).fetchone()
        if here is None:
            raise ValueError(f"conversation {at} is not there")
        previous, *rest = here
        _check_order("conversation", at, previous)
        found.append((at, rest[0], rest[1], rest[2]))
        at = previous
    found.reverse()
    return found
