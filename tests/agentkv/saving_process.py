"""A process that saves over and over, for `test_killed_saves` to kill."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import anyio

import agentkv as kv

PROMPTS = ["The quick brown fox. " * 6, "Another one, of another length. " * 11]


async def save_over_and_over(path: Path) -> None:
    """Two branches in turns, a line for each begin of a save."""
    async with kv.Context.open(kv.models.nano(), capacity=1024, kv_dtype="fp16", threads=1) as ctx:
        branches = [await ctx.branch(prompt) for prompt in PROMPTS]
        while True:
            for branch in branches:
                os.write(1, b".")
                await branch.save(path)


def serve(path: Path) -> None:
    """Forks such a process for each line of its input, and says its number: they start in a moment that way."""
    for _ in sys.stdin:
        child = os.fork()
        if child == 0:
            os.write(1, f"{os.getpid()}\n".encode())
            anyio.run(save_over_and_over, path)
        os.waitpid(child, 0)
        os.write(1, b"!")


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
