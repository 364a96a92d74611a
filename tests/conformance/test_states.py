"""States are kept for as long as somebody has their cells, on every backend."""

from __future__ import annotations

import pytest

import agentkv as kv
from tests.conftest import FolderFactory

pytestmark = pytest.mark.anyio

TOKENS = [3 + i * 11 % 290 for i in range(140)]


@pytest.fixture(params=["asyncio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("backend", ["cpu", "mlx", "torch"])
async def test_those_of_closed_branches_are_given_back(
    tiny_exported_folder: FolderFactory, tiny_hf_folder: FolderFactory, backend: str
) -> None:
    torch = backend == "torch"
    folder = tiny_hf_folder("qwen3_next") if torch else tiny_exported_folder("qwen3_next", backend=backend)
    async with kv.Context.open(folder, 4096, backend=backend) as ctx:
        trunk = await ctx.branch(TOKENS)
        await ctx.compact(retain=0)
        before = ctx.stats
        forks = await trunk.fork(20)
        await kv.gather(*(fork.extend([3 + i] * 70) for i, fork in enumerate(forks)))
        assert ctx.stats.states > before.states or torch  # which makes them of what its cells keep
        for fork in forks:
            await fork.close()
        await ctx.compact(retain=0)
        assert ctx.stats.states <= before.states  # the last one passed on to a fork, where a backend has such
        assert ctx.stats.cells_used == before.cells_used
        await trunk.close()
        await ctx.compact(retain=0)
        assert (ctx.stats.states, ctx.stats.cells_used) == (0, 0)
