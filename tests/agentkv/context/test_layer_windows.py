"""Models with windows in some layers: these give back what is behind them, and no row ever misses it.

Fresh branches are the oracle, to the bit, and transformers for the numbers.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import agentkv as kv
from tests.conftest import FolderFactory

pytestmark = pytest.mark.anyio

Row = npt.NDArray[np.float32]

WINDOW = 24
HELD = WINDOW + 2 * 64 + 2 * 128  # of 1,200 rows: the newest, and those before lengths 512 and 1,024
TOKENS = [3 + i * 11 % 290 for i in range(1200)]


@pytest.fixture(scope="session")
def folder(tiny_exported_folder: FolderFactory) -> Path:
    """Two layers of four have the window."""
    return tiny_exported_folder("gemma3", layers=4, window=WINDOW, head_dim=64, max_positions=2048)


async def fresh(folder: Path, tokens: Sequence[int], **settings: Any) -> Row:
    """In one go, in a Context of its own."""
    async with kv.Context.open(folder, 2048, threads=1, **settings) as ctx:
        return await (await ctx.branch(tokens)).logits()


def bytes_of(info: kv.ModelInfo, full: int, windowed: int) -> int:
    """Of so many rows in the layers without a window, and in the others."""
    return info.n_layers // 2 * 2 * info.n_kv_heads * info.head_dim * 2 * (full + windowed)


async def test_logits_are_those_of_transformers(tiny_hf_folder: FolderFactory, folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    source = tiny_hf_folder("gemma3", layers=4, window=WINDOW, head_dim=64, max_positions=2048)
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32, attn_implementation="eager")
    with torch.inference_mode():
        expected = model(torch.tensor([TOKENS[:500]])).logits[0].numpy()
    async with kv.Context.open(folder, 2048, "fp32", threads=1) as ctx:
        branch = await ctx.branch(TOKENS[:300])
        for end in (400, 500):
            await branch.extend(TOKENS[len(branch) : end])
            assert np.abs(await branch.logits() - expected[end - 1]).max() < 1e-4
        refed = ctx.stats.refed
        await branch.rollback(120)
        assert np.abs(await branch.logits() - expected[119]).max() < 1e-4
        assert ctx.stats.refed > refed


async def test_memory_follows_the_windows(folder: Path) -> None:
    async with kv.Context.open(folder, 2048, threads=1) as ctx:
        assert ctx.model_info.window is None
        branch = await ctx.branch(TOKENS)
        held = bytes_of(ctx.model_info, 1200, HELD)
        assert held * 0.9 < ctx.stats.kv_bytes < held * 1.2
        assert ctx.stats.cells_used == 1200
        await branch.rollback(1190)
        await branch.logits()
        assert ctx.stats.refed == 0  # so much slack there is
        await branch.rollback(600)
        assert (await branch.logits() == await fresh(folder, TOKENS[:600])).all()
        assert ctx.stats.refed == 599 - 512
        await branch.rollback(400)
        assert (await branch.logits() == await fresh(folder, TOKENS[:400])).all()
        assert ctx.stats.refed == 599 - 512 + 399
        assert ctx.stats.kv_bytes < bytes_of(ctx.model_info, 1200, HELD) * 1.2


async def test_a_fork_keeps_what_it_looks_at(folder: Path) -> None:
    """And a rollback to where it stands feeds nothing again; once it is closed, its rows leave as well."""
    async with kv.Context.open(folder, 2048, threads=1, retain=0) as ctx:
        branch = await ctx.branch(TOKENS[:500])
        fork = await branch.fork()
        await branch.extend(TOKENS[500:])
        await fork.extend([7, 8])
        assert (await fork.logits() == await fresh(folder, [*TOKENS[:500], 7, 8])).all()
        await branch.rollback(500)
        await branch.extend([9])
        assert (await branch.logits() == await fresh(folder, [*TOKENS[:500], 9])).all()
        assert ctx.stats.refed == 0
        await branch.extend(TOKENS[500:])
        held = ctx.stats.kv_bytes
        await fork.close()
        await branch.extend(TOKENS[:200])
        assert ctx.stats.kv_bytes < held + bytes_of(ctx.model_info, 200, 0)


async def test_prompts_and_what_closed_branches_left(folder: Path) -> None:
    """A prefix is shared as far as every window before its end is there."""
    async with kv.Context.open(folder, 4096, threads=1) as ctx:
        first = await ctx.branch(TOKENS[:600])
        await first.close()
        again = await ctx.branch([*TOKENS[:600], 5])
        assert ctx.stats.reused == 600
        assert (await again.logits() == await fresh(folder, [*TOKENS[:600], 5])).all()
        await again.extend(TOKENS[600:1000])  # past the end that was kept: it stays for the next one
        third = await ctx.branch([*TOKENS[:600], 6])
        assert ctx.stats.reused == 1200
        assert (await third.logits() == await fresh(folder, [*TOKENS[:600], 6])).all()
        short = await ctx.branch([*TOKENS[:300], 6])  # whose windows are gone
        assert ctx.stats.reused == 1200
        assert (await short.logits() == await fresh(folder, [*TOKENS[:300], 6])).all()


async def test_where_prompts_parted_once_others_may_part(folder: Path) -> None:
    """The second prompt finds no window at the end of what it shares; for the third one it kept that."""
    async with kv.Context.open(folder, 4096, threads=1) as ctx:
        for turn, reused in enumerate((0, 0, 300, 600)):
            tokens = [*TOKENS[:300], 5 + turn]
            branch = await ctx.branch(tokens)
            assert ctx.stats.reused == reused
            assert (await branch.logits() == await fresh(folder, tokens)).all()
            await branch.extend(TOKENS[:500])
            await branch.close()


async def test_prompts_at_the_same_moment_are_computed_once(folder: Path) -> None:
    async with kv.Context.open(folder, 4096, threads=1) as ctx:
        long, short = await kv.gather(ctx.branch(TOKENS[:700]), ctx.branch([*TOKENS[:300], 8]))
        assert ctx.stats.reused == 300
        assert (await long.logits() == await fresh(folder, TOKENS[:700])).all()
        assert (await short.logits() == await fresh(folder, [*TOKENS[:300], 8])).all()


@pytest.mark.parametrize(
    "settings", [{}, {"kv_dtype": "int8"}, {"kv_dtype": "int8/int4"}, {"kv_dtype": "fp32"}], ids=str
)
@pytest.mark.parametrize("shareable", [False, True])
async def test_files_hold_what_is_held(folder: Path, tmp_path: Path, settings: dict[str, Any], shareable: bool) -> None:
    path = tmp_path / "branch"
    async with kv.Context.open(folder, 2048, threads=1, **settings) as ctx:
        branch = await ctx.branch(TOKENS)
        fork = await branch.fork()
        await fork.rollback(1100)
        saved = await ctx.save(path, {"branch": branch, "fork": fork}, shareable=shareable)
        expected = [await branch.logits(), await fork.logits()]
        held = ctx.stats.kv_bytes
    async with kv.Context.open(folder, 2048, threads=1, **settings) as ctx:
        loaded = await ctx.load_all(path, shared=shareable)
        again = [loaded["branch"], loaded["fork"]]
        for one, row in zip(again, expected, strict=True):
            assert (await one.logits() == row).all()
        if not shareable:
            assert saved.nbytes < held * 1.1 + 100_000
            assert ctx.stats.kv_bytes < held * 1.1
        await again[0].extend([4, 5])
        await again[1].rollback(500)
        assert (await again[0].logits() == await fresh(folder, [*TOKENS, 4, 5], **settings)).all()
        assert (await again[1].logits() == await fresh(folder, TOKENS[:500], **settings)).all()


@pytest.mark.parametrize("where", ["memory", "disk"])
async def test_offloaded_branches_come_back_as_they_were(folder: Path, tmp_path: Path, where: str) -> None:
    async with kv.Context.open(folder, 2048, threads=1) as ctx:
        branch = await ctx.branch(TOKENS)
        held = ctx.stats.kv_bytes
        assert await branch.offload(None if where == "memory" else tmp_path) == 1200
        await branch.extend([4, 5])
        assert ctx.stats.kv_bytes < held * 1.1
        assert (await branch.logits() == await fresh(folder, [*TOKENS, 4, 5])).all()
        assert ctx.stats.refed == 0
        await branch.rollback(400)
        assert (await branch.logits() == await fresh(folder, TOKENS[:400])).all()


async def test_what_is_set_aside_keeps_the_rows_of_its_trunk(folder: Path, tmp_path: Path) -> None:
    async with kv.Context.open(folder, 4096, threads=1) as ctx:
        trunk = await ctx.branch(TOKENS[:300])
        fork = await trunk.fork()
        await fork.extend([6] * 10)
        assert await fork.offload(tmp_path) == 10
        await trunk.extend(TOKENS[300:900])
        await fork.extend([7])
        assert (await fork.logits() == await fresh(folder, [*TOKENS[:300], *[6] * 10, 7])).all()
        assert ctx.stats.refed == 0


async def test_compaction_changes_no_bit(folder: Path) -> None:
    async with kv.Context.open(folder, 4096, threads=1, retain=0) as ctx:
        first = await ctx.branch(TOKENS[:500])
        second = await ctx.branch(TOKENS[100:1000])
        await first.close()
        held = ctx.stats.kv_bytes
        await ctx.compact()
        assert ctx.stats.kv_bytes < held
        assert ctx.stats.kv_bytes < bytes_of(ctx.model_info, 900, HELD) * 1.2
        await second.extend([4])
        assert (await second.logits() == await fresh(folder, [*TOKENS[100:1000], 4])).all()


async def test_it_goes_with_quantize_after(folder: Path) -> None:
    """Codes leave the layers with windows as well, and what the cells of old positions lack is never quantised."""
    expected = await fresh(folder, TOKENS)
    sizes = []
    for after in (None, 64, 400):
        async with kv.Context.open(folder, 2048, threads=1, quantize_after=after) as ctx:
            branch = await ctx.branch()
            for first in range(0, 1200, 100):
                await branch.extend(TOKENS[first : first + 100])
            row = await branch.logits()
            assert np.abs(row - expected).max() < 0.03 * (expected.max() - expected.min())
            sizes.append(ctx.stats.kv_bytes)
            info = ctx.model_info
            await branch.rollback(200)
            await branch.logits()
    plain, most, some = sizes
    row_bytes = info.n_layers // 2 * 2 * info.n_kv_heads
    assert most < row_bytes * (1200 * (64 + 4) + 200 * 128 + 200 * (64 + 4)) * 1.2
    assert most < some < plain


async def played(folder: Path, seed: int, verbs: int, **settings: Any) -> int:
    """Random verbs; returns how many rows of logits were compared with fresh ones."""
    rng = random.Random(seed)
    checked = 0
    rows: dict[tuple[int, ...], Row] = {}
    async with (
        kv.Context.open(folder, 2048, threads=1, **settings) as ctx,
        kv.Context.open(folder, 2048, threads=1, retain=0, **settings) as plain,
    ):
        branches = [await ctx.branch(TOKENS[:400])]
        for turn in range(verbs):
            branch = rng.choice(branches)
            try:
                match rng.randrange(10):
                    case 0 | 1:
                        await branch.extend(rng.choices(TOKENS, k=rng.randrange(1, 200)))
                    case 2:
                        await branch.generate(
                            max_tokens=30, speculative=rng.choice([None, kv.spec.PromptLookup(), kv.spec.Suffix()])
                        )
                    case 3:
                        await branch.rollback(rng.randrange(1, len(branch) + 1))
                    case 4:
                        await branch.rollback(max(len(branch) - rng.randrange(60), 1))
                    case 5 if len(branches) < 6:
                        branches.append(await branch.fork())
                    case 6 if len(branches) < 6:
                        tokens = branch.tokens[: rng.randrange(1, len(branch) + 1)]
                        branches.append(await ctx.branch([*tokens, *rng.choices(TOKENS, k=3)]))
                    case 7:
                        await branch.adopt(rng.choice(branches))
                    case 8:
                        await (ctx.compact() if rng.random() < 0.5 else branch.offload())
                    case _:
                        if len(branches) > 2 or len(branch) > 1500:
                            branches.remove(branch)
                            await branch.close()
                            branches = branches or [await ctx.branch(TOKENS[:100])]
                            continue
            except kv.ContextFull:
                await branch.rollback(max(len(branch) // 2, 1))
            if turn % 4 == 0:
                key = tuple(branch.tokens)
                try:
                    row = await branch.logits()
                except kv.ContextFull:
                    continue
                if key not in rows:
                    one = await plain.branch(key)
                    rows[key] = await one.logits()
                    await one.close()
                assert (row == rows[key]).all(), (seed, turn)
                checked += 1
        assert ctx.stats.refed > 0
    return checked


async def test_random_verbs(folder: Path) -> None:
    assert await played(folder, 1, 80) > 10


@pytest.mark.soak
@pytest.mark.parametrize("kv_dtype", ["fp16", "int8", "int8/int4"])
async def test_many_random_verbs(folder: Path, kv_dtype: str) -> None:
    for seed in range(10):
        assert await played(folder, seed, 300, kv_dtype=kv_dtype) > 40
