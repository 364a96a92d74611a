"""Messages that end before their end: what stays of them, and what their readers were told."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint

import agentkv as kv
from tests.agentkv.conftest import after_forwards
from tests.waiting import until

from .conftest import SlowReplies

pytestmark = pytest.mark.anyio

call = kv.testing.call
OSLO = call("weather", city="Oslo")
LONG = call("weather", city=" ".join(f"City {number}" for number in range(40)))
SO_MANY = 60  # forwards, after which LONG is half written, whatever comes before it
TALK = " ".join(f"Word {number} of many." for number in range(60))

Ends = Callable[[kv.Agent[None, str], kv.Branch, kv.Context], Awaitable[None]]


def weather_agent(ran: list[str], **options: Any) -> kv.Agent[None, str]:
    async def weather(city: str) -> str:
        """The weather in a city."""
        ran.append(city)
        return f"rain in {city}"

    return kv.Agent("You are Nano.", tools=[kv.tool(weather, name="weather")], **options)


async def text_until_stopped(stream: kv.AgentStream[str]) -> str:
    text = ""
    with suppress(kv.TurnStopped):
        async for event in stream:
            text += event.text if isinstance(event, kv.events.TextDelta) else ""
        raise AssertionError("the turn was not stopped")
    return text


async def is_left(agent: kv.Agent[None, str], branch: kv.Branch, ctx: kv.Context) -> None:
    stream = agent.stream(branch, "And?", keep_partial=True)
    text = ""

    async def read() -> None:
        nonlocal text
        async for event in stream:
            text += event.text if isinstance(event, kv.events.TextDelta) else ""

    async with stream, anyio.create_task_group() as group:
        group.start_soon(read)
        await after_forwards(ctx, SO_MANY)
        group.cancel_scope.cancel()
    assert text == "".join(message.content for message in branch.messages[2:] if message.role == "assistant")


async def is_stopped_in_a_stream(agent: kv.Agent[None, str], branch: kv.Branch, ctx: kv.Context) -> None:
    async def stop() -> None:
        await after_forwards(ctx, SO_MANY)
        stream.stop()

    stream = agent.stream(branch, "And?", keep_partial=True)
    async with stream, anyio.create_task_group() as group:
        group.start_soon(stop)
        text = await text_until_stopped(stream)
    assert text == "".join(message.content for message in branch.messages[2:] if message.role == "assistant")


async def is_stopped(agent: kv.Agent[None, str], branch: kv.Branch, ctx: kv.Context) -> None:
    run = agent.start(branch, "And?", keep_partial=True)
    await after_forwards(ctx, SO_MANY)
    await run.stop()
    with pytest.raises(kv.TurnStopped) as caught:
        await run
    assert caught.value.run is not None
    assert caught.value.run.messages == tuple(branch.messages[1:])


async def is_cancelled(agent: kv.Agent[None, str], branch: kv.Branch, ctx: kv.Context) -> None:
    async with anyio.create_task_group() as group:
        group.start_soon(partial(agent.run, branch, "And?", keep_partial=True))
        await after_forwards(ctx, SO_MANY)
        group.cancel_scope.cancel()


@pytest.mark.parametrize("ends", [is_left, is_stopped_in_a_stream, is_stopped, is_cancelled])
@pytest.mark.parametrize(
    ("reply", "kept"),
    [
        ([LONG], []),
        (["Let me look.", LONG], [("assistant", "Let me look.", 0)]),
        ([OSLO, LONG], [("assistant", "", 1), ("tool", "rain in Oslo", 0)]),
        (["Let me look.", OSLO, LONG], [("assistant", "Let me look.", 1), ("tool", "rain in Oslo", 0)]),
    ],
    ids=["half a call", "text and half a call", "a call and half a call", "text, a call and half a call"],
)
async def test_what_ends_early_keeps_texts_and_calls_and_no_half_of_one(
    slow_replies: SlowReplies, ends: Ends, reply: list[Any], kept: list[tuple[str, str, int]]
) -> None:
    ran: list[str] = []
    agent = weather_agent(ran)
    async with slow_replies([reply, "Fine."]) as ctx:
        branch = await agent.trunk(ctx)
        await ends(agent, branch, ctx)
        assert ran == ["Oslo"] * (OSLO in reply)
        told = [(message.role, message.content.strip(), len(message.calls)) for message in branch.messages[1:]]
        assert told == [("user", "And?", 0), *kept]
        assert all(each.error is None for message in branch.messages for each in message.calls)
        answer = await agent.run(branch, "And now?")
        assert answer.text == "Fine."


@pytest.mark.parametrize("limit", [{"max_message_tokens": 60}, {"max_tokens": 60}, {"max_calls": 1}], ids=str)
async def test_results_stay_where_a_limit_ends_the_message(slow_replies: SlowReplies, limit: dict[str, int]) -> None:
    ran: list[str] = []
    agent = weather_agent(ran, **limit)
    async with slow_replies([[OSLO, LONG]]) as ctx:
        branch = await agent.trunk(ctx)
        with pytest.raises(kv.LimitReached):
            await agent.run(branch, "And?", keep_partial=True)
        assert [message.role for message in branch.messages[1:]] == ["user", "assistant", "tool"]
        assert [each.error for each in branch.messages[2].calls] == [None]
        assert branch.messages[3].content == "rain in Oslo"


@pytest.mark.parametrize("ticks", range(0, 40, 3))
async def test_results_stay_wherever_the_turn_is_cancelled_behind_them(slow_replies: SlowReplies, ticks: int) -> None:
    """Also while they enter, which takes a forward."""
    ran: list[str] = []
    ended = anyio.Event()
    agent = weather_agent(ran, after_call=lambda context, record: ended.set())
    async with slow_replies([[OSLO], "Fine."]) as ctx:
        branch = await agent.trunk(ctx)
        async with anyio.create_task_group() as group:
            group.start_soon(partial(agent.run, branch, "And?", keep_partial=True))
            await ended.wait()
            for _ in range(ticks):
                await checkpoint()
            group.cancel_scope.cancel()
        assert [message.role for message in branch.messages[1:4]] == ["user", "assistant", "tool"]
        await agent.run(branch, "And now?", tool_choice="none")
        assert ran == ["Oslo"]


async def test_a_text_that_was_taken_back_is_not_read(slow_replies: SlowReplies) -> None:
    """Stop comes where the reader is about to have a text: it is on the branch and with the reader, or with neither."""
    agent = kv.Agent("You are Nano.")
    async with slow_replies([TALK]) as ctx:
        branch = await agent.trunk(ctx)
        async with agent.stream(branch, "And?", keep_partial=True) as events:
            await until(lambda: bool(events._pending))
            await events.stop()
            text = await text_until_stopped(events)
        assert text == events.run.text == "".join(message.content for message in branch.messages[2:])
