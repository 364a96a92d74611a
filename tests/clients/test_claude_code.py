"""Claude Code as it is: a base URL, a key and the name of a model."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pytest

import agentkv as kv
from tests.agentkv.serve.conftest import Served

from .conftest import KEY, Serving
from .reply import desk
from .run import run

pytestmark = pytest.mark.anyio


class Turn(NamedTuple):
    answer: str
    tools: list[str]
    usages: list[dict[str, int]]


async def turn(served: Served, home: Path, said: str, *more: str, **settings: str) -> Turn:
    known = {"ANTHROPIC_BASE_URL": served.url, "ANTHROPIC_AUTH_TOKEN": KEY, "ANTHROPIC_MODEL": "desk"} | settings
    command = ["claude", "-p", said, "--output-format", "stream-json", "--verbose", *more]
    events = await run(home, command, {name: value for name, value in known.items() if value})
    messages = [event["message"] for event in events if event["type"] == "assistant"]
    blocks = [block for message in messages for block in message["content"]]
    result = events[-1]
    assert not result["is_error"], result["result"]
    tools = [block["name"] for block in blocks if block["type"] == "tool_use"]
    return Turn(result["result"].strip(), tools, [message["usage"] for message in messages])


def reading(home: Path) -> Any:
    return desk(kv.testing.call("Read", file_path=str(home / "work" / "note.txt")))


async def test_an_answer_a_call_its_result_and_the_next_answer(serving: Serving, home: Path) -> None:
    async with serving(reading(home)) as served:
        assert (await turn(served, home, "Say hello."))[:2] == ("Answer 1.", [])
        assert (await turn(served, home, "What does the note say?", "--continue"))[:2] == (
            "The password is tulip-42.",
            ["Read"],
        )
        assert (await turn(served, home, "Thank you.", "--continue"))[:2] == ("Answer 2.", [])


@pytest.mark.parametrize(
    "settings",
    [
        {"ANTHROPIC_AUTH_TOKEN": "", "ANTHROPIC_API_KEY": KEY},
        {"ANTHROPIC_MODEL": ""},  # it asks for a model of its maker's
    ],
)
async def test_other_settings_of_its_documentation(serving: Serving, home: Path, settings: dict[str, str]) -> None:
    async with serving(reading(home)) as served:
        assert (await turn(served, home, "Say hello.", **settings)).answer == "Answer 1."


async def test_five_turns_reuse_their_prefix(serving: Serving, home: Path) -> None:
    async with serving(reading(home)) as served:
        before = 0
        for number in range(5):
            said = await turn(
                served, home, "Read the note." if number == 2 else "Go on.", *["--continue"] * (number > 0)
            )
            for usage in said.usages:
                cached = usage["cache_read_input_tokens"]
                assert cached >= 0.95 * before, (number, cached, before)
                before = cached + usage["input_tokens"]
        assert before > 20_000


async def test_an_agent_of_its_own_asks_for_a_smaller_model(serving: Serving, home: Path) -> None:
    def reply(prompt: str) -> Any:
        if "<|im_start|>tool" in prompt:
            return "It saw a note." if "There is a note." in prompt else "It saw nothing."
        if "Look around." in prompt:
            return "There is a note."
        task = {"description": "look", "prompt": "Look around.", "subagent_type": "Explore"}
        return kv.testing.call("Agent", **task) if "<tools>" in prompt else '{"title": "A note"}'

    async with serving(reply) as served:
        assert (await turn(served, home, "Have somebody look.")).answer == "It saw a note."
        assert "models called claude-" in (await served.http.get("/metrics", headers={"x-api-key": KEY})).text
