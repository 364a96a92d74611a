"""Random verbs of many tasks at once on a cache that fits few of their branches, beside an oracle.

The oracle is a Context that fits everything: what a branch says has to be what a fresh one with its tokens says there.
"""

from __future__ import annotations

import errno
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import anyio
import anyio.lowlevel
import numpy as np

import agentkv as kv
from agentkv._storage import offload_stores
from agentkv._storage.offload import InFile, InMemory

TASKS = 12
CAPACITY, MOST_TOKENS, MOST_FORKS = 260, 150, 3  # of the cache; of a branch; of a task, each with its own tokens
WORDS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]


class Trouble:
    """Stores that now and then cannot be written or read, or give other bytes back than they got."""

    def __init__(self, seed: int, share: float) -> None:
        self.rng = random.Random(seed)
        self.share = share
        self.counts: Counter[str] = Counter()

    def happens(self, what: str) -> bool:
        happened = self.rng.random() < self.share
        self.counts[what] += happened
        return happened

    @contextmanager
    def at_work(self) -> Iterator[None]:
        trouble = self

        class File(InFile):
            def put(self, rows: Any) -> None:
                if trouble.happens("disk full"):
                    raise OSError(errno.ENOSPC, "No space left on device")
                super().put(rows)

            def get(self, index: int) -> Any:
                if trouble.happens("damaged"):
                    self._slices[index] = (*self._slices[index][:2], b"another digest")
                return super().get(index)

        class Memory(InMemory):
            def put(self, rows: Any) -> None:
                if trouble.happens("no memory"):
                    raise OSError(errno.ENOMEM, "Cannot allocate memory")
                super().put(rows)

        with patch.object(offload_stores, "InFile", File), patch.object(offload_stores, "InMemory", Memory):
            yield


