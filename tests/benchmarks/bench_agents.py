"""What an agent costs beside the bare verbs, per round, and sixteen tools at once while two branches decode.

python tests/benchmarks/bench_agents.py
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import anyio

import agentkv as kv
from examples.nano.tools import SYSTEM, TOOLS

QUESTION = "How many Lumora are in stock?"
TURNS = 60


def stock() -> kv.Tool[Any, ..., Any]:
    """Nano's tool, without its thread: what is measured is the loop."""

    async def run(product: str) -> dict[str, int]:
        return {"count": 152, "price": 57}

    definition = TOOLS["stock"].definition()["function"]
    return kv.Tool("stock", definition["description"], definition["parameters"], run)


async def bare(agent: kv.Agent[Any, str], branch: kv.Branch) -> None:
    """The same turn by hand, under the same grammar."""
    held = agent.answers.constraint(branch._handle.core.chat.format, agent.tools)
    await branch.extend([{"role": "user", "content": QUESTION}])
    await branch.generate(max_tokens=200, output=held)
    await branch.extend([{"role": "tool", "content": '{"count": 152, "price": 57}'}])
    await branch.generate(max_tokens=200, output=held)


async def overhead(ctx: kv.Context) -> None:
    """Turns of an agent and by hand, in turns."""
    agent = kv.Agent(SYSTEM, tools=[stock()])
    trunk = await agent.trunk(ctx)
    times: dict[str, list[float]] = {"agent.run": [], "bare verbs": []}
    for _ in range(TURNS):
        for name in times:
            async with await trunk.fork() as branch:
                began = time.perf_counter()
                await (agent.run(branch, QUESTION) if name == "agent.run" else bare(agent, branch))
                times[name].append(time.perf_counter() - began)
    medians = {name: statistics.median(values) * 1000 for name, values in times.items()}
    for name, median in medians.items():
        print(f"{name:12} {median:7.2f} ms per turn of two rounds")
    print(f"overhead     {(medians['agent.run'] - medians['bare verbs']) / 2:7.2f} ms per round")


async def sixteen(ctx: kv.Context) -> None:
    """Sixteen tools of 100 ms, eight of them in threads, and what two other branches generate meanwhile."""
    from agentkv._aio.threads import ToolThreads
    from agentkv.agents.approval import asking
    from agentkv.agents.tool_runner import Call, Desk

    @kv.tool
    async def task() -> None:
        await anyio.sleep(0.1)

    @kv.tool
    def thread() -> None:
        time.sleep(0.1)

    async def nobody(event: kv.events.Event) -> None:
        pass

    agent: kv.Agent[None, str] = kv.Agent(SYSTEM)
    trunk = await agent.trunk(ctx)
    core = trunk._handle.core
    context = kv.RunContext(None, trunk, agent)
    tools, threads = {"task": task, "thread": thread}, core.singleton(ToolThreads)
    desk = Desk(tools, context, threads, core.chat.tokenizer, nobody, asking(None))
    for kid in (kids := await trunk.fork(2)):
        await kid.extend([{"role": "user", "content": "What is the weather in Tolvik?"}])

    async def decode(kid: kv.Branch) -> None:
        while True:
            mark = kid.mark()
            await kid.generate(max_tokens=100, sampling=kv.Sampling(temperature=1))
            await kid.rollback(mark)

    seconds, generated = [], []
    for _ in range(7):
        async with anyio.create_task_group() as decoding:
            for kid in kids:
                decoding.start_soon(decode, kid)
            before, began = ctx.stats.generated, time.perf_counter()
            async with anyio.create_task_group() as group:
                for i in range(16):
                    group.start_soon(Call(desk, kv.CallRequest(str(i), ("task", "thread")[i % 2], {})).run)
            seconds.append(time.perf_counter() - began)
            generated.append(ctx.stats.generated - before)
            decoding.cancel_scope.cancel()
    print(
        f"16 tools of 100 ms: {statistics.median(seconds) * 1000:.0f} ms, while two branches generated "
        f"{statistics.median(generated):.0f} tokens"
    )


async def main() -> None:
    """Prints both."""
    async with kv.Context.open(kv.models.nano(), capacity=4096, threads=1) as ctx:
        await overhead(ctx)
        await sixteen(ctx)


if __name__ == "__main__":
    anyio.run(main)
