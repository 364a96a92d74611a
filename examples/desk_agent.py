"""The demo: one question fans out to sub-agents on forks of one trunk.

Each sub-agent calls tools and reads their results on a branch of its own; all of them share the trunk's cells, and the
step loop merges whatever they generate into one forward. One tool fails on purpose: its sub-agent rolls back and tries
again.
The last request is answered by three drafts; the most confident one is adopted by the trunk, and the rest is freed.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field
from typing import Annotated

import anyio
import typer
from agent import Turn, ask, open_trunk, run_tool
from nano.tools import Call, Result
from rich.console import Console
from rich.table import Table
from rich.tree import Tree

import agentkv as kv

TOOLS = ["weather", "stock", "train", "convert", "contact", "calculator"]
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
TOOL_SECONDS = 0.05  # what a real tool would make us wait


class ToolFailed(Exception):
    """A tool that did not answer."""


@dataclass
class FlakyTools:
    """Nano's tools behind a network that fails the first call of one tool."""

    fails_once: str
    failed: list[Call] = field(default_factory=list)

    async def __call__(self, call: Call) -> Result:
        """Run a call, or raise ToolFailed."""
        await anyio.sleep(TOOL_SECONDS)
        if call.name == self.fails_once and not self.failed:
            self.failed.append(call)
            raise ToolFailed(f"{call.name}: connection reset")
        return await run_tool(call)


@dataclass
class SubAgent:
    """One request on one branch, and what became of it."""

    branch: kv.Branch
    request: str
    turn: Turn | None = None
    rollbacks: list[str] = field(default_factory=list)

    async def run(self, tools: FlakyTools) -> SubAgent:
        """Answer the request; a failed tool costs a rollback, not the prompt."""
        mark = self.branch.mark()
        while self.turn is None:
            try:
                self.turn = await ask(self.branch, self.request, tools)
            except ToolFailed as failure:
                forgotten = len(self.branch)
                await self.branch.rollback(mark)
                self.rollbacks.append(f"{failure}; forgot {forgotten - len(self.branch)} tokens, trying again")
        return self


async def best_draft(trunk: kv.Branch, request: str, drafts: int = 3) -> tuple[list[SubAgent], SubAgent]:
    """Several sampled drafts of one request, and the one that the model is surest of."""
    agents = [SubAgent(branch, request) for branch in await trunk.fork(drafts)]
    sampling = kv.Sampling(temperature=0.6, seed=3)

    async def draft(agent: SubAgent) -> None:
        agent.turn = await ask(agent.branch, request, sampling=sampling)

    await kv.gather(*(draft(agent) for agent in agents))
    return agents, max(agents, key=lambda agent: agent.turn.logprob if agent.turn else float("-inf"))


def branch_tree(trunk: kv.Branch, agents: list[SubAgent], drafts: list[SubAgent], best: SubAgent) -> Tree:
    """The branches as a tree: requests, calls, results, rollbacks, answers."""
    root = Tree(f"[bold]trunk[/] branch {trunk.id}: system prompt and {len(TOOLS)} tools, prefilled once")
    for agent in [*agents, *drafts]:
        assert agent.turn is not None
        node = root.add(f"[cyan]branch {agent.branch.id}[/] {agent.request}")
        for event in agent.rollbacks:
            node.add(f"[red]rolled back[/] {event}")
        for call, result in zip(agent.turn.calls, agent.turn.results, strict=True):
            node.add(f"[yellow]{call.name}[/] {call.arguments} -> {result}")
        note = f" [dim]({agent.turn.logprob:+.3f} per token)[/]" if agent in drafts else ""
        kept = " [bold green]<- adopted[/]" if agent is best else ""
        node.add(f"[green]{agent.turn.answer}[/]{note}{kept}")
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
    async with kv.Context.open(model or kv.models.nano(), capacity=4096) as ctx:
        began = time.perf_counter()
        trunk = await open_trunk(ctx, TOOLS)
        tools = FlakyTools(fails_once="stock")
        branches = await trunk.fork(len(REQUESTS))
        agents = [SubAgent(branch, request) for branch, request in zip(branches, REQUESTS, strict=True)]
        await kv.gather(*(agent.run(tools) for agent in agents))
        drafts, best = await best_draft(trunk, DRAFTED)
        peak = ctx.stats
        unshared = sum(len(branch) for branch in ctx.branches)
        await trunk.adopt(best.branch)
        seconds = time.perf_counter() - began
        console.print(branch_tree(trunk, agents, drafts, best))
        await ctx.keep(trunk)
        console.print(step_table(ctx.steps))
        made = peak.generated
        console.print(
            f"{made} tokens in {peak.forwards} forwards ({peak.forwards / made:.2f} per token) in {seconds:.2f} s; "
            f"{peak.cells_used} cells hold {unshared} tokens of history, {peak.cells_shared} of them shared; after "
            f"keep(trunk) {ctx.stats.cells_used} are in use ({ctx.stats.kv_bytes / 1024:.0f} KiB of K/V allocated)."
        )
        return [*agents, best]


def main(
    model: Annotated[str | None, typer.Option(help="A model folder; the packaged nano by default.")] = None,
) -> None:
    """Fan one question out to sub-agents on forks of one trunk, and show what the step loop made of it."""
    console = Console(width=None if sys.stdout.isatty() else 120)
    anyio.run(desk_agent, console, model)


if __name__ == "__main__":
    typer.run(main)
