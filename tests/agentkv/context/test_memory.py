"""Memory of keys and values: it follows what is used, and a system that refuses more of it loses nothing."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import anyio
import numpy as np
import pytest

import agentkv as kv
from tests.waiting import until

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc and sets Linux's limits"),
]

NANO = kv.models.nano()
LONG = [5 + i % 900 for i in range(2000)]


def resident() -> int:
    """Bytes of memory that this process takes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def data_bytes() -> int:
    """Bytes that count against RLIMIT_DATA."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith("VmData")).split()[1])


def bytes_of(ctx: kv.Context, cells: int) -> int:
    """What K and V of so many cells take."""
    info = ctx.model_info
    return cells * 2 * info.n_layers * info.n_kv_heads * info.head_dim * {"fp32": 4, "fp16": 2}[info.kv_dtype]


@pytest.mark.unsanitized
async def test_memory_is_within_five_percent_of_what_is_used() -> None:
    async with kv.Context.open(NANO, capacity=32768, kv_dtype="fp32") as ctx:
        assert ctx.stats.kv_bytes == 0
        before = resident()
        branches = [await ctx.branch([i, *LONG]) for i in range(1, 3)]
        stats = ctx.stats
        assert stats.cells_used == sum(map(len, branches))
        assert bytes_of(ctx, stats.cells_used) <= stats.kv_bytes <= 1.05 * bytes_of(ctx, stats.cells_used)
        assert resident() - before < stats.kv_bytes + (24 << 20)  # the forwards' own


def in_child(work: Callable[[], None]) -> None:
    """Runs work in a process of its own, which may limit itself."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            work()
            status = 0
        except BaseException:
            import traceback

            traceback.print_exc()
        os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


async def _refused_and_lost_nothing() -> None:
    import resource

    async with kv.Context.open(NANO, capacity=65536, threads=1, kv_dtype="fp32", retain=0) as ctx:
        async with await ctx.branch(LONG) as first:  # a forward has what it needs itself from now on
            await first.extend(LONG[:300])
        await ctx.compact()
        branch = await ctx.branch(LONG[:300])
        other = await branch.fork()
        want = await other.logits()
        before = ctx.stats
        limits = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (data_bytes() + (1 << 20), limits[1]))
        try:
            with pytest.raises(kv.OutOfMemory, match="refused"):
                await branch.extend(LONG)
        finally:
            resource.setrlimit(resource.RLIMIT_DATA, limits)
        assert branch.tokens == LONG[:300]
        assert ctx.stats.cells_used == before.cells_used
        assert np.array_equal(await other.logits(), want)
        await branch.extend(LONG)
        assert len(branch) == 2300
        assert np.array_equal(await other.logits(), want)


def test_refused_memory_is_an_error_that_loses_nothing() -> None:
    in_child(lambda: anyio.run(_refused_and_lost_nothing))


@pytest.mark.parametrize("kv_dtype", ["fp32", "fp16", "int8", "int8/int4", "int4"])
async def test_compacting_gives_memory_back_and_changes_nothing_else(kv_dtype: str) -> None:
    async with kv.Context.open(NANO, capacity=16384, kv_dtype=kv_dtype, threads=1) as ctx:
        branches = [await ctx.branch([i, *LONG[:500]]) for i in range(1, 13)]
        kids = await branches[-1].fork(2)
        busy = await branches[-1].fork()
        for branch in branches[:-1]:
            await branch.close()
        rows = [await kid.logits() for kid in kids]
        full = ctx.stats.kv_bytes
        assert ctx.stats.cells_retained == 11 * 501
        async with anyio.create_task_group() as group:  # beside whatever runs
            group.start_soon(lambda: busy.generate(max_tokens=40))
            assert await ctx.compact() <= full // 20  # what is retained stays
            freed = await ctx.compact(retain=600)
        stats = ctx.stats
        assert stats.cells_retained == 600
        assert freed > 0.75 * full
        assert stats.kv_bytes < 0.25 * full
        for kid, row in zip(kids, rows, strict=True):
            await kid.rollback(len(kid) - 1)
            await kid.extend([LONG[499]])
            assert (await kid.logits() == row).all()
        again = await ctx.branch([11, *LONG[:500]])
        assert ctx.stats.recalled == 500  # the newest of the closed ones is there still
        alone = await ctx.branch(again.tokens[:200])
        for wrong in (-1, 1.5):
            with pytest.raises(kv.InvalidInput, match="retain"):
                await ctx.compact(retain=wrong)  # type: ignore[arg-type]
    async with kv.Context.open(NANO, kv_dtype=kv_dtype, threads=1) as ctx:
        for before in (again, alone):
            assert before.tokens == (await ctx.branch(before.tokens)).tokens


async def test_a_context_that_has_nothing_to_do_gives_memory_back_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentkv._engine.worker.TIDY_AFTER_S", 0.05)
    async with kv.Context.open(NANO, capacity=8192, kv_dtype="fp32", threads=1, retain=0) as ctx:
        first = await ctx.branch(LONG)
        last = await ctx.branch([1, 2, 3])
        row = await last.logits()
        full, memory = ctx.stats.kv_bytes, resident()
        await first.close()
        await until(lambda: ctx.stats.kv_bytes <= 0.1 * full)
        assert resident() < memory - 0.7 * full
        assert (await last.logits() == row).all()
        assert (await last.generate(max_tokens=5)).tokens


async def test_the_torch_backend_gives_memory_back(tiny_hf_folder: Callable[..., Path]) -> None:
    async with kv.Context.open(
        tiny_hf_folder("llama"), capacity=2048, kv_dtype="fp32", backend="torch", retain=0
    ) as ctx:
        first = await ctx.branch([5] * 900)
        last = await ctx.branch([1, 2, 3])
        await first.close()
        full = ctx.stats.kv_bytes
        assert await ctx.compact() > full / 2
        assert (await last.generate(max_tokens=5)).finish_reason == "length"
