"""Eight branches under no, one, four and eight LoRA adapters: tokens a second together, in turns.

On one thread, by the processor's time, which leaves out what other processes take. The adapters have random numbers of
rank 8 for every linear layer but the head. Run by hand:
`python tests/benchmarks/bench_adapters.py MODEL [--rounds 15] [--no-prefill]`, where MODEL is an exported folder.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path
from typing import Annotated

import anyio
import typer
from rich.console import Console
from rich.table import Table

import agentkv as kv
from tests.adapters import random_adapter

BRANCHES, TOKENS, RANK = 8, 12, 8
PROMPT = list(range(100, 164))


async def measured(ctx: kv.Context, adapters: list[kv.Adapter | None], prefill: bool) -> float:
    """Seconds for each token that eight branches, whose adapters take turns, make or read."""
    branches = [await ctx.branch(PROMPT, adapter=adapters[i % len(adapters)]) for i in range(BRANCHES)]
    began = time.process_time()
    if prefill:
        await kv.gather(*[branch.extend([200 + i + j for j in range(64)]) for i, branch in enumerate(branches)])
        made = 64 * BRANCHES
    else:
        answers = await kv.gather(*[branch.generate(max_tokens=TOKENS) for branch in branches])
        made = sum(len(answer.tokens) for answer in answers)
    seconds = time.process_time() - began
    await ctx.keep()
    return seconds / made


async def compare(model: Path, rounds: int, kinds: list[bool], folder: Path) -> None:
    async with kv.Context.open(model, capacity=4096, retain=0, threads=1) as ctx:
        loaded = [await ctx.adapter(random_adapter(model, folder / f"a{i}", i, RANK, scale=0.02)) for i in range(8)]
        cases: dict[str, list[kv.Adapter | None]] = {
            "none": [None],
            "1, on all": [loaded[0]],
            "1, on half": [loaded[0], None],
            "4": list(loaded[:4]),
            "8": list(loaded),
        }
        times: dict[tuple[str, bool], list[float]] = {}
        for turn in range(rounds + 1):
            for name, adapters in cases.items():
                for prefill in kinds:
                    seconds = await measured(ctx, adapters, prefill)
                    if turn:  # the first warms up
                        times.setdefault((name, prefill), []).append(seconds)
        heads = [head for prefill in kinds for head in (f"{'prefill' if prefill else 'decoding'}, tokens/s", "of none")]
        table = Table("adapters", *heads)
        for name in cases:
            row = [name]
            for prefill in kinds:
                base, mine = times["none", prefill], times[name, prefill]
                share = statistics.median(b / m for b, m in zip(base, mine, strict=True))
                row += [f"{1 / statistics.median(mine):.1f}", f"{share:.0%}"]
            table.add_row(*row)
        console = Console()
        console.print(f"{model.name}: {BRANCHES} branches, rank {RANK}, {loaded[0].nbytes / 1e6:.1f} MB each")
        console.print(table)


def main(model: Path, rounds: Annotated[int, typer.Option()] = 15, prefill: bool = True) -> None:
    """Prints the table."""
    with tempfile.TemporaryDirectory() as folder:
        anyio.run(compare, model, rounds, [False, True] if prefill else [False], Path(folder))


if __name__ == "__main__":
    typer.run(main)
