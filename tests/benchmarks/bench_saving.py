"""What it takes to load 8,192 cells of a large model, beside computing them: the shape of Qwen3-0.6B, random weights.

Run by hand: `python tests/benchmarks/bench_saving.py [--folder KEPT_EXPORT]`. The file is in the page cache when it is
loaded, as it is where a process that has just ended saved it. Time on the wall, and time of the processor, which leaves
out what other processes take.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Awaitable
from pathlib import Path
from typing import Annotated, NamedTuple, TypeVar

import anyio
import typer
from bench_model import export, prompt
from rich.console import Console
from rich.table import Table

import agentkv as kv

console = Console()
T = TypeVar("T")


class Took(NamedTuple):
    """Seconds of one call."""

    wall: float
    processor: float


def median(times: list[Took]) -> Took:
    """Of each."""
    return Took(*(statistics.median(clock) for clock in zip(*times, strict=True)))


async def timed(work: Awaitable[T], into: list[Took]) -> T:
    """The result of what is awaited; its seconds are added to a list."""
    start = time.perf_counter(), time.process_time()
    result = await work
    into.append(Took(time.perf_counter() - start[0], time.process_time() - start[1]))
    return result


async def measure(folder: Path, path: Path, cells: int, rounds: int) -> None:
    """Prefill once, then save and load in turns; all in fresh Contexts' order of one run."""
    prefill: list[Took] = []
    saves: list[Took] = []
    loads: list[Took] = []
    offloads: list[Took] = []
    returns: list[Took] = []
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
    for name in ("what", "seconds", "least", "of the processor"):
        table.add_column(name)
    for what, times in seconds.items():
        wall, processor = median(times)
        table.add_row(what, f"{wall:.2f}", f"{min(took.wall for took in times):.2f}", f"{processor:.2f}")
    console.print(table)
    ratios = [a / b for a, b in zip(median(prefill), median(loads), strict=True)]
    console.print(
        f"loading is {ratios[0]:.0f} times as fast as prefilling, and takes the processor {ratios[1]:.0f} times less"
    )


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
