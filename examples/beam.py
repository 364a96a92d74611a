"""Beam search over branches: each beam is a fork, and pruning is closing.

`logits()` of all beams ride in one forward; `fork()` shares the history of a beam that splits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import anyio
import numpy as np
from agent import open_trunk

import agentkv as kv

QUESTION = "What is the weather in Tolvik?"


@dataclass
class Beam:
    """A branch and the log-probability of what it wrote."""

    branch: kv.Branch
    score: float = 0.0
    done: bool = False


async def expand(beam: Beam, width: int) -> list[tuple[float, Beam, int]]:
    """The best continuations of one beam: (score, beam, token)."""
    row = (await beam.branch.logits()).astype(np.float64)
    row -= row.max() + math.log(np.exp(row - row.max()).sum())
    best = np.argsort(-row)[:width]
    return [(beam.score + float(row[token]), beam, int(token)) for token in best]


async def grow(beam: Beam, score: float, token: int, eos: set[int]) -> Beam:
    """A fork of the beam with one more token."""
    child = await beam.branch.fork()
    await child.extend([token])
    return Beam(child, score, token in eos)


async def search(prompt: kv.Branch, eos: set[int], width: int = 4, max_tokens: int = 48) -> list[Beam]:
    """The `width` best complete continuations of a branch, best first. Their branches stay open."""
    beams = [Beam(await prompt.fork())]
    for _ in range(max_tokens):
        live = [beam for beam in beams if not beam.done]
        if not live:
            break
        rows = await kv.gather(*(expand(beam, width) for beam in live))
        options = [(beam.score, beam, -1) for beam in beams if beam.done] + [option for row in rows for option in row]
        options.sort(key=lambda option: -option[0])
        chosen = options[:width]
        grown = await kv.gather(*(grow(beam, score, token, eos) for score, beam, token in chosen if token >= 0))
        kept = [beam for _, beam, token in chosen if token < 0]
        for beam in beams:
            if beam not in kept:
                beam.branch.close()
        beams = kept + list(grown)
    return sorted(beams, key=lambda beam: -beam.score)


async def main() -> None:
    """Print the beams of one question."""
    async with kv.Context.open(kv.models.nano(), capacity=4096) as ctx:
        trunk = await open_trunk(ctx, ["weather", "stock", "calendar"])
        await trunk.extend([{"role": "user", "content": QUESTION}])
        start = len(trunk)
        for beam in await search(trunk, set(ctx.tokenizer.eos_ids)):
            print(f"{beam.score:8.3f}  {ctx.tokenizer.decode(beam.branch.tokens[start:])}")
        print(f"{ctx.stats.forwards} forwards")


if __name__ == "__main__":
    anyio.run(main)
