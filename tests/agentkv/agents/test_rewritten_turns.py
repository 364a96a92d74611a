"""Turns under a chat template that rewrites earlier turns: going back brings back what it took."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import anyio
import numpy as np
import pytest

import agentkv as kv
from tests.waiting import NEVER

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
    async def weather(city: str) -> None:
        if ends == "tool":
            raise OSError("gone")
        await anyio.sleep(NEVER)

    tool = as_tool("weather", weather, on_error="raise")
    agent = desk_agent(tools=[tool], max_seconds=0.3 if ends == "limit" else 60.0)
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
        with anyio.move_on_after(0.3 if ends == "cancelled" else 60):
            with pytest.raises((kv.ToolFailed, kv.LimitReached)):
                await agent.run(branch, TWO_CALLS)
            assert ends != "cancelled"
        assert branch.tokens == before
        assert branch.messages == messages
        np.testing.assert_array_equal(await branch.logits(), row)
        assert ctx.stats.branches == count
        again = await desk_agent("weather").run(branch, TWO_CALLS)  # and one that succeeds keeps what it rewrote
        assert len(again.calls) == 2
        assert "Nano" not in branch.text.split("Who are you?")[1]
        await branch.logits()
        assert ctx.stats.branches == count
