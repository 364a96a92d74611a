"""Token logs of branches whose cells are on a server, and the verbs on them that need no server."""

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
from .lineage import Lineage, SharedTokenCount
from .rng import child_stream

if TYPE_CHECKING:
    from .jobs import RemoteJob

MOST_BRANCHES = 1 << 16
ROOT_TOKENS = 1024  # tokens at the beginning of a root branch that determine the replica of its tree


class RemoteLogChange(NamedTuple):
    """A change of a branch's log, as `_engine.interface.LogChange`."""

    branch: int
    kept: int
    appended: bytes
    epoch: int
    adapter: int = 0


class OutputSpan(NamedTuple):
    """The branch's last output under a constraint: tokens [began, end)."""

    constraint: object
    began: int
    end: int
    complete: bool

    def is_continued_by(self, under: object, length: int) -> bool:
        """Returns whether a generation under constraint `under`, after `length` tokens, continues this output."""
        return self.end == length and not self.complete and self._is_under(under)

    def _is_under(self, constraint: object) -> bool:
        """Returns whether the constraints are equal, or have equal grammar text (where another process began it)."""
        if self.constraint == constraint or constraint is None:
            return self.constraint == constraint
        return getattr(self.constraint, "grammar", None) == getattr(constraint, "grammar", constraint)


@dataclass(slots=True)
class BranchLog:
    """Token log of one branch, and its state on the server.

    Attributes:
        sent: number of its first tokens that the server has received in one request.
        pending: whether its last token was generated, and not sent to the server yet.
        last_job: the last undoable job and the length that it began at; None without one.
        publications: by name, the revisions of the branch that the server may have.
        n_reported: number of its first tokens that the step loop knows of.
        changed: whether the log has changed since `take_changes`.
    """

    id: int
    stream: int
    log: array[int] = field(default_factory=lambda: array("i"))
    lineage: Lineage = field(default_factory=Lineage)
    forks: int = 0
    output: OutputSpan | None = None
    sent: int = 0
    pending: bool = False
    root: int | None = None
    job: RemoteJob | None = None
    last_job: tuple[int, int] | None = None
    publications: dict[str, tuple[str, ...]] = field(default_factory=dict)
    n_reported: int = 0
    changed: bool = False

    def __len__(self) -> int:
        return len(self.log)

    def cut(self, length: int) -> None:
        """Keeps the first `length` tokens."""
        self.pending = self.pending and length == len(self)
        del self.log[length:]
        self.sent = min(self.sent, length)
        if self.output is not None and length <= self.output.began:
            self.output = None
        elif self.output is not None and length < self.output.end:
            self.output = self.output._replace(end=length, complete=False)

    def append(self, tokens: Iterable[int]) -> None:
        """Appends tokens, in the last epoch."""
        self.pending = False
        self.log.extend(tokens)
        self.take_root(self.log)

    def take_root(self, tokens: array[int]) -> None:
        """Sets the root, a hash of the first tokens that determines the replica of the tree, unless it is set."""
        if self.root is None and tokens:
            self.root = xxhash.xxh3_64_intdigest(tokens[:ROOT_TOKENS].tobytes())


