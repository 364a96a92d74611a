"""What the reader of a turn's stream gets, in whatever tick it comes, and what waits for the turn meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from types import SimpleNamespace
from typing import Any, TypeAlias, cast

import anyio
import pytest
import sniffio

import agentkv as kv
from tests.waiting import PATIENCE, until

from .conftest import SlowReplies

pytestmark = pytest.mark.anyio


@pytest.fixture
async def turn() -> AsyncIterator[Any]:
    """What a stream knows of its turn."""
    async with kv.testing.replies([], threads=1) as ctx:
        yield SimpleNamespace(branch=await ctx.branch([5]), failed=None)


StreamOf: TypeAlias = Callable[..., kv.AgentStream[Any]]


@pytest.fixture
def stream_of(turn: Any) -> StreamOf:
    """Makes a stream whose turn does this with it."""

    def make(tell: Callable[[kv.AgentStream[Any]], Awaitable[None]], **options: Any) -> kv.AgentStream[Any]:
        async def begin(*_: Any) -> Any:
            return turn

        async def play(_: Any) -> Any:
            await tell(stream)

        stream: kv.AgentStream[Any] = kv.AgentStream(begin, play, None, **{"waits": True, **options})
        return stream

    return make


@pytest.mark.parametrize("told", ["while the reader has the text", "while the text is on its way"])
async def test_a_text_waits_for_its_reader_whatever_else_is_told(stream_of: StreamOf, told: str) -> None:
    """Calls run beside the message, and tell of themselves at any moment; with `waits` each text waits to be heard."""
    has_text, is_over, heard = anyio.Event(), anyio.Event(), list[kv.events.Event]()
    text, other = kv.events.TextDelta("Well."), kv.events.RolledBack(0, "another one")

    async def tell(stream: kv.AgentStream[Any]) -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(tell_text, stream)
            if told == "while the reader has the text":
                await has_text.wait()
            group.start_soon(stream._tell, other)

    async def tell_text(stream: kv.AgentStream[Any]) -> None:
        await stream._tell(text)
        is_over.set()

    with anyio.fail_after(PATIENCE):
        async with stream_of(tell) as events:
            async for event in events:
                heard.append(event)
                if event is text:
                    has_text.set()
                    await anyio.wait_all_tasks_blocked()
                    assert not is_over.is_set()
            assert sorted(map(id, heard)) == sorted(map(id, [text, other]))
            assert is_over.is_set()


@pytest.mark.parametrize("ticks", range(6))
@pytest.mark.parametrize("by", ["the scope of the reader", "asyncio"])
@pytest.mark.parametrize("last", [kv.events.TextDelta("C"), kv.events.Finished(cast("Any", None))])
async def test_a_reader_that_is_cancelled_at_any_tick_has_missed_nothing_when_it_comes_back(
    stream_of: StreamOf, by: str, ticks: int, last: kv.events.Event
) -> None:
    if by == "asyncio" and sniffio.current_async_library() != "asyncio":
        pytest.skip("its tasks are cancelled by no scope")
    told = [kv.events.TextDelta("A"), kv.events.TextDelta("B"), last]
    heard = list[kv.events.Event]()

    async def tell(stream: kv.AgentStream[Any]) -> None:
        for event in told:
            await some_checkpoints(4)
            await stream._tell(event)

    async def read(events: kv.AgentStream[Any]) -> None:
        heard.append(await events.__anext__())

    async def read_until_cancelled(events: kv.AgentStream[Any]) -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(read, events)
            await some_checkpoints(4 + ticks)
            group.cancel_scope.cancel()

    async def read_in_a_task(events: kv.AgentStream[Any]) -> None:
        task = asyncio.create_task(read(events))
        await some_checkpoints(4 + ticks)
        task.cancel()
        await asyncio.wait([task])

    with anyio.fail_after(PATIENCE):
        async with stream_of(tell) as events:
            for _ in told:
                await (read_in_a_task if by == "asyncio" else read_until_cancelled)(events)
            heard += [event async for event in events]
    assert list(map(id, heard)) == list(map(id, told))


@pytest.mark.parametrize("ticks", range(4))
async def test_a_reader_gets_no_text_that_its_turn_counts_as_unread(stream_of: StreamOf, ticks: int) -> None:
    """A turn that is stopped in the tick in which its reader wakes: trio has either go first."""
    for _ in range(60):
        text, scope, kept, heard = kv.events.TextDelta("Well."), anyio.CancelScope(), list[bool](), list[bool]()

        async def tell(stream: kv.AgentStream[Any], text: Any = text, scope: Any = scope, kept: Any = kept) -> None:
            await some_checkpoints(4)
            with scope:
                try:
                    await stream._tell(text)
                except BaseException:
                    kept.append(not stream._take_back(text))
                    raise
                kept.append(True)

        async def stop(events: kv.AgentStream[Any], scope: Any = scope, heard: Any = heard) -> None:
            while not events._pending and not heard:
                await anyio.lowlevel.checkpoint()
            await some_checkpoints(ticks)
            scope.cancel()

        with anyio.fail_after(PATIENCE):
            async with anyio.create_task_group() as group, stream_of(tell) as events:
                group.start_soon(stop, events)
                async for _ in events:
                    heard.append(True)
        assert kept == (heard or [False])


async def some_checkpoints(count: int) -> None:
    for _ in range(count):
        await anyio.lowlevel.checkpoint()


async def test_two_tasks_cannot_read_one_stream(stream_of: StreamOf) -> None:
    async def tell(stream: kv.AgentStream[Any]) -> None:
        await anyio.sleep_forever()

    async with stream_of(tell) as events, anyio.create_task_group() as group:
        group.start_soon(events.__anext__)
        await anyio.wait_all_tasks_blocked()
        with pytest.raises(kv.BranchBusy, match="two tasks"):
            await events.__anext__()
        group.cancel_scope.cancel()
    with pytest.raises(StopAsyncIteration):
        await events.__anext__()


async def fork(stream: kv.AgentStream[Any]) -> None:
    assert [(await turn).text.split() for turn in await stream.fork(2)] == [["word"] * 200] * 2


async def steer(stream: kv.AgentStream[Any]) -> None:
    await stream.steer("And then?")


@pytest.mark.parametrize(("wait", "n_answers"), [(fork, 1), (steer, 2)])
class TestWaitingForTheTurn:
    """What waits for the turn itself, by the number of answers that the turn then has."""

    @pytest.mark.parametrize("at", [1, 100])
    async def test_a_reader_may_wait_for_it(
        self, slow_replies: SlowReplies, wait: Any, n_answers: int, at: int
    ) -> None:
        """It goes on, however many events its reader has not read."""
        agent, heard = kv.Agent("You are Nano."), list[str]()
        async with slow_replies(lambda _: "word " * 200) as ctx:
            stream = agent.stream(await agent.trunk(ctx), "And?")
            with anyio.fail_after(PATIENCE):
                async with stream as events:
                    async for event in events:
                        if isinstance(event, kv.events.TextDelta):
                            heard.append(event.text)
                            if len(heard) == at:
                                await until(lambda: len(stream._pending) > 64)
                                await wait(stream)
        assert "".join(heard).count("word") == 200 * n_answers

    async def test_a_reader_for_which_it_waits_has_another_task_do_so(
        self, slow_replies: SlowReplies, wait: Any, n_answers: int
    ) -> None:
        agent, heard = kv.Agent("You are Nano."), list[str]()
        async with slow_replies(lambda _: "word " * 200) as ctx:
            stream = agent.stream(await agent.trunk(ctx), "And?", keep_partial=True)
            with anyio.fail_after(PATIENCE):
                async with anyio.create_task_group() as group, stream as events:
                    async for event in events:
                        if isinstance(event, kv.events.TextDelta):
                            heard.append(event.text)
                            if len(heard) == 2:
                                with pytest.raises(kv.AgentKVError, match="another task while this one reads on"):
                                    await wait(stream)
                                group.start_soon(wait, stream)
            assert "".join(heard).count("word") == 200 * n_answers
            with pytest.raises(kv.TurnNotRunning):
                await wait(stream)
