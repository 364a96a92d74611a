"""How long it takes from a word at once to the next token, beside a turn that is stopped and another one.

By hand, on a model that writes long answers: python tests/benchmarks/steering_latency.py MODEL [TURNS]
"""

from __future__ import annotations

import statistics
import sys
import time
from pathlib import Path

import anyio

import agentkv as kv

QUESTION = "Tell a long story about a desk agent, in simple sentences."
WORDS = "Make it about the sea instead."
HEARD = 24  # deltas of the message under way before the words


async def steered(agent: kv.Agent[None, str], branch: kv.Branch) -> dict[str, float]:
    """Milliseconds from the words to what comes of them."""
    run = agent.start(branch, QUESTION)
    told, heard, said = dict[str, float](), 0, 0.0
    async for event in run.events():
        match event:
            case kv.events.TextDelta() if "entered" in told:
                told["next token"] = (time.perf_counter() - said) * 1000
                break
            case kv.events.TextDelta():
                heard += 1
                if heard == HEARD:
                    said = time.perf_counter()
                    run.steer(WORDS, at_once=True)
            case kv.events.RolledBack():
                told["taken back"] = (time.perf_counter() - said) * 1000
            case kv.events.Steered():
                told["entered"] = (time.perf_counter() - said) * 1000
    await run.stop()
    return told


async def by_hand(agent: kv.Agent[None, str], branch: kv.Branch) -> dict[str, float]:
    """The same by a turn that is stopped, and another one."""
    heard, said = 0, 0.0
    async with agent.stream(branch, QUESTION, keep_partial=True) as events:
        async for event in events:
            heard += isinstance(event, kv.events.TextDelta)
            if heard == HEARD:
                said = time.perf_counter()
                break
    async with agent.stream(branch, WORDS) as events:
        async for event in events:
            if isinstance(event, kv.events.TextDelta):
                return {"next token": (time.perf_counter() - said) * 1000}
    return {}


async def main(model: Path, turns: int) -> None:
    """Prints medians, and the slowest tenth, of turns in turns."""
    agent = kv.Agent("You are a helpful assistant.", max_message_tokens=256)
    times: dict[str, list[float]] = {}
    async with kv.Context.open(model) as ctx:
        trunk = await agent.trunk(ctx)
        for _ in range(turns):
            for name, way in (("at once", steered), ("stopped and asked", by_hand)):
                async with await trunk.fork() as branch:
                    for what, took in (await way(agent, branch)).items():
                        times.setdefault(f"{name}: {what}", []).append(took)
        steps = [step.forward_seconds for step in ctx.steps if (step.decode_rows, step.prefill_rows) == (1, 0)]
    for what, values in times.items():
        slow = sorted(values)[int(len(values) * 0.9)]
        print(f"{what:30} {statistics.median(values):7.1f} ms (a tenth above {slow:.1f})")
    print(f"{'a forward of one row':30} {statistics.median(steps) * 1000:7.1f} ms")


if __name__ == "__main__":
    anyio.run(main, Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 20)
