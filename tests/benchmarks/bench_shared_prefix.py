"""Memory of N processes over one prefix of 4,096 tokens, mapped and loaded privately: the shape of Qwen3-0.6B.

Run by hand: `python tests/benchmarks/bench_shared_prefix.py [--folder KEPT_EXPORT]`. Linux: the figures are the
kernel's, proportional set size (PSS), in which N processes that map a page count an N-th of it each.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import anyio
import typer
from bench_model import export, prompt
from rich.console import Console
from rich.table import Table

import agentkv as kv

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.agentkv.mapped_bytes import mapped_bytes

OWN = 64  # tokens that each worker adds
PROCESSES = (1, 2, 4)
console = Console()


def pss() -> int:
    """Proportional set size of this process, in bytes."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith("Pss:")).split()[1])


async def write(folder: Path, path: Path, kv_dtype: str, cells: int) -> None:
    """Computes the prefix and saves it."""
    async with kv.Context.open(folder, capacity=2 * cells, kv_dtype=kv_dtype) as ctx:
        branch = await ctx.branch(prompt(cells))
        start = time.perf_counter()
        saved = await branch.save(path, shareable=True)
        print(json.dumps({"nbytes": saved.nbytes, "seconds": time.perf_counter() - start}))


async def work(folder: Path, path: Path, kv_dtype: str, cells: int, shared: bool) -> None:
    """Loads the prefix and goes on from it; says what it takes once all have, and ends once all have said so."""
    async with kv.Context.open(folder, capacity=2 * cells, kv_dtype=kv_dtype, threads=1) as ctx:
        start = time.perf_counter()
        branch = await ctx.load(path, shared=shared)
        seconds = time.perf_counter() - start
        kid = await branch.fork()
        await kid.extend(prompt(OWN, seed=1))
        assert branch.loaded is not None
        print("ready", flush=True)
        sys.stdin.readline()
        _, of_file = mapped_bytes(path)
        told = {
            "load": seconds,
            "pss": pss(),
            "mapped": of_file,
            "kv_bytes": ctx.stats.kv_bytes,
            "kv_bytes_shared": ctx.stats.kv_bytes_shared,
            "row": sum((await kid.logits()).tobytes()),
        }
        print(json.dumps(told), flush=True)
        sys.stdin.readline()


def run(*arguments: object) -> subprocess.Popen[str]:
    """This file in a process of its own."""
    command = [sys.executable, __file__, *map(str, arguments)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def told_by(workers: list[subprocess.Popen[str]]) -> list[dict[str, Any]]:
    """What workers say when all have the prefix at the same time."""
    lines: list[str] = []
    for _ in range(2):
        for worker in workers:
            assert worker.stdout is not None
            lines.append(worker.stdout.readline())
        for worker in workers:
            assert worker.stdin is not None
            worker.stdin.write("\n")
            worker.stdin.flush()
    for worker in workers:
        worker.communicate()
    return [json.loads(line) for line in lines[len(workers) :]]


def measure(folder: Path, path: Path, kv_dtype: str, cells: int) -> None:
    """Starts so many workers at once, in turns with and without sharing, and prints what they took together."""
    written, _ = run("write", folder, path, kv_dtype, cells).communicate()
    size = json.loads(written)
    console.print(f"saved {size['nbytes'] / 1e6:.0f} MB in {size['seconds']:.2f} s")
    table = Table(title=f"{cells} tokens, {kv_dtype} cache; MB together, seconds of the median load")
    for name in ("processes", "prefix", "PSS", "of this: the file", "kv_bytes", "kv_bytes_shared", "load"):
        table.add_column(name, justify="right")
    rows = set()
    for n in PROCESSES:
        for shared in (False, True):
            told = told_by([run("work", folder, path, kv_dtype, cells, int(shared)) for _ in range(n)])
            rows |= {each["row"] for each in told}
            sums = [
                f"{sum(each[name] for each in told) / 1e6:.0f}"
                for name in ("pss", "mapped", "kv_bytes", "kv_bytes_shared")
            ]
            seconds = statistics.median(each["load"] for each in told)
            table.add_row(str(n), "mapped" if shared else "private", *sums, f"{seconds:.2f}")
    console.print(table)
    assert len(rows) == 1  # the same logits everywhere


def main(
    what: Annotated[str, typer.Argument(hidden=True)] = "measure",
    arguments: Annotated[list[str] | None, typer.Argument(hidden=True)] = None,
    folder: Annotated[Path | None, typer.Option(help="Where the export is kept, or found if it exists.")] = None,
    kv_dtype: str = "fp16",
    cells: int = 4096,
) -> None:
    """Export the random checkpoint unless FOLDER holds it, then measure."""
    if what == "write":
        model, path, dtype, length = arguments or []
        anyio.run(write, Path(model), Path(path), dtype, int(length))
    elif what == "work":
        model, path, dtype, length, shared = arguments or []
        anyio.run(work, Path(model), Path(path), dtype, int(length), shared == "1")
    else:
        with tempfile.TemporaryDirectory() as scratch:
            target = folder or Path(scratch) / "export"
            if not (target / "agentkv.json").exists():
                export(target)
            measure(target, Path(scratch) / "prefix", kv_dtype, cells)


if __name__ == "__main__":
    typer.run(main)
