"""What models wrote, half an output under a grammar included, is saved and loaded as it was."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

import agentkv as kv

from .test_saving import nano

pytestmark = pytest.mark.anyio


async def test_an_output_that_was_cut_goes_on_where_its_grammar_was_in_use(tmp_path: Path) -> None:
    output = kv.Regex("[a-z]{12} [0-9]{12}")
    async with nano() as ctx:
        branch = await ctx.branch([{"role": "user", "content": "Who are you?"}])
        await branch.generate(max_tokens=5, output=output)
        await branch.save(tmp_path / "cut")
        await branch.generate(max_tokens=60, output=output)
        loaded = await ctx.load(tmp_path / "cut")
        assert (await loaded.generate(max_tokens=60, output=output)).output == loaded.text[-25:]
        assert loaded.tokens == branch.tokens
    async with nano() as ctx:
        loaded = await ctx.load(tmp_path / "cut")
        assert len(ctx._core.compiler._restored) == 1
        await loaded.close()
        await ctx._core.loop.call(lambda _: gc.collect())
        assert len(ctx._core.compiler._restored) == 0  # files may come from anybody, and have any number of grammars
        for _ in range(2):
            loaded = await ctx.load(tmp_path / "cut")
            await loaded.generate(max_tokens=60, output=output)
            assert loaded.tokens == branch.tokens


@pytest.mark.parametrize("depth", [40, 47, 100, 300])
async def test_what_a_model_wrote_can_be_saved_however_deep_it_is(tmp_path: Path, depth: int) -> None:
    text = '<tool_call>{"name": "f", "arguments": ' + '{"a": ' * depth + "1" + "}" * depth + "}</tool_call>"
    async with kv.testing.replies([text], capacity=2048, kv_dtype="fp32") as ctx:
        branch = await ctx.branch([{"role": "user", "content": "?"}])
        await branch.generate(max_tokens=2000)
        (made,) = branch.messages[-1].calls
        assert (made.error is None) == (depth < 49)
        await branch.save(tmp_path / "deep")
        loaded = await ctx.load(tmp_path / "deep")
        assert loaded.messages == branch.messages
        if made.error is None:
            assert (await ctx.branch(branch.messages)).messages[-1].calls == (made,)
