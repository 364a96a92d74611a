"""A Context belongs to the event loop that opened it: elsewhere its verbs say so instead of waiting for ever."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import anyio.from_thread
import pytest

import agentkv as kv
from tests.waiting import PATIENCE

from ..conftest import OpenContext

pytestmark = pytest.mark.anyio


async def read(branch: kv.Branch) -> None:
    async with branch.stream(max_tokens=3) as tokens:
        async for _ in tokens:
            pass


async def close(branch: kv.Branch) -> None:
    await branch.close()


async def test_verbs_elsewhere_are_refused(open_context: OpenContext) -> None:
    async with open_context() as ctx:
        branch = await ctx.branch("The quick")
        other = await branch.fork()
        tokens = branch.tokens
        verbs: list[Callable[[], Awaitable[Any]]] = [
            lambda: branch.extend("more"),
            lambda: branch.rollback(1),
            lambda: branch.fork(),
            lambda: branch.fork(3),
            lambda: branch.generate(max_tokens=3),
            lambda: read(branch),
            lambda: branch.select(["yes", "no"]),
            lambda: branch.logits(),
            lambda: branch.adopt(other),
            lambda: ctx.branch("The"),
            lambda: ctx.branch(),
            lambda: ctx.keep(branch),
        ]

        def elsewhere(verb: Callable[[], Awaitable[Any]]) -> None:
            async def main() -> None:
                with anyio.fail_after(PATIENCE):
                    await verb()

            anyio.run(main, backend="asyncio")

        for verb in verbs:
            with pytest.raises(kv.WrongEventLoop, match="another one"):
                await anyio.to_thread.run_sync(elsewhere, verb)
        with pytest.raises(kv.WrongEventLoop):  # closed all the same, but there is nothing here to wait with
            await anyio.to_thread.run_sync(elsewhere, lambda: close(other))
        assert other.closed
        assert branch.tokens == tokens
        await branch.generate(max_tokens=3)
        assert ctx.stats.branches == 1


async def test_a_stream_is_read_where_it_was_entered(open_context: OpenContext) -> None:
    async with open_context() as ctx:
        branch = await ctx.branch("The quick")
        async with branch.stream(max_tokens=50, buffer=1) as tokens:
            first = await anext(tokens)

            def elsewhere() -> None:
                asyncio.run(asyncio.wait_for(anext(tokens), PATIENCE))

            with pytest.raises(kv.WrongEventLoop):
                await anyio.to_thread.run_sync(elsewhere)
            assert first.index == 0
            assert (await anext(tokens)).index == 1
