"""Branches that clients hold by an id or a name, until they delete them, forget about them, or their lease ends."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING

import anyio

from ..._context.handle import handle_of
from ..http.errors import Refused
from ..http.idempotency import Answers, Progress

if TYPE_CHECKING:
    from ..._context.branch import Branch
    from .bodies import Condition

OWN_NAMES = "br_"  # what ids begin with that no client chose


@dataclass(slots=True, eq=False)
class Held:
    """One of them.

    Attributes:
        branch: it.
        id: what its clients call it: a name of theirs, or one that nobody can guess.
        parent: id of the branch that it was forked from.
        lease: that it ends with; None for none.
        revision: another one after each change, whoever made it.
        answers: of requests about it that came with an `Idempotency-Key`.
        running: what it generates, and the end of that; a second one that a client asks for is refused soon.
    """

    branch: Branch
    id: str
    parent: str | None
    lease: str | None = None
    revision: str = ""
    answers: Answers = field(default_factory=Answers)
    running: dict[anyio.CancelScope, anyio.Event] = field(default_factory=dict)
    uses: int = 0  # requests that are about it now
    used: float = 0.0  # when the last one ended
    changing: bool = False  # by a verb that no other may come between

    @property
    def is_named(self) -> bool:
        """Did a client choose its id?"""
        return not self.id.startswith(OWN_NAMES)

    @property
    def mark(self) -> str:
        """Names the history that it has."""
        length, epoch = handle_of(self.branch).state.end
        return f"{length}:{epoch}"

    async def stop(self) -> None:
        """Ends what it generates; returns once it has."""
        for scope, ended in list(self.running.items()):
            scope.cancel()
            await ended.wait()

    @contextmanager
    def at_work(self, condition: Condition, changes: bool, progress: Progress) -> Iterator[None]:
        """A verb runs in this block: by itself where it `changes` the branch, or where it has a condition, which holds
        until its end then. Raises Refused."""
        if not (changes or condition.conditional):
            yield
            return
        if self.changing:
            raise _busy(self)
        condition.check(self)
        self.changing, before = True, self.mark
        try:
            yield
        finally:
            self.changing = False
            if self.mark != before:
                progress.changed, self.revision = True, new_revision()


class Branches:
    """At most `most` of them. One that nobody asked for anything in so many seconds is closed when somebody else asks
    for something, or needs room, and so is one whose lease is silent: nobody asked for anything under it in
    `lease_seconds`, and no connection holds it."""

    def __init__(self, most: int, seconds: float, lease_seconds: float) -> None:
        self._most = most
        self._seconds = seconds
        self._coming = 0
        self._coming_names: set[str] = set()
        self._held: dict[str, Held] = {}
        self._connections: Counter[str] = Counter()  # by lease
        self.lease_seconds = lease_seconds
        self.answers = Answers()  # of what makes and closes branches

    def __len__(self) -> int:
        return len(self._held)

    def named(self) -> list[Held]:
        """Those whose names clients chose, oldest first."""
        self.close_idle()
        return [held for held in self._held.values() if held.is_named]

    @contextmanager
    def room(self, count: int, names: Sequence[str] = ()) -> Iterator[None]:
        """Room for so many more, which are made in this block, some under these names. Raises Refused where there is
        none, or a name is taken."""
        self.close_idle()
        self._check_names(names)
        if len(self._held) + self._coming + count > self._most:
            what = f"there are {len(self._held)} branches, and at most {self._most} may be; delete some"
            raise Refused("busy", what, "too_many_branches", headers={"retry-after": "5"})
        self._coming += count
        self._coming_names.update(names)
        try:
            yield
        finally:
            self._coming -= count
            self._coming_names.difference_update(names)

    def replaceable(self, name: str, revisions: Sequence[str]) -> bool:
        """Is there a branch of that name, of one of these revisions? Raises Refused where there is another one."""
        held = self.get(name)
        if name in self._coming_names or (held is not None and held.revision not in revisions):
            what = f"another branch is published as {name!r}, or somebody changed it there"
            what += "; attach it, or take another name"
            raise Refused("conflict", what, "branch_exists")
        if held is not None and held.changing:
            raise _busy(held)
        return held is not None

    def hold(
        self,
        branch: Branch,
        *,
        name: str | None = None,
        parent: str | None = None,
        lease: str | None = None,
        revision: str | None = None,
    ) -> Held:
        """Gives a branch its id. What had that name before is closed."""
        chosen = name or f"{OWN_NAMES}{secrets.token_hex(16)}"
        held = Held(branch, chosen, parent, lease, revision or new_revision(), used=monotonic())
        if (before := self._held.get(held.id)) is not None:
            self.drop(before)
        self._held[held.id] = held
        return held

    def get(self, name: str) -> Held | None:
        """The branch of that id, if there is one."""
        self.close_idle()
        return self._held.get(name)

    @contextmanager
    def using(self, name: str) -> Iterator[Held]:
        """The branch of that id, which is not forgotten about in this block. Raises Refused."""
        held = self.get(name)
        if held is None:
            raise missing(name)
        held.uses += 1
        try:
            yield held
        finally:
            held.uses -= 1
            held.used = monotonic()

    def drop(self, held: Held) -> None:
        """Closes a branch."""
        if self._held.get(held.id) is held:
            del self._held[held.id]
        held.branch.close()

    @contextmanager
    def leased(self, lease: str) -> Iterator[None]:
        """A connection holds a lease in this block. With the last one its branches are closed, whatever they run."""
        self._connections[lease] += 1
        try:
            yield
        finally:
            self._connections[lease] -= 1
            if not self._connections[lease]:
                del self._connections[lease]
                for held in self._of(lease):
                    self.drop(held)

    def close_idle(self) -> bool:
        """Closes those that were forgotten about. Were there any?"""
        now = monotonic()
        idle = [held for held in self._held.values() if not held.uses and held.used <= now - self._seconds]
        for lease in {held.lease for held in self._held.values() if held.lease} - self._connections.keys():
            branches = self._of(lease)
            if all(not held.uses and held.used <= now - self.lease_seconds for held in branches):
                idle += branches
        for held in idle:
            self.drop(held)
        return bool(idle)

    def _of(self, lease: str) -> list[Held]:
        return [held for held in self._held.values() if held.lease == lease]

    def _check_names(self, names: Sequence[str]) -> None:
        if len(set(names)) < len(names):
            raise Refused("invalid", "a name is there twice; name each branch once", "invalid_value", "names")
        taken = [name for name in names if name in self._held or name in self._coming_names]
        if taken:
            what = f"there is a branch {taken[0]!r} already; delete it, or take another name"
            raise Refused("conflict", what, "name_taken")


def new_revision() -> str:
    """One that no branch ever had."""
    return secrets.token_hex(16)


def _busy(held: Held) -> Refused:
    return Refused("conflict", f"branch {held.id} is at another verb; wait for that, or work on a fork", "branch_busy")


def missing(name: str) -> Refused:
    """There is no such branch."""
    what = f"there is no branch {name!r}: it was deleted, or idle for too long, or its lease ended; create it again"
    return Refused("missing", what, "branch_closed")
