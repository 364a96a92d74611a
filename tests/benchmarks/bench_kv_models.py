"""A model of the shape of Qwen3-0.6B over int8 and int4 caches beside fp16: decode, fan-out, prefill, whole forwards.

The caches take turns within one run, so that what else the machine does meets all alike. Beside the time on the wall
there is that of the processor, which leaves out what other processes take. Attention alone: bench_kv_dtypes.py.
Run by hand: `python tests/benchmarks/bench_kv_models.py [--folder KEPT_EXPORT]`.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import anyio
import typer
from bench_model import export, prompt

import agentkv as kv

CACHES: dict[str, dict[str, Any]] = {
    "fp16": {},
    "int8": {"kv_dtype": "int8"},
    "int8/int4": {"kv_dtype": "int8/int4"},
    "int4": {"kv_dtype": "int4"},
    "fp16 and int8 after 1,024": {"quantize_after": 1024},
}
DEEP, TRUNK, ROWS = 8192, 2048, 512
TOKENS = 16  # of a branch that generates


@dataclass
class Side:
    """One Context and what it keeps."""

    deep: kv.Branch
    trunk: kv.Branch

    async def decode(self) -> None:
        """One branch on a long history."""
        await self._generate(self.deep, 1)

    async def fan_out(self, n: int) -> None:
        """Branches on one trunk."""
        await self._generate(self.trunk, n)

    async def prefill(self) -> None:
        """More of a long prompt."""
        async with await self.deep.fork() as kid:
            await kid.extend(prompt(ROWS, seed=3))

    @staticmethod
    async def _generate(trunk: kv.Branch, n: int) -> None:
        kids = await trunk.fork(n)
        made = await kv.gather(*(kid.generate(max_tokens=TOKENS) for kid in kids))
        assert all(len(gen.tokens) == TOKENS for gen in made), "a branch ended early: the speeds would be of less work"
        for kid in kids:
            await kid.close()


CASES: dict[str, tuple[Callable[[Side], Awaitable[None]], int]] = {
    f"decode at depth {DEEP:,}": (Side.decode, TOKENS),
    f"8 branches on {TRUNK:,} cells": (lambda side: side.fan_out(8), 8 * TOKENS),
    f"64 branches on {TRUNK:,} cells": (lambda side: side.fan_out(64), 64 * TOKENS),
    f"prefill of {ROWS} rows after {DEEP:,}": (Side.prefill, ROWS),
}


async def measure(folder: Path, rounds: int) -> None:
    """Opens all sides, then measures them in turns."""
    async with AsyncExitStack() as stack:
        sides = []
        for cache in CACHES.values():
            ctx = await stack.enter_async_context(kv.Context.open(folder, 12_288, retain=0, **cache))
            sides.append(Side(await ctx.branch(prompt(DEEP)), await ctx.branch(prompt(TRUNK, seed=1))))
        for what, (run, tokens) in CASES.items():
            walls: list[list[float]] = [[] for _ in sides]
            cpus: list[list[float]] = [[] for _ in sides]
            for turn in range(rounds + 1):
                for side, wall, cpu in zip(sides, walls, cpus, strict=True):
                    start = time.perf_counter(), time.process_time()
                    await run(side)
                    if turn > 0:  # the first one warms up
                        wall.append(time.perf_counter() - start[0])
                        cpu.append(time.process_time() - start[1])
            took = [statistics.median(wall) for wall in walls]
            spent = [statistics.median(cpu) for cpu in cpus]
            shown = [f"fp16 {tokens / took[0]:.1f} tokens/s"]
            for name, wall_s, cpu_s in list(zip(CACHES, took, spent, strict=True))[1:]:
                ratios = f"{took[0] / wall_s:.2f} times fp16's speed, {spent[0] / cpu_s:.2f} by the processor's clock"
                shown.append(f"{name} {tokens / wall_s:.1f} ({ratios})")
            print(f"{what}, median of {rounds}: {'; '.join(shown)}", flush=True)


def main(
    folder: Annotated[Path | None, typer.Option(help="Where the export is kept, or found if it exists.")] = None,
    rounds: int = 7,
) -> None:
    """Export the random checkpoint unless FOLDER holds it, then measure."""
    with tempfile.TemporaryDirectory() as scratch:
        target = folder or Path(scratch) / "export"
        if not (target / "agentkv.json").exists():
            export(target)
        anyio.run(measure, target, rounds)


if __name__ == "__main__":
    typer.run(main)
