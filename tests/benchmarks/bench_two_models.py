"""Two models in one program: tokens a second of each alone and of both at once, in turns.

The share of a model is what it makes of its speed alone; shares of plain time-sharing add up to 100%. "idle beside" is
the first model's speed while the second is open and unused, of its speed before that was opened. Run by hand:
`python tests/benchmarks/bench_two_models.py FIRST SECOND [--seconds 4] [--rounds 5]`, where both are models that
`kv.Context.open` takes.
"""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import Annotated

import anyio
import typer
from rich.console import Console
from rich.table import Table

import agentkv as kv

BRANCHES = (1, 2, 4, 8)
PROMPT = list(range(100, 164))
LONGEST = 400  # tokens of a generation


async def speed(ctx: kv.Context, branches: int, seconds: float) -> float:
    """Tokens a second that so many branches make together."""
    made = 0
    end = time.perf_counter() + seconds

    async def work() -> None:
        nonlocal made
        while time.perf_counter() < end:
            async with await ctx.branch(PROMPT) as branch, branch.stream(max_tokens=LONGEST) as tokens:
                async for _ in tokens:
                    if time.perf_counter() >= end:
                        return
                    made += 1

    await kv.gather(*[work() for _ in range(branches)])
    return made / seconds


async def compare(first: str, second: str, seconds: float, rounds: int) -> None:
    before = {}
    async with kv.Context.open(first, capacity=8192) as one:
        for branches in BRANCHES:
            before[branches] = [await speed(one, branches, seconds) for _ in range(rounds)]
        async with kv.Context.open(second, capacity=8192) as two:
            names = Path(first).stem, Path(second).stem
            table = Table("branches", *[f"{name}, alone" for name in names], *[f"{name}, both" for name in names])
            for head in ("shares", "sum", "idle beside"):
                table.add_column(head)
            for branches in BRANCHES:
                table.add_row(str(branches), *await row(one, two, branches, seconds, rounds, before[branches]))
    Console().print(table)


async def row(
    one: kv.Context, two: kv.Context, branches: int, seconds: float, rounds: int, before: list[float]
) -> list[str]:
    """Cells of the table for one number of branches on each model, medians over the rounds."""
    alone: tuple[list[float], list[float]] = ([], [])
    both: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds):
        for ctx, speeds in zip((one, two), alone, strict=True):
            speeds.append(await speed(ctx, branches, seconds))
        for value, speeds in zip(
            await kv.gather(speed(one, branches, seconds), speed(two, branches, seconds)), both, strict=True
        ):
            speeds.append(value)
    shares = [[b / a for a, b in zip(*of, strict=True)] for of in zip(alone, both, strict=True)]
    total = statistics.median(map(sum, zip(*shares, strict=True)))
    return [
        *[f"{statistics.median(speeds):.1f}" for speeds in (*alone, *both)],
        " + ".join(f"{statistics.median(share):.0%}" for share in shares),
        f"{total:.0%}",
        f"{statistics.median(alone[0]) / statistics.median(before):.0%}",
    ]


def main(
    first: str, second: str, seconds: Annotated[float, typer.Option()] = 4, rounds: Annotated[int, typer.Option()] = 5
) -> None:
    """Prints the table."""
    anyio.run(compare, first, second, seconds, rounds)


if __name__ == "__main__":
    typer.run(main)
