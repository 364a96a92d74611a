"""Plays random verbs, some of which are made to fail or are cancelled, and checks after each what branches hold."""

from __future__ import annotations

import os
from typing import Any

import anyio
import numpy as np

import agentkv as kv
from tests.faults import fail_at

from .branch_oracle import Cell
from .random_verbs import VERBS, VOCAB, NothingToDo, Verbs

NEVER = 2**40  # forwards


class Player(Verbs):
    """One verb after another."""

    verbs = VERBS  # by how often
    played = 0
    last = ""  # what the last one was, and how it ended

    async def turn(self) -> str:
        """One verb, which may be made to fail or be cancelled; then everything is checked. Says how it ended."""
        (name,) = self.rng.choices(list(self.verbs), list(self.verbs.values()))
        self.fails, cancels = self.rng.random() < 0.1, self.rng.random() < 0.2
        if self.fails:
            await fail_at(self.ctx, self.rng.randrange(2), self.rng.choice([0, 0, 1, 3]))
        self.touched, self.last = {}, name
        outcome = "done"
        with anyio.CancelScope() as scope:
            if cancels:
                scope.deadline = anyio.current_time() + self.rng.random() ** 3 * 0.004
            try:
                await getattr(self, name)()
            except kv.ContextFull:
                outcome = "full"
            except kv.StepFailed:
                if not self.fails:
                    raise
                outcome = "failed"
            except NothingToDo:
                outcome = "nothing to do"
        if scope.cancelled_caught:
            outcome = "cancelled"
        self.last = f"{name} {outcome}"
        self.played += outcome != "nothing to do"
        if self.fails:
            await fail_at(self.ctx, 0, NEVER)
        if outcome != "done":
            for id, most in self.touched.items():
                await self.look(id, most)
        await self.check()
        return self.last

    async def check(self) -> None:
        """Tokens, counts, and who shares what."""
        lines = self.oracle.lines
        here = [id for id, line in lines.items() if not line.waiting]
        rows, images = await self.images(here)
        for id, line in lines.items():
            assert self.branches[id].tokens == line.tokens
            assert self.branches[id].offloaded == bool(line.waiting)
        places: dict[Cell, int] = {}
        for id, image in zip(here, images, strict=True):
            assert image.tokens.tolist() == lines[id].tokens
            assert (len(image.next_logits) > 0) == lines[id].known
            row_of = {p + i: row + i for row, p, length in image.rows.tolist() for i in range(length)}
            for position, cell in enumerate(lines[id].cells):
                if cell is None:
                    assert position not in row_of
                else:
                    assert places.setdefault(cell, row_of[position]) == row_of[position]
        assert len(set(places.values())) == len(places) == rows
        stats, owners = self.ctx.stats, self.oracle.owners()
        assert (stats.branches, stats.cells_used) == (len(lines), len(owners))
        assert stats.cells_shared == sum(count > 1 for count in owners.values())
        assert stats.cells_retained <= min(stats.cells_free, stats.capacity if self.retain is None else self.retain)
        assert {branch.id for branch in self.ctx.branches} == set(lines)
        assert len(os.listdir(self.files)) <= len(self.saved) + 1  # and what a cancelled save left to the next

    async def compare(self, fresh: Any) -> int:
        """Logits of one branch, and of a row over all of its cells, against a Context of their own; values compared."""
        ids = [id for id, line in self.oracle.lines.items() if line.tokens]
        if not ids:
            return 0
        id = self.rng.choice(ids)
        line, branch = self.oracle.lines[id], self.branches[id]
        if len(line.waiting) + self.oracle.row_needs(line) > self.oracle.free:
            return 0
        rows = [await branch.logits()]
        line.come_back()
        line.row()
        tokens = [*line.tokens]
        if self.oracle.free:
            async with await branch.fork() as probe:
                tokens.append(self.rng.randrange(3, VOCAB))
                self.asked.append(tokens)
                await probe.extend(tokens[-1:])
                rows.append(await probe.logits())
        async with fresh() as ctx:
            twin = await ctx.branch(line.tokens)
            wanted = [await twin.logits()]
            if len(rows) > 1:
                await twin.extend(tokens[-1:])
                wanted.append(await twin.logits())
        for row, want in zip(rows, wanted, strict=True):
            np.testing.assert_array_equal(row.view(np.uint32), want.view(np.uint32))
        return sum(row.size for row in rows)
