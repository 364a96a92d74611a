"""A person decides: a tool with effects asks before it runs, and reads why where the answer is no."""

from __future__ import annotations

import sys

import anyio
import desk

import agentkv as kv

QUESTION = "Tell Mirela that the lunch is at 12:30."
AGENT = kv.Agent(desk.SYSTEM, tools=[desk.tool("send", approve=True), desk.tool("contact")])


async def decide(asked: kv.events.ApprovalAsked) -> bool:
    """Ask whoever sits at the terminal; without one, the answer is yes."""
    arguments = ", ".join(f"{name}={value!r}" for name, value in asked.call.arguments.items())
    print(f"{asked.call.name}({arguments})? [y/N] ", end="", flush=True)
    if not sys.stdin.isatty():
        print("y (no terminal)")
        return True
    await anyio.wait_readable(sys.stdin)  # Ctrl-C ends it, as it does not end a thread that reads
    return sys.stdin.readline().strip().lower() == "y"


async def main() -> None:
    """Ask for something that needs a decision."""
    async with kv.Context.open(kv.models.nano(), capacity=2048) as ctx:
        run = await AGENT.run(await AGENT.trunk(ctx), QUESTION, approve=decide)
        for call in run.calls:
            print(f"{call.name}: {call.status}")
        print(run.output)


if __name__ == "__main__":
    anyio.run(main)
