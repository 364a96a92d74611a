"""A decoding loop of your own over `logits()` and `extend()`. Eight of them at once still share every forward.

The rule here is locally typical sampling (Meister et al. 2022), which the built-in sampler does not have.
"""

from __future__ import annotations

import anyio
import desk
import numpy as np

import agentkv as kv

QUESTIONS = [f"What is the weather in {city}?" for city in ("Tolvik", "Brasno", "Keldan", "Mirova")] * 2


def typical(row: np.ndarray, mass: float, rng: np.random.Generator) -> int:
    """Draw from the tokens whose surprise is closest to the entropy, up to `mass` of the probability."""
    logp = row.astype(np.float64) - row.max()
    logp -= np.log(np.exp(logp).sum())
    p = np.exp(logp)
    order = np.argsort(np.abs(-logp + (p * logp).sum()))
    kept = order[: int(np.searchsorted(np.cumsum(p[order]), mass)) + 1]
    return int(rng.choice(kept, p=p[kept] / p[kept].sum()))


async def decode(branch: kv.Branch, question: str, eos: set[int], seed: int, max_tokens: int = 64) -> list[int]:
    """Answer on a branch, one awaited token at a time."""
    rng = np.random.default_rng(seed)
    await branch.extend([{"role": "user", "content": question}])
    made: list[int] = []
    while len(made) < max_tokens:
        made.append(typical(await branch.logits(), 0.9, rng))
        if made[-1] in eos:
            break
        await branch.extend([made[-1]])
    return made


async def main() -> None:
    """Decode eight questions at once and count the forwards."""
    async with kv.Context.open(kv.models.nano(), capacity=4096) as ctx:
        trunk = await desk.agent("weather", "stock", "calendar").trunk(ctx)
        branches = await trunk.fork(len(QUESTIONS))
        eos = set(ctx.tokenizer.eos_ids)
        loops = (
            decode(branch, question, eos, seed)
            for seed, (branch, question) in enumerate(zip(branches, QUESTIONS, strict=True))
        )
        outputs = await kv.gather(*loops)
        for question, made in zip(QUESTIONS, outputs, strict=True):
            print(f"{question:36} {ctx.tokenizer.decode(made)}")
        print(f"\n{sum(map(len, outputs))} tokens in {ctx.stats.forwards} forwards")


if __name__ == "__main__":
    anyio.run(main)
