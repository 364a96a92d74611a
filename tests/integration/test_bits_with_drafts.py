"""Determinism with speculation: over every kind of cache, drafts change neither a token, nor a log-probability, nor a
bit of the logits that follow.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import anyio
import numpy as np
import pytest

import agentkv as kv

VOCAB = 1024
LENGTH = 24
# Drafts that are taken now and then, drafts that ride in any case, and a head's.
STRATEGIES = {
    "lookup": kv.spec.PromptLookup(adaptive=False),
    "wide lookup": kv.spec.PromptLookup(adaptive=False, min_ngram=1, width=4, max_nodes=32),
    "suffix": kv.spec.Suffix(adaptive=False, max_nodes=32),
    "mixed": kv.spec.Mixed(kv.spec.Suffix(adaptive=False), kv.spec.Eagle(adaptive=False)),
    "head": kv.spec.Eagle(adaptive=False),
}
QUESTIONS = ["Who are you?", "What is the weather in Oslo?", "Add 17 and 25.", "Thank you!"]


@dataclass
class Told:
    """What branches said, and the bits of what they would say next."""

    said: list[tuple[list[int], list[float]]] = field(default_factory=list)
    rows: list[np.ndarray] = field(default_factory=list)
    drafted: int = 0
    accepted: int = 0


async def tell(kv_dtype: str, seed: int, strategy: Any) -> Told:
    """Forks of one trunk generate together, some greedily and some at random, then go on."""
    rng, told = random.Random(seed), Told()
    async with kv.Context.open(kv.models.nano(), capacity=2048, kv_dtype=kv_dtype, threads=1) as ctx:
        trunk = await ctx.branch([{"role": "system", "content": "You are Nano."}] * rng.randint(1, 3))
        kids = await trunk.fork(4)
        for kid in kids:
            await kid.extend([{"role": "user", "content": rng.choice(QUESTIONS)}])
        for _ in range(2):
            warm = [kv.Sampling(temperature=rng.choice([0.0, 1.0]), seed=rng.randrange(99)) for _ in kids]
            made = await kv.gather(
                *(
                    kid.generate(max_tokens=LENGTH, sampling=sampling, speculative=strategy)
                    for kid, sampling in zip(kids, warm, strict=True)
                )
            )
            told.said += [(gen.tokens, gen.logprobs) for gen in made]
            told.rows += [(await kid.logits()).view(np.uint32) for kid in kids]
            for kid in kids:
                await kid.rollback(len(kid) - rng.randint(0, 2))
                await kid.extend([rng.randrange(3, VOCAB) for _ in range(rng.randint(1, 9))])
        told.drafted, told.accepted = ctx.stats.drafted, ctx.stats.accepted
    return told


def check(kv_dtype: str, seeds: range) -> str:
    """Every strategy against plain decoding; says how much was compared."""
    values = drafted = accepted = 0
    for seed in seeds:
        plain = anyio.run(tell, kv_dtype, seed, None)
        assert plain.drafted == 0
        for name, strategy in STRATEGIES.items():
            told = anyio.run(tell, kv_dtype, seed, strategy)
            assert told.said == plain.said, (name, seed)
            np.testing.assert_array_equal(told.rows, plain.rows, err_msg=f"{name}, seed {seed}")
            values += sum(row.size for row in told.rows)
            drafted, accepted = drafted + told.drafted, accepted + told.accepted
    assert drafted > accepted > 0
    return f"\n{kv_dtype}: {values} logits compared, none differs; {accepted} of {drafted} drafts accepted"


@pytest.mark.parametrize("kv_dtype", ["fp32", "fp16", "int8", "int8/int4", "int4"])
def test_drafts_change_no_bit(kv_dtype: str) -> None:
    print(check(kv_dtype, range(2)))


@pytest.mark.soak
@pytest.mark.parametrize("kv_dtype", ["fp32", "fp16", "int8", "int8/int4", "int4"])
def test_drafts_change_no_bit_in_large_counts(kv_dtype: str, soak_count: int) -> None:
    print(check(kv_dtype, range(1000, 1000 + soak_count // 100)))
