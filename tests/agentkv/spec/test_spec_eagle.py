"""EAGLE heads as users meet them: where they may lie, and those of other models refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import agentkv as kv
from agentkv.spec import Eagle

from ..conftest import OpenContext

pytestmark = pytest.mark.anyio


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
