"""The SDK as users of asyncio write it; what must hold on trio too is in the other suites."""

from __future__ import annotations

import asyncio
import gc
import threading

import anyio
import numpy as np
import pytest

import agentkv as kv
from agentkv._engine import loop
from agentkv._engine.mailbox import Flush
from agentkv._state.branch_state import BranchStates
from tests.waiting import NEVER, PATIENCE, SOON

from ..conftest import OpenContext, after_forwards, event_loop_goes_first, loop_threads
from ..engine.test_settlements import fail_once

pytestmark = pytest.mark.asyncio

LONG = {"max_tokens": 1900, "sampling": kv.Sampling(temperature=1, seed=8, repetition_penalty=0.1)}


async def check(branch: kv.Branch) -> None:
    """A branch's logits are those of its tokens."""
    fresh = await branch.context.branch(branch.tokens)
    np.testing.assert_array_equal(await branch.logits(), await fresh.logits())


@pytest.mark.usefixtures("forwards_wait")
async def test_gather_shares_the_forwards(open_context: OpenContext) -> None:
    async with open_context() as ctx:
        trunk = await ctx.branch("The quick brown fox")
        kids = await trunk.fork(4)
        alone = await trunk.generate(max_tokens=16)
        before = ctx.stats.forwards
        outs = await asyncio.gather(*(kid.generate(max_tokens=16) for kid in kids))
        assert [out.tokens for out in outs] == [alone.tokens] * 4
        assert 0 < ctx.stats.forwards - before <= 16


async def test_gather_returns_exceptions_beside_results(open_context: OpenContext) -> None:
    async with open_context() as ctx:
        trunk = await ctx.branch("The quick")
        good, bad = await trunk.fork(2)
        made, refused = await asyncio.gather(good.generate(max_tokens=3), bad.extend(""), return_exceptions=True)
        assert isinstance(made, kv.Generation)
        assert isinstance(refused, kv.InvalidInput)


async def test_a_task_group_that_fails_cancels_its_generations(open_context: OpenContext) -> None:
    async with open_context() as ctx:
        kids = await (await ctx.branch("The quick")).fork(3)

        async def fail() -> None:
            await after_forwards(ctx, 5)
            raise KeyError("a tool failed")

        tasks: list[asyncio.Task[kv.Generation]] = []

        async def fan_out() -> None:
            async with asyncio.TaskGroup() as group:
                tasks.extend(group.create_task(kid.generate(**LONG)) for kid in kids)
                group.create_task(fail())

        with pytest.raises(ExceptionGroup) as caught:
            await fan_out()
        assert caught.group_contains(KeyError, match="a tool failed")
        assert all(task.cancelled() for task in tasks)
        for kid in kids:
            assert 2 < len(kid) < 1900
            await check(kid)


async def test_a_task_group_ends_with_its_generations(open_context: OpenContext) -> None:
    async with open_context() as ctx:
        trunk = await ctx.branch("The quick")
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(kid.generate(max_tokens=8)) for kid in await trunk.fork(3)]
        expected = await trunk.generate(max_tokens=8)
        assert [task.result().tokens for task in tasks] == [expected.tokens] * 3


async def test_wait_for_ends_a_generation_that_takes_too_long(open_context: OpenContext) -> None:
    async with open_context() as ctx:
        branch = await ctx.branch("The quick")
        async with event_loop_goes_first():  # which finds that the time is up long before the generation's end
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(branch.generate(**LONG), SOON)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(SOON):
                    await branch.generate(**LONG)
        await check(branch)
        made = await asyncio.wait_for(branch.generate(max_tokens=2), PATIENCE)
        assert branch.tokens[-len(made.tokens) :] == made.tokens


async def test_wait_returns_the_first_branch_that_ends(open_context: OpenContext) -> None:
    async with open_context() as ctx:
        trunk = await ctx.branch("The quick")
        fast, slow = await trunk.fork(2)
        tasks = [asyncio.create_task(fast.generate(max_tokens=2)), asyncio.create_task(slow.generate(**LONG))]
        done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        assert (done, pending) == ({tasks[0]}, {tasks[1]})
        tasks[1].cancel()
        await asyncio.wait(pending)
        await trunk.adopt(fast)
        await check(slow)


async def test_a_queue_between_a_stream_and_its_reader(open_context: OpenContext) -> None:
    async with open_context() as ctx:
        trunk = await ctx.branch("The quick brown fox")
        kid = await trunk.fork()
        queue: asyncio.Queue[int | None] = asyncio.Queue(maxsize=2)

        async def produce() -> None:
            async with kid.stream(max_tokens=12, buffer=2) as stream:
                async for token in stream:
                    await queue.put(token.id)
            await queue.put(None)

        producer = asyncio.create_task(produce())
        read = []
        while (token := await queue.get()) is not None:
            read.append(token)
        await producer
        assert read == (await trunk.generate(max_tokens=12)).tokens


