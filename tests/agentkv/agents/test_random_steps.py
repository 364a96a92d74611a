"""Random steps on conversations of agents, with calls in any spelling: each branch holds what a small model says."""

from __future__ import annotations

from pathlib import Path

import pytest

import agentkv as kv

from .turn_steps import STEPS, Steps

pytestmark = pytest.mark.anyio


async def played(files: Path, seed: int, steps: int) -> dict[str, int]:
    made: list[Steps] = []
    async with kv.testing.replies(lambda prompt: made[0].reply(prompt), capacity=12000, threads=1) as ctx:
        made.append(Steps(ctx, seed, files))
        for _ in range(steps):
            ctx._core.chat.habits.rescued = 0  # replies are of the script, whatever the model's habits are
            await made[0].one()
        for branch in made[0].talks:
            await branch.close()
        assert ctx._core.loop._worker.jobs == {}
    return made[0].counts


@pytest.mark.parametrize("seed", range(2))
async def test_a_branch_holds_what_its_steps_made(tmp_path: Path, seed: int) -> None:
    await played(tmp_path, seed, 60)


@pytest.mark.soak
async def test_ten_thousand_steps(tmp_path: Path) -> None:
    counts: dict[str, int] = {}
    for seed in range(20):
        for name, count in (await played(tmp_path, 100 + seed, 500)).items():
            counts[name] = counts.get(name, 0) + count
    assert counts.keys() == STEPS.keys()
    print(counts)
