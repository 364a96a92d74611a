"""A process that asks for an approval, for `test_answers` to kill: `asking_process.py FOLDER wait|leave|resume`.

The model is nano itself. It says the key of the approval, and in the end what became of the call.
"""

from __future__ import annotations

import sys
from pathlib import Path

import anyio

import agentkv as kv


def agent_of(ledger: Path) -> kv.Agent[None, str]:
    @kv.tool(approve=True)
    async def weather(city: str) -> dict[str, object]:
        "Weather of a city now."
        with ledger.open("a") as file:
            file.write(f"{city}\n")
        return {"temp": 3, "sky": "sunny"}

    return kv.Agent("You are Nano, a desk agent.", tools=[weather])


async def main(folder: Path, how: str) -> None:
    agent, journal = agent_of(folder / "ledger"), kv.Journal(folder / "runs.db")

    async def approve(asked: kv.events.ApprovalAsked) -> None:
        print(asked.key, flush=True)
        if how == "leave":
            asked.leave()
        else:
            await anyio.sleep_forever()

    async with kv.Context.open(kv.models.nano(), capacity=1024, threads=1, journal=journal) as ctx:
        if how == "resume":
            async for left in journal.unfinished(ctx):
                run = await left.resume(agent, approve=approve)
        else:
            try:
                run = await agent.run(await agent.trunk(ctx), "What is the weather in Tolvik?", approve=approve)
            except kv.ApprovalPending:
                return
        print(run.calls[0].status, flush=True)


if __name__ == "__main__":
    anyio.run(main, Path(sys.argv[1]), sys.argv[2])
