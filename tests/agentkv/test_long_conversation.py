"""A conversation that goes on past its cells and positions: memory and work per turn stay what they are."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import pytest

import agentkv as kv

CAPACITY = 700
OPTIONS: dict[str, Any] = {"capacity": CAPACITY, "kv_dtype": "fp32", "threads": 1, "retain": 0}


def resident() -> int:
    """Bytes of memory that this process takes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def forgotten(ctx: kv.Context, branch: kv.Branch) -> list[tuple[int, int, int, bool]]:
    """What a branch forgot, as the engine would save it: (first, last, tokens that there were, made room)."""

    def look(engine: Any) -> list[tuple[int, int, int, bool]]:
        hold, (image,) = engine.pin([branch.id])
        engine.unpin(hold.id)
        return list(image.forgotten)

    return await ctx._core.loop.call(look)


async def computed_anew(tokens: list[int], history: list[tuple[int, int, int, bool]]) -> np.ndarray[Any, Any]:
    """The logits of a branch with these tokens that forgot the same."""
    async with kv.Context.open(kv.models.nano(), **{**OPTIONS, "capacity": 4096}) as ctx:
        branch = await ctx.branch()
        for first, last, length, _ in history:
            if length > len(branch):
                await branch.extend(tokens[len(branch) : length])
            await branch.forget(first, last)
        if len(tokens) > len(branch):
            await branch.extend(tokens[len(branch) :])
        return await branch.logits()


async def converse(turns: int, look_every: int) -> None:
    """Questions and answers, some of them compared with a branch that is computed anew."""
    fed: list[int] = []  # beside the question and the answer
    memory: list[int] = []
    async with kv.Context.open(kv.models.nano(), overflow=kv.overflow.DropOldest(batch=200), **OPTIONS) as ctx:
        branch = await ctx.branch([{"role": "system", "content": "You are Nano, a desk agent."}])
        for turn in range(1, turns + 1):
            before = ctx.stats
            asked = f"What is {turn % 97} times {turn % 89}?"
            extended = await branch.extend([{"role": "user", "content": asked}])
            assert extended.rewritten == 0, turn
            generation = await branch.generate(max_tokens=24)
            assert generation.finish_reason in ("eos", "length"), turn
            stats = ctx.stats
            assert stats.cells_used <= CAPACITY
            assert stats.branches == 1
            assert branch.tokens[-len(generation.tokens) :] == generation.tokens
            assert branch.messages[-2].content == asked
            fed.append(stats.tokens - before.tokens - extended.added - len(generation.tokens))
            if turn % look_every == 0:
                assert (await branch.logits() == await computed_anew(branch.tokens, await forgotten(ctx, branch))).all()
                memory.append(resident())
    assert max(fed) <= CAPACITY
    early, late = fed[: turns // 2], fed[turns // 2 :]
    assert 0 < sum(fed) / turns < 16
    assert max(memory[len(memory) // 2 :]) - max(memory[: len(memory) // 2]) < 24 << 20
    print(
        f"\n{turns} turns: {sum(early) / len(early):.1f} tokens fed again a turn in the first half, "
        f"{sum(late) / len(late):.1f} in the second; {ctx.stats.refed} fed again; resident {memory[0] >> 20} to "
        f"{memory[-1] >> 20} MiB; {len(memory)} rows of logits equal to those of a branch computed anew"
    )


def test_a_conversation_outlives_its_positions() -> None:
    anyio.run(converse, 150, 30)  # some 5,000 tokens


@pytest.mark.soak
def test_a_conversation_of_many_turns(soak_count: int) -> None:
    anyio.run(converse, soak_count, 250)
