"""The same answer in fewer forwards: plain decoding, the strategies that come with agentkv, and one of your own."""

from __future__ import annotations

from typing import Any

import anyio
import desk
import numpy as np
from numpy.typing import NDArray

import agentkv as kv

QUESTION = "What is the weather in Tolvik, Oresund and Marsholm?"
PHRASES = ('<tool_call>{"name": "weather", "arguments": {"city": "', '"}}</tool_call>\n<tool_call>{"name": "weather"')


class Phrases:
    """Proposes the rest of a phrase as soon as it has begun: the syntax of calls is known beforehand."""

    def __init__(self, phrases: list[list[int]]) -> None:
        self.phrases = phrases

    def propose(self, branch: int, tokens: NDArray[np.int32], limit: int) -> kv.spec.Draft | None:
        """The longest beginning of a phrase that the branch ends with says what comes next."""
        ends = [(n, p) for p in self.phrases for n in range(1, len(p)) if tokens[-n:].tolist() == p[:n]]
        if not ends:
            return None
        n, phrase = max(ends)
        return kv.spec.Draft.chain(phrase[n : n + limit])


async def answer(ctx: kv.Context, **options: Any) -> tuple[kv.Generation, int]:
    """What nano says to the question, and how many forwards that took."""
    trunk = await desk.agent("weather", "stock", "calendar").trunk(ctx)
    await trunk.extend([{"role": "user", "content": QUESTION}])
    before = ctx.stats.forwards
    gen = await trunk.generate(max_tokens=160, **options)
    return gen, ctx.stats.forwards - before


async def main() -> None:
    """Print forwards beside tokens."""
    folder = kv.models.nano()
    strategies: list[Any] = [None, kv.spec.PromptLookup()]
    if (folder / "draft.pte").is_file():
        strategies.append(kv.spec.Eagle())
    for strategy in strategies:
        async with kv.Context.open(folder, capacity=4096, speculative=strategy) as ctx:
            gen, forwards = await answer(ctx)
            print(f"{strategy or 'plain'}: {len(gen.tokens)} tokens in {forwards} forwards")
    async with kv.Context.open(folder, capacity=4096) as ctx:
        phrases = Phrases([ctx.tokenizer.encode(phrase) for phrase in PHRASES])
        gen, forwards = await answer(ctx, speculative=phrases)  # for this call only
        print(f"Phrases: {len(gen.tokens)} tokens in {forwards} forwards\n{gen.text}")


if __name__ == "__main__":
    anyio.run(main)
