"""Calls in another spelling than the model's format, in every protocol, whole and streamed, cut at any token.

To add a case, write a row of `SAID`: what the model says, and the calls that a client gets of it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import pytest

import agentkv as kv
from agentkv.testing.replies import Reply
from tests.agentkv.serve.conftest import Served, serving_of

from .protocols import WEATHER, ask

pytestmark = pytest.mark.anyio

USER = {"role": "user", "content": "Weather in Oslo and in Tolvik?"}
OSLO, TOLVIK = (json.dumps({"name": "weather", "arguments": {"city": city}}) for city in ("Oslo", "Tolvik"))


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Said(NamedTuple):
    """What the model says, the cities of the calls that are in it, and the text beside them."""

    reply: Reply
    cities: Sequence[str]
    text: str = ""


SAID: dict[str, Said] = {
    "a code block": Said(f"```json\n{OSLO}\n```", ["Oslo"]),
    "bare": Said(OSLO, ["Oslo"]),
    "two in a list": Said(f"[{OSLO}, {TOLVIK}]", ["Oslo", "Tolvik"]),
    "one a line": Said(f"{OSLO}\n{TOLVIK}", ["Oslo", "Tolvik"]),
    "two code blocks": Said(f"```json\n{OSLO}\n```\n```json\n{TOLVIK}\n```", ["Oslo", "Tolvik"]),
    "a tag of its own": Said(f"<tools>\n{OSLO}\n</tools>", ["Oslo"]),
    "python": Said('weather(city="Oslo")', ["Oslo"]),
    "a list of python": Said('[weather(city="Oslo"), weather(city="Tolvik")]', ["Oslo", "Tolvik"]),
    "behind text": Said(f"I look.\n```json\n{OSLO}\n```", ["Oslo"], "I look."),
    "before text": Said(f"```json\n{OSLO}\n```\nOne moment.", ["Oslo"], "One moment."),
    "between texts": Said(f"I look.\n{OSLO}\nOne moment.", ["Oslo"], "I look.\nOne moment."),
    "one of each spelling": Said(
        [f"I look.\n{TOLVIK}\n", kv.testing.call("weather", city="Oslo")], ["Oslo", "Tolvik"], "I look."
    ),
    "shown to a person": Said(f"Write {OSLO} and then explain. " + "It is a call. " * 20, []),
    "another tool": Said('{"name": "wind", "arguments": {"city": "Oslo"}}', []),
    "no call": Said("It rains.", [], "It rains."),
}


@pytest.mark.parametrize("protocol", ["chat", "responses", "messages"])
async def test_a_stream_says_what_the_whole_says_wherever_it_is_cut(protocol: str) -> None:
    saying: list[Reply] = []
    async with kv.testing.replies(lambda _: saying[-1], capacity=8192, threads=1) as ctx, serving_of(ctx) as served:
        for name, said in SAID.items():
            saying.append(said.reply)
            whole = await _both(served, protocol, 500)
            assert (name, sorted(_cities(whole.calls))) == (name, sorted(said.cities))
            if said.text or said.cities:
                assert " ".join(whole.text.split()) == " ".join(said.text.split()), name
            for most in range(1, 75, 11):
                cut = await _both(served, protocol, most)
                assert [call[1:] for call in cut.calls if said.cities] == [
                    call[1:] for call in whole.calls if call in cut.calls
                ], (name, most)
                if cut.calls and said.cities:  # nothing of a call is text beside calls that were read
                    assert not any(word in cut.text for word in ("weather", "{", "```")), (name, most)
        await served.until_idle()


async def _both(served: Served, protocol: str, most: int) -> Any:
    """An answer that is the same whole and streamed."""
    served.ctx._core.chat.habits.rescued = 0  # not steered
    whole = await ask(served, protocol, False, [USER], tools=[WEATHER], max_tokens=most)
    served.ctx._core.chat.habits.rescued = 0
    streamed = await ask(served, protocol, True, [USER], tools=[WEATHER], max_tokens=most)
    names = [call[0] for call in whole.calls]
    assert len(set(names)) == len(names)
    assert [call[1:] for call in whole.calls] == [call[1:] for call in streamed.calls]
    assert (whole.error, whole.ended, whole.text.strip()) == (streamed.error, streamed.ended, streamed.text.strip())
    assert [call[0] for call in streamed.calls] == names
    return whole


def _cities(calls: Sequence[Sequence[str]]) -> list[str]:
    return [json.loads(arguments)["city"] for _, _, arguments in calls]
