"""A conversation of the terminal, stopped wherever it waits."""

from __future__ import annotations

import anyio
import pytest
from anyio.lowlevel import checkpoint

import agentkv as kv
from agentkv.terminal import commands
from agentkv.terminal.session import Talk
from agentkv.terminal.tools import CALCULATOR

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("line", ["/clear", "/system Be short.", "/tools off calculator"])
async def test_a_command_that_is_stopped_leaves_a_branch_to_talk_on(line: str) -> None:
    async with kv.Context.open(kv.models.nano(), capacity=2048, threads=1) as ctx:
        talk = Talk(ctx, kv.Agent("You are Nano, a desk agent.", tools=[CALCULATOR]), [CALCULATOR])
        await talk.begin()
        await talk.agent.run(talk.branch, "Who are you?")
        for turns in range(120):
            async with anyio.create_task_group() as group:
                group.start_soon(commands.run, talk, line)
                for _ in range(turns):
                    await checkpoint()
                group.cancel_scope.cancel()
            assert not talk.branch.closed, turns
            assert (talk.system, *(tool.name for tool in talk.agent.tools)) in {
                ("You are Nano, a desk agent.", "calculator"),
                ("You are Nano, a desk agent.",),
                ("Be short.", "calculator"),
            }
        assert (await talk.agent.run(talk.branch, "Who are you?")).output
        assert ctx.branches == [talk.branch]
