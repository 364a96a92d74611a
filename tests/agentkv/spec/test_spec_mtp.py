"""Multi-token prediction as users meet it: drafts as deep as they are asked for, and folders that have no layer."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import agentkv as kv
from agentkv._bench.shares import StepShares
from agentkv.spec import MTP

from ..conftest import OpenContext

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("depth", [1, 2, 3])
async def test_a_draft_is_no_deeper_than_it_is_asked_to_be(mtp_folder: Path, depth: int) -> None:
    strategy = MTP(depth=depth, adaptive=False, width=2, top_k=2)
    async with kv.Context.open(mtp_folder, 1024, "fp32", threads=1, speculative=strategy) as ctx:
        branch = await ctx.branch([7] * 20)
        shares = await StepShares.of(ctx)
        await branch.generate(max_tokens=30)
        found = shares.take()
    # The first level has two nodes, each further one four.
    assert max(share.drafted for share in found) == 2 + 4 * (depth - 1)
    assert all(share.accepted <= depth for share in found)


@pytest.mark.parametrize("depth", [0, 17, 1.5, "2"])
def test_depths_that_cannot_be(depth: Any) -> None:
    with pytest.raises(kv.InvalidInput, match="depth"):
        MTP(depth=depth)


async def test_a_model_without_a_layer_says_what_to_do(open_context: OpenContext) -> None:
    with pytest.raises(kv.DraftMismatch, match=r"has no mtp\.pte.*--mtp.*Suffix"):
        async with open_context(speculative=MTP()):
            pass


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("feature_dim", 96, "reads 96 per row, the target gives out 64"),
        ("tokenizer_fingerprint", "sha256:" + 64 * "0", "differ in their tokenizers"),
        ("fingerprint", "sha256:" + 64 * "0", r"mtp\.pte: damaged or replaced"),
    ],
)
async def test_a_layer_of_another_model_is_refused(
    mtp_folder: Path, tmp_path: Path, field: str, value: Any, says: str
) -> None:
    folder = shutil.copytree(mtp_folder, tmp_path / "model")
    facts = json.loads((folder / "mtp.json").read_text())
    (folder / "mtp.json").write_text(json.dumps(facts | {field: value}))
    with pytest.raises(kv.AgentKVError, match=says):
        async with kv.Context.open(folder, 1024, speculative=MTP()):
            pass
