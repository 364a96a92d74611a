"""Ids of calls: of one conversation none repeats, whatever of it a client still has, and the same talk has the same.

To add a case, write a row of `TRIMMED`: what a client keeps of its history.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

import agentkv as kv
from agentkv._types.message import calls_before
from tests.agentkv.serve.conftest import serving_of

from .protocols import WEATHER, ask, each_way

pytestmark = pytest.mark.anyio

Messages = list[dict[str, Any]]
CALLS = [kv.testing.call("weather", city="Oslo"), kv.testing.call("weather", city="Tolvik")]
AGAIN = {"role": "user", "content": "Again."}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


TRIMMED: dict[str, Callable[[Messages], Messages]] = {
    "all": lambda history: history,
    "the last turn": lambda history: history[-4:],
    "the last two turns": lambda history: history[-8:],
    "all but results' texts": lambda history: [m | {"content": ""} if m["role"] == "tool" else m for m in history],
}


@each_way
async def test_no_id_comes_again(protocol: str, streamed: bool) -> None:
    said = [CALLS]
    async with kv.testing.replies(lambda _: said[0], capacity=8192, threads=1) as ctx, serving_of(ctx) as served:
        for name, trim in TRIMMED.items():
            history: Messages = []
            for _ in range(4):
                history = [*trim(history), AGAIN]
                answer = await ask(served, protocol, streamed, history, tools=[WEATHER], max_tokens=200)
                assert (name, answer.error, len(answer.calls)) == (name, "", 2)
                made = [call[0] for call in answer.calls]
                known = [call["id"] for message in history for call in message.get("tool_calls", ())]
                assert len({*made, *known}) == len(made) + len(known), (name, made, known)
                assert all(re.fullmatch("[a-z0-9]{9}", each) for each in made)
                results = [{"role": "tool", "tool_call_id": each, "content": "rain"} for each in reversed(made)]
                history = [*history, answer.message, *results]
        await served.until_idle()


async def test_ids_are_those_of_the_conversation_and_of_no_other() -> None:
    found: list[list[str]] = []
    for _ in range(2):
        async with kv.testing.replies(lambda _: CALLS, capacity=8192, threads=1) as ctx, serving_of(ctx) as served:
            for protocol in ("chat", "responses", "messages"):
                for streamed in (False, True):
                    answer = await ask(served, protocol, streamed, [AGAIN], tools=[WEATHER], max_tokens=200)
                    found.append([call[0] for call in answer.calls])
            other = await ask(served, "chat", False, [AGAIN | {"content": "More."}], tools=[WEATHER], max_tokens=200)
    assert len({*map(tuple, found)}) == 1
    assert {*found[0]}.isdisjoint(call[0] for call in other.calls)


@pytest.mark.parametrize("stream", [False, True])
async def test_choices_of_one_prompt_have_ids_of_their_own(stream: bool) -> None:
    async with kv.testing.replies(lambda _: CALLS, capacity=8192, threads=1) as ctx, serving_of(ctx) as served:
        asked: Any = {"model": "nano", "messages": [AGAIN], "tools": [WEATHER], "n": 3, "max_tokens": 200}
        made = await served.openai.chat.completions.create(**asked, stream=stream)
        if stream:
            choices = [choice for chunk in [chunk async for chunk in made] for choice in chunk.choices]
            calls = [call for choice in choices for call in choice.delta.tool_calls or () if call.id]
        else:
            calls = [call for choice in made.choices for call in choice.message.tool_calls]
        assert len(calls) == len({call.id for call in calls}) == 6


async def test_results_of_a_conversation_that_waits_may_have_ids_of_another_maker() -> None:
    async with kv.testing.replies(lambda _: CALLS, capacity=8192, threads=1) as ctx, serving_of(ctx) as served:
        first = await ask(served, "chat", False, [AGAIN], tools=[WEATHER], max_tokens=200)
        message = first.message
        for number, call in enumerate(message["tool_calls"]):
            call["id"] = f"call_of_somebody_{number}"
        results = [
            {"role": "tool", "tool_call_id": f"call_of_somebody_{number}", "content": f"rain {number}"}
            for number in (1, 0)
        ]
        second = await ask(served, "chat", False, [AGAIN, message, *results], tools=[WEATHER], max_tokens=200)
        assert second.error == ""
        assert second.cached >= first.prompt_tokens
        assert not {call[0] for call in first.calls} & {call[0] for call in second.calls}


async def test_the_sdk_counts_on_from_the_calls_that_there_are() -> None:
    async with kv.testing.replies(lambda _: CALLS, capacity=2048, threads=1) as ctx:
        branch = await ctx.branch([AGAIN], tools=[WEATHER])
        for _ in range(2):
            await branch.generate(max_tokens=200)
            calls = branch.messages[-1].calls
            await branch.extend([*(kv.Message("tool", "rain", call_id=call.id) for call in calls), AGAIN])
        assert [call.id for call in branch.messages[-4].calls] == ["call00002", "call00003"]
        rest = await ctx.branch(branch.messages[-5:], tools=[WEATHER])
        await rest.generate(max_tokens=200)
        assert [call.id for call in rest.messages[-1].calls] == ["call00004", "call00005"]


def test_ids_of_others_count_as_calls() -> None:
    calls = [{"id": name} for name in ("x", "call00007", None, "call9999999999")]
    assert calls_before([{"tool_calls": calls}, {"role": "user"}]) == 8
    assert calls_before([{"tool_calls": calls[:1] * 3}]) == 3
