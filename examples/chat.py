"""Chat with nano and its tools, as it answers. An empty line ends the chat, and so does Ctrl-C."""

from __future__ import annotations

import sys
from contextlib import suppress

import anyio
import desk

import agentkv as kv

AGENT = desk.agent("weather", "stock", "calculator")


async def say(branch: kv.Branch, message: str) -> kv.Run[str]:
    """Stream one turn to the terminal."""
    async with AGENT.stream(branch, message) as events:
        async for event in events:
            match event:
                case kv.events.TextDelta(text):
                    print(text, end="", flush=True)
                case kv.events.CallFinished(call):
                    print(f"[{call.name} {call.content}]", flush=True)
                case kv.events.Finished(run):
                    print()
    return run


async def main() -> None:
    """Read questions from the terminal, or from a pipe."""
    async with kv.Context.open(kv.models.nano(), capacity=4096) as ctx:
        branch = await AGENT.trunk(ctx)
        while True:
            if sys.stdin.isatty():
                print("> ", end="", flush=True)
            message = (await anyio.to_thread.run_sync(sys.stdin.readline)).strip()
            if not message:
                return
            await say(branch, message)


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        anyio.run(main)
