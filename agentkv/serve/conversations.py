"""Finished conversations, cached on their branches for the request that continues them.

Such a request sends all of its messages again; its leading ones identify the conversation.
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


_KEY = secrets.token_bytes(32)  # keyed: clients cannot forge a conversation with a given key


def prefix_keys(messages: Sequence[Mapping[str, Any]], about: object) -> list[str]:
    """Returns one key per prefix of a conversation, shortest (one message) first. Reasoning does not count, since
    clients drop it.

    Args:
        messages: in OpenAI's form.
        about: other input to its tokens, such as tools; JSON.
    """
    digest = hashlib.blake2b(_canonical(about), key=_KEY, digest_size=16)
    names = []
    for message in messages:
        digest.update(_canonical(_essence(message)))
        names.append(f"conversation:{digest.hexdigest()}")
    return names


def digest_of(messages: Sequence[Mapping[str, Any]]) -> str:
    """Digest of a conversation, call ids included; the same in every process."""
    return hashlib.blake2b(_canonical(messages), digest_size=16).hexdigest()


def reasoning_conflicts(given: Sequence[Mapping[str, Any]], held: Sequence[Message]) -> bool:
    """Returns whether a client's messages state other reasoning than the model wrote. Missing reasoning is no
    conflict."""
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
        with suppress(ValueError):  # invalid JSON is compared as a string
            arguments = json.loads(arguments)
    return [function.get("name"), arguments]


def _canonical(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, default=str).encode("utf-8", "surrogatepass") + b"\0"


@dataclass(slots=True, eq=False)
class CachedConversation:
    """A finished conversation on its idle branch.

    Attributes:
        branch: its branch.
        pinned: whether its client may rely on it by name.
        note: data of its protocol.
        uncached_copy: copy of the branch without cells, which replaces it where room is lacking.
        cells_dropped: whether the copy has replaced it; a continuation then computes the cells again.
    """

    branch: Branch
    pinned: bool
    note: object = None
    uncached_copy: Branch | None = None
    cells_dropped: bool = False

    async def offload(self, folder: Path | None) -> int:
        """Offloads its exclusive cells; shared ones stay. Returns the number of freed cells."""
        if self.branch.offloaded:
            return 0
        self.uncached_copy = self.uncached_copy or await _bare(self.branch)
        return await self.branch.offload(folder)

    def empty(self) -> bool:
        """Replaces the branch by its copy without cells, which frees all of them. Returns False if there is no copy."""
        if self.uncached_copy is None:
            return False
        self.branch.close()
        self.branch, self.uncached_copy, self.cells_dropped = self.uncached_copy, None, True
        return True

    def close(self) -> None:
        """Closes the branch and its copy."""
        self.branch.close()
        if self.uncached_copy is not None:
            self.uncached_copy.close()


class ConversationCache:
    """Idle branches by name, at most `most`: beyond that the least recently used is closed, first among unpromised
    ones.

    Where the cache lacks room, the least recently used give up their cells first: promised ones are offloaded to a
    folder or to memory, others are closed. Shared cells stay until that no longer suffices; then each branch in turn
    drops them.
    """

    def __init__(self, most: int, folder: Path | None = None) -> None:
        self._most = most
        self._folder = folder
        self._kept: OrderedDict[str, CachedConversation] = OrderedDict()  # least recently used first
        self._making_room = Lock()
        self._made = 0  # number of times that cells were given up

    def __len__(self) -> int:
        return len(self._kept)

    def put(self, name: str, branch: Branch, *, promised: bool, note: object = None) -> None:
        """Caches a branch under a name; a previous one of that name is closed."""
        self.drop(name)
        self._kept[name] = CachedConversation(branch, promised, note)
        while len(self._kept) > self._most:
            self.close_oldest()

    def kept(self, name: str) -> CachedConversation | None:
        """Returns the conversation of that name, or None, and marks it as used. It stays cached: callers fork its
        branch."""
        kept = self._kept.get(name)
        if kept is None:
            return None
        if kept.branch.closed:
            self.drop(name)
            return None
        self._kept.move_to_end(name)
        return kept

    def drop(self, name: str) -> bool:
        """Closes the branch of that name. Returns whether there was one."""
        kept = self._kept.pop(name, None)
        if kept is None:
            return False
        kept.close()
        return True

    async def make_room(self) -> bool:
        """Has the least recently used branch with exclusive cells, or else with any, give up cells. Returns False if
        none has any. Shared cells become free once their last branch drops them."""
        made = self._made
        async with self._making_room:
            if self._made != made:
                return True  # another caller made room while this waited
            if not (await self._give_own() or await self._give_shared()):
                return False
            self._made += 1
            return True

    async def _give_own(self) -> bool:
        for name, kept in self._full():
            if not kept.pinned:
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
        # A conversation that cannot be offloaded must not block all others.
        return any(kept.empty() for _, kept in full) or self.drop(full[0][0])

    def _full(self) -> list[tuple[str, CachedConversation]]:
        """Conversations that may have cells in the cache."""
        return [(name, kept) for name, kept in self._kept.items() if not (kept.cells_dropped or kept.branch.closed)]

    def free_branch(self) -> bool:
        """Frees one branch: a copy without cells replaces its original, or a conversation is closed. Returns False if
        there is none."""
        return any(kept.empty() for _, kept in self._full()) or self.close_oldest()

    def close_oldest(self) -> bool:
        """Closes the least recently used conversation, unpromised ones first. Returns False if there is none."""
        name = next((name for name, kept in self._kept.items() if not kept.pinned), next(iter(self._kept), None))
        return name is not None and self.drop(name)


async def _alone(branches: Sequence[Branch]) -> bool:
    """Returns whether the branches have cells that no other branch shares."""
    ids = {branch.id for branch in branches}

    def look(engine: StepEngine) -> bool:
        others = engine.cells_of([branch for branch in engine.live() if branch not in ids])
        return engine.stats().cells_used > others

    return bool(branches) and await handle_of(branches[0]).call(look)


async def _bare(branch: Branch) -> Branch:
    """Forks a branch and drops all cells of the fork; a continuation prefills its tokens again."""
    bare = await branch.fork()
    try:
        await handle_of(branch).call(lambda engine: engine.drop_cells_from(bare.id, 0))
    except BaseException:  # such as a cancellation of the caller
        bare.close()
        raise
    return bare
