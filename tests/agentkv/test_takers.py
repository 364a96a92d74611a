"""Whatever takes sequences of the cache, by the hundred at once beside as many branches as there may be.

What needs a sequence for a while waits for one; what makes a branch gets it, or is refused before anything changes; and
branches that have no part in it keep their logits, to the bit. One more case is a row of CASES, one more taker a row of
TAKERS.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import agentkv as kv
from agentkv._engine.interface import MOST_BRANCHES, SPARE_SEQUENCES

from .books import books_are_held  # noqa: F401 - a fixture

pytestmark = [pytest.mark.asyncio, pytest.mark.usefixtures("books_are_held")]

Takes = Callable[[kv.Context, list[kv.Branch], int, Path], Awaitable[Any]]


async def save_all(ctx: kv.Context, branches: list[kv.Branch], number: int, files: Path) -> None:
    await ctx.save(files / f"all {number}", {str(i): branch for i, branch in enumerate(branches[number::7][:9])})


async def select(ctx: kv.Context, branches: list[kv.Branch], number: int, files: Path) -> None:
    await branches[number].select(["yes", "no", "maybe", "or so"])


WAIT: dict[str, Takes] = {
    "save": lambda ctx, branches, number, files: branches[number].save(files / str(number)),
    "save all": save_all,
    "offload": lambda ctx, branches, number, files: branches[-1 - number].offload(),
    "offload to a file": lambda ctx, branches, number, files: branches[-1 - number].offload(files),
    "select": select,
}
MAKE: dict[str, Takes] = {
    "load": lambda ctx, branches, number, files: ctx.load(files / "one"),
    "fork": lambda ctx, branches, number, files: branches[0].fork(),
    "branch": lambda ctx, branches, number, files: ctx.branch([50 + number % 100, 3, 4]),
}
TAKERS = WAIT | MAKE
CASES: list[tuple[int, dict[str, int]]] = [  # branches that live, and how many of each at once
    (1, {"load": 100, "fork": 100, "branch": 100}),
    (200, {"load": 120}),
    (240, {"offload": 240, "branch": 16}),
    (250, {"save": 23, "fork": 1}),
    (250, {"save": 100, "offload": 100, "fork": 20, "branch": 20, "load": 20}),
    (255, {"save all": 30, "select": 100, "load": 30}),
    (256, {"offload to a file": 100, "save": 100}),
    (256, {"select": 200, "save": 50, "fork": 1}),
]


@pytest.mark.parametrize(("live", "takers"), CASES, ids=str)
async def test_takers_by_the_hundred(live: int, takers: dict[str, int], tmp_path: Path) -> None:
    async with kv.Context.open(kv.models.nano(), capacity=4096, threads=1) as ctx:
        trunk = await ctx.branch([5, 6, 7, 8, 9, 10, 11] * 6)
        await trunk.save(tmp_path / "one")
        branches = [trunk, *(await trunk.fork(live - 1) if live > 1 else [])]
        await kv.gather(*(branch.extend([3 + i, 4]) for i, branch in enumerate(branches)))
        before = await kv.gather(*(branch.logits() for branch in branches))

        names = [name for name, count in takers.items() for _ in range(count)]
        numbers = Counter[str]()
        work = []
        for name in names:
            work.append(TAKERS[name](ctx, branches, numbers[name], tmp_path))
            numbers[name] += 1
        outcomes = await asyncio.gather(*work, return_exceptions=True)

        refused = [name for name, outcome in zip(names, outcomes, strict=True) if isinstance(outcome, BaseException)]
        assert {type(outcome) for outcome in outcomes if isinstance(outcome, BaseException)} <= {kv.TooManyBranches}
        makes = sum(count for name, count in takers.items() if name in MAKE)
        assert set(refused) <= MAKE.keys()
        assert len(refused) == max(0, makes - (MOST_BRANCHES - live))

        assert ctx._core.loop.holds.value == SPARE_SEQUENCES
        await kv.gather(*(branch.extend([9]) for branch in branches))
        await kv.gather(*(branch.rollback(len(branch) - 1) for branch in branches))
        after = await kv.gather(*(branch.logits() for branch in branches))
        assert [i for i, (was, now) in enumerate(zip(before, after, strict=True)) if not np.array_equal(was, now)] == []
