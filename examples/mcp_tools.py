"""An agent with the tools of an MCP server, which runs in a process of its own."""

from __future__ import annotations

import sys
from pathlib import Path

import anyio
from nano.tools import SYSTEM

import agentkv as kv
from agentkv.adapters.mcp import connect

SERVER = [sys.executable, str(Path(__file__).with_name("weather_server.py"))]


async def ask(question: str) -> kv.Run[str]:
    """One turn, with the tools that the server has now."""
    async with kv.Context.open(kv.models.nano(), capacity=4096) as ctx, connect(SERVER) as weather:
        agent = kv.Agent(SYSTEM, toolsets=[weather])
        return await agent.run(await agent.trunk(ctx), question)


if __name__ == "__main__":
    run = anyio.run(ask, "What is the weather in Tolvik and in Brasno?")
    print(*(f"[{call.name} {call.arguments}] {call.result}" for call in run.calls), run.output, sep="\n")
