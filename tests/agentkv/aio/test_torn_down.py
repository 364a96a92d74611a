"""Verbs whose coroutine is torn down at any of its waits: whoever comes next gets through, and nothing is left behind.

One more verb that waits for something is a row of DOORS.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import pytest

import agentkv as kv
from agentkv._engine.interface import SPARE_SEQUENCES
from agentkv.serve.conversations import ConversationCache
from tests.waiting import PATIENCE, until

from ..torn_down import torn_down_at

pytestmark = pytest.mark.asyncio  # trio tears no coroutine down that waits

MOST_WAITS = 200
LONG = "the " * 2100  # so long that it is encoded beside the event loop


@dataclass
class Desk:
    """What a verb works on: a branch with cells of its own, another that began as it did, an agent, idle branches."""

    ctx: kv.Context
    branch: kv.Branch
    other: kv.Branch
    agent: kv.Agent[None, str]
    shelf: ConversationCache
    files: Path


@dataclass(frozen=True)
class Door:
    verb: Callable[[Desk], Coroutine[Any, Any, Any]]
    offloaded: bool = False  # the branch is, before
    after: Callable[[Desk], Awaitable[Any]] = lambda desk: desk.branch.extend([5])


async def saved(desk: Desk) -> None:
    await desk.branch.save(desk.files / "after")


async def trunk_again(desk: Desk) -> None:
    await (await desk.agent.trunk(desk.ctx)).close()


async def load(desk: Desk) -> None:
    await (await desk.ctx.load(desk.files / "saved")).close()


async def begin(desk: Desk) -> None:
    await (await desk.ctx.branch(LONG)).close()


async def fork(desk: Desk) -> None:
    await (await desk.branch.fork()).close()


async def stream(desk: Desk) -> None:
    async with desk.branch.stream(max_tokens=3, buffer=1) as tokens:
        async for _ in tokens:
            pass


async def turn(desk: Desk) -> None:
    with suppress(kv.LimitReached):
        async with desk.agent.stream(desk.branch, "Hello.") as events:
            async for _ in events:
                pass


async def extend_once_free(desk: Desk) -> None:
    await until(lambda: desk.branch._handle.state.lease is None)  # the turn ends in its own task
    await desk.branch.extend([5])


DOORS = {
    "offload": Door(lambda desk: desk.branch.offload()),
    "offload to a file": Door(lambda desk: desk.branch.offload(desk.files)),
    "extend": Door(lambda desk: desk.branch.extend([6, 7]), offloaded=True),
    "generate": Door(lambda desk: desk.branch.generate(max_tokens=2), offloaded=True),
    "fork": Door(fork, offloaded=True),
    "rollback": Door(lambda desk: desk.branch.rollback(4), offloaded=True),
    "select": Door(lambda desk: desk.branch.select(["a", "bc"]), offloaded=True),
    "logits": Door(lambda desk: desk.branch.logits(), offloaded=True),
    "forget": Door(lambda desk: desk.branch.forget(1, 2), offloaded=True),
    "adopt": Door(lambda desk: desk.other.adopt(desk.branch), offloaded=True),
    "save": Door(lambda desk: desk.branch.save(desk.files / "torn"), offloaded=True, after=saved),
    "load": Door(load, after=load),
    "trunk": Door(lambda desk: desk.agent.trunk(desk.ctx), after=trunk_again),
    "branch": Door(begin, after=begin),
    "stream": Door(stream, offloaded=True),
    "a turn's stream": Door(turn, after=extend_once_free),
}  # fmt: skip


async def desk_with(ctx: kv.Context, trunk: kv.Branch, files: Path, door: Door) -> Desk:
    branch, other = await trunk.fork(2)
    await kv.gather(branch.extend([3, 4, 5]), other.extend([6]))
    shelf = ConversationCache(4)
    shelf.put("idle", await branch.fork(), promised=True)
    await shelf.kept("idle").branch.extend([9])  # type: ignore[union-attr]
    if door.offloaded:
        await branch.offload()
    agent = kv.Agent(instructions="Be brief.", max_tokens=2)
    return Desk(ctx, branch, other, agent, shelf, files)


@pytest.mark.parametrize("name", DOORS)
async def test_whoever_comes_next_gets_through(name: str, tmp_path: Path) -> None:
    door = DOORS[name]
    async with kv.Context.open(kv.models.nano(), capacity=8192, threads=1) as ctx:
        trunk = await ctx.branch("The quick brown fox")
        await trunk.save(tmp_path / "saved")
        for suspension in range(MOST_WAITS):
            desk = await desk_with(ctx, trunk, tmp_path, door)
            torn = await torn_down_at(door.verb(desk), suspension)
            with anyio.fail_after(PATIENCE):
                await door.after(desk)
                await ctx._core.loop.call(lambda engine: engine.check_owners())  # type: ignore[attr-defined]
            assert ctx._core.loop.pins.value == SPARE_SEQUENCES
            for branch in (desk.branch, desk.other):
                await branch.close()
            while desk.shelf.close_oldest():
                pass
            if not torn:
                break
        assert 0 < suspension < MOST_WAITS, "it never waits"
