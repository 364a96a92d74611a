"""What recording costs: the time of a step with and without, in turns in one run.

Run by hand: `python tests/benchmarks/bench_trace.py [--folder EXPORT_OF_A_LARGER_MODEL]`. Nano by default.
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
from agentkv import trace

console = Console()


async def seconds_per_step(ctx: kv.Context, branches: int, tokens: int) -> float:
    """Of branches that generate together."""
    trunk = await ctx.branch([5 + i % 50 for i in range(16)])
    kids = await trunk.fork(branches)
    before, start = ctx.stats.steps, time.perf_counter()
    forced = kv.Sampling(logit_bias={token: -100.0 for token in ctx.tokenizer.eos_ids})
    await kv.gather(*(kid.generate(max_tokens=tokens, sampling=forced) for kid in kids))
    seconds = (time.perf_counter() - start) / (ctx.stats.steps - before)
    await ctx.keep()
    return seconds


async def measure(folder: Path, branches: int, tokens: int, rounds: int) -> tuple[float, float, float]:
    """Medians in seconds: without, with; and bytes of the file per step."""
    plain, traced, sizes = [], [], []
    with tempfile.TemporaryDirectory() as files:
        path = Path(files) / "run.trace"
        async with kv.Context.open(folder, 8192) as ctx:
            await seconds_per_step(ctx, branches, 4)
            for _ in range(rounds):
                plain.append(await seconds_per_step(ctx, branches, tokens))
                async with trace.record(ctx, path):
                    traced.append(await seconds_per_step(ctx, branches, tokens))
                sizes.append(path.stat().st_size / tokens)
    return statistics.median(plain), statistics.median(traced), statistics.median(sizes)


def main(
    folder: Annotated[Path | None, typer.Option(help="Another model; nano without.")] = None,
    tokens: Annotated[int, typer.Option(help="Per generation.")] = 1000,
    rounds: Annotated[int, typer.Option(help="Turns that medians are of.")] = 15,
) -> None:
    """Print the time of a step with and without a recording."""
    model = Path(folder or kv.models.nano())
    table = Table(
        "branches", "us/step", "recorded", "more", "%", "bytes/step", title=f"{model.name}, medians of {rounds}"
    )
    for branches in (1, 8):
        plain, traced, size = anyio.run(measure, model, branches, tokens, rounds)
        more = traced - plain
        cells = (
            f"{1e6 * plain:.1f}",
            f"{1e6 * traced:.1f}",
            f"{1e6 * more:.1f}",
            f"{100 * more / plain:.2f}",
            f"{size:.0f}",
        )
        table.add_row(str(branches), *cells)
    console.print(table)


if __name__ == "__main__":
    typer.run(main)
