"""Generates from a model folder, and prints the tokens and a digest of all logits as one line of JSON.

    python tests/arm/generate.py FOLDER KV_DTYPE

It needs agentkv and nothing that tests need, so that it runs where only that is.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import sys

import agentkv as kv

PROMPT = [{"role": "user", "content": "What is on my calendar on Tuesday, and what are 17 times 23?"}]
TOKENS = 32


async def generated(folder: str, kv_dtype: str) -> dict[str, object]:
    """32 tokens, the best each time; logits before each of them and at the end."""
    digest = hashlib.sha256()
    tokens: list[int] = []
    async with kv.Context.open(folder, kv_dtype=kv_dtype) as ctx:
        branch = await ctx.branch()
        await branch.extend(PROMPT)
        hot = await branch.fork()
        drawn = await hot.generate(max_tokens=TOKENS, sampling=kv.Sampling(temperature=3.0, top_p=0.95, seed=7))
        for _ in range(TOKENS):
            digest.update((await branch.logits()).tobytes())
            tokens += (await branch.generate(max_tokens=1)).tokens
        digest.update((await branch.logits()).tobytes())
    return {"greedy": tokens, "drawn": list(drawn.tokens), "logits": digest.hexdigest()[:16]}


if __name__ == "__main__":
    print(json.dumps(asyncio.run(generated(*sys.argv[1:]))))
