"""Whatever a command or its settlement raises is its own: those beside it are settled all the same."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

import agentkv as kv
from agentkv._commands import Job
from agentkv._worker import Post

from .conftest import OpenContext

pytestmark = pytest.mark.anyio


class Unusual(BaseException):
    """Neither an error nor a cancellation."""


def raising(*_: object) -> Any:
    raise Unusual("as it happens")


async def outcomes(*commands: Any) -> list[str]:
    """What so many awaitables come to, all at once."""
    ends = [""] * len(commands)

    async def one(index: int, command: Any) -> None:
        try:
            await command
        except Unusual:
            ends[index] = "unusual"
        else:
            ends[index] = "done"

    with anyio.fail_after(20):
        async with anyio.create_task_group() as group:
            for index, command in enumerate(commands):
                group.start_soon(one, index, command)
    return ends


async def test_a_settlement_that_raises(open_context: OpenContext) -> None:
    async with open_context() as ctx:
        trunk = await ctx.branch("The quick")
        kids = await trunk.fork(6)

        def job(branch: kv.Branch, finish: Any) -> Any:
            return ctx._loop.run(Job(lambda engine: engine.extend(branch.id, [5, 6]), finish))

        ends = await outcomes(*(job(kid, raising if index % 2 else lambda _: None) for index, kid in enumerate(kids)))
        assert ends == ["done", "unusual"] * 3
        assert all(kid.tokens[-2:] == [5, 6] for kid in kids)
        assert len((await trunk.generate(max_tokens=3)).tokens) == 3


async def test_a_command_that_raises(open_context: OpenContext) -> None:
    async with open_context() as ctx:
        trunk = await ctx.branch("The quick")
        ends = await outcomes(
            ctx._loop.call(raising),
            trunk.fork(2),
            ctx._loop.run(Job(raising, lambda _: None)),
            trunk.logits(),
            ctx._loop.call(raising),
            ctx.branch("more"),
        )
        assert ends == ["unusual", "done", "unusual", "done", "unusual", "done"]
        assert len((await trunk.generate(max_tokens=3)).tokens) == 3


async def test_an_undo_that_raises(open_context: OpenContext) -> None:
    async with open_context() as ctx:
        trunk = await ctx.branch("The quick")
        with anyio.fail_after(20), anyio.CancelScope() as scope:
            async with anyio.create_task_group() as group:
                group.start_soon(ctx._loop.call, lambda _: None, raising)
                group.start_soon(trunk.extend, [5] * 400)
                await anyio.lowlevel.checkpoint()
                await anyio.lowlevel.checkpoint()
                scope.cancel()
        assert trunk.text == "The quick"
        assert len((await trunk.generate(max_tokens=3)).tokens) == 3


async def test_what_a_signal_interrupts_is_settled_later(open_context: OpenContext) -> None:
    """An exception in the middle of a post, as a second Ctrl-C raises one, loses nothing behind it."""
    async with open_context() as ctx:
        trunk = await ctx.branch("The quick")
        loop, settled = ctx._loop, []
        for number in range(2):
            settlements = [lambda number=number: settled.append(number), raising, lambda: settled.append("behind")]
            loop._posts.append(Post(settlements, loop._settled))
        with pytest.raises(Unusual):
            loop._settle_posts()
        assert settled == [0]
        with pytest.raises(Unusual):
            loop._settle_posts()
        await anyio.sleep(0.01)
        assert settled == [0, "behind", 1, "behind"]
        assert len((await trunk.generate(max_tokens=2)).tokens) == 2
