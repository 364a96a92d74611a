"""Our side over vLLM beside the bare openai client, and two replicas with affinity and without: `make bench-vllm`.

Run by the Python of the project; AGENTKV_VLLM_PYTHON is one that has vLLM.
"""

from __future__ import annotations

import asyncio
import os
import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import openai
from rich.console import Console
from rich.table import Table

import agentkv as kv
from agentkv.remote.replicas import Replica

from .server import VLLMServer

ENDLESS = kv.Sampling(logit_bias={2: -100})
PROMPT = [5 + i % 900 for i in range(200)]


async def ours(ctx: kv.Context, tokens: int) -> tuple[float, float]:
    """Seconds until the first token, and in all."""
    began = time.perf_counter()
    async with await ctx.branch(PROMPT) as branch, branch.stream(max_tokens=tokens, sampling=ENDLESS) as stream:
        first = 0.0
        async for _ in stream:
            first = first or time.perf_counter() - began
    return first, time.perf_counter() - began


async def bare(client: openai.AsyncOpenAI, tokens: int) -> tuple[float, float]:
    """The same by the openai client, which is asked for the same ids and log-probabilities."""
    began = time.perf_counter()
    stream = await client.completions.create(
        model="nano",
        prompt=PROMPT,
        max_tokens=tokens,
        temperature=0,
        logprobs=0,
        logit_bias={"2": -100},
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"return_token_ids": True, "return_tokens_as_token_ids": True},
    )
    first = 0.0
    async for _ in stream:
        first = first or time.perf_counter() - began
    return first, time.perf_counter() - began


async def overhead(server: VLLMServer, rounds: int) -> Table:
    table = Table(title="One request at a time, medians")
    for column in ("tokens", "", "first token ms", "in all ms", "ms per token", "beside openai"):
        table.add_column(column, justify="right")
    async with kv.Context.connect(server.url) as ctx, openai.AsyncOpenAI(base_url=server.url, api_key="x") as client:
        for tokens in (1, 64, 400):
            sides: dict[str, list[tuple[float, float]]] = {"openai": [], "agentkv": []}
            for _ in range(rounds):
                sides["openai"].append(await bare(client, tokens))
                sides["agentkv"].append(await ours(ctx, tokens))
            base = statistics.median(whole for _, whole in sides["openai"])
            for name, told in sides.items():
                first, whole = (statistics.median(column) for column in zip(*told, strict=True))
                figures = (1e3 * first, 1e3 * whole, 1e3 * whole / tokens)
                table.add_row(str(tokens), name, *(f"{value:.2f}" for value in figures), f"{whole / base:.3f}")
    return table


async def workload(urls: list[str], seed: int) -> float:
    """64 agents: 16 trunks of 1,024 tokens, 4 forks each, 3 turns with waits. Returns seconds."""
    rng = random.Random(seed)

    async def agent(branch: kv.Branch) -> None:
        for _ in range(3):
            await branch.extend([rng.randrange(20, 1000) for _ in range(40)])
            await branch.generate(max_tokens=32, sampling=ENDLESS)
            await asyncio.sleep(rng.expovariate(1 / 0.2))

    async with kv.Context.connect(urls) as ctx:
        trunks = [[rng.randrange(20, 1000) for _ in range(1024)] for _ in range(16)]
        began = time.perf_counter()
        roots = await kv.gather(*(ctx.branch(trunk) for trunk in trunks))
        kids = [kid for root in roots for kid in await root.fork(4)]
        await kv.gather(*map(agent, kids))
        return time.perf_counter() - began


async def replicas(servers: list[VLLMServer], rounds: int) -> Table:
    table = Table(title="64 agents on 2 replicas: 16 trunks of 1,024 tokens, 4 forks each, 3 turns")
    for column in ("", "prompt tokens computed", "seconds"):
        table.add_column(column, justify="right")
    by_tree, rng = Replica.weight, random.Random(1)
    choices: dict[str, Any] = {"affinity": by_tree, "random": lambda replica, root: rng.getrandbits(64)}
    told: dict[str, list[tuple[float, float]]] = {name: [] for name in choices}
    for number in range(rounds):
        for name, weight in choices.items():
            Replica.weight = weight  # type: ignore[method-assign]
            before = sum(server.computed for server in servers)
            seconds = await workload([server.url for server in servers], 10 * number + len(name))
            told[name].append((sum(server.computed for server in servers) - before, seconds))
    Replica.weight = by_tree  # type: ignore[method-assign]
    for name, runs in told.items():
        computed, seconds = (statistics.median(column) for column in zip(*runs, strict=True))
        table.add_row(name, f"{computed:,.0f}", f"{seconds:.2f}")
    return table


def main() -> None:
    python, folder = os.environ["AGENTKV_VLLM_PYTHON"], Path(tempfile.mkdtemp())
    servers = [VLLMServer(python, folder / f"log-{i}", threads=1) for i in range(2)]
    try:
        console = Console(width=110)
        console.print(asyncio.run(overhead(servers[0], 15)))
        console.print(asyncio.run(replicas(servers, 3)))
    finally:
        for server in servers:
            server.kill()


if __name__ == "__main__":
    main()
