"""What it takes to load 8,192 cells of a large model, beside computing them: the shape of Qwen3-0.6B, random weights.

Run by hand: `python tests/benchmarks/bench_saving.py [--folder KEPT_EXPORT]`. The file is in the page cache when it is
loaded, as it is where a process that has just ended saved it.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Awaitable
from pathlib import Path
from typing import Annotated, TypeVar

import anyio
import typer
from bench_model import export, prompt
from rich.console import Console
from rich.table import Table

import agentkv as kv

console = Console()
T = TypeVar("T")


async def timed(work: Awaitable[T], into: list[float]) -> T:
    """The result of what is awaited; its seconds are added to a list."""
    start = time.perf_counter()
    result = await work
    into.append(time.perf_counter() - start)
    return result


async def measure(folder: Path, path: Path, cells: int, rounds: int) -> None:
    """Prefill once, then save and load in turns; all in fresh Contexts' order of one run."""
    prefill: list[float] = []
    saves: list[float] = []
    loads: list[float] = []
    offloads: list[float] = []
    returns: list[float] = []
    async with kv.Context.open(folder, capacity=cells + 64, kv_dtype="fp16") as ctx:
        branch = await timed(ctx.branch(prompt(cells)), prefill)
        row = (await branch.logits()).tobytes()
        for _ in range(rounds):
            saved = await timed(branch.save(path), saves)
            await branch.close()
            branch = await timed(ctx.load(path), loads)
            assert (await branch.logits()).tobytes() == row
            await timed(branch.offload(), offloads)
            await timed(branch.logits(), returns)
    seconds = {
        f"prefill of {cells} tokens": prefill,
        f"save, {saved.nbytes / 1e6:.0f} MB": saves,
        "load": loads,
        "offload to memory": offloads,
        "return": returns,
    }
    table = Table(title=f"Qwen3-0.6B shape, 8da4w, fp16 cache, median of {rounds}")
    for name in ("what", "seconds", "least"):
        table.add_column(name)
    for what, times in seconds.items():
        table.add_row(what, f"{statistics.median(times):.2f}", f"{min(times):.2f}")
    console.print(table)
    console.print(f"loading is {statistics.median(prefill) / statistics.median(loads):.0f} times as fast as prefilling")


def main(
    folder: Annotated[Path | None, typer.Option(help="Where the export is kept, or found if it exists.")] = None,
    cells: int = 8192,
    rounds: int = 5,
) -> None:
    """Export the random checkpoint unless FOLDER holds it, then measure."""
    with tempfile.TemporaryDirectory() as scratch:
        target = folder or Path(scratch) / "export"
        if not (target / "agentkv.json").exists():
            export(target)
        anyio.run(measure, target, Path(scratch) / "saved", cells, rounds)


if __name__ == "__main__":
    typer.run(main)
