"""How long a stream is silent: its first byte, and its first token, while the server reads a long prompt.

The server is a process of its own, and each prompt is a new one. Run by hand:
`python tests/benchmarks/bench_first_byte.py [--folder MODEL] [--words 1600]`; without a folder, nano.
"""

from __future__ import annotations

import random
import statistics
import time
from pathlib import Path
from typing import Annotated, Any

import httpx
import typer
from bench_serve import served
from rich.console import Console
from rich.table import Table

import agentkv as kv

WORDS = ["weather", "stock", "ticket", "invoice", "meeting", "room", "price", "Oslo", "Rome", "Lima"]
CHAT = [{"role": "user", "content": ""}]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": CHAT},
    "/v1/completions": {"prompt": ""},
    "/v1/responses": {"input": ""},
    "/v1/messages": {"messages": CHAT, "max_tokens": 4},
}


def asked(path: str, text: str) -> dict[str, Any]:
    """A request for a stream about a text."""
    body: dict[str, Any] = {"model": "model", "stream": True, **BODIES[path]}
    if "messages" in body:
        return body | {"messages": [{"role": "user", "content": text}]}
    return body | ({"prompt": text, "max_tokens": 4} if "prompt" in body else {"input": text, "max_output_tokens": 4})


def seconds_of(client: httpx.Client, path: str, text: str) -> tuple[float, float]:
    """Seconds until the head was there, and until the stream was over."""
    began = time.perf_counter()
    with client.stream("POST", path, json=asked(path, text)) as response:
        head = time.perf_counter() - began
        assert response.status_code == 200, response.read()
        for _ in response.iter_bytes():
            pass
    return head, time.perf_counter() - began


def main(
    folder: Annotated[Path | None, typer.Option()] = None,
    words: Annotated[int, typer.Option()] = 1600,
    rounds: Annotated[int, typer.Option()] = 5,
) -> None:
    """Measures all protocols that stream."""
    rng = random.Random(1)
    with served(folder or kv.models.nano()) as url, httpx.Client(base_url=url, timeout=600) as client:
        some = {"prompt": " ".join(rng.choices(WORDS, k=words))}
        tokens = client.post("/tokenize", json=some).json()["count"]
        table = Table("", "first byte, median", "worst", "whole stream", title=f"prompts of about {tokens} tokens")
        for path in BODIES:
            taken = [seconds_of(client, path, " ".join(rng.choices(WORDS, k=words))) for _ in range(rounds + 1)][
                1:
            ]  # the first one opens the connection
            heads, wholes = zip(*taken, strict=True)
            shown = (statistics.median(heads), max(heads), statistics.median(wholes))
            table.add_row(path, *(f"{1000 * seconds:.1f} ms" for seconds in shown))
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)
