"""Turns under a chat template that rewrites earlier turns: going back brings back what it took."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import anyio
import numpy as np
import pytest

import agentkv as kv
from tests.waiting import NEVER, SOON, until

from .conftest import NO_CALL, TWO_CALLS, as_tool, desk_agent

pytestmark = pytest.mark.anyio


@pytest.fixture
def forgetful(tmp_path: Path) -> Path:
    """Nano, whose template leaves out what the assistant said before the last question."""
    folder = tmp_path / "forgetful"
    shutil.copytree(kv.models.nano(), folder)
    file = folder / "tokenizer_config.json"
    config = json.loads(file.read_text())
    spelled = '{{ message.content or "" }}'
    assert spelled in config["chat_template"]
    config["chat_template"] = config["chat_template"].replace(
        spelled,
        '{%- set later = rest[loop.index0:] | selectattr("role", "equalto", "user") | list -%}'
        '{{ "..." if message.role == "assistant" and later else message.content or "" }}',
    )
    file.write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize("ends", ["tool", "cancelled", "limit"])
async def test_a_turn_that_rewrote_goes_back(forgetful: Path, ends: str) -> None:
    begun = False

    async def weather(city: str) -> None:
        nonlocal begun
        begun = True
        if ends == "tool":
            raise OSError("gone")
        await anyio.sleep(NEVER)

    agent = desk_agent(tools=[as_tool("weather", weather, on_error="raise")])
    async with kv.Context.open(forgetful, capacity=1024, threads=1) as ctx:
        branch = await agent.trunk(ctx)
        first = await agent.run(branch, NO_CALL)
        assert "Nano" in first.text
        before, messages, row = branch.tokens, branch.messages, await branch.logits()
        count = ctx.stats.branches
        fork = await branch.fork()
        extended = await fork.extend([{"role": "user", "content": TWO_CALLS}])
        assert extended.rewritten > 0  # it is a template that rewrites
        await fork.close()
        if ends == "cancelled":
            async with anyio.create_task_group() as group:
                group.start_soon(agent.run, branch, TWO_CALLS)
                await until(lambda: begun)
                group.cancel_scope.cancel()
        elif ends == "tool":
            with pytest.raises(kv.ToolFailed):
                await agent.run(branch, TWO_CALLS)
        limited = replace(agent, max_seconds=SOON)
        while not begun:  # a slow machine needs more time for it to come to this
            with pytest.raises(kv.LimitReached):
                await limited.run(branch, TWO_CALLS)
            limited = replace(limited, max_seconds=2 * limited.max_seconds)
        assert branch.tokens == before
        assert branch.messages == messages
        np.testing.assert_array_equal(await branch.logits(), row)
        assert ctx.stats.branches == count
        again = await desk_agent("weather").run(branch, TWO_CALLS)  # and one that succeeds keeps what it rewrote
        assert len(again.calls) == 2
        assert "Nano" not in branch.text.split("Who are you?")[1]
        await branch.logits()
        assert ctx.stats.branches == count
