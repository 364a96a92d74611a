"""What each mechanism of the drafting policy gains: nano on held-out prompts, with one of them switched off at a time.

Every variant continues all prompts in a Context of its own, in turns with the others. Counts are firmer than times: the
column "us per token at this machine's row costs" prices each variant's forwards and draft levels with costs that are
measured once, by their minimum, so that what other processes do in the meantime tells no variant from another.
Run by hand: `python tests/benchmarks/drafting_ablation.py [--repeat N] [--branches N]`.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import anyio
import numpy as np
import numpy.typing as npt
import typer
from agentkv_runtime._core import PolicyOptions
from rich.console import Console
from rich.table import Table

import agentkv as kv
from agentkv._bench.prompts import BenchPrompt, default_prompts

NANO = kv.models.nano()
MAX_TOKENS, CAPACITY, MAX_ROWS = 128, 16384, 33
NEVER = 2**30  # rounds of a pause
FIXED = 1e9  # the weight of a prior that no observation moves, or a bound that nothing reaches

# The fields of PolicyOptions with which a mechanism does nothing.
OFF: dict[str, dict[str, Any]] = {
    "full policy": {},
    "full policy again": {},
    "no learning of rates": {"measured_weight": FIXED, "guess_weight": FIXED},
    "no forecast of levels": {"measured_weight": FIXED},
    "nothing forgotten": {"memory": FIXED},
    "interruptions counted": {"outlier": FIXED},
    "no tolerance": {"tolerance": 0},
    "no pauses": {"shortest_pause": 1, "longest_pause": 1},
    "no trials": {"shortest_pause": NEVER, "longest_pause": NEVER},
}
# The prior of the drafter's levels, where a variant is about it: none, or that every level is always accepted.
PRIORS: dict[str, list[float]] = {"no measured prior": [], "no forecast of levels": [1.0] * 16}


@dataclass
class Run:
    """One Context over all prompts: tokens, and the steps that made them."""

    tokens: list[int] = field(default_factory=list)  # per group of prompts
    rides: list[int] = field(default_factory=list)  # branches in decode forwards, summed
    rows: list[int] = field(default_factory=list)  # of each decode forward
    levels: int = 0
    seconds: float = 0.0
    drafting: float = 0.0


class Rows:
    """Drafts of a chosen number of nodes that are never right."""

    adaptive = False

    def __init__(self, nodes: int) -> None:
        self.nodes = nodes

    def propose(self, branch: int, tokens: npt.NDArray[np.int32], limit: int) -> kv.spec.Draft | None:
        """Siblings that the model does not say."""
        count = min(self.nodes, limit)
        return kv.spec.Draft(list(range(500, 500 + count)), [-1] * count) if count else None


class Overconfident:
    """Drafts that are never right, and say that they are."""

    def propose(self, branch: int, tokens: npt.NDArray[np.int32], limit: int) -> kv.spec.Draft:
        """A chain of a token that the model does not say."""
        count = min(4, limit)
        return kv.spec.Draft.chain([500] * count, [0.95] * count)


async def row_costs(prompts: Sequence[BenchPrompt], rounds: int) -> list[float]:
    """[rows] least seconds of a decode forward; 0 rows cost nothing."""
    least = [0.0] + [float("inf")] * MAX_ROWS
    strategies = {rows: Rows(rows - 1) for rows in range(1, MAX_ROWS + 1)}
    async with kv.Context.open(NANO, capacity=CAPACITY, threads=1) as ctx:
        for prompt in prompts[:rounds]:
            for rows, strategy in strategies.items():
                branch = await prompt.branch(ctx)
                before = await ctx._core.loop.call(lambda engine: engine.stats())
                await branch.generate(max_tokens=40, speculative=strategy)
                after = await ctx._core.loop.call(lambda engine: engine.stats())
                spent = after["native_forward_seconds"] - before["native_forward_seconds"]
                least[rows] = min(least[rows], spent / max(1, after["forwards"] - before["forwards"]))
                await branch.close()
    for rows in range(MAX_ROWS, 1, -1):  # more rows never cost less
        least[rows - 1] = min(least[rows - 1], least[rows])
    return least


async def run(variant: str, strategy: Any, prompts: Sequence[BenchPrompt], branches: int) -> Run:
    """All prompts, `branches` at a time, in a fresh Context."""
    made = Run()
    async with kv.Context.open(NANO, capacity=CAPACITY, threads=1) as ctx:
        drafter = ctx._core.model.speculation.drafter(strategy)

        def prepare(engine: Any) -> None:
            engine.set_policy(PolicyOptions(**OFF.get(variant, {})))
            if drafter is not None:
                if variant in PRIORS:
                    drafter.prior = type(drafter.prior)(PRIORS[variant])
                engine.attach(drafter)

        await ctx._core.loop.call(prepare)
        for first in range(0, len(prompts), branches):
            group = [await prompt.branch(ctx) for prompt in prompts[first : first + branches]]
            seen, start = len(ctx.steps), anyio.current_time()
            outs = await kv.gather(*(branch.generate(max_tokens=MAX_TOKENS, speculative=strategy) for branch in group))
            made.seconds += anyio.current_time() - start
            steps = [step for step in ctx.steps[seen:] if step.prefill_rows == 0]
            made.tokens.append(sum(len(out.tokens) - 1 for out in outs))
            made.rides.append(sum(step.branches for step in steps))
            made.rows += [step.decode_rows for step in steps]
            await ctx.keep()
        made.levels = getattr(drafter, "levels", 0)
        made.drafting = ctx.stats.draft_seconds
    return made


def table(runs: dict[str, list[Run]], costs: list[float], title: str, branches: int) -> Table:
    """One row per variant; medians over its runs."""
    levels = [each.drafting / each.levels for made in runs.values() for each in made if each.levels]
    level = min(levels, default=0.0)
    cold = max(1, 10 // branches)

    def priced(each: Run) -> float:
        forwards = sum(costs[min(rows, MAX_ROWS)] * max(1.0, rows / MAX_ROWS) for rows in each.rows)
        return 1e6 * (forwards + level * each.levels) / sum(each.tokens)

    columns = {
        "tokens per\nforward": lambda each: sum(each.tokens) / sum(each.rides),
        "first ten\nprompts": lambda each: sum(each.tokens[:cold]) / sum(each.rides[:cold]),
        "rows per\nforward": lambda each: statistics.mean(each.rows),
        "us per token at this\nmachine's row costs": priced,
        "wall us\nper token": lambda each: 1e6 * each.seconds / sum(each.tokens),
    }
    shown = Table("variant", title=title)
    for name in columns:
        shown.add_column(name, justify="right")
    for variant, made in runs.items():
        cells = [[value(each) for each in made] for value in columns.values()]
        shown.add_row(variant, *(f"{statistics.median(v):.2f} ({min(v):.2f}-{max(v):.2f})" for v in cells))
    return shown


async def measure(repeat: int, branches: int, console: Console) -> None:
    """The tables of both strategies."""
    prompts = default_prompts(NANO)
    costs = await row_costs(prompts, 12)
    for strategy in (kv.spec.Eagle(), kv.spec.PromptLookup(), Overconfident()):
        variants = [*OFF, "no measured prior", "plain decoding"]
        runs: dict[str, list[Run]] = defaultdict(list)
        for turn in range(repeat):
            first = turn % len(variants)
            for variant in variants[first:] + variants[:first]:
                drafts = None if variant == "plain decoding" else strategy
                runs[variant].append(await run(variant, drafts, prompts, branches))
        title = f"{type(strategy).__name__}, {len(prompts)} prompts, {branches} at a time, median (range) of {repeat}"
        console.print(table({variant: runs[variant] for variant in variants}, costs, title, branches))


def main(
    repeat: Annotated[int, typer.Option(min=1, help="Runs of each variant.")] = 5,
    branches: Annotated[int, typer.Option(min=1, max=64, help="Prompts continued at the same time.")] = 1,
) -> None:
    """Print what each mechanism gains."""
    anyio.run(measure, repeat, branches, Console(width=140))


if __name__ == "__main__":
    typer.run(main)
