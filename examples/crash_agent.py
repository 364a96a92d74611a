"""An agent whose process dies in the middle of a turn, and that goes on when it is started again.

Run it twice. The first process kills itself at the worst moment: a message is sent, and nobody knows yet. The second
one goes on with that turn: the key of the call says that it is the same message, so it is not sent again.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import anyio
import desk

import agentkv as kv

QUESTIONS = ("How many Lumora are in stock?", "Tell Mirela that the lunch is at 12:30.", "Thank you!")


@kv.tool(idempotent=True)
def send(ctx: kv.RunContext[Path], to: str, text: str) -> dict[str, str]:
    """send a message"""
    message = ctx.deps / f"{ctx.call_key}.txt"  # the same in the process that makes this call again
    if not message.exists():
        message.write_text(f"{to}: {text}\n")
        print("The message is sent, and the process dies.", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    return {"to": to, "text": text, "status": "sent"}


AGENT: kv.Agent[Path, str] = kv.Agent(desk.SYSTEM, tools=[desk.tool("stock"), send])


async def conversation(ctx: kv.Context, journal: kv.Journal) -> kv.Branch:
    """The conversation as its last turn left it, or a new one."""
    try:
        return await journal.branch(ctx, "desk")
    except kv.JournalError:  # there is none yet
        branch = await AGENT.trunk(ctx)
        await journal.track(branch, "desk")
        return branch


async def main(folder: Path = Path("outbox")) -> list[str]:
    """Go on with the turn that an earlier process left, and ask what was not asked yet."""
    await anyio.Path(folder).mkdir(exist_ok=True)
    journal, answers = kv.Journal(folder / "runs.db"), []
    async with kv.Context.open(kv.models.nano(), capacity=2048, journal=journal) as ctx:
        async for left in journal.unfinished(ctx):
            run = await left.resume(AGENT, deps=folder)
            answers.append(run.output)
            print(f"(went on)\n  {run.output}")
        branch = await conversation(ctx, journal)
        asked = {message.content for message in branch.messages if message.role == "user"}
        for question in (each for each in QUESTIONS if each not in asked):
            run = await AGENT.run(branch, question, deps=folder)
            answers.append(run.output)
            print(f"{question}\n  {run.output}")
    return answers


if __name__ == "__main__":
    anyio.run(main, *(Path(name) for name in sys.argv[1:2]))
