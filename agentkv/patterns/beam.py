"""Beam search: the most likely continuations of a trunk, all of them in one forward per token."""

from __future__ import annotations

import numpy as np

from .._aio.tasks import gather
from .._context.branch import Branch
from ._shared import Grove, Winner, check

Beam = tuple[float, Branch, bool]  # log-probability, branch, whether it has ended


async def beam(trunk: Branch, *, width: int = 4, max_tokens: int = 64) -> Winner[str]:
    """Finds a likely continuation by beam search; the trunk stays as it is.

    Graves 2012, "Sequence Transduction with Recurrent Neural Networks". Each beam is a fork; pruning closes forks.
    The result is the text, the score its log-probability, summed over its tokens.

    Args:
        trunk: the branch to continue; it must have tokens.
        width: number of continuations followed at once.
        max_tokens: most tokens of a continuation.
    """
    check(trunk, counts={"width": width, "max_tokens": max_tokens})
    start, tokenizer = len(trunk), trunk.context.tokenizer
    ends = set(tokenizer.eos_ids)

    async def continued(beam: Beam) -> list[tuple[float, Beam, int]]:
        row = (await beam[1].logits()).astype(np.float64)
        row -= np.logaddexp.reduce(row)
        return [(beam[0] + float(row[token]), beam, int(token)) for token in np.argsort(-row, kind="stable")[:width]]

    async def grow(score: float, branch: Branch, token: int) -> Beam:
        child = grove.add(await branch.fork())
        await child.extend([token])
        return score, child, token in ends

    async with Grove() as grove:
        beams: list[Beam] = [(0.0, grove.add(await trunk.fork()), False)]
        for _ in range(max_tokens):
            if all(ended for _, _, ended in beams):
                break
            over = [(beam[0], beam, None) for beam in beams if beam[2]]
            rows = await gather(*(continued(beam) for beam in beams if not beam[2]))
            chosen = sorted([*over, *(option for row in rows for option in row)], key=lambda option: -option[0])[:width]
            grown = await gather(*(grow(score, beam[1], token) for score, beam, token in chosen if token is not None))
            beams = [beam for _, beam, token in chosen if token is None] + grown
            grove.prune(beam[1] for beam in beams)
        score, branch, _ = max(beams, key=lambda beam: beam[0])
        return Winner(grove.take(branch), tokenizer.decode(branch.tokens[start:]), score)
