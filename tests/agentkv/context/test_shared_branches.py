"""Several tasks use the same branches, and cancel each other: what a branch says of itself is what the cache holds."""

from __future__ import annotations

import gc
import itertools
import random
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any

import anyio
import numpy as np
import pytest

import agentkv as kv
from tests.waiting import PATIENCE

from ..conftest import OVER, Head, OpenContext, loop_threads
from ..strategies import LastTime
from ..watched import watched

SEEDS = 8
VERBS = 240  # of a session
STRATEGIES: list[Any] = [
    kv.spec.PromptLookup(),
    kv.spec.PromptLookup(adaptive=False, min_ngram=1, width=4, max_nodes=32),
    kv.spec.Suffix(adaptive=False, max_nodes=32, max_tokens=4096),
    kv.spec.Mixed(kv.spec.Suffix(max_tokens=4096), LastTime()),
    LastTime(),
]


class Session:
    """Tasks that take random verbs on random branches of one Context, many of them cancelled at random moments."""

    def __init__(self, ctx: kv.Context, seed: int) -> None:
        self.ctx = ctx
        self.rng = random.Random(seed)
        self.branches: list[kv.Branch] = []
        self.counts: dict[str, int] = {}
        self.left = 0

    async def run(self, verbs: int, tasks: int) -> None:
        """Takes so many verbs in so many tasks at once."""
        self.left = verbs
        self.branches = [await self.ctx.branch("The quick brown fox jumps over the lazy dog.")]
        async with anyio.create_task_group() as group:
            for _ in range(tasks):
                group.start_soon(self._work)

    async def _work(self) -> None:
        while self.left > 0:
            self.left -= 1
            verb = self.rng.choice([*VERB_NAMES, "stream", "stream"])
            outcome = "done"
            with anyio.CancelScope() as scope:
                if self.rng.random() < 0.5:
                    scope.deadline = anyio.current_time() + self.rng.random() ** 4 * 0.02
                try:
                    await getattr(self, verb)(self.rng.choice(self.branches))
                except kv.AgentKVError as error:
                    outcome = type(error).__name__
            if scope.cancelled_caught:
                outcome = "cancelled"
            key = f"{verb} {outcome}"
            self.counts[key] = self.counts.get(key, 0) + 1

    def _sampling(self) -> kv.Sampling:
        warm = self.rng.random() < 0.5
        return kv.Sampling(temperature=0.9, seed=self.rng.randrange(9)) if warm else kv.Sampling()

    def _add(self, branch: kv.Branch) -> None:
        self.branches.append(branch)
        if len(self.branches) > 12:
            dropped = self.branches.pop(self.rng.randrange(len(self.branches)))
            if self.rng.random() < 0.5:
                dropped.close()

    async def generate(self, branch: kv.Branch) -> None:
        strategy = self.rng.choice([None, None, *STRATEGIES])
        await branch.generate(max_tokens=self.rng.randint(1, 40), sampling=self._sampling(), speculative=strategy)

    async def stream(self, branch: kv.Branch) -> None:
        """Leaves it at a random moment: after some tokens, by an error, or wherever it is cancelled."""
        take = self.rng.randint(0, 30)
        keep: Any = "made" if self.rng.random() < 0.1 else "read"
        stream = branch.stream(
            max_tokens=30,
            buffer=self.rng.choice([1, 2, 6, 64]),
            sampling=self._sampling(),
            speculative=self.rng.choice([None, *STRATEGIES]),
            keep=keep,
        )
        read: list[int] = []
        try:
            with suppress(KeyError):
                await self._read(stream, take, read)
        finally:
            if stream._finished is not None:
                left = stream.generation.tokens
                whole = keep == "made" or not stream._job.was_truncated
                assert left[: len(read)] == read
                assert whole or left == read

    async def _read(self, stream: kv.TokenStream, take: int, read: list[int]) -> None:
        async with stream:
            async for token in stream:
                read += [token.id] if token.id >= 0 else []
                if len(read) >= take:
                    break
                if self.rng.random() < 0.2:
                    await anyio.sleep(self.rng.random() * 0.002)
            if self.rng.random() < 0.2:
                raise KeyError

    async def extend(self, branch: kv.Branch) -> None:
        await branch.extend([self.rng.randrange(300) for _ in range(self.rng.randint(1, 60))])

    async def rollback(self, branch: kv.Branch) -> None:
        await branch.rollback(self.rng.randint(1, max(len(branch), 1)))

    async def rollback_to_a_mark(self, branch: kv.Branch) -> None:
        mark = branch.mark()
        await branch.extend([5, 6, 7])
        await branch.rollback(mark)

    async def fork(self, branch: kv.Branch) -> None:
        for child in await branch.fork(self.rng.randint(1, 3)):
            self._add(child)

    async def adopt(self, branch: kv.Branch) -> None:
        await branch.adopt(self.rng.choice(self.branches))

    async def root(self, branch: kv.Branch) -> None:
        self._add(await self.ctx.branch([*branch.tokens[: self.rng.randint(0, 40)], self.rng.randrange(300)]))

    async def select(self, branch: kv.Branch) -> None:
        await branch.select(["yes", "no", "maybe so"])

    async def logits(self, branch: kv.Branch) -> None:
        await branch.logits()


