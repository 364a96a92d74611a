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

    async with kv.Context.open(NANO, capacity=65536, threads=1) as ctx:
        branch = await ctx.branch(LONG[:300])
        other = await branch.fork()
        want = await other.logits()
        before = ctx.stats
        limits = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (data_bytes() + 4096, limits[1]))
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
