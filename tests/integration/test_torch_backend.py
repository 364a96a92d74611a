"""The same agent on torch, from the Hugging Face folder, and on the exported program: the same tokens."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import agentkv as kv
from tests.conformance.configs import CONFIGS
from tests.conftest import FolderFactory

pytestmark = pytest.mark.asyncio


async def an_agent(
    folder: Any, **options: Any
) -> tuple[list[list[int]], list[npt.NDArray[np.float32]], dict[str, Any]]:
    """Greedy tokens, logits and counts of a small course: chat, forks, rollback, select, adopt."""
    tokens: list[list[int]] = []
    rows: list[npt.NDArray[np.float32]] = []
    async with kv.Context.open(folder, capacity=512, kv_dtype="fp32", max_batch_tokens=16, **options) as ctx:
        trunk = await ctx.branch([{"role": "user", "content": "What is the capital of France?"}])
        mark = trunk.mark()
        tokens.append((await trunk.generate(max_tokens=12)).tokens)
        rows.append(await trunk.logits())
        await trunk.rollback(mark)
        kids = await trunk.fork(3)
        for index, kid in enumerate(kids):
            await kid.extend([10 + index, 20 + index])
        outs = await kv.gather(*(kid.generate(max_tokens=16) for kid in kids))
        tokens += [out.tokens for out in outs]
        choice = await kids[0].select(["yes", "no", "one two three"])
        tokens.append([choice.index])
        await trunk.adopt(kids[1])
        tokens.append((await trunk.generate(max_tokens=8)).tokens)
        rows.append(await trunk.logits())
        held = {"cells": ctx.stats.cells_used, "branches": ctx.stats.branches, "backend": ctx.model_info.backend}
    return tokens, rows, held


@pytest.mark.parametrize("name", ["llama-gqa2-d64", "mistral-gqa8-d80-w8", "qwen3-gqa4-d128-tied"])
async def test_torch_and_exported_agree(
    tiny_hf_folder: FolderFactory, tiny_exported_folder: FolderFactory, name: str
) -> None:
    kind, fields = CONFIGS[name]
    torch_tokens, torch_rows, torch_held = await an_agent(tiny_hf_folder(kind, **fields), backend="torch", device="cpu")
    tokens, rows, held = await an_agent(tiny_exported_folder(kind, **fields))
    assert (torch_held.pop("backend"), held.pop("backend")) == ("torch", "cpu")
    assert tokens == torch_tokens
    assert held == torch_held
    for row, torch_row in zip(rows, torch_rows, strict=True):
        assert np.abs(row - torch_row).max() <= 1e-4


async def test_a_branch_repeats_itself_in_few_forwards(tiny_hf_folder: FolderFactory) -> None:
    kind, fields = CONFIGS["llama-gqa2-d64"]
    lookup = kv.spec.PromptLookup(adaptive=False)
    async with kv.Context.open(tiny_hf_folder(kind, **fields), capacity=512, kv_dtype="fp32", device="cpu") as ctx:
        trunk = await ctx.branch("What is the capital of France?")
        mark = trunk.mark()
        plain = await trunk.generate(max_tokens=40, speculative=lookup)
        row = await trunk.logits()
        await trunk.rollback(mark)
        before = ctx.stats
        again = await trunk.generate(max_tokens=40, speculative=lookup)
        assert again.tokens == plain.tokens
        assert ctx.stats.accepted - before.accepted >= len(plain.tokens) - 4
        assert ctx.stats.forwards - before.forwards < 8
        assert np.abs(await trunk.logits() - row).max() <= 1e-4
        assert ctx.stats.cells_used == before.cells_used + len(plain.tokens)


@pytest.mark.parametrize("options", [{"backend": "torch"}, {"device": "cpu"}], ids=str)
async def test_a_hugging_face_folder_runs_on_torch_where_it_is_asked_for(
    tiny_hf_folder: FolderFactory, options: dict[str, str]
) -> None:
    async with kv.Context.open(tiny_hf_folder("phi3"), capacity=64, **options) as ctx:  # type: ignore[arg-type]
        assert ctx.model_info.backend == "torch"
        assert len((await (await ctx.branch("The quick")).generate(max_tokens=4)).tokens) == 4


@pytest.mark.parametrize("kv_dtype", ["int8", "int4", "int8/int4"])
async def test_latents_are_no_codes(tiny_hf_folder: FolderFactory, kv_dtype: str) -> None:
    with pytest.raises(kv.InvalidInput, match=r"latent attention.*give kv_dtype='fp16'"):
        async with kv.Context.open(tiny_hf_folder("deepseek3"), 64, kv_dtype, backend="torch"):
            pytest.fail("opened")
