"""What the step loop costs besides the model's forwards. Run by hand: python tests/benchmarks/bench_loop.py [FOLDER].

Prints, for the best of several runs: microseconds per step outside the forward (event loop, thread, engine), of
generations, streams and per-token loops; and the cost of fork and rollback at --cells cells.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from time import perf_counter

import anyio

import agentkv as kv

RUNS = 5
HOT = kv.Sampling(temperature=1.0, seed=1)


async def generate(branch: kv.Branch, steps: int) -> None:
    """One generation, inside the engine."""
    await branch.generate(max_tokens=steps)


async def stream(branch: kv.Branch, steps: int) -> None:
    """One generation, read token by token."""
    async with branch.stream(max_tokens=steps) as tokens:
        async for _ in tokens:
            pass


async def loop(branch: kv.Branch, steps: int) -> None:
    """A loop as users write it."""
    for _ in range(steps):
        row = await branch.logits()
        await branch.extend([int(row.argmax())])


async def overhead(
    ctx: kv.Context, drive: Callable[[kv.Branch, int], Awaitable[None]], branches: int, steps: int
) -> tuple[float, float, float]:
    """(seconds outside the forward per step, of these in the engine, seconds of a forward): best of RUNS."""
    results = []
    for _ in range(RUNS):
        trunk = await ctx.branch([40, 41, 42])
        kids = await trunk.fork(branches)
        before, raw = ctx.stats, ctx._core.loop.snapshot.engine
        start = perf_counter()
        await kv.gather(*(drive(kid, steps) for kid in kids))
        wall = perf_counter() - start
        after = ctx.stats
        forwards = after.forwards - before.forwards
        forward = after.forward_seconds - before.forward_seconds
        native = ctx._core.loop.snapshot.engine.overhead_seconds - raw.overhead_seconds
        results.append(((wall - forward) / forwards, native / forwards, forward / forwards))
        await ctx.keep()
    return min(results)


async def timed(verb: Callable[[], Awaitable[object]]) -> float:
    """Seconds, best of 20."""
    best = float("inf")
    for _ in range(20):
        start = perf_counter()
        await verb()
        best = min(best, perf_counter() - start)
    return best


async def main(folder: Path, cells: int, threads: int | None) -> None:
    """Prints the figures."""
    with tempfile.TemporaryDirectory() as copy:
        await measure(without_bound(folder, Path(copy) / folder.name), cells, threads)


def without_bound(folder: Path, copy: Path) -> Path:
    """The same model without a word of how many positions it knows: what it says is of no interest here."""
    shutil.copytree(folder, copy)
    manifest = json.loads((copy / "agentkv.json").read_text())
    (copy / "agentkv.json").write_text(json.dumps({**manifest, "max_positions": None}))
    return copy


async def measure(folder: Path, cells: int, threads: int | None) -> None:
    """As `main`."""
    async with kv.Context.open(folder, capacity=cells + 16384, kv_dtype="fp32", threads=threads) as ctx:
        print(f"{ctx.model_info.backend}, vocabulary {ctx.model_info.vocab_size}")
        for drive, counts in ((generate, (1, 8, 64)), (stream, (1, 8, 64)), (loop, (1, 8, 64))):
            for branches in counts:
                total, native, forward = await overhead(ctx, drive, branches, 100)
                print(
                    f"{drive.__name__:9} {branches:3} branches: {total * 1e6:7.1f} us per step outside the forward "
                    f"({native * 1e6:.1f} in the engine), forward {forward * 1e6:.1f} us"
                )
        trunk = await ctx.branch([5 + i % 300 for i in range(cells)])
        mark = trunk.mark()

        kids: list[kv.Branch] = []

        async def fork() -> None:
            kids.append(await trunk.fork())

        async def extend_and_rollback() -> None:
            await trunk.rollback(mark)

        async def nothing() -> None:
            await ctx._core.loop.call(lambda _: None)

        print(f"a round trip to the engine: {await timed(nothing) * 1e6:.1f} us")
        print(f"fork at {cells} cells: {await timed(fork) * 1e6:.1f} us")
        await ctx.keep(trunk)
        await trunk.extend([7] * 64)
        print(f"rollback at {cells} cells: {await timed(extend_and_rollback) * 1e6:.1f} us")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", default=kv.models.nano())
    parser.add_argument("--cells", type=int, default=32768)
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--backend", default="asyncio", choices=["asyncio", "trio"])
    arguments = parser.parse_args()
    sys.exit(anyio.run(main, arguments.folder, arguments.cells, arguments.threads, backend=arguments.backend))
