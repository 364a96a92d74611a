"""How many tokens a target forward would yield with a draft head, simulated over held-out conversations.

What the assistant says stands for the target's output, with which it agrees almost everywhere. Each level is given the
right tokens so far, which is the case whenever that level matters.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from agentkv_runtime.export.draft_head import DraftHead
from rich.console import Console
from rich.table import Table
from torch import Tensor

from .batches import Batch
from .rollouts import Starts, rollout
from .target import Target


@dataclass
class Acceptance:
    """Ranks of the right tokens among a head's guesses."""

    levels: int
    widths: tuple[int, ...] = (1, 2, 3, 4)
    tried: list[int] = field(default_factory=list)
    hits: list[list[int]] = field(default_factory=list)
    forwards: list[int] = field(default_factory=list)
    tokens: int = 0

    def __post_init__(self) -> None:
        self.tried = [0] * self.levels
        self.hits = [[0] * self.levels for _ in self.widths]
        self.forwards = [0] * len(self.widths)

    def add(self, ranks: Tensor, valid: Tensor) -> None:
        """One turn: ranks and whether there is a token to guess, `[levels, starts]`, by position."""
        starts = ranks.shape[1]
        self.tokens += starts
        self.tried = [n + m for n, m in zip(self.tried, valid.sum(1).tolist(), strict=True)]
        for row, width in enumerate(self.widths):
            right = (ranks < width) & valid
            self.hits[row] = [n + m for n, m in zip(self.hits[row], right.sum(1).tolist(), strict=True)]
            lengths = right.long().cumprod(0).sum(0).tolist()
            at = 0
            while at < starts:
                self.forwards[row] += 1
                at += 1 + lengths[at]

    def table(self) -> Table:
        """Per width: how often the right token is among so many at each level, and tokens per forward."""
        table = Table("kept per level", *(f"level {level + 1}" for level in range(self.levels)), "tokens per forward")
        for row, width in enumerate(self.widths):
            chances = (f"{100 * hit / max(1, n):.1f}%" for hit, n in zip(self.hits[row], self.tried, strict=True))
            table.add_row(str(width), *chances, f"{self.tokens / max(1, self.forwards[row]):.2f}")
        return table


def turns(batch: Batch) -> Iterator[tuple[int, int, int]]:
    """Row, first and last token of each of the assistant's turns."""
    for row, spoken in enumerate(batch.spoken):
        start = None
        for index, said in enumerate([*spoken.tolist(), False]):
            if said and start is None:
                start = index
            elif not said and start is not None:
                yield row, start, index - 1
                start = None


@torch.no_grad()
def measure(head: DraftHead, target: Target, batches: list[Batch], levels: int = 8) -> Acceptance:
    """Accepted tokens of a head over held-out batches."""
    found = Acceptance(levels)
    vocabulary = head.t2d.nonzero().squeeze(1)
    for batch in batches:
        tokens = torch.from_numpy(batch.tokens)
        rows, length = tokens.shape
        starts = Starts.of(batch, levels)
        ranks = torch.zeros((levels, rows, length), dtype=torch.int64)
        valid = torch.zeros((levels, rows, length), dtype=torch.bool)
        features, _ = target.run(tokens)
        for level, hidden in enumerate(rollout(head, tokens, features, starts)):
            logits = torch.full((*hidden.shape[:2], len(head.t2d)), float("-inf"))
            logits[..., vocabulary] = head.lm_head(head.norm(hidden)).float()
            right = tokens.gather(1, (starts.at + level + 2).clamp(max=length - 1))
            score = logits.gather(2, right[..., None])
            rank = (logits > score).sum(-1) + torch.isinf(score[..., 0]) * len(head.t2d)
            ranks[level].scatter_(1, starts.at, rank)
            valid[level].scatter_(1, starts.at, starts.valid[level])
        for row, first, last in turns(batch):
            # Drafts start before the turn's second token; the first one comes with the prompt.
            if last > first:
                found.add(ranks[:, row, first - 1 : last - 1], valid[:, row, first - 1 : last - 1])
    return found


def report(head: DraftHead, target: Target, batches: list[Batch], console: Console) -> None:
    """Print what `measure` finds."""
    console.print(measure(head, target, batches).table())
