"""What a turn leaves on its branch, as other programs read it, and what a Stop button leaves of it."""

from __future__ import annotations

import json

import anyio
import pytest

import agentkv as kv
from tests.agentkv.agents.conftest import ONE_CALL, TWO_CALLS, OpenDesk, desk_agent

pytestmark = pytest.mark.anyio


async def test_results_name_the_calls_that_they_answer(open_desk: OpenDesk) -> None:
    async with open_desk() as ctx:
        agent = desk_agent("weather", "stock")
        branch = await agent.trunk(ctx)
        runs = [await agent.run(branch, question) for question in (TWO_CALLS, ONE_CALL)]
        made = [call.id for message in branch.messages for call in message.calls]
        assert made == [message.call_id for message in branch.messages if message.role == "tool"]
        assert made == [record.id for run in runs for record in run.calls]
        assert len({*made}) == 3


async def test_a_transcript_goes_out_and_comes_back(open_desk: OpenDesk) -> None:
    async with open_desk() as ctx:
        agent = desk_agent("weather", "stock")
        branch = await agent.trunk(ctx)
        await agent.run(branch, TWO_CALLS)
        saved = json.loads(json.dumps([message.as_openai() for message in branch.messages]))
        asked, answered = saved[2], saved[3]
        assert asked["content"] is None
        assert json.loads(asked["tool_calls"][0]["function"]["arguments"]) == {"city": "Tolvik"}
        assert answered["tool_call_id"] == asked["tool_calls"][0]["id"]

        resumed = await agent.trunk(ctx)
        await resumed.extend(saved[1:])
        for one in (branch, resumed):
            await agent.run(one, ONE_CALL)
        assert resumed.tokens == branch.tokens


@pytest.mark.parametrize("pause", [0, 0.02])
async def test_stop_keeps_the_text_that_was_read(open_desk: OpenDesk, pause: float) -> None:
    """However slow the reader is: the turn does not go ahead of it."""
    async with open_desk() as ctx:
        agent = desk_agent("stock")
        whole = (await agent.run(await agent.trunk(ctx), ONE_CALL)).text
        branch = await agent.trunk(ctx)
        read = ""
        async with agent.stream(branch, ONE_CALL, keep_partial=True) as events:
            async for event in events:
                if isinstance(event, kv.events.TextDelta):
                    read += event.text
                    await anyio.sleep(pause)
                    if len(read) >= len(whole) // 2:
                        break
        assert len(read) < len(whole)
        assert branch.messages[-1].content == events.run.text == read
        assert whole.startswith(read)

        await agent.run(branch, "Thank you!")  # goes on behind what was kept
        assert [message.role for message in branch.messages[-3:]] == ["assistant", "user", "assistant"]


async def test_a_stream_that_keeps_what_was_done_may_be_read_to_its_end(open_desk: OpenDesk) -> None:
    async with open_desk() as ctx:
        agent = desk_agent("stock")
        async with agent.stream(await agent.trunk(ctx), ONE_CALL, keep_partial=True) as events:
            told = "".join([event.text async for event in events if isinstance(event, kv.events.TextDelta)])
        assert told == events.run.output
