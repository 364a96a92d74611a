"""Positions that lose their cells: what is forgotten, and what windows leave behind. Fresh branches are the oracle."""

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

from ..conftest import OpenContext

pytestmark = pytest.mark.anyio

Row = npt.NDArray[np.float32]
Forgotten = Sequence[tuple[int, int, int]]  # (p0, p1, tokens that there were)

TOKENS = [3 + i * 11 % 290 for i in range(400)]
SETTINGS: list[dict[str, Any]] = [
    {},
    {"window": 24, "sinks": 4},
    {"window": 50},
    {"window": 24, "sinks": 4, "kv_dtype": "int8"},
    {"kv_dtype": "int4"},
    {"window": 24, "sinks": 4, "kv_dtype": "int8/int4"},
]


def named(settings: dict[str, Any]) -> str:
    return "-".join(f"{name}{value}" for name, value in settings.items()) or "plain"


async def fresh(folder: Path, tokens: Sequence[int], forgotten: Forgotten = (), **settings: Any) -> Row:
    """Logits of a branch that did this and nothing else, in a Context of its own."""
    async with kv.Context.open(folder, 2048, threads=1, **settings) as ctx:
        branch = await ctx.branch()
        for p0, p1, length in forgotten:
            if length > len(branch):
                await branch.extend(tokens[len(branch) : length])
            await branch.forget(p0, p1)
        if len(tokens) > len(branch):
            await branch.extend(tokens[len(branch) :])
        return await branch.logits()


@pytest.mark.parametrize("settings", SETTINGS, ids=named)
async def test_whatever_comes_it_is_a_fresh_branch_to_the_bit(
    folder: Path, tmp_path: Path, settings: dict[str, Any]
) -> None:
    async with kv.Context.open(folder, 2048, threads=1, **settings) as ctx:
        branch = await ctx.branch(TOKENS[:150])
        await branch.extend(TOKENS[150:])
        assert (await branch.logits() == await fresh(folder, TOKENS, **settings)).all()
        for length in (390, 200, 399, 30):
            if length > len(branch):
                await branch.extend(TOKENS[len(branch) : length])
            await branch.rollback(length)
            assert (await branch.logits() == await fresh(folder, TOKENS[:length], **settings)).all(), length

        await branch.extend(TOKENS[30:300])
        await branch.forget(10, 20)
        await branch.forget(100, 299)
        history = [(10, 20, 300), (100, 299, 300)]
        assert (await branch.logits() == await fresh(folder, TOKENS[:300], history, **settings)).all()
        await branch.extend(TOKENS[300:340])
        expected = await fresh(folder, TOKENS[:340], history, **settings)
        assert (await branch.logits() == expected).all()
        assert branch.tokens == TOKENS[:340]

        child = await branch.fork()
        saved = tmp_path / "branch"
        await branch.save(saved)
        loaded = await ctx.load(saved)
        assert await loaded.offload() > 0
        await ctx.compact()
        other = await ctx.branch(TOKENS[:340])  # begins alike, and forgot nothing
        assert (await other.logits() == await fresh(folder, TOKENS[:340], **settings)).all()
        for same in (child, loaded, branch):
            assert (await same.logits() == expected).all()
            await same.rollback(320)
            assert (await same.logits() == await fresh(folder, TOKENS[:320], history, **settings)).all()
            await same.rollback(299)  # before it forgot
            assert (await same.logits() == await fresh(folder, TOKENS[:299], **settings)).all()
        async with kv.Context.open(folder, 2048, kv_dtype="fp32", threads=1) as elsewhere:
            again = await elsewhere.load(saved, recompute=True)
            assert (await again.logits() == await fresh(folder, TOKENS[:340], history, kv_dtype="fp32")).all()


async def test_forgetting_frees_cells_and_keeps_tokens(open_context: OpenContext) -> None:
    async with open_context() as ctx:
        branch = await ctx.branch(TOKENS[:100])
        assert await branch.forget(10, 60) == 51  # and the last one's, which is fed again
        assert ctx.stats.cells_used == 49
        assert branch.tokens == TOKENS[:100]
        assert await branch.forget(10, 60) == 0
        child = await branch.fork()
        assert await child.forget(60, 80) == 0  # the branch still has them
        assert await branch.forget(60, 80) == 20
        mark = branch.mark()
        await branch.generate(max_tokens=5)
        await branch.rollback(mark)
        assert len(branch) == 100
        refed = ctx.stats.refed
        await branch.rollback(90)
        await branch.logits()
        assert ctx.stats.refed - refed == 79  # positions 10 to 88; the last is no part of it


@pytest.mark.parametrize("wrong", [(-1, 3), (4, 3), (0, 10), (2, 11), (0, 2**70), (1.5, 3), ("0", 3)])
async def test_what_cannot_be_forgotten_changes_nothing(open_context: OpenContext, wrong: tuple[Any, Any]) -> None:
    async with open_context() as ctx:
        branch = await ctx.branch(TOKENS[:10])
        with pytest.raises(kv.InvalidInput, match=r"p0|p1"):
            await branch.forget(*wrong)
        assert ctx.stats.cells_used == 10


async def test_a_window_bounds_cells_however_long_a_branch_gets(open_context: OpenContext) -> None:
    async with open_context(capacity=260, window=32, sinks=4, max_batch_tokens=64) as ctx:
        assert (ctx.model_info.window, ctx.model_info.sinks) == (32, 4)
        branch = await ctx.branch([3 + i % 290 for i in range(200)])
        most = 0
        for i in range(8):
            await branch.extend([3 + (i * 7 + j) % 290 for j in range(200)])
            most = max(most, ctx.stats.cells_used)
        assert len(branch) == 1800
        assert most <= 4 + 32 + 64
        generation = await branch.generate(max_tokens=200)
        assert generation.finish_reason in ("eos", "length")
        assert ctx.stats.cells_used <= 4 + 32 + 64


