"""Tasks that share branches over a server whose connections break at random: every token is what this process makes of
the same history, and nothing is left behind."""

from __future__ import annotations

import random
from contextlib import suppress
from typing import Any

import anyio
import pytest

import agentkv as kv
from tests.waiting import PATIENCE

from .conftest import QUESTION, Broken
from .faulty_proxy import Fault, answers, cut_after, hangs_up
from .test_faults import BUSY, until

pytestmark = pytest.mark.anyio
EXPECTED = (kv.BranchBusy, kv.BranchClosed, kv.InvalidRollback, kv.InvalidInput)


def fault(rng: random.Random) -> Fault:
    return rng.choice(
        [cut_after(rng.randrange(3000)), hangs_up, answers("503 Busy", BUSY, "retry-after: 0"), answers("502 Bad", b"")]
    )


class Chaos:
    """One session. `made` are generations: the tokens before, the stream, how, and what came."""

    def __init__(self, ctx: kv.Context, broken: Broken, rng: random.Random) -> None:
        self.ctx, self.broken, self.rng = ctx, broken, rng
        self.branches: list[kv.Branch] = []
        self.made: list[tuple[list[int], int, dict[str, Any], list[int]]] = []

    async def run(self, verbs: int, tasks: int) -> None:
        self.branches.append(await self.ctx.branch(QUESTION))
        async with anyio.create_task_group() as group:
            for _ in range(tasks):
                group.start_soon(self.work, verbs)

    async def work(self, verbs: int) -> None:
        for _ in range(verbs):
            if self.rng.random() < 0.4:
                self.broken.proxy.faults.append(fault(self.rng))
            limit = self.rng.random() * 0.1 if self.rng.random() < 0.2 else None
            with anyio.move_on_after(limit), suppress(*EXPECTED):
                await self.verb(self.rng.choice(self.branches))

    async def verb(self, branch: kv.Branch) -> None:
        rng = self.rng
        match rng.randrange(7):
            case 0:
                self.branches.append(await branch.fork())
            case 1:
                await branch.rollback(rng.randint(max(1, len(branch) - 20), len(branch)))
            case 2:
                await branch.extend([rng.randrange(20, 900) for _ in range(rng.choice([3, 30, 300]))])
            case 3:
                await branch.adopt(rng.choice(self.branches))
            case 4 | 5:
                await self.generate(branch)
            case 6 if len(self.branches) > 4:
                self.branches.remove(branch)
                await branch.close()

    async def generate(self, branch: kv.Branch) -> None:
        """On a fork, so that nobody moves what it is compared with."""
        rng = self.rng
        async with await branch.fork() as fork:
            before = fork.tokens
            stream = await self.ctx._core.loop.call(lambda engine: engine.rng_stream(fork.id))
            sampling = kv.Sampling(temperature=rng.choice([0, 1.0]), seed=rng.randrange(99), logit_bias={2: -20})
            how = {"max_tokens": rng.randint(1, 30), "sampling": sampling}
            if rng.random() < 0.5:
                tokens = (await fork.generate(**how)).tokens  # type: ignore[arg-type]
            else:
                async with fork.stream(**how) as read:  # type: ignore[arg-type]
                    tokens = [token.id async for token in read if token.id >= 0]
                assert fork.tokens == before + tokens
            self.made.append((before, stream, how, tokens))


async def sessions(broken: Broken, local: kv.Context, seeds: range, verbs: int) -> int:
    count = 0
    for seed in seeds:
        rng = random.Random(seed)
        async with kv.Context.connect(broken.proxy.url, backend="agentkv", retries=50) as ctx:
            chaos = Chaos(ctx, broken, rng)
            with anyio.fail_after(PATIENCE):
                await chaos.run(verbs, tasks=4)
            broken.proxy.faults.clear()
            for branch in [*ctx.branches]:
                branch.close()
            await ctx.keep()
            assert ctx.stats.cells_used == 0
            exchange = ctx._core.loop._worker.engine._network  # type: ignore[attr-defined]
            await until(lambda: not (exchange._tasks or broken.served.server.admission.running))  # noqa: B023
            assert all(replica.running == 0 for replica in exchange._replicas.all)
        for before, stream, how, tokens in chaos.made:
            async with await local.branch(before) as branch:
                await local._core.loop.call(lambda engine: engine.set_stream(branch.id, stream, 0))  # noqa: B023
                assert (await branch.generate(**how)).tokens == tokens
        count += len(chaos.made)
    return count


async def test_broken_connections_change_no_token(broken: Broken, local: kv.Context) -> None:
    assert await sessions(broken, local, range(1), verbs=15) > 3


@pytest.mark.soak
async def test_many_broken_connections_change_no_token(broken: Broken, local: kv.Context) -> None:
    print(await sessions(broken, local, range(100, 140), verbs=60), "generations compared")
