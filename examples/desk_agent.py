"""The demo: questions fan out to sub-agents on forks of one trunk.

Each sub-agent calls tools and reads their results on a branch of its own; all of them share the trunk's cells, and the
step loop merges whatever they generate into one forward. One tool fails on purpose: a turn is a transaction, so its
sub-agent is back where it began, and tries again. The last question is put to a vote of three drafts, and the trunk
adopts the winner.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field
from typing import Annotated

import anyio
import desk
import typer
from nano.tools import TOOLS, Result
from rich.console import Console
from rich.table import Table
from rich.tree import Tree

import agentkv as kv

REQUESTS = [
    "What is the weather in Tolvik and in Brasno?",
    "How many Lumora are in stock?",
    "When is the next train from Tolvik to Brasno?",
    "Convert 12 miles to km.",
]
DRAFTED = "What is the phone of Mirela?"
EXPECTED_CALLS = [  # what the requests need; the tests hold the demo to it
    [("weather", {"city": "Tolvik"}), ("weather", {"city": "Brasno"})],
    [("stock", {"product": "Lumora"})],
    [("train", {"origin": "Tolvik", "to": "Brasno"})],
    [("convert", {"value": 12, "unit": "miles", "to": "km"})],
    [("contact", {"name": "Mirela", "field": "phone"})],
]


@dataclass
class SubAgent:
    """One request on one branch, and what became of it."""

    branch: kv.Branch
    request: str
    run: kv.Run[str] | None = None
    rollbacks: list[str] = field(default_factory=list)


def flaky_stock() -> kv.Tool[None, [str], Result]:
    """The stock tool behind a network that fails once."""
    failures = iter([ConnectionResetError("connection reset")])

    @kv.tool(name="stock", description=TOOLS["stock"].description, on_error="raise")
    async def stock(product: str) -> Result:
        for failure in failures:
            raise failure
        return TOOLS["stock"].run(product)

    return stock


async def answer(agent: kv.Agent[None, str], work: SubAgent) -> None:
    """Answer the request; a tool that fails costs a rollback, not the prompt."""
    while work.run is None:
        try:
            work.run = await agent.run(work.branch, work.request)
        except kv.ToolFailed as failure:
            work.rollbacks.append(f"{failure.__cause__ or failure}; {len(failure.run.messages)} messages forgotten")


def branch_tree(trunk: kv.Branch, agents: list[SubAgent], adopted: SubAgent) -> Tree:
    """The branches as a tree: requests, calls, results, rollbacks, answers."""
    root = Tree(f"[bold]trunk[/] branch {trunk.id}: system prompt and tools, prefilled once")
    for work in [*agents, adopted]:
        assert work.run is not None
        node = root.add(f"[cyan]branch {work.branch.id}[/] {work.request}")
        for rollback in work.rollbacks:
            node.add(f"[red]rolled back[/] {rollback}")
        for call in work.run.calls:
            node.add(f"[yellow]{call.name}[/] {dict(call.arguments)} -> {call.result}")
        node.add(f"[green]{work.run.output}[/]{' [bold green]<- adopted[/]' if work is adopted else ''}")
    return root


def step_table(steps: list[kv.StepRecord]) -> Table:
    """What each forward merged; equal neighbours are folded into one line."""
    table = Table(title="What each forward merged", title_justify="left")
    for column in ("forwards", "branches", "decode rows", "prefill rows", ""):
        table.add_column(column, justify="left" if column == "" else "right")
    start = 0
    for i, step in enumerate(steps):
        following = steps[i + 1] if i + 1 < len(steps) else None
        shape = (step.branches, step.decode_rows, step.prefill_rows)
        if following and (following.branches, following.decode_rows, following.prefill_rows) == shape:
            continue
        span = f"{start + 1}" if start == i else f"{start + 1}-{i + 1}"
        bar = "[blue]" + "#" * step.decode_rows + "[/][magenta]" + "+" * min(60, (step.prefill_rows + 3) // 4) + "[/]"
        table.add_row(span, *(str(value) for value in shape), bar)
        start = i + 1
    table.caption = "# one decode row, + four prefill rows"
    return table


async def desk_agent(console: Console, model: str | None) -> list[SubAgent]:
    """Run the demo, show what happened, and return what each sub-agent did; the adopted draft comes last."""
    names = ("weather", "train", "convert", "contact", "calculator")
    agent = kv.Agent(desk.SYSTEM, tools=[flaky_stock(), *map(desk.tool, names)])
    drafter = kv.Agent(agent.instructions, tools=agent.tools, sampling=kv.Sampling(temperature=0.6, seed=3))
    async with kv.Context.open(model or kv.models.nano(), capacity=4096) as ctx:
        began = time.perf_counter()
        trunk = await agent.trunk(ctx)
        branches = await trunk.fork(len(REQUESTS))
        agents = [SubAgent(branch, request) for branch, request in zip(branches, REQUESTS, strict=True)]
        await kv.gather(*(answer(agent, work) for work in agents))
        won = await kv.patterns.vote(trunk, 3, lambda branch: drafter.run(branch, DRAFTED))
        adopted = SubAgent(won.branch, DRAFTED, won.result)
        peak = ctx.stats
        unshared = sum(len(branch) for branch in ctx.branches)
        await trunk.adopt(won.branch)
        seconds = time.perf_counter() - began
        console.print(branch_tree(trunk, agents, adopted))
        await ctx.keep(trunk)
        console.print(step_table(ctx.steps))
        made = peak.generated
        console.print(
            f"{made} tokens in {peak.forwards} forwards ({peak.forwards / made:.2f} per token) in {seconds:.2f} s; "
            f"{peak.cells_used} cells hold {unshared} tokens of history, {peak.cells_shared} of them shared; after "
            f"keep(trunk) {ctx.stats.cells_used} are in use ({ctx.stats.kv_bytes / 1024:.0f} KiB of K/V allocated)."
        )
        return [*agents, adopted]


def main(
    model: Annotated[str | None, typer.Option(help="A model folder; the packaged nano by default.")] = None,
) -> None:
    """Fan questions out to sub-agents on forks of one trunk, and show what the step loop made of it."""
    console = Console(width=None if sys.stdout.isatty() else 120)
    anyio.run(desk_agent, console, model)


if __name__ == "__main__":
    typer.run(main)
