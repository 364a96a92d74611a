"""Branches by names are never more than they may be, however many calls make some at a time."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

import agentkv as kv
from agentkv.adapters.mcp.served_branches import ServedBranches

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def test_calls_at_one_time_share_what_room_there_is(tmp_path: Path) -> None:
    async with kv.Context.open(kv.models.nano(), capacity=2048, threads=1) as ctx:
        branches = ServedBranches(ctx, 5, tmp_path)
        refused = 0

        async def new() -> None:
            nonlocal refused
            try:
                await branches.new("a b c")
            except kv.TooManyBranches:
                refused += 1

        async with anyio.create_task_group() as group:
            for _ in range(12):
                group.start_soon(new)
        assert (len(ctx.branches), refused) == (5, 7)
        await ctx.save(tmp_path / "three", {str(n): branch for n, branch in enumerate(ctx.branches[:3])})
        await branches.close("b1")
        with pytest.raises(kv.TooManyBranches):
            await branches.load("three")
        with pytest.raises(kv.TooManyBranches):
            await branches.forks("b2", 2)
        assert len(ctx.branches) == 4
        assert [named.name for named in await branches.forks("b2", 1)] == ["b6"]
