"""Branches whose cells are a server's: logs of tokens, and the verbs on them that need no server."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import xxhash

from .._types.errors import (
    BranchBusy,
    BranchClosed,
    ContextFull,
    InvalidInput,
    InvalidRollback,
    PositionsExhausted,
    TooManyBranches,
)
from .lineage import Lineage
from .rng import child_stream
from .token_count import Census

if TYPE_CHECKING:
    from .jobs import Job

MOST_BRANCHES = 1 << 16
ROOT_TOKENS = 1024  # so many at the beginning of a root branch decide which replica its tree is of


class LogChange(NamedTuple):
    """See `_engine.interface.LogChange`."""

    branch: int
    kept: int
    appended: bytes
    epoch: int


class Output(NamedTuple):
    """The last output under a constraint: of tokens [began, end)."""

    constraint: object
    began: int
    end: int
    complete: bool

    def goes_on(self, under: object, length: int) -> bool:
        """Does a generation under this constraint, behind so many tokens, go on with it?"""
        return self.end == length and not self.complete and self._is_under(under)

    def _is_under(self, constraint: object) -> bool:
        """The same, or with the same text where another process began it."""
        if self.constraint == constraint or constraint is None:
            return self.constraint == constraint
        return getattr(self.constraint, "grammar", None) == getattr(constraint, "grammar", constraint)


@dataclass(slots=True)
class RemoteBranch:
    """One branch.

    Attributes:
        sent: so many of its tokens the server was given before, in one request.
        pending: was its last token made, and not given to the server yet?
        made: the last generation that emitted, and the length that it began at.
        publications: by name, the revisions of it that the server may have.
    """

    id: int
    stream: int
    log: array[int] = field(default_factory=lambda: array("i"))
    lineage: Lineage = field(default_factory=Lineage)
    forks: int = 0
    output: Output | None = None
    sent: int = 0
    pending: bool = False
    root: int | None = None
    job: Job | None = None
    made: tuple[int, int] | None = None
    publications: dict[str, tuple[str, ...]] = field(default_factory=dict)
    told: int = 0
    changed: bool = False

    def __len__(self) -> int:
        return len(self.log)

    def cut(self, length: int) -> None:
        """Only so many tokens are left."""
        self.pending = self.pending and length == len(self)
        del self.log[length:]
        self.sent = min(self.sent, length)
        if self.output is not None and length <= self.output.began:
            self.output = None
        elif self.output is not None and length < self.output.end:
            self.output = self.output._replace(end=length, complete=False)

    def append(self, tokens: Iterable[int]) -> None:
        """More tokens, of the last epoch."""
        self.pending = False
        self.log.extend(tokens)
        self.take_root(self.log)

    def take_root(self, tokens: array[int]) -> None:
        """What it begins with decides which replica its tree is of."""
        if self.root is None and tokens:
            self.root = xxhash.xxh3_64_intdigest(tokens[:ROOT_TOKENS].tobytes())


class BranchTable:
    """The live branches of one connection. A call checks everything before it changes anything."""

    def __init__(self, max_positions: int, capacity: int) -> None:
        self._max_positions = max_positions
        self._capacity = capacity
        self._branches: dict[int, RemoteBranch] = {}
        self._next = 0
        self._roots = 0
        self._epochs = 0
        self._changed: dict[int, None] = {}
        self._last_words: list[LogChange] = []
        self._census = Census()
        self._uncounted: set[int] = set()

    def __len__(self) -> int:
        return len(self._branches)

    def __contains__(self, branch: int) -> bool:
        return branch in self._branches

    def live(self) -> list[int]:
        """Oldest first."""
        return list(self._branches)

    def at(self, branch: int) -> RemoteBranch:
        """Raises BranchClosed."""
        found = self._branches.get(branch)
        if found is None:
            raise BranchClosed(f"branch {branch} is closed or never existed")
        return found

    def idle(self, branch: int) -> RemoteBranch:
        """Raises BranchClosed, and BranchBusy where a job runs on it."""
        found = self.at(branch)
        if found.job is not None:
            raise BranchBusy(f"branch {branch} has a job that still runs: wait for it, cancel it, or fork the branch")
        return found

    def still(self, branch: int) -> RemoteBranch:
        """As `idle`; a job that waits for room may be there."""
        found = self.at(branch)
        return found if found.job is not None and found.job.waits else self.idle(branch)

    def check_positions(self, branch: RemoteBranch, more: int, cells: bool = True) -> None:
        """Raises PositionsExhausted, ContextFull where so many tokens more have no position, or cannot have a cell (if
        `cells` are asked for)."""
        if len(branch) + more > self._max_positions:
            raise PositionsExhausted(
                f"branch {branch.id} holds {len(branch)} tokens and would need {len(branch) + more} positions, but the "
                f"server gives {self._max_positions}: roll the branch back, or begin another with less"
            )
        if cells and len(branch) + more > self._capacity:
            raise ContextFull(
                f"branch {branch.id} holds {len(branch)} tokens, and {more} more need more cells than the "
                f"{self._capacity} of the server's cache: roll the branch back, or begin another with less"
            )

    def create(self) -> RemoteBranch:
        """An empty root."""
        branch = self._add(self._roots)
        self._roots += 1
        return branch

    def restore(self, tokens: Sequence[int], stream: int, forks: int) -> RemoteBranch:
        """A branch as it was kept elsewhere."""
        branch = self._add(stream)
        branch.forks = forks
        branch.append(tokens)
        return branch

    def fork(self, parent: RemoteBranch, n: int) -> list[RemoteBranch]:
        """Children with the same history, or none."""
        self.check_room(n)
        children = [self._like(parent, child_stream(parent.stream, parent.forks + i)) for i in range(n)]
        parent.forks += n
        return children

    def copy(self, branch: RemoteBranch) -> RemoteBranch:
        """A branch in the same state."""
        copied = self._like(branch, branch.stream)
        copied.forks = branch.forks
        return copied

    def rollback(self, branch: RemoteBranch, length: int, epoch: int | None = None) -> None:
        """Keeps the first `length` tokens. Raises InvalidRollback."""
        if epoch is not None and (length > len(branch) or branch.lineage.at(length) != epoch):
            raise InvalidRollback(
                f"the mark at {length} tokens is of history that was rewritten: branch {branch.id} has {len(branch)} "
                "tokens, but not those any more; take a new mark"
            )
        if not 0 <= length <= len(branch):
            raise InvalidRollback(
                f"cannot roll branch {branch.id} back to length {length}: it has {len(branch)} tokens"
            )
        if length == len(branch):
            return
        branch.cut(length)
        branch.lineage.cut(length, self._epoch())
        branch.told = min(branch.told, length)
        branch.made = None
        self.tell(branch)

    def undo(self, job: int, kept: int) -> bool:
        """What a job made that ended goes, but for its first tokens. False where the branch went on or is closed."""
        found = [b for b in self._branches.values() if b.made is not None and b.made[0] == job and b.job is None]
        for branch in found:
            assert branch.made is not None
            length = max(branch.made[1] + kept, 0)
            branch.made = None
            if length < len(branch):
                self.rollback(branch, length)
                branch.pending = kept > 0
        return bool(found)

    def adopt(self, dst: RemoteBranch, src: RemoteBranch) -> None:
        """dst takes over src's history."""
        if dst is src:
            return
        same = _common(dst.log, src.log)
        dst.lineage.go_on_as(src.lineage, same)
        dst.lineage.cut(len(src), self._epoch())
        dst.told = min(dst.told, same)
        dst.log, dst.stream, dst.forks = src.log[:], src.stream, src.forks
        dst.output, dst.sent, dst.pending, dst.root, dst.made = src.output, src.sent, src.pending, src.root, None
        self.tell(dst)

    def replace(self, branch: RemoteBranch, first: int, last: int, tokens: Sequence[int]) -> None:
        """Tokens [first, last) give way to others. Raises InvalidInput, PositionsExhausted."""
        if not 0 <= first <= last <= len(branch):
            raise InvalidInput(f"tokens [{first}, {last}) of branch {branch.id}, which has {len(branch)}")
        more = len(tokens) - (last - first)
        if more > 0:  # one that is full may get shorter
            self.check_positions(branch, more)
        behind, output = branch.log[last:], branch.output
        branch.cut(first)
        branch.lineage.cut(first, self._epoch())
        branch.append(tokens)
        branch.append(behind)
        branch.made = None
        moves = output is not None and output.began >= last
        branch.output = output._replace(began=output.began + more, end=output.end + more) if output and moves else None
        branch.told = min(branch.told, first)
        self.tell(branch)

    def close(self, branch: RemoteBranch) -> None:
        """Whoever was told of it is told its last words."""
        if branch.changed:
            del self._changed[branch.id]
            if branch.told > 0:
                self._last_words.append(_change_of(branch))
        self._uncounted.add(branch.id)
        del self._branches[branch.id]

    def held(self, busy: Iterable[int] = ()) -> tuple[int, int]:
        """Tokens that the branches hold, shared ones counted once; and those that two or more hold. The logs of `busy`
        ones may have changed without a word."""
        self._uncounted.update(busy)
        for number in self._uncounted:
            branch = self._branches.get(number)
            stretches = [] if branch is None else branch.lineage.stretches(len(branch) - branch.pending)
            self._census.count(number, stretches)
        self._uncounted.clear()
        return self._census.held, self._census.shared

    def tell(self, branch: RemoteBranch) -> None:
        """Its log has changed."""
        self._uncounted.add(branch.id)
        if not branch.changed:
            branch.changed = True
            self._changed[branch.id] = None

    def take_changes(self) -> list[LogChange]:
        """How the logs differ from what the last call said."""
        changes, self._last_words = self._last_words, []
        for number in self._changed:
            branch = self._branches[number]
            changes.append(_change_of(branch))
            branch.told, branch.changed = len(branch), False
        self._changed.clear()
        return changes

    def _add(self, stream: int) -> RemoteBranch:
        self.check_room(1)
        branch = RemoteBranch(self._next, stream)
        branch.lineage.cut(0, self._epoch())
        self._branches[self._next] = branch
        self._next += 1
        self.tell(branch)
        return branch

    def _like(self, branch: RemoteBranch, stream: int) -> RemoteBranch:
        made = self._add(stream)
        made.log, made.lineage = branch.log[:], branch.lineage.copy()
        made.lineage.cut(len(made), self._epoch())  # another branch may go on with the last one
        made.output, made.sent, made.pending, made.root = branch.output, branch.sent, branch.pending, branch.root
        return made

    def check_room(self, n: int) -> None:
        """For so many branches more. Raises TooManyBranches."""
        if len(self) + n > MOST_BRANCHES:
            raise TooManyBranches(
                f"{n} more were asked for, but {len(self)} of at most {MOST_BRANCHES} branches are live: close some"
            )

    def _epoch(self) -> int:
        self._epochs += 1
        return self._epochs


def _change_of(branch: RemoteBranch) -> LogChange:
    return LogChange(branch.id, branch.told, branch.log[branch.told :].tobytes(), branch.lineage.at(len(branch)))


def _common(a: array[int], b: array[int]) -> int:
    """How many tokens two logs share at the front."""
    most = min(len(a), len(b))
    if a[:most] == b[:most]:
        return most
    return next(i for i in range(most) if a[i] != b[i])
