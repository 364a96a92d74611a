"""Why is it slow? The same questions asked twice, each time recorded: docs/tracing.md reads the two traces."""

from __future__ import annotations

import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import desk
from nano.tools import TOOLS

import agentkv as kv
from agentkv import trace

QUESTIONS = (
    "What is the weather in Tolvik?",
    "How many Lumora are in stock?",
    "When does the next train from Tolvik to Brasno leave?",
    "How many km are 12 miles?",
)
Answers = list[str]


def from_afar(name: str) -> kv.Tool[None, ..., Any]:
    """One of nano's tools whose answers take a fifth of a second."""

    async def run(**arguments: Any) -> Any:
        await anyio.sleep(0.2)
        return TOOLS[name].run(**arguments)

    definition = TOOLS[name].definition()["function"]
    return kv.Tool(name, definition["description"], definition["parameters"], run)


def agent(**options: Any) -> kv.Agent[None, str]:
    """A desk agent that is told of all of nano's tools."""
    return kv.Agent(options.pop("instructions", desk.SYSTEM), tools=[from_afar(name) for name in TOOLS], **options)


async def slowly(ctx: kv.Context) -> Answers:
    """A prompt that begins with the question's number, and one question after another."""
    answers = []
    for number, question in enumerate(QUESTIONS):
        asked = agent(instructions=f"Request {number}. {desk.SYSTEM}")
        async with await asked.trunk(ctx) as branch:
            answers.append((await asked.run(branch, question)).output)
    return answers


async def quickly(ctx: kv.Context) -> Answers:
    """One prompt for all, and all questions at once, each on a fork."""
    asked = agent()
    trunk = await asked.trunk(ctx)
    runs = await kv.gather(
        *(asked.run(fork, question) for fork, question in zip(await trunk.fork(4), QUESTIONS, strict=True))
    )
    return [run.output for run in runs]


async def timed(ask: Callable[[kv.Context], Awaitable[Answers]], path: Path) -> tuple[Answers, float]:
    """The answers, and the seconds that they took; recorded."""
    async with kv.Context.open(kv.models.nano(), capacity=8192) as ctx, trace.record(ctx, path):
        began = time.perf_counter()
        return await ask(ctx), time.perf_counter() - began


async def main(folder: Path) -> dict[str, float]:
    """Asks both ways, and says how long each took."""
    seconds = {}
    for ask in (slowly, quickly):
        path = folder / f"{ask.__name__}.trace"
        answers, seconds[ask.__name__] = await timed(ask, path)
        print(f"{ask.__name__}: {seconds[ask.__name__]:.2f} s, see it with: agentkv view {path}")
        for answer in answers:
            print(f"  {answer}")
    return seconds


if __name__ == "__main__":
    anyio.run(main, Path(sys.argv[1] if len(sys.argv) > 1 else "."))
