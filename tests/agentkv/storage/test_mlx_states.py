"""Models whose layers keep states, on MLX: every verb goes on from what a fresh run has, as far as floats say."""

from __future__ import annotations

import random
from pathlib import Path

import anyio
import numpy as np
import numpy.typing as npt
import pytest
from agentkv_runtime.backends import load_backend

import agentkv as kv
from tests.conftest import FolderFactory
from tests.faults import fail_at
from tests.rows import one_in

load_backend("mlx")

pytestmark = pytest.mark.anyio

Row = npt.NDArray[np.float32]

KINDS = ("qwen3_next", "mamba2", "mamba", "kimi")
LENGTH = 300
TOKENS = [3 + i * 11 % 290 for i in range(LENGTH)]
TOLERANCE = 1e-4


@pytest.fixture(scope="module", params=one_in(2, KINDS))
def folder(tiny_exported_folder: FolderFactory, request: pytest.FixtureRequest) -> Path:
    """Of one kind after another."""
    return tiny_exported_folder(request.param, backend="mlx")


@pytest.fixture(scope="module")
def want(folder: Path) -> list[Row]:
    """The logits behind each of the tokens, fed one by one to a Context of their own."""
    return anyio.run(rows_of, folder)


async def rows_of(folder: Path) -> list[Row]:
    async with kv.Context.open(folder, LENGTH + 1) as ctx:
        assert ctx.model_info.backend == "mlx"
        branch = await ctx.branch()
        rows = []
        for token in TOKENS:
            await branch.extend([token])
            rows.append(await branch.logits())
        return rows


def same(row: Row, want: Row) -> bool:
    return float(np.abs(row - want).max()) <= TOLERANCE


async def test_rollbacks_and_forks_go_on_as_a_fresh_run(folder: Path, want: list[Row]) -> None:
    rng = random.Random(0)
    async with kv.Context.open(folder, 3 * LENGTH) as ctx:
        branch = await ctx.branch(TOKENS[:1])
        for _ in range(30):
            end = min(LENGTH, len(branch) + rng.choice([1, 3, 20, 70, 150]))
            await branch.extend(TOKENS[len(branch) : end])
            assert same(await branch.logits(), want[end - 1])
            back = max(1, end - rng.choice([1, 2, 30, 64, 200]))
            async with await branch.fork() as kid, await branch.fork() as other:
                await kid.rollback(back)
                assert same(await kid.logits(), want[back - 1])
                if end < LENGTH:
                    await kv.gather(other.extend(TOKENS[end : end + 1]), kid.extend(TOKENS[back : back + 1]))
                    assert same(await other.logits(), want[end])
                    assert same(await kid.logits(), want[back])
            await branch.rollback(back)
            assert same(await branch.logits(), want[back - 1])
        assert ctx.stats.refed <= ctx.stats.tokens // 2


@pytest.mark.usefixtures("failing_caches")
async def test_what_a_failed_forward_had_begun_is_gone(folder: Path, want: list[Row]) -> None:
    async with kv.Context.open(folder, LENGTH + 1) as ctx:
        branch = await ctx.branch(TOKENS[:100])
        await fail_at(ctx, 1)
        with pytest.raises(kv.StepFailed):
            await branch.extend(TOKENS[100:140])
        await branch.extend(TOKENS[len(branch) : 140])
        assert same(await branch.logits(), want[139])


async def test_branches_that_were_saved_or_set_aside_go_on_without_feeding_again(
    folder: Path, want: list[Row], tmp_path: Path
) -> None:
    async with kv.Context.open(folder, LENGTH + 1) as ctx:
        branch = await ctx.branch(TOKENS[:200])
        states = ctx.stats.states
        await branch.save(tmp_path / "one.kv")
        await branch.offload()
        await branch.extend(TOKENS[200:201])
        assert same(await branch.logits(), want[200])
        assert (ctx.stats.tokens, ctx.stats.refed) == (201, 0)
        assert 0 < ctx.stats.states <= states + 1
    async with kv.Context.open(folder, LENGTH + 1) as ctx:
        branch = await ctx.load(tmp_path / "one.kv")
        await branch.extend(TOKENS[200:210])
        assert same(await branch.logits(), want[209])
        assert (ctx.stats.tokens, ctx.stats.refed) == (10, 0)
        await branch.rollback(190)
        await branch.extend(TOKENS[190:191])
        assert same(await branch.logits(), want[190])
        await branch.rollback(40)
        assert same(await branch.logits(), want[39])


async def test_a_sequence_holds_one_state_beside_those_of_its_blocks(tiny_exported_folder: FolderFactory) -> None:
    folder = tiny_exported_folder("mamba2", backend="mlx")
    async with kv.Context.open(folder, LENGTH) as ctx:
        branch = await ctx.branch(TOKENS[:10])
        for length in range(11, 64):
            await branch.extend(TOKENS[length - 1 : length])
            assert ctx.stats.states == 1
        await branch.extend(TOKENS[63:64])
        assert ctx.stats.states == 1
        await branch.extend(TOKENS[64:65])
        assert ctx.stats.states == 2
        for first in range(65, LENGTH - 20, 20):  # those that nobody goes back to are given back
            await branch.extend(TOKENS[first : first + 20])
            assert ctx.stats.states <= 4
        assert 0 < ctx.stats.states * ctx.model_info.state_bytes < ctx.stats.kv_bytes


async def test_nothing_in_the_middle_is_forgotten(tiny_exported_folder: FolderFactory) -> None:
    folder = tiny_exported_folder("mamba2", backend="mlx")
    async with kv.Context.open(folder, LENGTH) as ctx:
        branch = await ctx.branch(TOKENS[:100])
        with pytest.raises(kv.InvalidInput, match="states hold all that came before"):
            await branch.forget(10, 20)
        assert len(branch) == 100
