"""Rollback on a failed check: generate, test, forget, try again.

A rollback moves no bytes and the prompt is never prefilled twice; each attempt samples with its own seed.
"""

from __future__ import annotations

from collections.abc import Callable

import anyio
from agent import open_trunk
from nano.tools import parse_calls

import agentkv as kv

QUESTION = "What is the weather in Tolvik and in Oresund?"


async def generate_checked(
    branch: kv.Branch, check: Callable[[str], bool], attempts: int = 8, temperature: float = 1.3
) -> tuple[kv.Generation, int]:
    """The first generation that passes the check, and how many were made. The last attempt is greedy."""
    mark = branch.mark()
    for attempt in range(1, attempts + 1):
        heat = temperature if attempt < attempts else 0.0
        gen = await branch.generate(max_tokens=120, sampling=kv.Sampling(temperature=heat, seed=attempt))
        if gen.finish_reason == "eos" and check(gen.text):
            return gen, attempt
        await branch.rollback(mark)
    raise ValueError(f"no generation passed the check in {attempts} attempts; raise `attempts` or relax the check")


def two_weather_calls(text: str) -> bool:
    """Are there two well-formed calls of the weather tool, for two cities?"""
    calls = parse_calls(text)
    return len({str(call.arguments.get("city")) for call in calls if call.name == "weather"}) == 2


async def main() -> None:
    """Ask at a high temperature until the calls are well-formed."""
    async with kv.Context.open(kv.models.nano(), capacity=4096) as ctx:
        branch = await open_trunk(ctx, ["weather", "stock", "calendar"])
        await branch.extend([{"role": "user", "content": QUESTION}])
        gen, attempts = await generate_checked(branch, two_weather_calls)
        print(f"attempt {attempts} passed:\n{gen.text}")


if __name__ == "__main__":
    anyio.run(main)
