"""Files of branches are what plain copies of them are, whatever was done to them."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest

import agentkv as kv

from .random_branches import RandomBranches

pytestmark = pytest.mark.anyio

STEPS = 30


async def play(tmp_path: Path, seeds: range) -> Counter[str]:
    counts: Counter[str] = Counter()
    async with kv.Context.open(kv.models.nano(), threads=1, capacity=4096) as ctx:
        for seed in seeds:
            case = RandomBranches(ctx, tmp_path / str(seed), seed)
            try:
                await case.play(STEPS)
            except BaseException as error:
                error.add_note(f"seed {seed}, {case.counts}")
                raise
            counts += case.counts
    return counts


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_branches_with_files_against_plain_copies(tmp_path: Path) -> None:
    counts = await play(tmp_path, range(60))
    assert min(counts[step] for step in ("edit", "rollback", "adopt", "apply", "conflict", "length")) > 10


@pytest.mark.soak
@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
async def test_so_they_are_for_long(
    tmp_path: Path, soak_count: int, capsys: pytest.CaptureFixture[str], anyio_backend: str
) -> None:
    seed = int(os.environ.get("AGENTKV_SEED", "1000"))
    counts = await play(tmp_path, range(seed, seed + soak_count // 10))
    with capsys.disabled():
        print(f"\n{soak_count // 10} cases: {dict(counts)}")
