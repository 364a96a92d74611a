"""Sub-agents that vote: behind one tool sit five of them, and what most of them find is the tool's result.

The manager never sees them. They work on forks of a trunk of their own, all in the same forwards, and are gone when the
tool returns.
"""

from __future__ import annotations

import anyio
import desk

import agentkv as kv

QUESTION = "What is 7 * 8?"
VOTERS = 5
VOTER = desk.agent("weather", "calculator", sampling=kv.Sampling(temperature=0.7, seed=3), max_rounds=3, max_tokens=200)


def found(run: kv.Run[str]) -> object:
    """What a sub-agent votes for: the last thing that it calculated. One that calculated nothing has no vote."""
    return run.calls[-1].result["result"]


@kv.tool(name="calculator", description="do arithmetic", timeout=60)
async def committee(ctx: kv.RunContext[list[str]], expression: str) -> dict[str, object]:
    """Puts the expression to the vote, and writes down how it went."""
    async with await VOTER.trunk(ctx.branch.context) as trunk:
        won = await kv.patterns.vote(
            trunk, VOTERS, lambda branch: VOTER.run(branch, f"What is {expression}?"), key=found, timeout=30
        )
    async with won.branch:  # nobody goes on from it
        ctx.deps.append(f"{expression}: {found(won.result)} with {won.score:.0%} of the votes")
        return {"result": found(won.result)}


MANAGER = kv.Agent(desk.SYSTEM, tools=[committee], max_rounds=4, max_seconds=120)


async def main() -> None:
    """Ask the manager."""
    async with kv.Context.open(kv.models.nano(), capacity=4096) as ctx:
        minutes: list[str] = []
        run = await MANAGER.run(await MANAGER.trunk(ctx), QUESTION, deps=minutes)
        print(*minutes, sep="\n")
        print(f"{run.output}  ({ctx.stats.generated} tokens in {ctx.stats.forwards} forwards)")


if __name__ == "__main__":
    anyio.run(main)
