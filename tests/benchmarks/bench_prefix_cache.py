"""Time to the first token of a process whose prompt begins with what earlier processes have kept on disk.

Each prompt is one of 8,000 tokens and a question, in a process of its own: without a folder, then with one: the first
notes what it begins with, the second writes it while it answers, the third reads it. Run by hand:
`python tests/benchmarks/bench_prefix_cache.py [MODEL ...]`; without models, nano and fewer tokens.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import anyio
import typer
from rich.console import Console
from rich.table import Table

import agentkv as kv
from agentkv._context.handle import core_of

ASK, ANSWER = 40, 64  # tokens
RUNS = {"no folder": 0, "notes": 1, "writes": 2, "reads": 0}  # by the question that is asked
console = Console()


async def answer(model: Path, folder: Path | None, tokens: int, seed: int) -> dict[str, Any]:
    """Prompts a Context of its own and reads an answer; what that took, and what the answer is."""
    async with kv.Context.open(model, capacity=tokens + 1024, prefix_cache=folder) as ctx:
        top = min(ctx.model_info.vocab_size, 40_000)
        rng = random.Random(1)
        prompt = [rng.randrange(1000, top) if top > 1000 else rng.randrange(3, top) for _ in range(tokens)]
        rng = random.Random(seed)
        prompt += [rng.randrange(3, top) for _ in range(ASK)]
        began = time.perf_counter()
        branch = await ctx.branch(prompt)
        times: list[float] = []
        got: list[int] = []
        on_and_on = kv.Sampling(logit_bias=dict.fromkeys(ctx.tokenizer.eos_ids, -100.0))
        async with branch.stream(max_tokens=ANSWER, sampling=on_and_on) as stream:
            async for token in stream:
                times.append(time.perf_counter())
                got.append(token.id)
        row = (await branch.logits()).tobytes()
        prefixes = core_of(ctx).prefixes
        while prefixes is not None and prefixes.writer.busy:  # noqa: ASYNC110 - nothing tells when
            await anyio.sleep(0.01)
        gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
        return {
            "first": times[0] - began,
            "rest": (times[-1] - times[0]) / len(gaps),
            "longest": max(gaps),
            "read": ctx.stats.prefix_cache_tokens,
            "written": ctx.stats.prefix_cache_written,
            "write": time.perf_counter() - times[-1],
            "said": f"{got}{hash(row)}",
        }


def measure(model: Path, tokens: int, rounds: int) -> None:
    """Runs each kind of process so many times, in turns, and prints medians."""
    told: dict[str, list[dict[str, Any]]] = {name: [] for name in RUNS}
    nbytes = 0
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as scratch:
            for name, question in RUNS.items():
                folder = "none" if name == "no folder" else scratch
                command = [sys.executable, __file__, "--child", str(model), folder, str(tokens), str(question)]
                environment = {**os.environ, "PYTHONHASHSEED": "0"}
                done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
                told[name].append(json.loads(done.stdout.splitlines()[-1]))
            nbytes = sum(path.stat().st_size for path in Path(scratch).glob("*/*.prefix"))
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    table = Table(title=f"{model.name}: {tokens} tokens, {nbytes / 1e6:.0f} MB on disk; load of the machine {load}")
    for column in ("process", "first token (s)", "of each", "per token (ms)", "longest gap (ms)", "tokens read"):
        table.add_column(column, justify="right")
    for name, runs in told.items():
        first, rest, longest = ([run[key] for run in runs] for key in ("first", "rest", "longest"))
        table.add_row(
            name,
            f"{statistics.median(first):.2f}",
            " ".join(f"{value:.2f}" for value in first),
            f"{1e3 * statistics.median(rest):.1f}",
            f"{1e3 * statistics.median(longest):.1f}",
            str(runs[0]["read"]),
        )
    console.print(table)
    assert len({run["said"] for name in ("no folder", "reads") for run in told[name]}) == 1
    assert all(run["written"] == (name == "writes") for name, runs in told.items() for run in runs)


def main(
    models: Annotated[list[Path] | None, typer.Argument()] = None,
    tokens: int = 8000,
    rounds: int = 3,
    child: Annotated[bool, typer.Option("--child", hidden=True)] = False,
) -> None:
    """Measures each of the models."""
    if child:
        model, folder, length, seed = models or []
        kept = None if folder == Path("none") else folder
        print(json.dumps(anyio.run(answer, model, kept, int(str(length)), int(str(seed)))))
    elif models:
        for each in models:
            measure(each, tokens, rounds)
    else:
        measure(kv.models.nano(), 1500, rounds)


if __name__ == "__main__":
    typer.run(main)