class Task:
    """One task with a few branches of its own."""

    def __init__(self, player: WaitingPlayer, seed: int) -> None:
        self.player = player
        self.rng = random.Random(seed)
        self.branches: list[kv.Branch] = []
        self.agent = kv.Agent("You are Nano.", max_tokens=12, sampling=kv.Sampling(temperature=1, seed=seed))

    async def run(self, verbs: int) -> None:
        for _ in range(verbs):
            verb = self.rng.choices(list(VERBS), list(VERBS.values()))[0]
            if not self.branches:
                self.branches.append(await self.player.ctx.branch(self.tokens(60)))
            if verb != "close" and self.rng.random() < 0.12:
                await self.cancelled(getattr(self, verb))
            else:
                await getattr(self, verb)()
            self.player.counts[verb] += 1
            if self.branches and self.rng.random() < 0.3:
                await self.player.check(self.rng.choice(self.branches))
        for branch in self.branches:
            await branch.close()

    async def cancelled(self, verb: Callable[[], Awaitable[None]]) -> None:
        """Runs a verb and cancels it after a few steps of the event loop."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(verb)
            for _ in range(self.rng.randrange(12)):
                await anyio.lowlevel.checkpoint()
            tasks.cancel_scope.cancel()
        self.player.counts["cancelled"] += 1

    def tokens(self, most: int) -> list[int]:
        return [self.rng.randrange(3, 300) for _ in range(self.rng.randint(1, most))]

    def pick(self) -> kv.Branch:
        return self.rng.choice(self.branches)

    async def extend(self) -> None:
        branch, added = self.pick(), self.tokens(40)
        if len(branch) + len(added) <= MOST_TOKENS:
            await branch.extend(added)

    async def generate(self) -> None:
        branch = self.pick()
        if len(branch) + 12 <= MOST_TOKENS:
            before, most = branch.tokens, self.rng.randint(1, 12)
            made = await branch.generate(max_tokens=most)
            assert made.finish_reason != "context_full"
            await self.player.check_greedy(before, most, made.tokens)

    async def stream(self) -> None:
        branch, take = self.pick(), self.rng.randint(0, 6)
        if len(branch) + 12 > MOST_TOKENS:
            return
        before, read = branch.tokens, []
        async with branch.stream(max_tokens=8, buffer=self.rng.choice([1, 64])) as stream:
            async for token in stream:
                read += [token.id] if token.id >= 0 else []
                if len(read) >= take:
                    break
        assert branch.tokens == before + read
        await self.player.check_greedy(before, 8, read)

    async def turn(self) -> None:
        branch = await self.pick().fork()
        try:
            if len(branch) + 60 <= MOST_TOKENS:
                await self.agent.run(branch, self.rng.choice(WORDS))
        except kv.LimitReached:
            pass
        finally:
            branch.close()

    async def fork(self) -> None:
        if len(self.branches) < MOST_FORKS:
            self.branches.append(await self.pick().fork())

    async def rollback(self) -> None:
        branch = self.pick()
        await branch.rollback(self.rng.randint(1, len(branch)))

    async def adopt(self) -> None:
        branch, other = self.pick(), self.pick()
        await branch.adopt(other)

    async def close(self) -> None:
        branch = self.branches.pop(self.rng.randrange(len(self.branches)))
        await branch.close()

    async def select(self) -> None:
        await self.pick().select(["a", "no", "maybe so"])

    async def offload(self) -> None:
        try:
            await self.pick().offload(self.rng.choice([None, self.player.folder]))
        except kv.BranchBusy:  # it is being offloaded for another one just now
            self.player.counts["busy"] += 1

    async def rest(self) -> None:
        for _ in range(self.rng.randrange(20)):
            await anyio.lowlevel.checkpoint()


VERBS = {
    "extend": 20, "generate": 20, "stream": 6, "turn": 4, "fork": 8, "rollback": 10, "adopt": 4, "close": 4,
    "select": 3, "offload": 3, "rest": 10,
}  # fmt: skip


class WaitingPlayer:
    """Many tasks on one Context. Without `exact` logits need only be close: the backend promises no bits."""

    def __init__(self, ctx: kv.Context, oracle: kv.Context, folder: Path, exact: bool) -> None:
        self.ctx, self.oracle, self.folder, self.exact = ctx, oracle, folder, exact
        self.counts: Counter[str] = Counter()

    async def check(self, branch: kv.Branch) -> None:
        """Compares the next logits."""
        fresh = await self.oracle.branch(branch.tokens)
        here, there = await branch.logits(), await fresh.logits()
        await fresh.close()
        if self.exact:
            assert here.tobytes() == there.tobytes()
        else:
            np.testing.assert_allclose(here, there, atol=1e-3)
        self.counts["compared"] += 1

    async def check_greedy(self, tokens: list[int], most: int, made: list[int]) -> None:
        """Compares what came after tokens with the most probable ones."""
        if self.exact:
            fresh = await self.oracle.branch(tokens)
            expected = (await fresh.generate(max_tokens=most)).tokens
            await fresh.close()
            assert made == expected[: len(made)], (tokens, made, expected)


async def play(
    folder: Path, seed: int, verbs: int, model: Path | None = None, exact: bool = True, **options: Any
) -> Counter[str]:
    """So many verbs, by all tasks together. Raises AssertionError for the first differing bit, and whatever a verb
    raises, ContextFull above all: none of them lacks cells that it could not wait for."""
    rng, model = random.Random(seed), model or kv.models.nano()
    policy = kv.Offload(
        idle=0,
        memory_bytes=rng.choice([0, 40_000, 400_000]),
        folder=rng.choice([None, folder]),
        disk_bytes=rng.choice([200_000, 1 << 30]),
        ttl=rng.choice([None, None, 0.05]),
    )
    trouble = Trouble(seed, 0.02)
    with trouble.at_work():
        async with (
            kv.Context.open(model, capacity=CAPACITY, offload=policy, **options) as ctx,
            kv.Context.open(model, capacity=8192, **options) as oracle,
        ):
            player = WaitingPlayer(ctx, oracle, folder, exact)
            async with anyio.create_task_group() as group:
                for number in range(TASKS):
                    group.start_soon(Task(player, seed * 1000 + number).run, verbs // TASKS)
            stats = ctx.stats
            player.counts.update(offloads=stats.offloads, refed=stats.refed)
            assert ctx.branches == []
            await ctx.compact()
            assert (ctx.stats.cells_used, ctx.stats.offload_memory_bytes, ctx.stats.offload_disk_bytes) == (0, 0, 0)
    return player.counts + trouble.counts
