"""Beam search over branches, beside a greedy answer: `kv.patterns.beam` is 25 lines to copy and change."""

from __future__ import annotations

import anyio
import desk

import agentkv as kv

QUESTION = "What is the weather in Tolvik?"


async def main() -> None:
    """Print the most likely answer, as beams of several widths find it."""
    async with kv.Context.open(kv.models.nano(), capacity=4096) as ctx:
        trunk = await desk.agent("weather", "stock", "calendar").trunk(ctx)
        await trunk.extend([{"role": "user", "content": QUESTION}])
        for width in (1, 4):
            found = await kv.patterns.beam(trunk, width=width, max_tokens=48)
            print(f"width {width}: {found.score:8.3f}  {found.result}")
            found.branch.close()
        print(f"{ctx.stats.forwards} forwards")


if __name__ == "__main__":
    anyio.run(main)
