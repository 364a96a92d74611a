"""Determinism of memory: whatever became of a branch's cells, its logits are those of a Context that only ever computed
its tokens, bit for bit.

Each case grows a branch among others, sends it through ways of leaving its cells and coming back, and goes on.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import numpy as np
import pytest

import agentkv as kv
from tests.conftest import FolderFactory
from tests.integration.test_bits import MODELS, OTHER_CACHES, model_folder

VOCAB = 384
CAPACITY = 4096
KV_DTYPES = ("fp32", "fp16", "int8", "int8/int4", "int4")


@dataclass
class Case:
    """A folder that is opened with one kind of cache, and what was compared."""

    model: Path
    kv_dtype: str
    files: Path
    rng: random.Random
    stack: AsyncExitStack
    compared: int = 0
    differing: int = 0
    went: Counter[str] = field(default_factory=Counter)  # ways on which something happened

    def tokens(self, least: int, most: int) -> list[int]:
        return [self.rng.randrange(3, VOCAB) for _ in range(self.rng.randint(least, most))]

    async def open(self) -> kv.Context:
        context = kv.Context.open(self.model, CAPACITY, self.kv_dtype, max_batch_tokens=96, threads=1)
        return await self.stack.enter_async_context(context)

    async def crowded(self) -> kv.Context:
        """A Context whose first cells are taken, and given up again here and there."""
        ctx = await self.open()
        others = [await ctx.branch(self.tokens(100, 300)) for _ in range(4)]
        for other in others[:3]:
            await other.close()
        return ctx

    async def grown(self, ctx: kv.Context) -> kv.Branch:
        """A branch that was forked, grew beside its sibling, took a step back, and may have a pending token."""
        trunk = await ctx.branch(self.tokens(1, 700))
        branch = await trunk.fork()
        for _ in range(self.rng.randint(1, 5)):
            for each in (trunk, branch):
                await each.extend(self.tokens(1, 9))
        await branch.rollback(self.rng.randint(1, len(branch)))
        if self.rng.random() < 0.5:
            hot = kv.Sampling(temperature=1.0, seed=self.rng.randrange(99))
            await branch.generate(max_tokens=self.rng.randint(1, 6), sampling=hot)
        if self.rng.random() < 0.5:
            await trunk.close()
        return branch

    async def compare(self, branch: kv.Branch) -> None:
        """Logits at its end and further on, against those of a Context of their own."""
        # The first row may have waited with the branch; the others attend over every cell that came back.
        pieces = [self.tokens(1, 1), self.tokens(2, 40)]
        async with kv.Context.open(self.model, CAPACITY, self.kv_dtype, threads=1) as fresh:
            twin = await fresh.branch(branch.tokens)
            for piece in ([], *pieces):
                for each in (branch, twin) if piece else ():
                    await each.extend(piece)
                got, want = [(await each.logits()).view(np.uint32) for each in (branch, twin)]
                self.compared += want.size
                self.differing += int((got != want).sum())


Way = Callable[[Case, kv.Branch], Awaitable[kv.Branch]]


async def offloaded(case: Case, branch: kv.Branch) -> kv.Branch:
    case.went["offloaded"] += await branch.offload(case.rng.choice([None, case.files])) > 0
    await branch.context.branch(case.tokens(1, 200))  # takes its cells
    return branch


async def loaded(case: Case, branch: kv.Branch) -> kv.Branch:
    await branch.save(case.files / "saved")
    await branch.close()
    case.went["loaded"] += 1
    return await branch.context.load(case.files / "saved")


async def loaded_elsewhere(case: Case, branch: kv.Branch) -> kv.Branch:
    await branch.save(case.files / "saved")
    case.went["loaded_elsewhere"] += 1
    return await (await case.crowded()).load(case.files / "saved")


async def moved(case: Case, branch: kv.Branch) -> kv.Branch:
    before = await places(branch)
    await branch.context.compact(retain=0)
    case.went["moved"] += await places(branch) != before
    return branch


async def recalled(case: Case, branch: kv.Branch) -> kv.Branch:
    ctx, tokens = branch.context, branch.tokens
    await branch.close()
    before = ctx.stats.recalled
    again = await ctx.branch(tokens)
    case.went["recalled"] += ctx.stats.recalled > before
    return again


async def places(branch: kv.Branch) -> list[int]:
    """The cells that it has now, unless it waits outside of the cache."""
    if branch.offloaded:
        return []

    def look(engine: object) -> list[int]:
        hold, _ = engine.pin([branch.id])  # type: ignore[attr-defined]
        cells = list(engine.pinned_cells(hold.id, 0, hold.rows))  # type: ignore[attr-defined]
        engine.unpin(hold.id)  # type: ignore[attr-defined]
        return cells

    return await branch.context._core.loop.call(look)


WAYS: dict[str, Way] = {way.__name__: way for way in (offloaded, loaded, loaded_elsewhere, moved, recalled)}


async def check(case: Case, ways: list[str]) -> None:
    """One branch goes these ways."""
    async with case.stack:
        branch = await case.grown(await case.crowded())
        for name in ways:
            branch = await WAYS[name](case, branch)
        await case.compare(branch)


def run(model: Path, kv_dtype: str, files: Path, seeds: range, ways: list[str]) -> Counter[str]:
    """Cases of these ways, or where there are none of one to four at random; says what was compared, and happened."""
    compared = 0
    went: Counter[str] = Counter()
    for seed in seeds:
        rng = random.Random(seed)
        case = Case(model, kv_dtype, files, rng, AsyncExitStack(), went=went)
        anyio.run(check, case, ways or rng.choices(list(WAYS), k=rng.randint(1, 4)))
        assert case.differing == 0, f"seed {seed}: {case.differing} of {case.compared} values differ"
        compared += case.compared
    print(f"\n{kv_dtype}: {compared} logits compared, none differs; {dict(went)}")
    return went


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
def test_memory_keeps_every_bit(tiny_exported_folder: FolderFactory, tmp_path: Path, kv_dtype: str, way: str) -> None:
    went = run(model_folder(tiny_exported_folder, "llama-8da4w"), kv_dtype, tmp_path, range(3), [way])
    assert went[way] == 3  # it happened in each


@pytest.mark.parametrize("model", OTHER_CACHES)
def test_memory_keeps_every_bit_of_other_attention(
    tiny_exported_folder: FolderFactory, tmp_path: Path, model: str
) -> None:
    run(model_folder(tiny_exported_folder, model), "fp16", tmp_path, range(6), [])


@pytest.mark.soak
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
def test_memory_keeps_every_bit_on_any_way(
    tiny_exported_folder: FolderFactory, tmp_path: Path, kv_dtype: str, model: str, soak_count: int
) -> None:
    folder = model_folder(tiny_exported_folder, model)
    print(f"\n{model}:", end="")
    run(folder, kv_dtype, tmp_path, range(1000, 1000 + soak_count // 50), [])