VERB_NAMES = [name for name in vars(Session) if not name.startswith("_") and name != "run"]


async def check_against_replay(branch: kv.Branch, fresh: kv.Context) -> None:
    """A branch holds what it says, and its logits are those of a Context that only ever fed its tokens."""
    held = await branch.context._core.loop.call(lambda engine: engine.tokens(branch.id).tolist())
    assert branch.tokens == held
    if held:
        async with await fresh.branch(held) as replay:
            np.testing.assert_array_equal(await branch.logits(), await replay.logits())


async def check_nothing_is_left(ctx: kv.Context) -> None:
    """Once nobody refers to a branch, nothing of it is held."""
    gc.collect()
    await ctx._core.loop.call(lambda _: None)
    assert ctx._core.loop._worker.jobs == {}
    if ctx.model_info.holds_cells:
        assert ctx.stats.steps == sum(ctx.stats.rows_per_step.values())
        assert ctx.stats.tokens == sum(rows * steps for rows, steps in ctx.stats.rows_per_step.items())
    assert (ctx.stats.branches, ctx.stats.cells_used) == (0, 0)
    assert ctx._core.states._of == {}


async def run_sessions(open_context: OpenContext, seeds: range, verbs: int) -> dict[str, int]:
    """So many verbs for each seed; returns how often each verb ended how."""
    counts: dict[str, int] = {}
    async with open_context() as fresh:
        for seed in seeds:
            async with open_context(max_batch_tokens=32) as ctx:
                session = Session(ctx, seed)
                with anyio.fail_after(PATIENCE):
                    async with watched(ctx) as engine:
                        await session.run(verbs, tasks=6)
                    for index in range(len(session.branches)):
                        if not session.branches[index].closed:
                            await check_against_replay(session.branches[index], fresh)
                    session.branches.clear()
                    await check_nothing_is_left(ctx)
            session.counts |= {"stream cut": engine.cut, "stream stayed": engine.stayed}
            for key, count in session.counts.items():
                counts[key] = counts.get(key, 0) + count
    assert loop_threads() == []
    return counts


@pytest.mark.anyio
async def test_tasks_that_share_branches_leave_them_true(open_context: OpenContext) -> None:
    await run_until(open_context, range(SEEDS), tried_much)


def tried_much(counts: Counter[str]) -> bool:
    verbs = [counts[f"{verb} done"] > (5 if OVER else 20) for verb in VERB_NAMES]
    cancelled = sum(count for key, count in counts.items() if key.endswith("cancelled"))
    least = 3 if OVER else 10
    return all(verbs) and cancelled > 100 and counts["stream cut"] > least < counts["stream stayed"] * 10


async def run_until(open_context: OpenContext, seeds: range, enough: Callable[[Counter[str]], bool]) -> None:
    """Those sessions, and more until there was enough of everything: how a verb ends, the machine's speed decides."""
    counts = Counter(await run_sessions(open_context, seeds, VERBS))
    for seed in itertools.count(100):
        if enough(counts):
            return
        counts += Counter(await run_sessions(open_context, range(seed, seed + 1), VERBS))


@pytest.mark.anyio
async def test_the_same_with_a_draft_head(head: Head) -> None:
    await run_until(with_head(head), range(20, 22), lambda counts: counts["stream cut"] > 5)


def with_head(head: Head) -> OpenContext:
    """Contexts whose own strategy is what a folder has to draft with."""

    def open_context(**options: Any) -> AbstractAsyncContextManager[kv.Context]:
        return kv.Context.open(head.folder, 2048, "fp32", threads=1, speculative=head.kind(adaptive=False), **options)

    return open_context


@pytest.mark.soak
@pytest.mark.anyio
async def test_many_tasks_that_share_branches(open_context: OpenContext) -> None:
    counts = await run_sessions(open_context, range(1000, 1250), VERBS)
    print(f"{sum(counts.values())} verbs:", dict(sorted(counts.items())))


@pytest.mark.soak
@pytest.mark.anyio
async def test_many_tasks_with_a_draft_head(head: Head) -> None:
    counts = await run_sessions(with_head(head), range(2000, 2100), VERBS)
    print(f"{sum(counts.values())} verbs:", dict(sorted(counts.items())))
