"""Chat with nano, token by token. An empty line ends the chat, and so does Ctrl-C."""

from __future__ import annotations

import sys
from contextlib import suppress

import anyio
from agent import open_trunk

import agentkv as kv


async def say(branch: kv.Branch, message: str) -> kv.Generation:
    """Stream one answer to the terminal."""
    await branch.extend([{"role": "user", "content": message}])
    async with branch.stream(max_tokens=120) as tokens:
        async for token in tokens:
            print(token.text, end="", flush=True)
    print()
    return tokens.generation


async def main() -> None:
    """Read questions from the terminal, or from a pipe."""
    async with kv.Context.open(kv.models.nano(), capacity=4096) as ctx:
        branch = await open_trunk(ctx, ["weather", "stock", "calculator"])
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
