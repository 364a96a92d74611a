"""Finished conversations, which wait on their branches for the request that continues them.

A request brings all of its messages again; it is recognised by those that were there before.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._aio.lock import Lock
from .._context.handle import handle_of
from .._types.errors import AgentKVError
from .._types.log import log
from .._types.message import REASONING, Message

if TYPE_CHECKING:
    from .._context.branch import Branch
    from .._engine.interface import StepEngine


_KEY = secrets.token_bytes(32)  # nobody can make up a conversation of a given name


def names_of(messages: Sequence[Mapping[str, Any]], about: object) -> list[str]:
    """A name for each beginning of a conversation, the first of one message; what the model thought does not count,
    since clients drop it.

    Args:
        messages: in OpenAI's form.
        about: what else decides on its tokens, such as tools; JSON.
    """
    digest = hashlib.blake2b(_canonical(about), key=_KEY, digest_size=16)
    names = []
    for message in messages:
        digest.update(_canonical(_essence(message)))
        names.append(f"conversation:{digest.hexdigest()}")
    return names


def digest_of(messages: Sequence[Mapping[str, Any]]) -> str:
    """What a conversation is and no other, the ids of its calls included; the same in every process."""
    return hashlib.blake2b(_canonical(messages), digest_size=16).hexdigest()


def contradicts(given: Sequence[Mapping[str, Any]], held: Sequence[Message]) -> bool:
    """Does a client say that the model thought something else than it did? One that says nothing of it does not."""
    return any(
        message.get(name) not in (None, "", other.reasoning)
        for message, other in zip(given, held, strict=False)
        for name in REASONING
    )


def _essence(message: Mapping[str, Any]) -> list[object]:
    calls = [_call(call.get("function") or {}) for call in message.get("tool_calls") or ()]
    others = {
        key: value for key, value in message.items() if key not in ("content", "tool_calls", *REASONING) and value
    }
    return [message.get("content") or "", calls, others]


def _call(function: Mapping[str, Any]) -> list[object]:
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        with suppress(ValueError):  # it is compared as it is
            arguments = json.loads(arguments)
    return [function.get("name"), arguments]


def _canonical(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, default=str).encode("utf-8", "surrogatepass") + b"\0"


@dataclass(slots=True, eq=False)
class Kept:
    """A branch that waits.

    Attributes:
        branch: it.
        promised: was its client told that it will be there?
        note: what its protocol has to know of it.
        bare: another branch with its history and no cells, for where it cannot keep them.
        emptied: is that in its place? Whoever goes on from it computes the cells again.
    """

    branch: Branch
    promised: bool
    note: object = None
    bare: Branch | None = None
    emptied: bool = False

    async def offload(self, folder: Path | None) -> int:
        """Its own cells leave the cache; those that others have as well stay. How many were freed?"""
        if self.branch.offloaded:
            return 0
        self.bare = self.bare or await _bare(self.branch)
        return await self.branch.offload(folder)

    def empty(self) -> bool:
        """It lets go of all cells. Can it?"""
        if self.bare is None:
            return False
        self.branch.close()
        self.branch, self.bare, self.emptied = self.bare, None, True
        return True

    def close(self) -> None:
        """All of it."""
        self.branch.close()
        if self.bare is not None:
            self.bare.close()


class Shelf:
    """Idle branches by name. Beyond `most` one is closed: of those that nobody was promised the one used longest ago,
    else of all. Where the cache lacks room, those used longest ago give up their cells first: what was promised to be
    there goes to a folder or to memory until it is asked for again, anything else is closed, and left to what the cache
    retains. What several of them share stays as long as that is enough; then they let go of it, one after another."""

    def __init__(self, most: int, folder: Path | None = None) -> None:
        self._most = most
        self._folder = folder
        self._kept: OrderedDict[str, Kept] = OrderedDict()  # used longest ago first
        self._making_room = Lock()
        self._made = 0  # how often there was something to give up

    def __len__(self) -> int:
        return len(self._kept)

    def put(self, name: str, branch: Branch, *, promised: bool, note: object = None) -> None:
        """Keeps a branch; one that had the name before is closed."""
        self.drop(name)
        self._kept[name] = Kept(branch, promised, note)
        while len(self._kept) > self._most:
            self.close_oldest()

    def kept(self, name: str) -> Kept | None:
        """The branch of that name, which stays: it is forked."""
        kept = self._kept.get(name)
        if kept is None:
            return None
        if kept.branch.closed:
            self.drop(name)
            return None
        self._kept.move_to_end(name)
        return kept

    def drop(self, name: str) -> bool:
        """Closes the branch of that name. Was there one?"""
        kept = self._kept.pop(name, None)
        if kept is None:
            return False
        kept.close()
        return True

    async def make_room(self) -> bool:
        """A branch gives up cells: that used longest ago which has some of its own, or else some at all. Was there one?
        Those that it shares are free once nobody has them any more."""
        made = self._made
        async with self._making_room:
            if self._made != made:
                return True  # somebody made room while this waited
            if not (await self._give_own() or await self._give_shared()):
                return False
            self._made += 1
            return True

    async def _give_own(self) -> bool:
        for name, kept in self._full():
            if not kept.promised:
                return self.drop(name)
            try:
                if await kept.offload(self._folder):
                    return True
            except AgentKVError as error:  # a full disk, or it is just being forked
                log.warning("a kept conversation could not be offloaded", branch=kept.branch.id, error=str(error))
        return False

    async def _give_shared(self) -> bool:
        full = self._full()
        if not await _alone([kept.branch for _, kept in full]):
            return False
        # What cannot be kept must not shut out everybody.
        return any(kept.empty() for _, kept in full) or self.drop(full[0][0])

    def _full(self) -> list[tuple[str, Kept]]:
        """Those that may have cells in the cache."""
        return [(name, kept) for name, kept in self._kept.items() if not (kept.emptied or kept.branch.closed)]

    def free_branch(self) -> bool:
        """There is a branch less: a bare one takes another's place, or a conversation is forgotten. Was there one?"""
        return any(kept.empty() for _, kept in self._full()) or self.close_oldest()

    def close_oldest(self) -> bool:
        """Forgets a conversation, rather one that nobody was promised. Was there one?"""
        name = next((name for name, kept in self._kept.items() if not kept.promised), next(iter(self._kept), None))
        return name is not None and self.drop(name)


async def _alone(branches: Sequence[Branch]) -> bool:
    """Have they cells that no other branch has?"""
    ids = {branch.id for branch in branches}

    def look(engine: StepEngine) -> bool:
        others = engine.cells_of([branch for branch in engine.live() if branch not in ids])
        return engine.stats().cells_used > others

    return bool(branches) and await handle_of(branches[0]).call(look)


async def _bare(branch: Branch) -> Branch:
    """Another with the same history, and no cells: its tokens are fed again when somebody goes on from it."""
    bare = await branch.fork()
    try:
        await handle_of(branch).call(lambda engine: engine.drop_cells_from(bare.id, 0))
    except BaseException:  # who asked for room is cancelled, say
        bare.close()
        raise
    return bare
