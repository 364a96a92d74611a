"""What speculation gains and costs on a large model: a draft right four times in five, and one that never is.

A model of the shape of Qwen3-0.6B with random weights. The drafts come from a recording of the plain run, so that how
often they are right is chosen: what is measured is verification and pacing. Run by hand:
`python tests/benchmarks/bench_speculation.py [--folder KEPT_EXPORT]`. For strategies that really guess, on a trained
model, run `agentkv bench spec`.
"""

from __future__ import annotations

import random
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import anyio
import numpy as np
import numpy.typing as npt
import typer
from bench_model import export, prompt
from rich.console import Console
from rich.table import Table

import agentkv as kv

console = Console()
DEPTH = 8


@dataclass(frozen=True, eq=False)
class Recorded:
    """Chains of the recorded tokens, each level right with the given probability where the level above is."""

    recorded: list[int]
    start: int
    right: float

    def propose(self, branch: int, tokens: npt.NDArray[np.int32], limit: int) -> kv.spec.Draft:
        """The next tokens of the recording, or others."""
        at = len(tokens) - self.start
        rng = random.Random(f"{len(tokens)}:{self.right}")
        truth = self.recorded[at : at + min(DEPTH, limit)]
        guesses = [token if rng.random() < self.right else (token + 1) % 256 for token in truth]
        return kv.spec.Draft(tokens=guesses, parents=list(range(-1, len(guesses) - 1)))


async def run(trunk: kv.Branch, tokens: int, strategy: Recorded | None) -> tuple[list[int], float]:
    """One generation on a fork: its tokens and seconds."""
    async with await trunk.fork() as branch:
        start = time.perf_counter()
        made = await branch.generate(max_tokens=tokens, speculative=strategy)
        return made.tokens, time.perf_counter() - start


async def measure(folder: Path, rounds: int, tokens: int, history: int) -> None:
    """Interleave plain and speculating runs; quote medians and the ratio of each round."""
    async with kv.Context.open(folder, capacity=4096) as ctx:
        trunk = await ctx.branch(prompt(history))
        plain, _ = await run(trunk, tokens, None)
        kinds = {
            "plain": None,
            "right 4 times in 5": Recorded(plain, history, 0.8),
            "never right": Recorded(plain, history, 0.0),
        }
        seconds: dict[str, list[float]] = {kind: [] for kind in kinds}
        forwards: dict[str, int] = {}
        for _ in range(rounds):
            for kind, strategy in kinds.items():
                before = ctx.stats.forwards
                made, spent = await run(trunk, tokens, strategy)
                assert made == plain, f"{kind} changed the output"
                seconds[kind].append(spent)
                forwards[kind] = ctx.stats.forwards - before
    table = Table(title=f"Qwen3-0.6B shape, {tokens} tokens after {history}, median of {rounds}")
    for column in ("draft", "ms per token", "tokens per forward", "speed against plain"):
        table.add_column(column, justify="left" if column == "draft" else "right")
    for kind, times in seconds.items():
        ratio = statistics.median(a / b for a, b in zip(seconds["plain"], times, strict=True))
        per_token = f"{1e3 * statistics.median(times) / tokens:.2f}"
        table.add_row(kind, per_token, f"{tokens / forwards[kind]:.2f}", f"{ratio:.3f} x")
    console.print(table)


def main(
    folder: Annotated[Path | None, typer.Option(help="Where the export is kept, or found if it exists.")] = None,
    rounds: int = 7,
    tokens: int = 200,
    history: int = 256,
) -> None:
    """Export the random checkpoint unless FOLDER holds it, then measure."""
    with tempfile.TemporaryDirectory() as scratch:
        target = folder or Path(scratch) / "export"
        if not (target / "agentkv.json").exists():
            export(target)
        anyio.run(measure, target, rounds, tokens, history)


if __name__ == "__main__":
    typer.run(main)
