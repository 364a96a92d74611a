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
from typing import TYPE_CHECKING, Any

from .._context.handle import handle_of
from .._types.message import REASONING, Message

if TYPE_CHECKING:
    from .._context.branch import Branch


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


@dataclass(frozen=True, slots=True, eq=False)
class CachedConversation:
    """A finished conversation on its idle branch.

    Attributes:
        branch: its branch.
        pinned: whether its client may rely on it by name.
        note: data of its protocol.
    """

    branch: Branch
    pinned: bool
    note: object = None


class ConversationCache:
    """Idle branches by name, at most `most`: beyond that the least recently used is closed, first among unpromised
    ones. Where the cache lacks room, they give up their cells until they are gone on with."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept: OrderedDict[str, CachedConversation] = OrderedDict()  # least recently used first

    def __len__(self) -> int:
        return len(self._kept)

    def put(self, name: str, branch: Branch, *, promised: bool, note: object = None) -> None:
        """Caches a branch under a name; a previous one of that name is closed."""
        self.drop(name)
        handle_of(branch).record.parked = True
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
        kept.branch.close()
        return True

    def close_oldest(self) -> bool:
        """Closes the least recently used conversation, unpromised ones first. Returns False if there is none."""
        name = next((name for name, kept in self._kept.items() if not kept.pinned), next(iter(self._kept), None))
        return name is not None and self.drop(name)
