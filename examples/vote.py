"""Self-consistency: nine forks answer a question, and the answer that most of them reach wins.

Wang et al. 2022, "Self-Consistency Improves Chain of Thought Reasoning". The question is prefilled once per fork, the
prompt with its tools once for all.
"""

from __future__ import annotations

import anyio
import desk

import agentkv as kv

QUESTION = "What is 7 * 8?"
ANSWER = "7 * 8 = 56."  # the tests hold the example to it
AGENT = desk.agent("calculator", "weather", "stock", "translate", sampling=kv.Sampling(temperature=0.7, seed=7))


async def vote(ctx: kv.Context, question: str, voters: int = 9) -> kv.patterns.Winner[kv.Run[str]]:
    """The run that ends with the majority's answer; its branch goes on from there."""
    trunk = await AGENT.trunk(ctx)
    return await kv.patterns.vote(trunk, voters, lambda branch: AGENT.run(branch, question))


async def main() -> None:
    """Vote once."""
    async with kv.Context.open(kv.models.nano(), capacity=4096) as ctx:
        won = await vote(ctx, QUESTION)
        print(f"{won.result.output}  ({won.score:.0%} of the votes, {ctx.stats.forwards} forwards)")


if __name__ == "__main__":
    anyio.run(main)
