"""Budgets of reasoning over `agentkv serve`: the same tokens as in this process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import agentkv as kv

from ..context.test_thinking import ASKED, CHAT, DRAWN, nano_with
from .over_server import over_agentkv

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def said(ctx: kv.Context, thinking: Any, output: Any, cuts: tuple[int, ...]) -> tuple[list[int], Any]:
    """What comes of a branch, whole or in parts."""
    branch = await ctx.branch(ASKED, template={"opens": True})
    begun = len(branch)
    await branch.draw_as(3)
    how: dict[str, Any] = {"thinking": thinking, "output": output, "sampling": DRAWN if output is str else None}
    for most in cuts:
        await branch.generate(max_tokens=most, **how)
    last = await branch.generate(max_tokens=60, **how)
    return branch.tokens[begun:], None if output is str else last.output


@pytest.mark.parametrize("cuts", [(), (3, 4)], ids=["whole", "cut"])
async def test_the_same_tokens(tmp_path: Path, cuts: tuple[int, ...]) -> None:
    model = nano_with(CHAT, tmp_path / "model")
    rows = [(False, str), (5, str), (0, int), (5, list[int]), (5, kv.Regex("[a-z]{4}"))]
    async with kv.Context.open(model, 4096, kv_dtype="fp32", threads=1) as ctx:
        local = [await said(ctx, thinking, output, cuts) for thinking, output in rows]
    async with over_agentkv(model, capacity=4096) as ctx:
        assert ctx._core.chat.format.thought is not None
        for (thinking, output), expected in zip(rows, local, strict=True):
            assert await said(ctx, thinking, output, cuts) == expected, (thinking, output)
