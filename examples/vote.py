"""Self-consistency: fork a question nine times, sample each, keep the answer that most branches reach.

Wang et al. 2022, "Self-Consistency Improves Chain of Thought Reasoning". The question is prefilled once.
"""

from __future__ import annotations

from collections import Counter

import anyio
from agent import Turn, ask, open_trunk

import agentkv as kv

QUESTION = "How much is 12 + 30?"


async def vote(trunk: kv.Branch, question: str, voters: int = 9, temperature: float = 0.7) -> tuple[str, list[Turn]]:
    """The majority answer, and every voter's turn."""
    sampling = kv.Sampling(temperature=temperature, seed=7)  # siblings draw from different random streams
    branches = await trunk.fork(voters)
    try:
        turns = await kv.gather(*(ask(branch, question, sampling=sampling) for branch in branches))
    finally:
        for branch in branches:
            branch.close()
    (winner, _), *_ = Counter(turn.answer for turn in turns).most_common(1)
    return winner, list(turns)


async def main() -> None:
    """Vote once and print the ballots."""
    async with kv.Context.open(kv.models.nano(), capacity=4096) as ctx:
        trunk = await open_trunk(ctx, ["calculator", "weather", "stock", "translate"])
        winner, turns = await vote(trunk, QUESTION)
        for answer, votes in Counter(turn.answer for turn in turns).most_common():
            print(f"{votes} x {answer!r}")
        print(f"\nkept: {winner}\n{ctx.stats.forwards} forwards for {len(turns)} voters")


if __name__ == "__main__":
    anyio.run(main)
