"""A conversation that outlives its process: each run goes on where the last one stopped.

Run it twice. The second run loads the conversation with its keys and values, so nothing is computed again.
"""

from __future__ import annotations

import sys
from pathlib import Path

import anyio
import desk

import agentkv as kv

QUESTIONS = ("How many Lumora are in stock?", "Thank you!")
AGENT = desk.agent("stock", "weather")


async def resumed(ctx: kv.Context, path: Path) -> kv.Branch:
    """The branch as it was saved, or a new one."""
    if not await anyio.Path(path).exists():
        return await (await AGENT.trunk(ctx)).fork()
    branch = await ctx.load(path, recompute=True)  # also after the model was changed
    assert branch.loaded is not None
    print(f"resumed: {branch.loaded.reused} tokens from {path}, {branch.loaded.recomputed} computed again")
    return branch


async def main(path: Path = Path("desk.agentkv")) -> str:
    """Ask the next question, and save what came of it."""
    async with kv.Context.open(kv.models.nano(), capacity=4096) as ctx:
        branch = await resumed(ctx, path)
        asked = sum(message.role == "user" for message in branch.messages)
        question = QUESTIONS[min(asked, len(QUESTIONS) - 1)]
        run = await AGENT.run(branch, question)
        await branch.save(path)
        print(f"{question}\n  {run.output}")
        return run.output


if __name__ == "__main__":
    anyio.run(main, *(Path(name) for name in sys.argv[1:2]))
