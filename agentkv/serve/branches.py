"""Branches that clients hold by an id, until they delete them or forget about them."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING

import anyio

from .refused import Refused

if TYPE_CHECKING:
    from .._branch import Branch


@dataclass(slots=True, eq=False)
class Held:
    """One of them.

    Attributes:
        branch: it.
        id: what its clients call it.
        parent: id of the branch that it was forked from.
        running: what it generates, and the end of that; a second one that a client asks for is refused soon.
    """

    branch: Branch
    id: str
    parent: str | None
    running: dict[anyio.CancelScope, anyio.Event] = field(default_factory=dict)
    uses: int = 0  # requests that are about it now
    used: float = 0.0  # when the last one ended

    async def stop(self) -> None:
        """Ends what it generates; returns once it has."""
        for scope, ended in list(self.running.items()):
            scope.cancel()
            await ended.wait()


class Branches:
    """At most `most` of them; one that nobody asked for anything in so many seconds is closed when somebody else asks
    for something, or needs room."""

    def __init__(self, most: int, seconds: float) -> None:
        self._most = most
        self._seconds = seconds
        self._coming = 0
        self._held: dict[str, Held] = {}

    def __len__(self) -> int:
        return len(self._held)

    @contextmanager
    def room(self, count: int) -> Iterator[None]:
        """Room for so many more, which are made in this block. Raises Refused where there is none."""
        self.close_idle()
        if len(self._held) + self._coming + count > self._most:
            what = f"there are {len(self._held)} branches, and at most {self._most} may be; delete some"
            raise Refused("busy", what, "too_many_branches", headers={"retry-after": "5"})
        self._coming += count
        try:
            yield
        finally:
            self._coming -= count

    def hold(self, branch: Branch, parent: str | None = None) -> Held:
        """Gives a branch its id."""
        held = Held(branch, f"br_{secrets.token_hex(16)}", parent, used=monotonic())
        self._held[held.id] = held
        return held

    @contextmanager
    def using(self, name: str) -> Iterator[Held]:
        """The branch of that id, which is not forgotten about in this block. Raises Refused."""
        self.close_idle()
        held = self._held.get(name)
        if held is None:
            raise _missing(name)
        held.uses += 1
        try:
            yield held
        finally:
            held.uses -= 1
            held.used = monotonic()

    def drop(self, held: Held) -> None:
        """Closes a branch."""
        self._held.pop(held.id, None)
        held.branch.close()

    def close_idle(self) -> bool:
        """Closes those that were forgotten about. Were there any?"""
        late = monotonic() - self._seconds
        idle = [held for held in self._held.values() if not held.uses and held.used <= late]
        for held in idle:
            self.drop(held)
        return bool(idle)


def _missing(name: str) -> Refused:
    what = f"there is no branch {name!r}: it was deleted, or idle for too long; create it again"
    return Refused("missing", what, "branch_closed")