class BranchTable:
    """The live branches of one connection. A call checks everything before it changes anything."""

    def __init__(self, max_positions: int, capacity: int) -> None:
        self._max_positions = max_positions
        self._capacity = capacity
        self._branches: dict[int, BranchLog] = {}
        self._next = 0
        self._roots = 0
        self._epochs = 0
        self._changed: dict[int, None] = {}
        self._final_changes: list[RemoteLogChange] = []
        self._token_count = SharedTokenCount()
        self._uncounted: set[int] = set()

    def __len__(self) -> int:
        return len(self._branches)

    def __contains__(self, branch: int) -> bool:
        return branch in self._branches

    def live(self) -> list[int]:
        """Ids of the live branches, oldest first."""
        return list(self._branches)

    def at(self, branch: int) -> BranchLog:
        """The branch with this id. Raises BranchClosed."""
        found = self._branches.get(branch)
        if found is None:
            raise BranchClosed(f"branch {branch} is closed or never existed")
        return found

    def idle(self, branch: int) -> BranchLog:
        """The branch with this id, without a job. Raises BranchClosed, and BranchBusy where a job runs on it."""
        found = self.at(branch)
        if found.job is not None:
            raise BranchBusy(f"branch {branch} has a job that still runs: wait for it, cancel it, or fork the branch")
        return found

    def idle_or_waiting(self, branch: int) -> BranchLog:
        """The branch with this id, without a job or with one that waits for room. Raises as `idle` does."""
        found = self.at(branch)
        return found if found.job is not None and found.job.waits else self.idle(branch)

    def check_positions(self, branch: BranchLog, more: int, cells: bool = True) -> None:
        """Raises PositionsExhausted where `more` tokens exceed the positions; ContextFull, if `cells`, the capacity."""
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

    def create(self) -> BranchLog:
        """Makes an empty root branch."""
        branch = self._add(self._roots)
        self._roots += 1
        return branch

    def restore(self, tokens: Sequence[int], stream: int, forks: int) -> BranchLog:
        """Makes a branch from its stored tokens, stream and number of forks."""
        branch = self._add(stream)
        branch.forks = forks
        branch.append(tokens)
        return branch

    def fork(self, parent: BranchLog, n: int) -> list[BranchLog]:
        """Makes n children with the same history. Raises TooManyBranches before any is made."""
        self.check_room(n)
        children = [self._like(parent, child_stream(parent.stream, parent.forks + i)) for i in range(n)]
        parent.forks += n
        return children

    def copy(self, branch: BranchLog) -> BranchLog:
        """Makes a branch in the same state, random stream included."""
        copied = self._like(branch, branch.stream)
        copied.forks = branch.forks
        return copied

    def rollback(self, branch: BranchLog, length: int, epoch: int | None = None) -> None:
        """Rolls the branch back to its first `length` tokens. Raises InvalidRollback."""
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
        branch.n_reported = min(branch.n_reported, length)
        branch.last_job = None
        self.note_change(branch)

    def undo(self, job: int, kept: int) -> bool:
        """Removes the tokens of a finished job but the first `kept`. False where the branch moved on or is closed."""
        found = [
            b for b in self._branches.values() if b.last_job is not None and b.last_job[0] == job and b.job is None
        ]
        for branch in found:
            assert branch.last_job is not None
            length = max(branch.last_job[1] + kept, 0)
            branch.last_job = None
            if length < len(branch):
                self.rollback(branch, length)
                branch.pending = kept > 0
        return bool(found)

    def adopt(self, dst: BranchLog, src: BranchLog) -> None:
        """Gives dst the history of src."""
        if dst is src:
            return
        same = _common(dst.log, src.log)
        dst.lineage.continue_as(src.lineage, same)
        dst.lineage.cut(len(src), self._epoch())
        dst.n_reported = min(dst.n_reported, same)
        dst.log, dst.stream, dst.forks = src.log[:], src.stream, src.forks
        dst.output, dst.sent, dst.pending, dst.root, dst.last_job = src.output, src.sent, src.pending, src.root, None
        self.note_change(dst)

    def replace(self, branch: BranchLog, first: int, last: int, tokens: Sequence[int]) -> None:
        """Replaces tokens [first, last) by others. Raises InvalidInput, PositionsExhausted, ContextFull."""
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
        branch.last_job = None
        moves = output is not None and output.began >= last
        branch.output = output._replace(began=output.began + more, end=output.end + more) if output and moves else None
        branch.n_reported = min(branch.n_reported, first)
        self.note_change(branch)

    def close(self, branch: BranchLog) -> None:
        """Removes the branch. Its unreported changes go into the next `take_changes`."""
        if branch.changed:
            del self._changed[branch.id]
            if branch.n_reported > 0:
                self._final_changes.append(_change_of(branch))
        self._uncounted.add(branch.id)
        del self._branches[branch.id]

    def token_counts(self, busy: Iterable[int] = ()) -> tuple[int, int]:
        """Number of tokens in all branches, shared ones counted once; and of those that two or more branches share.

        The logs of `busy` branches are counted anew, as they change without `note_change`.
        """
        self._uncounted.update(busy)
        for number in self._uncounted:
            branch = self._branches.get(number)
            segments = [] if branch is None else branch.lineage.segments(len(branch) - branch.pending)
            self._token_count.count(number, segments)
        self._uncounted.clear()
        return self._token_count.total, self._token_count.shared

    def note_change(self, branch: BranchLog) -> None:
        """Marks the branch's log as changed."""
        self._uncounted.add(branch.id)
        if not branch.changed:
            branch.changed = True
            self._changed[branch.id] = None

    def take_changes(self) -> list[RemoteLogChange]:
        """Changes of the logs since the last call."""
        changes, self._final_changes = self._final_changes, []
        for number in self._changed:
            branch = self._branches[number]
            changes.append(_change_of(branch))
            branch.n_reported, branch.changed = len(branch), False
        self._changed.clear()
        return changes

    def _add(self, stream: int) -> BranchLog:
        self.check_room(1)
        branch = BranchLog(self._next, stream)
        branch.lineage.cut(0, self._epoch())
        self._branches[self._next] = branch
        self._next += 1
        self.note_change(branch)
        return branch

    def _like(self, branch: BranchLog, stream: int) -> BranchLog:
        made = self._add(stream)
        made.log, made.lineage = branch.log[:], branch.lineage.copy()
        made.lineage.cut(len(made), self._epoch())  # another branch may continue the last epoch
        made.output, made.sent, made.pending, made.root = branch.output, branch.sent, branch.pending, branch.root
        return made

    def check_room(self, n: int) -> None:
        """Raises TooManyBranches where `n` more branches exceed the limit."""
        if len(self) + n > MOST_BRANCHES:
            raise TooManyBranches(
                f"{n} more were asked for, but {len(self)} of at most {MOST_BRANCHES} branches are live: close some"
            )

    def _epoch(self) -> int:
        self._epochs += 1
        return self._epochs


def _change_of(branch: BranchLog) -> RemoteLogChange:
    return RemoteLogChange(
        branch.id, branch.n_reported, branch.log[branch.n_reported :].tobytes(), branch.lineage.at(len(branch))
    )


def _common(a: array[int], b: array[int]) -> int:
    """Number of tokens that two logs share at the front."""
    most = min(len(a), len(b))
    if a[:most] == b[:most]:
        return most
    return next(i for i in range(most) if a[i] != b[i])
