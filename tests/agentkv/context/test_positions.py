"""No branch goes beyond the positions that its model knows."""

from __future__ import annotations

import logging

import numpy as np
import pytest

import agentkv as kv
from tests.conftest import FolderFactory

pytestmark = pytest.mark.anyio


async def test_positions_end_before_the_model_does(
    tiny_exported_folder: FolderFactory, with_manifest: FolderFactory
) -> None:
    folder = with_manifest(tiny_exported_folder("llama"), max_positions=32)
    async with kv.Context.open(folder, capacity=256, kv_dtype="fp32", threads=1) as ctx:
        assert ctx.model_info.max_positions == 32
        with pytest.raises(kv.PositionsExhausted, match=r"33 tokens or more, but the model has 32 positions"):
            await ctx.branch([5] * 33)
        assert ctx.branches == []
        branch = await ctx.branch([5] * 30)
        row = await branch.logits()
        for verb in (
            lambda: branch.extend([6] * 3),
            lambda: branch.select(["yes", "The quick brown fox jumps"]),
        ):
            with pytest.raises(kv.PositionsExhausted, match="roll the branch back"):
                await verb()
        assert branch.tokens == [5] * 30
        np.testing.assert_array_equal(await branch.logits(), row)
        for strategy in (None, kv.spec.PromptLookup(adaptive=False), kv.spec.Suffix(adaptive=False)):
            async with await branch.fork() as kid:
                gen = await kid.generate(max_tokens=200, speculative=strategy)
                assert (len(kid), gen.finish_reason) == (32, "context_full")
                with pytest.raises(kv.PositionsExhausted):
                    await kid.generate(max_tokens=1)
                with pytest.raises(kv.PositionsExhausted):
                    async with kid.stream():
                        pass
                assert len(await kid.logits()) == ctx.model_info.vocab_size
                await kid.rollback(31)
                assert (await kid.generate(max_tokens=1)).finish_reason == "length"


async def test_a_branch_beyond_what_its_model_was_trained_on_is_logged_once(
    tiny_exported_folder: FolderFactory, with_manifest: FolderFactory, caplog: pytest.LogCaptureFixture
) -> None:
    folder = with_manifest(tiny_exported_folder("llama"), trained_positions=20)
    caplog.set_level(logging.WARNING, "agentkv")

    def logged() -> list[str]:
        return [record.getMessage() for record in caplog.records if record.name == "agentkv"]

    async with kv.Context.open(folder, capacity=256, kv_dtype="fp32", threads=1) as ctx:
        assert ctx.model_info.trained_positions == 20
        branch = await ctx.branch([5] * 20)
        await branch.logits()
        assert logged() == []
        await branch.generate(max_tokens=3, sampling=kv.Sampling(logit_bias={5: 100}))
        await (await branch.fork()).extend([5])
    assert len(logged()) == 1
    assert "trained_positions=20" in logged()[0]
