"""What branches live through, and all that they say meanwhile: the same whatever was drafted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import anyio

import agentkv as kv
from tests.waiting import SOON

GREEDY = kv.Sampling()
WARM = kv.Sampling(
    temperature=0.9,
    top_k=20,
    top_p=0.95,
    repetition_penalty=0.7,
    presence_penalty=-0.2,
    frequency_penalty=0.05,
    logit_bias={40: 1.5, 41: -3},
    seed=11,
)


class Story:
    """Branches that fork, roll back, are cancelled and are streamed, and all that they said."""

    def __init__(self, ctx: kv.Context, n: int, sampling: kv.Sampling) -> None:
        self.ctx = ctx
        self.n = n
        self.options: dict[str, Any] = {"max_tokens": 24, "sampling": sampling, "top_logprobs": 3}
        self.said: list[Any] = []

    async def generate(self, branches: Sequence[kv.Branch]) -> None:
        outs = await kv.gather(*(branch.generate(**self.options) for branch in branches))
        self.said += [(out.tokens, out.logprobs, out.top_logprobs, out.text, out.finish_reason) for out in outs]

    async def cancel(self, branches: Sequence[kv.Branch]) -> None:
        """Cuts generations short; what they had made is the beginning of what they say when they are left alone."""
        marks = [branch.mark() for branch in branches]
        with anyio.move_on_after(SOON):
            await kv.gather(*(branch.generate(**self.options) for branch in branches))
        cut = [branch.tokens for branch in branches]
        for branch, mark in zip(branches, marks, strict=True):
            await branch.rollback(mark)
        await self.generate(branches)
        for branch, tokens, mark in zip(branches, cut, marks, strict=True):
            assert branch.tokens[: len(tokens)] == tokens
            await branch.rollback(mark)

    async def stream(self, branch: kv.Branch, take: int) -> None:
        """Reads the first tokens of a stream, forks it as it runs, and forgets the rest."""
        length = len(branch)
        async with branch.stream(**self.options, buffer=4) as stream:
            taken = [token async for token, _ in _zip(stream, range(take))]
            async with await branch.fork() as kid:
                held = kid.tokens
        assert branch.tokens[: len(held)] == held or held[: len(branch)] == branch.tokens
        self.said.append([(token.id, token.logprob, token.top_logprobs) for token in taken])
        await branch.rollback(length + min(take, len(taken)))

    async def run(self) -> list[Any]:
        trunk = await self.ctx.branch([7] * 20)
        kids = await trunk.fork(self.n)
        await kv.gather(*(kid.extend([70 + i % 5, 41, 7, 7]) for i, kid in enumerate(kids)))
        marks = [kid.mark() for kid in kids]
        await self.generate(kids)
        grandkids = [await kid.fork() for kid in kids[::2]]
        for kid, mark in list(zip(kids, marks, strict=True))[1::2]:
            await kid.rollback(mark)
        await self.cancel(kids)
        for take, kid in enumerate(kids[:3], 2):
            await self.stream(kid, take)
        everyone = [*kids, *grandkids][:16]
        await kids[0].adopt(everyone[-1])
        await self.generate(everyone)
        self.said += [branch.tokens for branch in everyone]
        self.said += [(await branch.logits()).tobytes() for branch in everyone]
        await self.ctx.keep(everyone)
        self.said.append(self.ctx.stats.cells_used)
        return self.said


async def _zip(stream: kv.TokenStream, counts: range) -> Any:
    for count in counts:
        try:
            yield await anext(stream), count
        except StopAsyncIteration:
            return