async def test_a_tool_in_a_thread_while_others_generate(open_context: OpenContext) -> None:
    async with open_context() as ctx:
        calls, thinks = await (await ctx.branch("The quick")).fork(2)
        enough = threading.Event()
        thinking = asyncio.create_task(thinks.generate(**LONG))
        tool = asyncio.create_task(asyncio.to_thread(enough.wait, 20))
        await after_forwards(ctx, 5)  # the generation goes on while the tool runs
        assert not tool.done()
        enough.set()
        assert await tool
        await calls.extend(" found")
        thinking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await thinking
        await check(calls)
        await check(thinks)


async def test_asyncio_tasks_can_be_cancelled_twice(open_context: OpenContext) -> None:
    async with open_context() as ctx:
        branch = await ctx.branch("The")
        task = asyncio.create_task(branch.generate(**LONG))
        await after_forwards(ctx, 3)
        task.cancel()
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await check(branch)


async def test_a_torn_down_coroutine_leaves_nothing_running(open_context: OpenContext) -> None:
    async with open_context() as ctx:
        branch = await ctx.branch("The")
        for verb, forwards in ((branch.generate(**LONG), 3), (branch.fork(), 0)):
            verb.send(None)
            await asyncio.sleep(0)  # commands leave after a tick of the event loop
            await after_forwards(ctx, forwards)
            verb.close()
        await branch.extend("x")
        gc.collect()
        await branch.extend("y")
        assert ctx.stats.branches == 1


async def test_a_coroutine_that_reads_a_stream_can_be_torn_down(open_context: OpenContext) -> None:
    async with open_context() as ctx:
        branch = await ctx.branch("The quick")

        has_read = asyncio.Event()

        async def read() -> None:
            async with branch.stream(max_tokens=1900, buffer=2) as stream, await branch.fork():
                async for _ in stream:
                    has_read.set()
                    await asyncio.sleep(NEVER)

        for turns in (0, 1, 5):
            torn = read()
            torn.send(None)
            for _ in range(turns):
                await asyncio.sleep(0)
                await ctx._core.loop.call(lambda _: None)
            torn.close()
            await branch.rollback(2)
        task = asyncio.create_task(read())
        await has_read.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert ctx.branches == [branch]


async def test_a_torn_down_reader_leaves_what_it_read(open_context: OpenContext) -> None:
    async with open_context() as ctx:
        branch = await ctx.branch("The quick")
        before, seen = branch.tokens, []

        async def read() -> None:
            async with branch.stream(max_tokens=1900, buffer=16) as stream:
                async for token in stream:
                    seen.append(token.id)

        torn = read()
        while len(seen) < 3:
            future = torn.send(None)
            await (asyncio.sleep(0) if future is None else asyncio.wait([future]))
        torn.close()
        await ctx._core.loop.call(lambda _: None)
        assert branch.tokens == before + seen
        await check(branch)


async def test_a_coroutine_with_an_open_context_can_be_torn_down(open_context: OpenContext) -> None:
    manager = open_context()
    ctx = await manager.__aenter__()
    branch = await ctx.branch("The quick")

    async def hold() -> None:
        try:
            await asyncio.sleep(NEVER)
        except GeneratorExit as error:
            await manager.__aexit__(type(error), error, error.__traceback__)
            raise

    torn = hold()
    torn.send(None)
    torn.close()
    assert branch.closed
    assert loop_threads() == []


# On trio an exception in a callback ends the whole run.
async def test_a_flush_that_a_signal_interrupts_is_made_later(
    open_context: OpenContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, interrupted = loop.Flush, []

    def flush(upto: int, answers: int) -> Flush:
        if len(interrupted) < 3:
            interrupted.append(1)
            raise MemoryError
        return real(upto, answers)

    with anyio.fail_after(PATIENCE):
        async with open_context() as ctx:
            trunk = await ctx.branch("The quick")
            monkeypatch.setattr(loop, "Flush", flush)
            asyncio.get_running_loop().set_exception_handler(lambda *_: None)
            await trunk.extend([5])
            assert len((await trunk.generate(max_tokens=2)).tokens) == 2
    assert len(interrupted) == 3


async def test_no_memory_in_a_settlement(open_context: OpenContext, monkeypatch: pytest.MonkeyPatch) -> None:
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)
    await fail_once(open_context, monkeypatch, BranchStates, "apply", 1)


async def test_a_context_can_be_left_from_elsewhere(open_context: OpenContext) -> None:
    """Odd, but it must end: the thread is joined, and what ran on the Context's own loop hears of it."""
    manager = open_context()
    ctx = await manager.__aenter__()
    branch = await ctx.branch("The quick")
    ended: list[str] = []
    reading, left = anyio.Event(), anyio.Event()

    async def read() -> None:
        async with branch.stream(max_tokens=100, buffer=1) as tokens:
            await anext(tokens)
            reading.set()
            await left.wait()
            try:
                while True:
                    await anext(tokens)
            except kv.ContextClosed:
                ended.append("closed")

    def leave() -> None:
        async def main() -> None:
            await manager.__aexit__(None, None, None)

        asyncio.run(main())

    async with anyio.create_task_group() as group:
        group.start_soon(read)
        await reading.wait()
        thread = threading.Thread(target=leave)
        thread.start()
        with anyio.fail_after(PATIENCE):
            await anyio.to_thread.run_sync(thread.join)
            left.set()
    assert ended == ["closed"]
    assert branch.closed
