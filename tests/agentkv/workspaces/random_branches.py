"""Random forks, edits, rollbacks and adopts of branches with files, against plain copies of all of them."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest

import agentkv as kv

from .plain import Files, Node, base_of, copy_of, edit, merge_of

MOST_BRANCHES = 6
STEPS = (
    *("edit", "edit", "edit", "edit", "extend", "mark", "mark", "rollback", "rollback", "length"),
    *("fork", "fork", "adopt", "adopt", "apply", "users", "root", "close"),
)


class Known:
    """A branch, and what is to be in it."""

    def __init__(self, branch: kv.Branch, node: Node) -> None:
        self.branch = branch
        self.head = node
        self.base = node
        self.files = dict(node.files)
        self.first = node
        self.marks: list[tuple[kv.Mark | None, int, Node]] = []

    @property
    def folder(self) -> Path:
        assert self.branch.workspace is not None
        return self.branch.workspace.path

    def commit(self) -> Node:
        if self.files != self.head.files:
            self.head = Node(self.files, self.head)
        return self.head

    def note(self, mark: kv.Mark | None) -> None:
        self.marks.append((mark, len(self.branch), self.commit()))

    def become(self, node: Node) -> None:
        self.head, self.files = node, dict(node.files)
        self.marks = [mark for mark in self.marks if mark[1] <= len(self.branch)]
        if any(marked is node for _, _, marked in self.marks):
            while self.marks[-1][2] is not node:
                self.marks.pop()


class RandomBranches:
    """One case.

    Attributes:
        counts: how often each thing was done.
    """

    def __init__(self, ctx: kv.Context, folder: Path, seed: int) -> None:
        self.ctx = ctx
        self.rng = random.Random(seed)
        self.folder = folder
        self.counts: Counter[str] = Counter()
        self.known: list[Known] = []
        folder.mkdir()
        for _ in range(self.rng.randrange(12)):
            edit(folder, self.rng)
        self.workspace = kv.Workspace(folder, exclude=())
        self.origin = Node(copy_of(folder))

    async def play(self, steps: int) -> None:
        await self.root()
        for _ in range(steps):
            step = self.rng.choice(STEPS)
            self.counts[step] += 1
            await getattr(self, step)()
        for each in self.known:
            self.check(each)
            diff = await each.branch.workspace.diff()  # type: ignore[union-attr]
            assert diff.paths == self.changed(each.base.files, each.files)
            await each.branch.close()

    @staticmethod
    def changed(old: Files, new: Files) -> list[str]:
        paths = {path for path in {*old, *new} if old.get(path) != new.get(path)}
        return sorted(p for p in paths if any(f and f[0] != "folder" for f in (old.get(p), new.get(p))))

    def check(self, each: Known) -> None:
        assert copy_of(each.folder) == each.files

    def one(self) -> Known:
        return self.rng.choice(self.known)

    async def root(self) -> None:
        if len(self.known) < MOST_BRANCHES:
            branch = await self.ctx.branch("Once upon", workspace=self.workspace)
            self.known.append(Known(branch, self.origin))

    async def edit(self) -> None:
        each = self.one()
        self.check(each)
        for _ in range(self.rng.choice((1, 2, 5))):
            edit(each.folder, self.rng)
        each.files = copy_of(each.folder)

    async def extend(self) -> None:
        await self.one().branch.extend(self.rng.choice((" a", " time there was", " and")))

    async def mark(self) -> None:
        each = self.one()
        each.note(each.branch.mark())

    async def rollback(self) -> None:
        each = self.one()
        marks = [(mark, node) for mark, length, node in each.marks if mark is not None and length <= len(each.branch)]
        if not marks:
            return
        mark, node = self.rng.choice(marks)
        try:
            await each.branch.rollback(mark)
        except kv.InvalidRollback:
            self.counts["invalid"] += 1
            self.check(each)
            return
        each.become(node)
        self.check(each)

    async def length(self) -> None:
        each = self.one()
        length = self.rng.randrange(1, len(each.branch) + 1)
        await each.branch.rollback(length)
        nodes = [node for _, at, node in each.marks if at <= length]
        each.become(nodes[-1] if nodes else each.first)
        self.check(each)

    async def fork(self) -> None:
        each = self.one()
        count = min(self.rng.randrange(1, 4), MOST_BRANCHES - len(self.known))
        if count > 0:
            kids = await each.branch.fork(count)
            each.note(None)
            self.known += [Known(kid, each.head) for kid in kids]

    async def adopt(self) -> None:
        each, other = self.one(), self.one()
        if each is other:
            return
        ours, theirs = each.commit(), other.commit()
        files, conflicts = merge_of(base_of(ours, theirs).files, ours.files, theirs.files)
        tokens = each.branch.tokens
        if conflicts:
            self.counts["conflict"] += 1
            with pytest.raises(kv.WorkspaceConflict) as error:
                await each.branch.adopt(other.branch)
            assert set(error.value.paths) == conflicts
            assert each.branch.tokens == tokens
        else:
            await each.branch.adopt(other.branch)
            each.become(Node(files, ours, theirs))
            assert each.branch.tokens == other.branch.tokens
        self.check(each)
        self.check(other)

    async def apply(self) -> None:
        each = self.one()
        assert each.branch.workspace is not None
        mine = each.commit()
        common = mine.ancestors() & self.origin.ancestors()
        base = max(common, key=lambda node: node.number)
        files, conflicts = merge_of(base.files, self.origin.files, mine.files)
        if conflicts:
            self.counts["conflict"] += 1
            with pytest.raises(kv.WorkspaceConflict) as error:
                await each.branch.workspace.apply()
            assert set(error.value.paths) == conflicts
        else:
            await each.branch.workspace.apply()
            self.origin, each.base = Node(files, self.origin, mine), mine
        assert copy_of(self.folder) == self.origin.files
        self.check(each)

    async def users(self) -> None:
        """The user changes something in the folder itself."""
        edit(self.folder, self.rng)
        files = copy_of(self.folder)
        if files != self.origin.files:
            self.origin = Node(files, self.origin)

    async def close(self) -> None:
        if len(self.known) > 1:
            each = self.known.pop(self.rng.randrange(len(self.known)))
            folder = each.folder
            await each.branch.close()
            assert not folder.exists()
