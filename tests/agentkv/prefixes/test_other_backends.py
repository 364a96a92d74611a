"""Prefixes on backends that map no files and promise no bits: they are copied, and rows are as close as floats."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import agentkv as kv
from tests.conftest import FolderFactory
from tests.rows import one_in

from .opening import entries, written

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("anyio_backend", ["asyncio"])]

SYSTEM = [3 + i * 11 % 290 for i in range(420)]
KINDS = [("torch", "llama"), ("mlx", "llama"), ("mlx", "qwen3_next"), ("mlx", "gemma3")]


@pytest.mark.parametrize(("backend", "kind"), one_in(2, KINDS))
async def test_prompts_read_what_two_began_with(
    backend: str, kind: str, tmp_path: Path, tiny_hf_folder: FolderFactory, tiny_exported_folder: FolderFactory
) -> None:
    if backend == "mlx":
        pytest.importorskip("mlx.core")
    model = tiny_hf_folder(kind) if backend == "torch" else tiny_exported_folder(kind, backend=backend)
    rows = []
    for number, tokens in enumerate((0, 0, 384)):
        async with kv.Context.open(model, 1024, "fp32", backend=backend, prefix_cache=tmp_path) as ctx:
            branch = await ctx.branch([*SYSTEM, 7 + number, 9])
            await written(ctx)
            assert (ctx.model_info.backend, branch.reused, ctx.stats.prefix_cache_tokens) == (backend, tokens, tokens)
            await branch.rollback(len(SYSTEM))
            rows.append(await branch.logits())
            assert ctx.stats.kv_bytes_shared == 0
    assert len(entries(tmp_path)) == 1
    np.testing.assert_allclose(rows[2], rows[0], atol=1e-4)
