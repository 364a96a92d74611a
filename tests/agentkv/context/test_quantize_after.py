"""`quantize_after`: the older part of each branch is held as int8, the newest part as it was computed."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import agentkv as kv
from tests.conftest import FolderFactory

from ..conftest import OpenContext

pytestmark = pytest.mark.anyio

TOKENS = [3 + i * 11 % 290 for i in range(1200)]
Row = npt.NDArray[np.float32]


def distance(a: Row, b: Row) -> float:
    """Relative to how far the logits of a row spread."""
    return float(np.abs(a - b).max() / (b.max() - b.min()))


async def plain_logits(open_context: OpenContext, tokens: list[int]) -> Row:
    async with open_context() as ctx:
        return await (await ctx.branch(tokens)).logits()


async def fed(ctx: kv.Context, tokens: list[int], step: int = 50) -> kv.Branch:
    """In pieces, so that what is quantised is looked at by what follows."""
    branch = await ctx.branch()
    for first in range(0, len(tokens), step):
        await branch.extend(tokens[first : first + step])
    return branch


async def test_the_newest_positions_are_as_they_were_computed(open_context: OpenContext) -> None:
    """Nothing is quantised until a whole block is older than they are."""
    for n_tokens in (300, 363):
        expected = await plain_logits(open_context, TOKENS[:n_tokens])
        async with open_context(quantize_after=300) as ctx:
            branch = await fed(ctx, TOKENS[:n_tokens])
            assert (await branch.logits() == expected).all()
            await branch.extend(TOKENS[n_tokens : n_tokens + 80])
            got = await branch.logits()
        expected = await plain_logits(open_context, TOKENS[: n_tokens + 80])
        assert 0 < distance(got, expected) < 0.02


@pytest.mark.parametrize("kv_dtype", ["fp16", "bf16", "fp32"])
async def test_logits_are_near_those_of_floats(open_context: OpenContext, folder: Path, kv_dtype: str) -> None:
    expected = await plain_logits(open_context, TOKENS)
    for after in (None, 0, 128):
        async with kv.Context.open(folder, 2048, kv_dtype, threads=1, quantize_after=after) as ctx:
            branch = await fed(ctx, TOKENS)
            assert distance(await branch.logits(), expected) < 0.03
            info = ctx.model_info
            assert (info.kv_dtype, info.quantize_after, info.bit_exact) == (kv_dtype, after, after is None)


async def test_kv_bytes_follow_what_is_quantised(
    tiny_exported_folder: FolderFactory, with_manifest: FolderFactory
) -> None:
    """A cache of many pages: the floats of whole blocks leave it."""
    folder = with_manifest(tiny_exported_folder("llama", head_dim=64), max_positions=8192)
    tokens = [TOKENS[i % len(TOKENS)] for i in range(6000)]
    async with kv.Context.open(folder, 8192, threads=1) as ctx:
        await ctx.branch(tokens)
        plain, info = ctx.stats.kv_bytes, ctx.model_info
    row = info.n_layers * 2 * info.n_kv_heads
    async with kv.Context.open(folder, 8192, threads=1, quantize_after=1024) as ctx:
        branch = await ctx.branch(tokens)
        old = (len(branch) - 1 - 1024) // 64 * 64
        expected = row * (old * (info.head_dim + 4) + (len(tokens) - old) * info.head_dim * 2)
        assert ctx.stats.kv_bytes == pytest.approx(expected, rel=0.1)  # 3% of all cells are room ahead
        assert plain == pytest.approx(row * len(tokens) * info.head_dim * 2, rel=0.08)
        await branch.close()
        await ctx.compact(retain=0)
        assert ctx.stats.kv_bytes < plain // 50


async def test_a_shared_cell_stays_for_the_branch_that_has_it_newest(open_context: OpenContext) -> None:
    expected = await plain_logits(open_context, [*TOKENS[:300], 7])
    async with open_context(quantize_after=300) as ctx:
        trunk = await ctx.branch(TOKENS[:300])
        short, long = await trunk.fork(2)
        await trunk.close()
        for first in range(300, 1000, 100):
            await long.extend(TOKENS[first : first + 100])
        await short.extend([7])
        assert (await short.logits() == expected).all()
        await long.rollback(300)
        await long.extend([7])
        assert (await long.logits() == expected).all()
        await short.close()
        await long.rollback(300)
        for first in range(300, 1000, 100):
            await long.extend(TOKENS[first : first + 100])
        await long.rollback(300)
        await long.extend([7])
        assert 0 < distance(await long.logits(), expected) < 0.02  # what was quantised stays so


async def test_what_is_fed_again_behind_a_rollback_is_quantised_again(open_context: OpenContext) -> None:
    async with open_context(quantize_after=0, retain=0) as ctx:
        fresh = await fed(ctx, TOKENS[:640], 64)
        await fresh.extend([7])
        expected = await fresh.logits()
        await fresh.rollback(256)
        for first in range(256, 640, 64):
            await fresh.extend(TOKENS[first : first + 64])
        await fresh.extend([7])
        assert (await fresh.logits() == expected).all()


async def test_what_an_offloaded_branch_has_grown_beyond_is_quantised(open_context: OpenContext) -> None:
    """Its length counts, not what the cache still has of it."""
    rows = []
    for grows in (False, True):
        async with open_context(quantize_after=100, retain=0) as ctx:
            trunk = await fed(ctx, TOKENS[:200])
            if grows:
                other = await trunk.fork()
                await other.extend(TOKENS[200:600])
                assert await other.offload() > 0
            await trunk.extend(TOKENS[200:400])
            await trunk.extend([7])
            rows.append(await trunk.logits())
    assert (rows[0] == rows[1]).all()


async def test_compaction_changes_no_bit(open_context: OpenContext) -> None:
    async with open_context(quantize_after=100, retain=0) as ctx:
        first, second = await fed(ctx, TOKENS[:400]), await fed(ctx, TOKENS[100:700])
        expected = await (await second.fork()).logits()
        await first.close()
        before = ctx.stats.kv_bytes
        await ctx.compact()
        assert ctx.stats.kv_bytes < before
        assert (await second.logits() == expected).all()
        assert (await (await second.fork()).generate(max_tokens=20)).usage.completion_tokens == 20


@pytest.mark.parametrize("where", ["memory", "disk"])
async def test_offloaded_branches_come_back_as_they_were(open_context: OpenContext, where: str, tmp_path: Path) -> None:
    async with open_context(quantize_after=100) as ctx:
        branch = await fed(ctx, TOKENS[:500])
        other = await branch.fork()
        expected = await other.logits()
        await other.close()
        await branch.offload(None if where == "memory" else tmp_path)
        assert distance(await branch.logits(), expected) < 0.01
        gen = await branch.generate(max_tokens=5)
        assert len(gen.tokens) == 5


async def test_files_are_of_contexts_that_quantise(open_context: OpenContext, tmp_path: Path) -> None:
    path = tmp_path / "saved"
    async with open_context(quantize_after=100) as ctx:
        branch = await fed(ctx, TOKENS[:500])
        expected = await branch.logits()
        await branch.save(path)
    async with open_context(quantize_after=200) as ctx:
        loaded = await ctx.load(path)
        assert loaded.tokens == TOKENS[:500]
        assert distance(await loaded.logits(), expected) < 0.01
        await loaded.extend(TOKENS[500:600])
        assert ctx.stats.prefilled == 100
    async with open_context() as ctx:
        with pytest.raises(kv.SnapshotMismatch, match=r"fp32\+int8.*fp32"):
            await ctx.load(path)
        anew = await ctx.load(path, recompute=True)
        exact = await anew.logits()
    assert (exact == await plain_logits(open_context, TOKENS[:500])).all()


async def test_verbs_compose(open_context: OpenContext) -> None:
    """Many branches, speculation, windows of forgotten positions, retention: counts hold and nothing is lost."""
    rng = random.Random(3)
    options: dict[str, Any] = {"quantize_after": 64, "speculative": kv.spec.PromptLookup()}
    async with open_context(**options) as ctx:
        branches = [await ctx.branch(TOKENS[:200])]
        for _ in range(40):
            branch = rng.choice(branches)
            verb = rng.choice(["generate", "generate", "fork", "rollback", "forget", "select", "close", "compact"])
            if verb == "generate":
                await kv.gather(*(b.generate(max_tokens=rng.randrange(1, 30)) for b in rng.sample(branches, 1)))
            elif verb == "fork" and len(branches) < 6:
                branches.append(await branch.fork())
            elif verb == "rollback":
                await branch.rollback(max(1, len(branch) - rng.randrange(100)))
            elif verb == "forget" and len(branch) > 40:
                await branch.forget(10, 20)
            elif verb == "select":
                assert await branch.select(["yes", "no"]) in ("yes", "no")
            elif verb == "close" and len(branches) > 1:
                branches.remove(branch)
                await branch.close()
            else:
                await ctx.compact()
            if max(len(b) for b in branches) > 900:
                await max(branches, key=len).rollback(150)
        for branch in branches:
            await branch.close()
        await ctx.compact(retain=0)
        assert (ctx.stats.cells_used, ctx.stats.cells_retained) == (0, 0)


@pytest.mark.parametrize("kv_dtype", ["int8", "int8/int4", "int4"])
async def test_what_is_codes_as_a_whole_is_refused(folder: Path, kv_dtype: str) -> None:
    with pytest.raises(kv.InvalidInput, match="quantises every position"):
        async with kv.Context.open(folder, kv_dtype=kv_dtype, quantize_after=10):
            pass


@pytest.mark.parametrize("wrong", [-1, 1.5, "all", True])
async def test_bad_counts_are_refused(open_context: OpenContext, wrong: Any) -> None:
    with pytest.raises(kv.InvalidInput, match="quantize_after"):
        async with open_context(quantize_after=wrong):
            pass


async def test_a_backend_that_cannot_is_refused_by_name(tiny_hf_folder: FolderFactory) -> None:
    with pytest.raises(kv.InvalidInput, match="backend 'torch'"):
        async with kv.Context.open(tiny_hf_folder(), backend="torch", quantize_after=10):
            pass
