"""A process that dies while a person is asked for approval of a call: `left_turn.py JOURNAL TOOLS.py`."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import anyio

import agentkv as kv
from agentkv.terminal.tools import tools_of


def dies(asked: kv.events.ApprovalAsked) -> bool:
    os.kill(os.getpid(), signal.SIGKILL)
    return True


async def main(path: str, tools: str) -> None:
    agent = kv.Agent("You are Nano, a desk agent.", tools=tools_of(Path(tools)))
    journal = kv.Journal(path)
    async with kv.Context.open(kv.models.nano(), capacity=1024, threads=1, journal=journal) as ctx:
        branch = await agent.trunk(ctx)
        await journal.track(branch, "desk")
        await agent.run(branch, "Thank you!")
        await agent.run(branch, "What is the weather in Tolvik?", approve=dies)


if __name__ == "__main__":
    anyio.run(main, *sys.argv[1:3])
