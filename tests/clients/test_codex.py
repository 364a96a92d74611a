"""Codex as it is: a provider with a base URL and a key, and the name of a model."""

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

CONFIG = """\
model = "desk"
model_provider = "agentkv"

[model_providers.agentkv]
name = "agentkv"
base_url = "{url}/v1"
env_key = "AGENTKV_API_KEY"
wire_api = "responses"
"""


class Turn(NamedTuple):
    answer: str
    commands: list[str]
    prompt: int  # tokens of all requests of the thread so far
    cached: int  # of these


async def turn(served: Served, home: Path, said: str, *, first: bool = False) -> Turn:
    (home / ".codex").mkdir(exist_ok=True)
    (home / ".codex" / "config.toml").write_text(CONFIG.format(url=served.url))
    command = ["codex", "exec", "--json", "--skip-git-repo-check", *([] if first else ["resume", "--last"]), said]
    events = await run(home, command, {"AGENTKV_API_KEY": KEY})
    items = [event["item"] for event in events if event["type"] == "item.completed"]
    usage = events[-1]["usage"]
    return Turn(
        next(item["text"] for item in reversed(items) if item["type"] == "agent_message"),
        [item["command"] for item in items if item["type"] == "command_execution"],
        usage["input_tokens"],
        usage["cached_input_tokens"],
    )


READING: Any = desk(kv.testing.call("exec_command", cmd="cat note.txt"))


async def test_an_answer_a_call_its_result_and_the_next_answer(serving: Serving, home: Path) -> None:
    async with serving(READING) as served:
        assert (await turn(served, home, "Say hello.", first=True))[:2] == ("Answer 1.", [])
        answer, (command,), *_ = await turn(served, home, "What does the note say?")
        assert answer == "The password is tulip-42."
        assert "cat note.txt" in command
        assert (await turn(served, home, "Thank you."))[:2] == ("Answer 2.", [])


async def test_five_turns_reuse_their_prefix(serving: Serving, home: Path) -> None:
    async with serving(READING) as served:
        told = [await turn(served, home, "Say hello.", first=True)]
        for number in range(1, 5):
            told.append(await turn(served, home, "Read the note." if number == 2 else "Go on."))
            prompt, cached = told[-1].prompt - told[-2].prompt, told[-1].cached - told[-2].cached
            assert cached >= 0.95 * prompt, (number, cached, prompt)
        assert told[0].prompt > 10_000
