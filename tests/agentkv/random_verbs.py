"""Random verbs on the branches of one Context, each of which tells an oracle what it did.

One more verb is a method of Verbs whose name is in VERBS: it says what it works on (`pick`) and which cells it needs
(`room`), awaits the real verb, and tells the oracle. What ends it early, a full cache, a failed forward or a cancelled
task, leaves the oracle as it was; `look` then has it follow as far as that is left open.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio

import agentkv as kv
from agentkv._storage.reader import SnapshotFile

from .branch_oracle import Cell, Line, Oracle, common, loaded

VOCAB = 384
MOST_BRANCHES = 12
VERBS = {
    "begin": 10, "reopen": 4, "extend": 20, "generate": 14, "stream": 6, "together": 5, "fork": 10, "rollback": 12,
    "adopt": 5, "close": 5, "keep": 0.5, "logits": 6, "select": 3, "offload": 8, "save": 5, "load": 5, "compact": 3,
}  # fmt: skip
DRAFTS = [
    None,
    None,
    kv.spec.PromptLookup(adaptive=False),
    kv.spec.PromptLookup(adaptive=False, width=4, min_ngram=1),
    kv.spec.Suffix(adaptive=False, max_tokens=4096),
    kv.spec.Mixed(kv.spec.Suffix(adaptive=False, max_tokens=4096), kv.spec.PromptLookup(adaptive=False)),
]


class NothingToDo(Exception):
    """There is no branch or file that the verb could work on."""


class Verbs:
    """The branches of a Context, and the oracle beside them."""

    def __init__(self, ctx: kv.Context, files: Path, retain: int | None, seed: int) -> None:
        self.ctx, self.files, self.retain = ctx, files, retain
        self.rng = random.Random(seed)
        self.oracle = Oracle(ctx.stats.capacity)
        self.branches: dict[int, kv.Branch] = {}
        self.saved: dict[Path, list[dict[str, Line]]] = {}  # what may be in each file
        self.asked: list[list[int]] = []  # every history that was fed or meant to be
        self.touched: dict[int, int] = {}  # what the verb works on, and how many tokens more it may have afterwards
        self.saves = 0
        self.fails = False  # is a forward of this verb told to fail?

    def tokens(self, most: int) -> list[int]:
        return [self.rng.randrange(3, VOCAB) for _ in range(self.rng.randint(1, most))]

    def pick(self, filled: bool = False) -> int:
        """A branch; with `filled` one that has tokens. Raises NothingToDo where there is none."""
        ids = [id for id, line in self.oracle.lines.items() if line.tokens or not filled]
        if not ids:
            raise NothingToDo
        id = self.rng.choice(ids)
        self.touched[id] = 0
        return id

    @contextmanager
    def room(self, cells: int, *ids: int) -> Iterator[None]:
        """The block raises ContextFull if and only if it needs more cells than are free; offloaded ones come first."""
        lines = [self.oracle.lines[id] for id in dict.fromkeys(ids)]
        fits = cells + sum(len(line.waiting) for line in lines) <= self.oracle.free
        try:
            yield
        except kv.ContextFull:
            assert not fits, "there was room"
            raise
        assert fits, "there was no room"
        for line in lines:
            line.come_back()

    def enter(self, branch: kv.Branch, line: Line) -> None:
        """A new branch; where they are many, another one goes."""
        self.branches[branch.id], self.oracle.lines[branch.id] = branch, line
        if len(self.branches) > MOST_BRANCHES:
            self.leave(self.rng.choice(list(self.branches)))

    def leave(self, id: int) -> None:
        self.asked.append(self.oracle.lines.pop(id).tokens)
        self.branches.pop(id).close()

    async def begin(self) -> None:
        """A prompt that may begin as one before it did."""
        before = self.rng.choice([[], *self.asked[-40:], *(line.tokens for line in self.oracle.lines.values())])
        await self._prompt([*before[: self.rng.randint(0, len(before))], *self.tokens(30)])

    async def _prompt(self, tokens: list[int]) -> None:
        lent, stats = self.oracle.lent(tokens), self.ctx.stats
        self.asked.append(tokens)
        with self.room(len(tokens) - len(lent)):
            branch = await self.ctx.branch(tokens)
        recalled, reused = self.ctx.stats.recalled - stats.recalled, self.ctx.stats.reused - stats.reused
        assert reused == len(lent) + recalled
        assert recalled == 0 or max(common(tokens, each) for each in self.asked[:-1]) >= reused
        line = Line(tokens[: len(lent)], lent)
        line.feed(tokens[len(lent) :])
        self.enter(branch, line)

    async def reopen(self) -> None:
        """What was closed a moment ago is found again, if the cache may keep it."""
        id = self.pick(filled=True)
        line, reused = self.oracle.lines[id], self.ctx.stats.reused
        self.touched = {}
        self.leave(id)
        await self._prompt([*line.tokens])
        if line.lends and self.retain is None:
            assert self.ctx.stats.reused - reused >= min(line.cached, len(line.tokens) - 1)

    async def extend(self) -> None:
        id, added = self.pick(), self.tokens(self.rng.choice([1, 3, 40]))
        line = self.oracle.lines[id]
        self.asked.append([*line.tokens, *added])
        with self.room(line.pending + len(added), id):
            await self.branches[id].extend(added)
        line.feed(added)

    async def generate(self) -> None:
        id = self.pick(filled=True)
        line = self.oracle.lines[id]
        most = self.touched[id] = self.rng.randint(1, 12)
        sampling = kv.Sampling(temperature=self.rng.choice([0, 1]), seed=3)
        possible = self.oracle.free - len(line.waiting) - self.oracle.row_needs(line) + 1
        with self.room(0, id):
            made = await self.branches[id].generate(
                max_tokens=most, sampling=sampling, speculative=self.rng.choice(DRAFTS)
            )
        count = len(made.tokens)
        assert count <= possible
        assert made.finish_reason != "context_full" or count == possible
        assert made.finish_reason != "length" or count == most
        line.generate(made.tokens)
        if count == 0:
            await self.look(id)

    async def stream(self) -> None:
        """Left at some token: those that were read stay."""
        id = self.pick(filled=True)
        line = self.oracle.lines[id]
        read: list[int] = []
        take = self.touched[id] = self.rng.randint(0, 8)
        before = [*line.tokens]
        try:
            with self.room(0, id):
                async with self.branches[id].stream(max_tokens=10, buffer=self.rng.choice([1, 64])) as stream:
                    async for token in stream:
                        read += [token.id] if token.id >= 0 else []
                        if len(read) >= take:
                            break
        finally:
            assert self.branches[id].tokens == before + read
        await self.look(id, len(read))

    async def together(self) -> None:
        """Several branches at once: their rows ride in one forward, and each is on its own when it fails."""
        ids = {self.pick(filled=True) for _ in range(4)}
        self.touched = dict.fromkeys(ids, 6)

        async def work(id: int, added: list[int] | None) -> None:
            line, branch = self.oracle.lines[id], self.branches[id]
            try:
                if added is None:
                    made = (await branch.generate(max_tokens=6)).tokens
                    line.come_back()
                    line.generate(made)
                    if made:
                        return
                else:
                    self.asked.append([*line.tokens, *added])
                    await branch.extend(added)
                    line.come_back()
                    return line.feed(added)
            except kv.ContextFull:
                pass
            except kv.StepFailed:  # it was alone in the forward by then
                assert self.fails
            await self.look(id, 6)

        async with anyio.create_task_group() as tasks:
            for id in ids:
                tasks.start_soon(work, id, self.rng.choice([None, self.tokens(20)]))

    async def fork(self) -> None:
        id, count = self.pick(), self.rng.randint(1, 3)
        with self.room(0, id):
            children = await self.branches[id].fork(count)
        lines = [self.oracle.lines[id].copy() for _ in children]
        for child, line in zip(children, lines, strict=True):
            self.enter(child, line)

    async def rollback(self) -> None:
        id = self.pick()
        line = self.oracle.lines[id]
        length = self.rng.randint(0 if self.rng.random() < 0.1 else len(line.tokens) // 2, len(line.tokens))
        self.asked.append([*line.tokens])
        self.touched[id] = length - len(line.tokens)
        with self.room(0, id):
            await self.branches[id].rollback(length)
        line.roll_back(length)

    async def adopt(self) -> None:
        id, other = self.pick(), self.pick()
        with self.room(0, other), anyio.CancelScope(shield=True):  # else nobody could say whether it was done
            await self.branches[id].adopt(self.branches[other])
        self.asked.append(self.oracle.lines[id].tokens)
        self.oracle.lines[id] = self.oracle.lines[other].copy()

    async def close(self) -> None:
        self.leave(self.pick())
        self.touched = {}

    async def keep(self) -> None:
        kept = {self.pick(), self.pick()}
        self.touched = {}
        for id in self.oracle.lines.keys() - kept:
            self.asked.append(self.oracle.lines.pop(id).tokens)
        branches = [self.branches[id] for id in kept]
        self.branches = {branch.id: branch for branch in branches}
        await self.ctx.keep(branches)

    async def logits(self) -> None:
        id = self.pick(filled=True)
        line = self.oracle.lines[id]
        with self.room(self.oracle.row_needs(line), id):
            await self.branches[id].logits()
        line.row()

    async def select(self) -> None:
        """Scores choices of several tokens, each in cells that it gives back."""
        id = self.pick(filled=True)
        await self.branches[id].select(["a", "no", "maybe so"])
        await self.look(id)

    async def offload(self) -> None:
        id = self.pick()
        line = self.oracle.lines[id]
        waited, first = bool(line.waiting), self.oracle.unshared_from(line)
        freed = await self.branches[id].offload(self.rng.choice([None, self.files]))
        assert freed == (0 if waited else line.cached - first)
        if not waited:
            line.leave(first)

    async def save(self) -> None:
        """Over one of a few files; what was there is there until the new one is."""
        path = self.files / f"file {self.rng.randrange(3)}"
        ids = {self.pick() for _ in range(self.rng.randint(1, 4))}
        self.saves += 1
        names = {f"{self.saves} {id}": id for id in ids}
        # What a cancelled save takes is not told: the oracle takes the branches when nothing is left to come back.
        for id in ids:
            with self.room(0, id):
                await self.branches[id].rollback(len(self.branches[id]))
        saved = {name: self.oracle.lines[id].copy() for name, id in names.items()}
        self.saved[path] = [*self.saved.get(path, [{}]), saved]
        await self.ctx.save(path, {name: self.branches[id] for name, id in names.items()})
        self.saved[path] = [saved]

    async def load(self) -> None:
        if not self.saved:
            raise NothingToDo
        path = self.rng.choice(list(self.saved))
        if not path.exists():
            assert {} in self.saved[path]
            raise NothingToDo
        names = list(SnapshotFile(path).branches)
        saved = next(each for each in self.saved[path] if list(each) == names)
        lines = loaded(saved)
        with self.room(len({cell for line in lines.values() for cell in line.cells if cell is not None})):
            branches = await self.ctx.load_all(path)
        for name, branch in branches.items():
            self.enter(branch, lines[name])

    async def compact(self) -> None:
        await self.ctx.compact(retain=self.rng.choice([None, 0, 30]))

    async def images(self, ids: list[int]) -> tuple[int, list[Any]]:
        """How many cells these branches have, and what the engine would save of each."""

        def hold(engine: Any) -> tuple[int, list[Any]]:
            hold, images = engine.pin(ids)
            engine.unpin(hold.id)
            return hold.rows, images

        return await self.ctx._core.loop.call(hold)

    async def look(self, id: int, most: int = 0) -> None:
        """Has the oracle follow a verb that ended early: it may have left some tokens, and the last one fed or not."""
        branch, line = self.branches[id], self.oracle.lines[id]
        if line.waiting and not branch.offloaded:
            line.come_back()
        if branch.offloaded:
            assert branch.tokens == line.tokens
            if not line.waiting:
                line.leave(self.oracle.unshared_from(line))
            return
        if most < 0 and len(branch) == len(line.tokens) + most:
            line.roll_back(len(branch))
        made = branch.tokens[len(line.tokens) :]
        assert len(made) <= max(most, 0)
        line.generate(made)
        _, (image,) = await self.images([id])
        pending, known = len(image.tokens) - int(image.rows[:, 2].sum()), len(image.next_logits) > 0
        if line.tokens and (pending, known) != (line.pending, line.known):
            if pending:
                line.cells[-1] = None
            elif line.pending or known:
                line.cells[-1] = Cell()
            line.pending, line.known = bool(pending), known
