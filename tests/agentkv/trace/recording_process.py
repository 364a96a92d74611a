"""Records one generation after another, until it is killed: `python -m tests.agentkv.trace.recording_process FILE`."""

from __future__ import annotations

import sys

import anyio

import agentkv as kv
from agentkv import trace


async def main() -> None:
    async with kv.Context.open(kv.models.nano(), 1024, threads=1) as ctx, trace.record(ctx, sys.argv[1]):
        print(".", end="", flush=True)
        while True:
            async with await ctx.branch("Once upon a time") as branch:
                await branch.generate(max_tokens=20)


anyio.run(main)
