"""Generates from a model folder, and prints the tokens and a digest of all logits as one line of JSON.

    python -m tests.arm.generate FOLDER KV_DTYPE

Runs by itself on the machine that is asked about: it needs agentkv and nothing that tests need.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import sys

import agentkv as kv

PROMPT = [{"role": "user", "content": "Name three animals, and write a sentence about each of them."}]
TOKENS = 32


async def generated(folder: str, kv_dtype: str) -> dict[str, object]:
    """32 tokens, the best each time; logits before each of them and at the end."""
    digest = hashlib.sha256()
    tokens: list[int] = []
    async with kv.Context.open(folder, kv_dtype=kv_dtype) as ctx:
        branch = await ctx.branch()
        await branch.extend(PROMPT)
        for _ in range(TOKENS):
            digest.update((await branch.logits()).tobytes())
            tokens += (await branch.generate(max_tokens=1)).tokens
        digest.update((await branch.logits()).tobytes())
        drawn = await branch.generate(max_tokens=TOKENS, sampling=kv.Sampling(temperature=0.9, top_p=0.95, seed=7))
    return {"greedy": tokens, "drawn": list(drawn.tokens), "logits": digest.hexdigest()[:16]}


if __name__ == "__main__":
    print(json.dumps(asyncio.run(generated(*sys.argv[1:]))))
