"""Parallel tools: calls of one message run at the same time, the first one while the next is still being written."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from math import inf

import anyio
import desk
from nano.tools import TOOLS, Result

import agentkv as kv

QUESTION = "What is the weather in Tolvik, Oresund and Marsholm?"
Network = Callable[[], Awaitable[None]]


@kv.tool(timeout=60, retries=1)
async def weather(ctx: kv.RunContext[Network], city: str) -> Result:
    "weather in a city"
    await ctx.deps()  # while it waits, other tools run and every branch decodes on
    return TOOLS["weather"].run(city)


AGENT = kv.Agent(desk.SYSTEM, tools=[weather])


@dataclass
class Span:
    """When a call ran, in seconds since its question was asked."""

    what: str
    begin: float
    end: float = inf


async def timed(branch: kv.Branch, question: str, network: Network) -> tuple[kv.Run[str], list[Span]]:
    """One turn, and when each of its calls ran."""
    began = anyio.current_time()
    spans: dict[str, Span] = {}
    async with AGENT.stream(branch, question, deps=network) as events:
        async for event in events:
            now = anyio.current_time() - began
            match event:
                case kv.events.CallStarted(call):
                    spans[call.id] = Span(f"{call.name}({', '.join(map(str, call.arguments.values()))})", now)
                case kv.events.CallFinished(call):
                    spans[call.id].end = now
    return events.run, list(spans.values())


def at_once(spans: list[Span]) -> int:
    """How many calls ran at the same time at most."""
    return max((sum(other.begin <= span.begin < other.end for other in spans) for span in spans), default=0)


async def main() -> None:
    """Ask for three things whose answers take half a second each."""
    async with kv.Context.open(kv.models.nano(), capacity=2048) as ctx:
        run, spans = await timed(await AGENT.trunk(ctx), QUESTION, lambda: anyio.sleep(0.5))
        for span in spans:
            print(f"{span.what:20} {' ' * round(40 * span.begin)}{'=' * round(40 * (span.end - span.begin))}")
        print(f"{at_once(spans)} at once, {run.seconds:.2f} s in all\n{run.output}")


if __name__ == "__main__":
    anyio.run(main)
