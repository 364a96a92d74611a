"""Calls of the engine that threads wait for: each gets its result, its error, or hears that the Context is over."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import anyio
import pytest

import agentkv as kv
from agentkv._context.handle import core_of
from agentkv._engine.loop import StepLoop
from tests.waiting import until

from ..conftest import OpenContext

pytestmark = pytest.mark.anyio


class Caller:
    """A thread that makes calls until one fails."""

    def __init__(self, loop: StepLoop, verb: Callable[[Any, Any], Any]) -> None:
        self.results: list[Any] = []
        self.error: Exception | None = None
        self._loop, self._verb = loop, verb
        self.thread = threading.Thread(target=self._call)
        self.thread.start()

    def _call(self) -> None:
        try:
            while True:
                self.results.append(self._loop.call_in_thread(self._verb))
        except Exception as error:
            self.error = error


async def test_threads_call_between_forwards(open_context: OpenContext) -> None:
    async with open_context() as ctx:
        branch = await ctx.branch([1, 2, 3])
        caller = Caller(core_of(ctx).loop, lambda engine, cells: (engine.length(branch.id), cells.kv_bytes))
        generated = await branch.generate(max_tokens=32)
        await until(lambda: len(caller.results) > 10)
    assert len(generated.tokens) > 0
    await anyio.to_thread.run_sync(caller.thread.join)
    assert isinstance(caller.error, kv.ContextClosed)
    lengths = [length for length, _ in caller.results]
    assert lengths[0] >= 3
    assert lengths == sorted(lengths)


async def test_a_call_that_fails_fails_in_its_thread(open_context: OpenContext) -> None:
    async with open_context() as ctx:
        caller = Caller(core_of(ctx).loop, lambda engine, _: engine.length(99))
        await until(lambda: caller.error is not None)
        assert isinstance(caller.error, kv.BranchClosed)
        assert len(await ctx.branch([1, 2, 3])) == 3


async def test_a_step_loop_that_fails_fails_them_all(
    open_context: OpenContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("broken")

    async with open_context() as ctx:
        branch = await ctx.branch([1, 2, 3])
        monkeypatch.setattr("agentkv._engine.worker.EngineWorker.step", broken)
        with pytest.raises(kv.StepFailed, match="broken"):
            await branch.generate(max_tokens=4)
        caller = Caller(core_of(ctx).loop, lambda engine, _: engine.live())
        await until(lambda: caller.error is not None)
        assert isinstance(caller.error, kv.StepFailed)
