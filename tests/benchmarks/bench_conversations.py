"""Agents' conversations through OpenAI-compatible servers, side by side: time, first tokens, and tokens prefilled.

So many conversations go on at once over one long system prompt, with tools. In each turn a person asks, a tool's result
is there (a call that is the same for all servers, whatever their model would have called), and the model answers. The
servers take turns. Start them by hand, each with the same model, threads and room for all, then
`python tests/benchmarks/bench_conversations.py agentkv=http://127.0.0.1:8080/v1 llama.cpp=http://127.0.0.1:8081/v1`.
"""

from __future__ import annotations

import json
import random
import statistics
import time
from dataclasses import dataclass, field
from typing import Annotated, Any

import anyio
import openai
import typer
from rich.console import Console
from rich.table import Table

WORDS = ["weather", "stock", "ticket", "invoice", "meeting", "room", "price", "Oslo", "Rome", "Lima", "order", "desk"]
CITIES = ["Oslo", "Rome", "Lima"]
TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"Look up the {name.removeprefix('get_')} of a city.",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string", "enum": CITIES}},
                "required": ["city"],
                "additionalProperties": False,
            },
        },
    }
    for name in ("get_weather", "get_population", "get_time")
]
console = Console()


@dataclass
class Measured:
    """What one server did in one round.

    Attributes:
        seconds: until the last conversation was over.
        first: seconds to the first token, of each turn.
        prompted: tokens of all prompts.
        prefilled: of these, tokens that were not in the cache.
        generated: tokens of all answers.
    """

    seconds: float = 0.0
    first: list[float] = field(default_factory=list)
    prompted: int = 0
    prefilled: int = 0
    generated: int = 0


def said(rng: random.Random, words: int) -> str:
    return " ".join(rng.choices(WORDS, k=words))


def asked(rng: random.Random, number: int) -> list[Any]:
    """What a turn adds before the model answers."""
    function = {"name": "get_weather", "arguments": json.dumps({"city": rng.choice(CITIES)})}
    call = {"id": f"call{number:05}", "type": "function", "function": function}
    return [
        {"role": "user", "content": said(rng, 12)},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": call["id"], "content": json.dumps({"celsius": rng.randrange(-9, 35)})},
    ]


async def answer(client: openai.AsyncOpenAI, messages: list[Any], tokens: int, into: Measured) -> str:
    """The next message."""
    began = time.perf_counter()
    heard: float | None = None
    text = ""
    stream = await client.chat.completions.create(
        model="model",
        messages=messages,
        tools=TOOLS,
        tool_choice="none",
        max_tokens=tokens,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    async for chunk in stream:
        if chunk.usage is not None:
            details = chunk.usage.prompt_tokens_details
            cached = (details.cached_tokens if details else None) or 0
            into.prompted += chunk.usage.prompt_tokens
            into.prefilled += chunk.usage.prompt_tokens - cached
            into.generated += chunk.usage.completion_tokens
        text += "".join(choice.delta.content or "" for choice in chunk.choices)
        if heard is None and text:
            heard = time.perf_counter() - began
    into.first.append(time.perf_counter() - began if heard is None else heard)
    return text


async def play(url: str, conversations: int, turns: int, tokens: int, system: str, seed: int) -> Measured:
    """All conversations at once."""
    measured = Measured()

    async def converse(client: openai.AsyncOpenAI, index: int) -> None:
        rng = random.Random(f"{seed}/{index}")
        messages: list[Any] = [{"role": "system", "content": system}]
        for number in range(turns):
            messages += asked(rng, number)
            text = await answer(client, messages, tokens, measured)
            messages.append({"role": "assistant", "content": text})

    began = time.perf_counter()
    async with (
        openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0, timeout=1200) as client,
        anyio.create_task_group() as group,
    ):
        for index in range(conversations):
            group.start_soon(converse, client, index)
    measured.seconds = time.perf_counter() - began
    return measured


def show(servers: dict[str, list[Measured]], title: str) -> None:
    table = Table("", "seconds", "first token, median", "99th", "prompt tokens", "prefilled", "generated", title=title)
    for name, rounds in servers.items():
        first = statistics.quantiles([each for measured in rounds for each in measured.first], n=100)
        table.add_row(
            name,
            f"{statistics.median(measured.seconds for measured in rounds):.1f}",
            f"{first[49]:.2f} s",
            f"{first[98]:.2f} s",
            f"{statistics.median(measured.prompted for measured in rounds):.0f}",
            f"{statistics.median(measured.prefilled for measured in rounds):.0f}",
            f"{statistics.median(measured.generated for measured in rounds):.0f}",
        )
    console.print(table)


def main(
    servers: Annotated[list[str], typer.Argument(help="NAME=URL of each server, to its /v1.")],
    conversations: int = 16,
    turns: int = 6,
    tokens: Annotated[int, typer.Option(help="Most tokens of an answer.")] = 48,
    words: Annotated[int, typer.Option(help="Words of the system prompt, of one or two tokens each.")] = 750,
    rounds: int = 3,
) -> None:
    """Print medians."""
    urls = dict(server.split("=", 1) for server in servers)
    measured: dict[str, list[Measured]] = {name: [] for name in urls}
    for number in range(rounds):
        system = said(random.Random(f"system {number}"), words)  # a new one: nobody has it in its cache
        for name, url in urls.items():
            measured[name].append(anyio.run(play, url, conversations, turns, tokens, system, number))
    show(measured, f"{conversations} conversations of {turns} turns at once")


if __name__ == "__main__":
    typer.run(main)
