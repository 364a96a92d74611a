"""Two models in one program: tokens a second of each alone and of both at once, in turns.

The share of a model is what it makes of its speed alone; shares of plain time-sharing add up to 100%. "idle beside" is
the first model's speed while the second is open and unused, of its speed while that is closed. Run by hand:
`python tests/benchmarks/bench_two_models.py FIRST SECOND [--seconds 4] [--rounds 5]`, where both are models that
`kv.Context.open` takes.
"""

from __future__ import annotations

import time
from pathlib import Path
from statistics import median
from typing import Annotated, NamedTuple

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
    names = Path(first).stem, Path(second).stem
    table = Table("branches", *[f"{name}, alone" for name in names], *[f"{name}, both" for name in names])
    for head in ("shares", "sum", "idle beside"):
        table.add_column(head)
    async with kv.Context.open(first, capacity=8192) as one:
        await speed(one, 1, seconds)  # what the first tokens alone cost
        for branches in BRANCHES:
            measured = [await measure(one, second, branches, seconds) for _ in range(rounds)]
            table.add_row(str(branches), *row(measured))
    Console().print(table)


class Round(NamedTuple):
    """Tokens a second."""

    before: float  # the first model, the second is closed
    alone: tuple[float, float]  # the other one is open and idle
    both: tuple[float, float]

    @property
    def shares(self) -> list[float]:
        return [both / alone for both, alone in zip(self.both, self.alone, strict=True)]


async def measure(one: kv.Context, second: str, branches: int, seconds: float) -> Round:
    """One round, in which the second model is opened and closed."""
    before = await speed(one, branches, seconds)
    async with kv.Context.open(second, capacity=8192) as two:
        alone = await speed(one, branches, seconds), await speed(two, branches, seconds)
        first, other = await kv.gather(speed(one, branches, seconds), speed(two, branches, seconds))
    return Round(before, alone, (first, other))


def row(rounds: list[Round]) -> list[str]:
    """Cells of the table for one number of branches on each model: medians over the rounds."""
    speeds = [*zip(*[(*each.alone, *each.both) for each in rounds], strict=True)]
    return [
        *[f"{median(each):.1f}" for each in speeds],
        " + ".join(f"{median(share):.0%}" for share in zip(*[each.shares for each in rounds], strict=True)),
        f"{median(sum(each.shares) for each in rounds):.0%}",
        f"{median(each.alone[0] / each.before for each in rounds):.1%}",
    ]


def main(
    first: str, second: str, seconds: Annotated[float, typer.Option()] = 4, rounds: Annotated[int, typer.Option()] = 5
) -> None:
    """Prints the table."""
    anyio.run(compare, first, second, seconds, rounds)


if __name__ == "__main__":
    typer.run(main)
