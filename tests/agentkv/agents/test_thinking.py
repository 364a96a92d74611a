"""Agents whose messages may think for so long, with tools and typed answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import agentkv as kv
from agentkv.output._thinking import HAND_OVER

from ...runtime.chat_styles import THINKING
from ..context.test_thinking import nano_with

pytestmark = pytest.mark.anyio

THOUGHT = " ".join(f"Hm {i}," for i in range(100))
LONG = f"<think>\n{THOUGHT}\n</think>\n\n"
OFF = "\n<think>\n\n</think>"


@kv.tool
def weather(city: str) -> str:
    """The weather in a city."""
    return f"rainy in {city}"


@pytest.mark.parametrize("budget", [None, True, False, 0, 1, 40])
async def test_calls_and_answers_come_behind_the_thought(tmp_path: Path, budget: Any) -> None:
    def script(text: str) -> Any:
        asked = text.rpartition("user\n")[2]
        city = next(name for name in ("Oslo", "Brasno", "Tolvik") if name in asked)
        if "rainy" in asked:
            return f"{LONG}It is rainy in {city}."
        return [LONG, kv.testing.call("weather", city=city)]

    async with kv.testing.replies(script, nano_with(THINKING, tmp_path / "model"), capacity=8192) as ctx:
        agent = kv.Agent("You are Nano.", tools=[weather], thinking=budget)
        trunk = await agent.trunk(ctx)
        cities = ("Oslo", "Brasno", "Tolvik")
        kids = await trunk.fork(3)
        runs = await kv.gather(
            *(agent.run(kid, f"What is the weather in {city}?") for kid, city in zip(kids, cities, strict=True))
        )
    for city, run in zip(cities, runs, strict=True):
        assert [call.arguments for call in run.calls] == [{"city": city}]
        assert run.output == f"It is rainy in {city}."
        thoughts = [message.reasoning or "" for message in run.messages if message.role == "assistant"]
        assert len(thoughts) == 2
        for thought in thoughts:
            if budget is None or budget is True:
                assert thought == THOUGHT
            else:
                assert (HAND_OVER.strip() in thought) == (budget > 0)
                assert len(thought) < 200


@pytest.mark.parametrize("output", [int, bool, kv.Regex("[a-z]{3}")], ids=str)
@pytest.mark.parametrize("tools", [(), (weather,)], ids=["alone", "tools"])
@pytest.mark.parametrize("budget", [False, 2, 12])
async def test_what_nano_itself_says_keeps_to_thought_and_form(
    tmp_path: Path, output: Any, tools: Any, budget: Any
) -> None:
    if tools and isinstance(output, kv.Regex):
        pytest.skip("an agent with tools answers with JSON")
    own = json.loads((kv.models.nano() / "tokenizer_config.json").read_text())["chat_template"]
    opens = own + "{% if add_generation_prompt %}{{ '<think>' }}{% endif %}"
    async with kv.Context.open(nano_with(opens, tmp_path / "model"), 4096, threads=1) as ctx:
        agent = kv.Agent("You are Nano.", tools=tools, output=output, thinking=budget, max_rounds=3)
        trunk = await agent.trunk(ctx)
        run: Any = await agent.run(trunk, "What is the weather in Oslo?")
        assert run.output is not None
        thought = run.messages[-1].reasoning or ""
        assert (HAND_OVER.strip() in thought) == (budget is not False)
        assert trunk.text.count("</think>") == 1


async def test_an_own_switch_of_the_template_goes_before(tmp_path: Path) -> None:
    async with kv.Context.open(nano_with(THINKING, tmp_path / "model"), 2048, threads=1) as ctx:
        for thinking, template, off in (
            (None, None, False),
            (True, None, False),
            (False, None, True),
            (5, None, False),
            (True, {"enable_thinking": False}, True),
            (False, {"enable_thinking": True}, False),
        ):
            agent = kv.Agent("You are Nano.", thinking=thinking, template=template)
            trunk = await agent.trunk(ctx)
            await trunk.extend([{"role": "user", "content": "Who are you?"}])
            assert trunk.text.rstrip().endswith(OFF) == off, (thinking, template)
