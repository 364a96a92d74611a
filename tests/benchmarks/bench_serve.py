"""`agentkv serve` beside the bare SDK: the same conversations, by 32 clients at a time; time to the first token.

The two take turns. The server is a process of its own, and its clients share the machine with it, so what they cost is
in its figures. Run by hand: `python tests/benchmarks/bench_serve.py [--folder MODEL]`; without a folder, nano.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import anyio
import httpx
import typer
from rich.console import Console
from rich.table import Table

import agentkv as kv

CLIENTS = 32
CAPACITY = 16384
SYSTEM = {"role": "system", "content": "You are Nano, a desk agent. " * 10}
console = Console()


def questions(count: int, seed: int) -> list[list[dict[str, str]]]:
    """Conversations that begin alike and end apart."""
    rng = random.Random(seed)
    words = ["weather", "stock", "ticket", "invoice", "meeting", "room", "price", "Oslo", "Rome", "Lima"]
    return [[SYSTEM, {"role": "user", "content": " ".join(rng.choices(words, k=12))}] for _ in range(count)]


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The address of a server in a process of its own."""
    options = ["--port", "0", "--capacity", str(CAPACITY), "--most-kept", "0", "--name", "model"]
    command = [sys.executable, "-m", "agentkv.cli", "serve", str(folder), *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=dict(os.environ))
    assert process.stdout is not None
    try:
        line = next(line for line in process.stdout if line.startswith("serving"))
        yield line.split(" at ")[1].split("/v1")[0]
    finally:
        process.terminate()
        process.wait()


async def by_clients(asked: list[list[dict[str, str]]], one: Any) -> float:
    """Seconds until all are answered, so many at a time."""
    limiter = anyio.CapacityLimiter(CLIENTS)

    async def bounded(messages: list[dict[str, str]]) -> None:
        async with limiter:
            await one(messages)

    began = time.perf_counter()
    async with anyio.create_task_group() as group:
        for messages in asked:
            group.start_soon(bounded, messages)
    return time.perf_counter() - began


async def measure(folder: Path, url: str, requests: int, tokens: int, rounds: int) -> None:
    """Both in turns."""
    seconds: dict[str, list[float]] = {"SDK": [], "server": [], "server, streamed": []}
    first: list[float] = []
    limits = httpx.Limits(max_connections=CLIENTS)
    async with (
        kv.Context.open(folder, capacity=CAPACITY) as ctx,
        httpx.AsyncClient(base_url=url, timeout=600, limits=limits) as client,
    ):
        ends = {str(i): -100 for i in ctx.tokenizer.eos_ids}
        bias = {int(i): -100.0 for i in ends}
        body = {"model": "model", "temperature": 0, "max_tokens": tokens, "logit_bias": ends}

        async def bare(messages: list[dict[str, str]]) -> None:
            async with await ctx.branch(messages) as branch:
                made = await branch.generate(max_tokens=tokens, sampling=kv.Sampling(logit_bias=bias))
                assert len(made.tokens) == tokens

        async def asked(messages: list[dict[str, str]]) -> None:
            answer = await client.post("/v1/chat/completions", json={**body, "messages": messages})
            assert answer.json()["usage"]["completion_tokens"] == tokens, answer.text

        async def streamed(messages: list[dict[str, str]]) -> None:
            began, heard = time.perf_counter(), False
            question = {**body, "messages": messages, "stream": True}
            async with client.stream("POST", "/v1/chat/completions", json=question) as lines:
                async for line in lines.aiter_lines():
                    if (
                        not heard
                        and line.startswith("data: {")
                        and json.loads(line[6:])["choices"][0]["delta"].get("content")
                    ):
                        heard = True
                        first.append(time.perf_counter() - began)

        for round_ in range(rounds):
            for turn, (name, one) in enumerate((("SDK", bare), ("server", asked), ("server, streamed", streamed))):
                new = questions(requests, seed=3 * round_ + turn)  # what was asked before is retained
                seconds[name].append(await by_clients(new, one))
    table = Table(
        "", "tokens per second", "of the SDK's", title=f"{requests} requests of {tokens} tokens, {CLIENTS} clients"
    )
    base = statistics.median(seconds["SDK"])
    for name, values in seconds.items():
        median = statistics.median(values)
        table.add_row(name, f"{requests * tokens / median:.0f}", f"{base / median:.2f}")
    console.print(table)
    cuts = statistics.quantiles(first, n=100)
    console.print(f"first token of a stream: median {cuts[49] * 1000:.0f} ms, 99th percentile {cuts[98] * 1000:.0f} ms")


def main(
    folder: Annotated[Path | None, typer.Option(help="An exported model; without it, nano.")] = None,
    requests: Annotated[int, typer.Option(help="Requests a round.")] = 96,
    tokens: Annotated[int, typer.Option(help="Tokens of an answer.")] = 32,
    rounds: Annotated[int, typer.Option(help="Rounds in turns.")] = 5,
) -> None:
    """Print medians."""
    model = folder or kv.models.nano()
    with served(model) as url:
        anyio.run(measure, model, url, requests, tokens, rounds)


if __name__ == "__main__":
    typer.run(main)
