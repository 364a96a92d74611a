"""Branches that clients hold by id or name, until they are deleted or idle for too long, or their lease ends."""

from __future__ import annotations

import re
import secrets
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import TYPE_CHECKING

import anyio

from ..._context.handle import handle_of
from ..._types.errors import AgentKVError
from ..http.errors import ApiError, to_api_error
from ..http.idempotency import Progress, StoredAnswers

if TYPE_CHECKING:
    from ..._context.branch import Branch
    from ...agents.control import TurnControl
    from .bodies import Condition

OWN_NAMES = "br_"  # prefix of ids that no client chose


@dataclass(slots=True, eq=False)
class BranchEntry:
    """A branch that clients hold.

    Attributes:
        branch: the branch.
        id: a name that a client chose, or one that nobody can guess.
        parent: id of the branch that it was forked from; None for none.
        lease: lease that it ends with; None for none.
        revision: identifier of its state; new after each change.
        answers: stored answers of requests with an `Idempotency-Key`.
        running: running generations, each with the event of its end. A second one is refused once it gets its turn.
        steering: control of the generation that has its turn; None while there is none.
    """

    branch: Branch
    id: str
    parent: str | None
    lease: str | None = None
    revision: str = ""
    answers: StoredAnswers = field(default_factory=StoredAnswers)
    running: dict[anyio.CancelScope, anyio.Event] = field(default_factory=dict)
    steering: TurnControl | None = None
    uses: int = 0  # running requests about it
    used: float = 0.0  # monotonic time at which the last of them ended
    changing: bool = False  # whether an exclusive verb is running

    @property
    def is_named(self) -> bool:
        """Whether a client chose its id."""
        return not self.id.startswith(OWN_NAMES)

    @property
    def mark(self) -> str:
        """Identifier of its present history, "length:epoch"."""
        length, epoch = handle_of(self.branch).state.tip
        return f"{length}:{epoch}"

    async def stop(self) -> None:
        """Cancels its generations and waits for their end."""
        for scope, ended in list(self.running.items()):
            scope.cancel()
            await ended.wait()

    @contextmanager
    def exclusive(self, condition: Condition, changes: bool, progress: Progress) -> Iterator[None]:
        """Runs a verb in this block: exclusively if it `changes` the branch or has a condition, which then holds until
        its end. Raises ApiError."""
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
    """At most `most` branches. A branch idle for `seconds` is closed at a later call, or where room is needed. So are
    all branches of a lease without a connection, once each is idle for `lease_seconds`."""

    def __init__(self, most: int, seconds: float, lease_seconds: float) -> None:
        self._most = most
        self._seconds = seconds
        self._coming = 0
        self._coming_names: set[str] = set()
        self._entries: dict[str, BranchEntry] = {}
        self._connections: Counter[str] = Counter()  # open connections by lease
        self.lease_seconds = lease_seconds
        self.answers = StoredAnswers()  # of requests that create or delete branches

    def __len__(self) -> int:
        return len(self._entries)

    def held(self) -> bool:
        """Whether clients hold open branches, or are about to."""
        return self._coming > 0 or any(not entry.branch.closed for entry in self._entries.values())

    def named(self) -> list[BranchEntry]:
        """Branches whose names clients chose, oldest first."""
        self.close_idle()
        return [entry for entry in self._entries.values() if entry.is_named]

    @contextmanager
    def room(self, count: int, names: Sequence[str] = ()) -> Iterator[None]:
        """Reserves room for `count` more branches, and these names, for the length of a block. Raises ApiError where
        there is none or a name is taken."""
        self.close_idle()
        self._check_names(names)
        if len(self._entries) + self._coming + count > self._most:
            what = f"there are {len(self._entries)} branches, and at most {self._most} may be; delete some"
            raise ApiError("busy", what, "too_many_branches", headers={"retry-after": "5"})
        self._coming += count
        self._coming_names.update(names)
        try:
            yield
        finally:
            self._coming -= count
            self._coming_names.difference_update(names)

    def replaceable(self, name: str, revisions: Sequence[str]) -> bool:
        """Returns whether there is a branch of that name with one of these revisions. Raises ApiError if it has another
        revision or a verb is changing it."""
        entry = self.get(name)
        if name in self._coming_names or (entry is not None and entry.revision not in revisions):
            what = f"another branch is published as {name!r}, or somebody changed it there"
            what += "; attach it, or take another name"
            raise ApiError("conflict", what, "branch_exists")
        if entry is not None and entry.changing:
            raise _busy(entry)
        return entry is not None

    def add(
        self,
        branch: Branch,
        *,
        name: str | None = None,
        parent: str | None = None,
        lease: str | None = None,
        revision: str | None = None,
    ) -> BranchEntry:
        """Enters a branch under its id. A previous branch of that name is closed."""
        chosen = name or f"{OWN_NAMES}{secrets.token_hex(16)}"
        handle_of(branch).record.parked = True  # between its verbs
        entry = BranchEntry(branch, chosen, parent, lease, revision or new_revision(), used=monotonic())
        if (before := self._entries.get(entry.id)) is not None:
            self.drop(before)
        self._entries[entry.id] = entry
        return entry

    def get(self, name: str) -> BranchEntry | None:
        """Returns the branch of that id, or None."""
        self.close_idle()
        return self._entries.get(name)

    def entry(self, name: str) -> BranchEntry:
        """Returns the branch of that id. Raises ApiError."""
        entry = self.get(name)
        if entry is None:
            raise missing(name)
        return entry

    @contextmanager
    def using(self, name: str) -> Iterator[BranchEntry]:
        """The branch of that id, which is not closed as idle in this block. Raises ApiError."""
        entry = self.entry(name)
        entry.uses += 1
        try:
            yield entry
        except (AgentKVError, ApiError) as error:
            told = to_api_error(error)
            renamed = re.sub(rf"\bbranch {entry.branch.id}\b", f"branch {entry.id!r}", told.message)
            raise replace(told, message=renamed) from error
        finally:
            entry.uses -= 1
            entry.used = monotonic()

    def drop(self, entry: BranchEntry) -> None:
        """Closes a branch."""
        if self._entries.get(entry.id) is entry:
            del self._entries[entry.id]
        entry.branch.close()

    @contextmanager
    def leased(self, lease: str) -> Iterator[None]:
        """Holds a lease for one connection in this block. When the last connection ends, the lease's branches are
        closed, running generations included."""
        self._connections[lease] += 1
        try:
            yield
        finally:
            self._connections[lease] -= 1
            if not self._connections[lease]:
                del self._connections[lease]
                for entry in self._of(lease):
                    self.drop(entry)

    def close_idle(self) -> bool:
        """Closes idle branches. Returns whether there were any."""
        now = monotonic()
        idle = [entry for entry in self._entries.values() if not entry.uses and entry.used <= now - self._seconds]
        for lease in {entry.lease for entry in self._entries.values() if entry.lease} - self._connections.keys():
            branches = self._of(lease)
            if all(not entry.uses and entry.used <= now - self.lease_seconds for entry in branches):
                idle += branches
        for entry in idle:
            self.drop(entry)
        return bool(idle)

    def _of(self, lease: str) -> list[BranchEntry]:
        return [entry for entry in self._entries.values() if entry.lease == lease]

    def _check_names(self, names: Sequence[str]) -> None:
        if len(set(names)) < len(names):
            raise ApiError("invalid", "a name is there twice; name each branch once", "invalid_value", "names")
        taken = [name for name in names if name in self._entries or name in self._coming_names]
        if taken:
            what = f"there is a branch {taken[0]!r} already; delete it, or take another name"
            raise ApiError("conflict", what, "name_taken")


def new_revision() -> str:
    """A new, unique revision."""
    return secrets.token_hex(16)


def _busy(entry: BranchEntry) -> ApiError:
    return ApiError(
        "conflict", f"branch {entry.id} is at another verb; wait for that, or work on a fork", "branch_busy"
    )


def missing(name: str) -> ApiError:
    """Error for an unknown branch."""
    what = (
        f"there is no branch {name!r}: it was never made, or deleted, or idle for too long, or its lease ended; create "
        "it, or see GET /v1/branches for the names that there are"
    )
    return ApiError("missing", what, "branch_closed")