async def test_a_window_is_fed_again_for_one_token(folder: Path) -> None:
    """The row before the last looks one position further back than a window leaves."""
    for settings in ({"window": 8}, {"window": 16, "sinks": 4}):
        async with kv.Context.open(folder, 300, kv_dtype="fp32", threads=1, **settings) as ctx:  # type: ignore[arg-type]
            branch = await ctx.branch(TOKENS[:260])
            for length in (259, 258, 190):
                await branch.rollback(length)
                expected = await fresh(folder, TOKENS[:length], kv_dtype="fp32", **settings)
                assert (await branch.logits() == expected).all()
                made = await branch.generate(max_tokens=3)
                assert made.tokens[0] == int(expected.argmax())
                await branch.rollback(length)
            await branch.rollback(189)
            choice = await branch.select(["yes", "no way"])
            async with kv.Context.open(folder, 300, kv_dtype="fp32", threads=1, **settings) as other:  # type: ignore[arg-type]
                twin = await other.branch(TOKENS[:189])
                assert (await twin.select(["yes", "no way"])).logprobs == choice.logprobs


async def test_random_verbs_under_a_window(folder: Path) -> None:
    """Speculation, forks and rollbacks over what a window let go: tokens are those of plain decoding without them."""
    rng = random.Random(7)
    settings = {"window": 20, "sinks": 2, "kv_dtype": "fp32"}
    async with kv.Context.open(folder, 1024, threads=1, **settings) as ctx:
        branches = [await ctx.branch(TOKENS[:40])]
        for _ in range(60):
            branch = rng.choice(branches)
            match rng.randrange(5):
                case 0:
                    await branch.extend(rng.sample(TOKENS, rng.randrange(1, 60)))
                case 1:
                    await branch.generate(
                        max_tokens=20, speculative=rng.choice([None, kv.spec.PromptLookup(), kv.spec.Suffix()])
                    )
                case 2:
                    await branch.rollback(rng.randrange(1, len(branch) + 1))
                case 3 if len(branches) < 6:
                    branches.append(await branch.fork())
                case _:
                    await branch.adopt(rng.choice(branches))
            if rng.random() < 0.3:
                assert (await branch.logits() == await fresh(folder, branch.tokens, **settings)).all()


@pytest.mark.parametrize("backend", ["cpu", "torch", "mlx"])
async def test_a_window_is_that_of_transformers_under_its_mask(
    tiny_hf_folder: FolderFactory, tiny_exported_folder: FolderFactory, backend: str
) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    window, sinks, tokens = 7, 2, TOKENS[:40]
    model = AutoModelForCausalLM.from_pretrained(
        tiny_hf_folder("llama"), dtype=torch.float32, attn_implementation="eager"
    )
    row, column = torch.arange(40)[:, None], torch.arange(40)[None]
    seen = (column <= row) & ((column > row - window) | (column < sinks))
    mask = torch.where(seen, 0.0, torch.finfo(torch.float32).min)[None, None]
    with torch.inference_mode():
        expected = model(torch.tensor([tokens]), attention_mask=mask).logits[0, -1].numpy()
        plain = model(torch.tensor([tokens])).logits[0, -1].numpy()
    folder = tiny_hf_folder("llama") if backend == "torch" else tiny_exported_folder("llama", backend=backend)
    async with kv.Context.open(folder, 256, "fp32", backend=backend, window=window, sinks=sinks) as ctx:
        assert ctx.model_info.backend == backend
        branch = await ctx.branch(tokens[:25])
        await branch.extend(tokens[25:])
        assert np.abs(await branch.logits() - expected).max() < 1e-4 < np.abs(plain - expected).max()


async def test_a_model_whose_layers_all_have_windows_gives_cells_back(tiny_exported_folder: FolderFactory) -> None:
    folder = tiny_exported_folder("mistral")
    tokens = [TOKENS[i % 290] for i in range(600)]
    async with kv.Context.open(folder, 2048, threads=1) as ctx:
        assert (ctx.model_info.window, ctx.model_info.sinks) == (8, 0)
        branch = await ctx.branch(tokens)
        assert ctx.stats.cells_used <= 8 + 64
        await branch.rollback(300)
        assert (await branch.logits() == await fresh(folder, tokens[:300])).all()
        assert ctx.stats.refed > 0


async def test_what_a_window_cannot_be(folder: Path) -> None:
    for wrong in ({"window": 0}, {"window": -1}, {"window": 1.5}, {"sinks": 4}, {"window": 4, "sinks": -1}):
        with pytest.raises(kv.InvalidInput, match=r"window|sinks"):
            async with kv.Context.open(folder, **wrong):  # type: ignore[arg-type]
                pass


async def test_a_file_is_of_one_window(folder: Path, tmp_path: Path) -> None:
    async with kv.Context.open(folder, 512, threads=1, window=24, sinks=4) as ctx:
        await (await ctx.branch(TOKENS[:60])).save(tmp_path / "branch")
    async with kv.Context.open(folder, 512, threads=1) as ctx:
        with pytest.raises(kv.SnapshotMismatch, match="window"):
            await ctx.load(tmp_path / "branch")
        again = await ctx.load(tmp_path / "branch", recompute=True)
        assert again.tokens == TOKENS[:60]
