"""Draft heads as users meet them: the same output, features for whoever listens, heads of other models refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import agentkv as kv
from agentkv.spec import Eagle, PromptLookup

from ..conftest import OpenContext
from ..story import GREEDY, WARM, Story
from ..strategies import Listener

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("n", [1, 8])
@pytest.mark.parametrize("sampling", [GREEDY, WARM], ids=["greedy", "sampled"])
async def test_the_same_story_with_a_head(
    open_context: OpenContext, eagle_folder: Path, n: int, sampling: kv.Sampling
) -> None:
    async with open_context() as ctx:
        plain = await Story(ctx, n, sampling).run()
    for strategy in (Eagle(), Eagle(adaptive=False, width=3, top_k=3)):
        async with kv.Context.open(eagle_folder, 2048, "fp32", threads=1, speculative=strategy) as ctx:
            assert await Story(ctx, n, sampling).run() == plain
            assert ctx.stats.drafted > 0 or strategy.adaptive


async def test_strategies_take_turns_on_one_branch(open_context: OpenContext, eagle_folder: Path) -> None:
    strategies: list[Any] = [Eagle(adaptive=False), None, PromptLookup(adaptive=False), Eagle(adaptive=False, width=2)]

    async def run(ctx: kv.Context, strategies: list[Any]) -> list[kv.Generation]:
        branch = await ctx.branch([7] * 20)
        return [await branch.generate(max_tokens=9, speculative=strategies[i % len(strategies)]) for i in range(8)]

    async with open_context() as ctx:
        plain = await run(ctx, [None])
    async with kv.Context.open(eagle_folder, 2048, "fp32", threads=1) as ctx:
        assert await run(ctx, strategies) == plain
        assert ctx.stats.drafted > 0


async def test_a_listener_is_given_features(eagle_folder: Path) -> None:
    listener = Listener()
    async with kv.Context.open(eagle_folder, 1024, "fp32", threads=1, speculative=listener) as ctx:
        branch = await ctx.branch([7] * 20)
        await branch.generate(max_tokens=5)
        assert listener.heard[branch.id] == dict(enumerate(branch.tokens[:-1]))
        assert {(rows.dtype, rows.shape[1]) for rows in listener.features} == {(np.dtype(np.float32), 3 * 64)}
        assert sum(len(rows) for rows in listener.features) == len(branch) - 1


async def test_where_a_head_may_lie(open_context: OpenContext, eagle_folder: Path, tmp_path: Path) -> None:
    shutil.copy(eagle_folder / "draft.pte", tmp_path / "draft.pte")
    shutil.copy(eagle_folder / "draft.json", tmp_path / "draft.json")
    async with kv.Context.open(eagle_folder, 1024, "fp32", threads=1) as ctx:
        branch = await ctx.branch([7] * 20)
        for path in (None, tmp_path, str(tmp_path / "draft.pte")):
            drafted = ctx.stats.drafted
            async with await branch.fork() as kid:
                await kid.generate(max_tokens=6, speculative=Eagle(path, adaptive=False))
            assert ctx.stats.drafted > drafted
    with pytest.raises(kv.DraftMismatch, match="--features"):
        async with open_context(speculative=Eagle(tmp_path)):
            pass


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("feature_dim", 96, r"reads 96 per row, the target gives out 192"),
        ("tokenizer_fingerprint", "sha256:" + 64 * "0", "differ in their tokenizers"),
    ],
)
async def test_a_head_of_another_model_is_refused(
    eagle_folder: Path, tmp_path: Path, field: str, value: Any, says: str
) -> None:
    shutil.copy(eagle_folder / "draft.pte", tmp_path / "draft.pte")
    manifest = json.loads((eagle_folder / "draft.json").read_text())
    (tmp_path / "draft.json").write_text(json.dumps(manifest | {field: value}))
    with pytest.raises(kv.DraftMismatch, match=says) as caught:
        async with kv.Context.open(eagle_folder, 1024, speculative=Eagle(tmp_path)):
            pass
    assert str(tmp_path) in str(caught.value)
    assert str(eagle_folder) in str(caught.value)


async def test_torch_takes_no_head(tiny_hf_folder: Any, eagle_folder: Path) -> None:
    with pytest.raises(kv.ModelError, match="export it with `agentkv export`"):
        async with kv.Context.open(
            tiny_hf_folder("llama"), 1024, "fp32", backend="torch", speculative=Eagle(eagle_folder)
        ):
            pass
