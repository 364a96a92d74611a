"""Plan, execute, verify: a turn whose calls fail their check is rolled back, and another one is tried.

A rollback moves no bytes and the prompt is never prefilled twice; each attempt draws with a seed of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import anyio
import desk

import agentkv as kv

QUESTION = "What is the weather in Tolvik and in Oresund?"
AGENT = desk.agent("weather", "stock", "calendar")


async def verified(
    branch: kv.Branch, question: str, check: Callable[[kv.Run[str]], bool], attempts: int = 8, temperature: float = 1.3
) -> tuple[kv.Run[str], int]:
    """The first turn that passes the check, and how many were tried. The last attempt is greedy."""
    mark = branch.mark()
    for attempt in range(1, attempts + 1):
        heat = temperature if attempt < attempts else 0.0
        agent = replace(AGENT, sampling=kv.Sampling(temperature=heat, seed=attempt))
        run = await agent.run(branch, question)
        if check(run):
            return run, attempt
        await branch.rollback(mark)
    raise ValueError(f"no turn passed the check in {attempts} attempts; raise `attempts` or relax the check")


def both_cities(run: kv.Run[str]) -> bool:
    """Were both cities looked up, and nothing else?"""
    return sorted(str(call.arguments.get("city")) for call in run.calls) == ["Oresund", "Tolvik"]


async def main() -> None:
    """Ask at a high temperature until the calls are the right ones."""
    async with kv.Context.open(kv.models.nano(), capacity=4096) as ctx:
        run, attempts = await verified(await AGENT.trunk(ctx), QUESTION, both_cities)
        print(f"attempt {attempts} passed: {run.output}")


if __name__ == "__main__":
    anyio.run(main)
