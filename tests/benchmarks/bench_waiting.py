"""Agents that wait for tools on a cache that fits few of them: beside a cache that fits all, and times to come back.

Each agent has a history of its own, of which all keys and values are real; the words of its replies are scripted. Tools
take 0.5 to 30 s, the same ones in every mode.

python tests/benchmarks/bench_waiting.py [MODEL] [--agents 200] [--history 4000] [--capacity 16384]
    [--modes all,memory,disk,prefill] [--returns 500,2000,8000]
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import anyio

import agentkv as kv
from agentkv.testing.replies import Reply

GIB = 1 << 30
WORDS = "It has been looked at, and there is more to look at before this can be said. "


def policy(mode: str, folder: Path) -> kv.Offload | None:
    """All cells stay, or go to memory, or to disk alone, or nowhere."""
    match mode:
        case "all":
            return None
        case "memory":
            return kv.Offload(memory_bytes=14 * GIB, idle=0)
        case "disk":
            return kv.Offload(memory_bytes=0, folder=folder, disk_bytes=40 * GIB, idle=0)
        case _:
            return kv.Offload(memory_bytes=0, idle=0)


def replies(rounds: int) -> Any:
    """Each turn makes `rounds` calls, one after another, and an answer."""

    def reply(text: str) -> Reply:
        asked = text[text.rindex("question ") :]
        made = asked.count("seen after")
        return WORDS * 2 if made >= rounds else [kv.testing.call("look", what=f"the thing number {made}")]

    return reply


def waits(seed: int, least: float, most: float) -> Callable[[], float]:
    """Seconds that the calls of one agent take, in order."""
    rng = random.Random(seed)
    return lambda: rng.uniform(least, most)


def looking(seconds: Callable[[], float], slept: list[float]) -> kv.Agent[Any, Any]:
    async def look(what: str) -> str:
        """Looks at a thing."""
        slept.append(seconds())
        await anyio.sleep(slept[-1])
        return f"{what}: seen after a while"

    return kv.Agent("You look at things.", tools=[kv.tool(look)], max_rounds=12)


def history(tokens: int) -> list[dict[str, str]]:
    """Messages of about so many tokens."""
    said = " ".join(f"fact {n} is {n * 7919 % 997}." for n in range(tokens // 11))
    return [{"role": "user", "content": f"Remember this: {said}"}, {"role": "assistant", "content": "I do."}]


async def saved_history(options: argparse.Namespace, path: Path) -> int:
    """Computes a history once, to be loaded by each agent: cells of its own, without computing them."""
    agent = looking(lambda: 0.0, [])
    async with kv.testing.replies(replies(0), options.model, capacity=options.history + 2048) as ctx:
        branch = await agent.trunk(ctx)
        await branch.extend(history(options.history))
        await branch.save(path)
        return len(branch)


async def measured(options: argparse.Namespace, mode: str, path: Path, length: int, folder: Path) -> str:
    capacity = options.agents * (length + 400) + 2048 if mode == "all" else options.capacity
    slept: list[float] = []
    ended: list[int] = []
    script = replies(options.rounds)
    async with kv.testing.replies(script, options.model, capacity=capacity, offload=policy(mode, folder)) as ctx:

        async def one(number: int, loaded: anyio.Event, begin: anyio.Event) -> None:
            agent = looking(waits(number, options.least, options.most), slept)
            branch = await ctx.load(path)
            loaded.set()
            await begin.wait()
            run = await agent.run(branch, f"question {number}")
            ended.append(run.usage.completion_tokens)
            await branch.close()

        begin = anyio.Event()
        async with anyio.create_task_group() as tasks:
            for number in range(options.agents):
                loaded = anyio.Event()
                tasks.start_soon(one, number, loaded, begin)
                await loaded.wait()
            before, began = ctx.stats, time.perf_counter()
            begin.set()
        seconds = time.perf_counter() - began
        stats = ctx.stats
        assert (len(ended), stats.cells_used) == (options.agents, 0)
    return (
        f"{mode:8} {sum(ended) / seconds:7.1f} tokens/s: {sum(ended)} tokens in {seconds:.1f} s, capacity {capacity}, "
        f"longest wait of tools {max_per_agent(slept, options):.1f} s, {stats.offloads - before.offloads} offloads, "
        f"{stats.refed - before.refed} tokens computed again, {stats.forwards - before.forwards} forwards"
    )


def max_per_agent(slept: list[float], options: argparse.Namespace) -> float:
    """Seconds that the tools of the slowest agent take together."""
    agents = [waits(number, options.least, options.most) for number in range(options.agents)]
    return max(sum(seconds() for _ in range(options.rounds)) for seconds in agents)


async def times_to_come_back(options: argparse.Namespace, folder: Path) -> None:
    """Seconds from a method of a branch whose cells are away to its result, beside the same with its cells there."""
    for length in options.returns:
        took: dict[str, list[float]] = {}
        async with kv.Context.open(options.model, capacity=2 * length + 1024) as ctx:
            branch = await ctx.branch([300 + n * 7 % 900 for n in range(length)])
            await branch.logits()
            for _ in range(options.repeats):
                for way, leave in (
                    ("there", None),
                    ("memory", partial(branch.offload)),
                    ("disk", partial(branch.offload, folder)),
                ):
                    if leave is not None:
                        await leave()
                    began = time.perf_counter()
                    await branch.extend([5])
                    took.setdefault(way, []).append(time.perf_counter() - began)
                    await branch.rollback(length)
            tokens = branch.tokens
            await branch.close()
            await ctx.compact(retain=0)
            began = time.perf_counter()
            await ctx.branch(tokens)
            took["prefill"] = [time.perf_counter() - began]
        told = ", ".join(f"{way} {1000 * statistics.median(seconds):.1f} ms" for way, seconds in took.items())
        print(f"{length:6} tokens: {told}", flush=True)


async def main(options: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory(dir=options.folder) as made:
        folder = Path(made)
        if options.returns:
            await times_to_come_back(options, folder)
        if options.modes:
            length = await saved_history(options, folder / "history")
            print(f"{options.agents} agents, histories of {length} tokens, {options.rounds} calls each", flush=True)
            for mode in options.modes:
                print(await measured(options, mode, folder / "history", length, folder), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default=kv.models.nano(), help="a model folder or file; nano if left out")
    parser.add_argument("--agents", type=int, default=200)
    parser.add_argument("--history", type=int, default=4000)
    parser.add_argument("--capacity", type=int, default=16384)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--least", type=float, default=0.5, help="seconds of the fastest tool")
    parser.add_argument("--most", type=float, default=30.0, help="seconds of the slowest tool")
    parser.add_argument("--modes", type=lambda text: text.split(",") if text else [], default=["all", "memory"])
    parser.add_argument("--returns", type=lambda text: [int(n) for n in text.split(",")] if text else [], default=[])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--folder", help="where files are written; the system's temporary folder if left out")
    anyio.run(main, parser.parse_args())
