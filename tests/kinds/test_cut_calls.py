"""Calls that were cut short, in every protocol, whole and streamed: nobody is told of them, and talk goes on.

To add a case, write a row of `CUTS`: what the model says, and what cuts it.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import pytest

import agentkv as kv
from agentkv.testing.replies import Reply
from tests.agentkv.serve.conftest import serving_of

from .protocols import WEATHER, ask, each_way

pytestmark = pytest.mark.anyio

USER = {"role": "user", "content": "Weather in Oslo and in Tolvik?"}
OSLO, TOLVIK = kv.testing.call("weather", city="Oslo"), kv.testing.call("weather", city="Tolvik")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Cut(NamedTuple):
    """What the model says, what cuts it, and the calls that are whole then."""

    said: Reply
    calls: int
    max_tokens: int = 200
    stop: str | None = None  # of protocols that have it


CUTS: dict[str, Cut] = {
    "before the marker ends": Cut([OSLO], 0, max_tokens=1),
    "within the name": Cut([OSLO], 0, max_tokens=5),
    "within the arguments": Cut([OSLO], 0, max_tokens=12),
    "before the last brace": Cut([OSLO], 0, max_tokens=15),
    "after text": Cut(["I look.", OSLO], 0, max_tokens=15),
    "the second of two": Cut([OSLO, TOLVIK], 1, max_tokens=30),
    "by a stop string in a value": Cut([OSLO], 0, stop="Os"),
    "by a stop string in a name": Cut([OSLO], 0, stop="wea"),
    "by a stop string, the second": Cut([OSLO, TOLVIK], 1, stop="Tol"),
    "nothing": Cut([OSLO, TOLVIK], 2),
}


@each_way
async def test_a_call_that_is_cut_is_not_told_and_ends_no_conversation(protocol: str, streamed: bool) -> None:
    saying: list[Reply] = []
    async with kv.testing.replies(lambda _: saying[-1], capacity=4096, threads=1) as ctx, serving_of(ctx) as served:
        for name, cut in CUTS.items():
            if cut.stop is not None and protocol == "responses":
                continue
            stop_name = {"messages": "stop_sequences"}.get(protocol, "stop")
            more: dict[str, Any] = {} if cut.stop is None else {stop_name: [cut.stop]}
            saying.append(cut.said)
            answer = await ask(served, protocol, streamed, [USER], tools=[WEATHER], max_tokens=cut.max_tokens, **more)
            assert (name, answer.error, len(answer.calls)) == (name, "", cut.calls)
            assert all(json.loads(arguments) for _, _, arguments in answer.calls)
            if protocol != "branches":  # where a client gets the tokens themselves
                assert "weather" not in answer.text, name
            history = [USER, answer.message]
            history += [{"role": "tool", "tool_call_id": call[0], "content": "rain"} for call in answer.calls]
            saying.append("It rains.")
            for turn in range(2):
                history.append({"role": "user", "content": f"And then? {turn}"})
                again = await ask(served, protocol, streamed, history, tools=[WEATHER])
                assert (name, again.error, again.text) == (name, "", "It rains.")
                history.append(again.message)
        await served.until_idle()


async def test_a_stream_says_what_the_whole_says_wherever_it_is_cut() -> None:
    saying: Reply = ["I look.", OSLO, TOLVIK]
    async with kv.testing.replies(lambda _: saying, capacity=4096, threads=1) as ctx, serving_of(ctx) as served:
        for protocol in ("chat", "responses", "messages"):
            for most in range(1, 60, 6):
                told = [
                    await ask(served, protocol, streamed, [USER], tools=[WEATHER], max_tokens=most)
                    for streamed in (False, True)
                ]
                assert (told[0].text, told[0].calls, told[0].ended) == (told[1].text, told[1].calls, told[1].ended)
