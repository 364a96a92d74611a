"""Many clients at once: some hang up, some are late, some send what is none. Nothing breaks, and nothing is left."""

from __future__ import annotations

import gc
import os
import random
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest

import agentkv as kv

from .conftest import SETTINGS, Served, serving

pytestmark = pytest.mark.anyio

CHAT = "/v1/chat/completions"
WORDS = ["weather", "stock", "room", "Oslo", "Rome", "price", "ticket", "hello", "weiß", "日本", "🙂", "<|im_end|>"]
WRONG: list[Any] = [
    {"messages": None},
    {"messages": [{"role": "user", "content": 5}]},
    {"temperature": "hot"},
    {"stop": [1]},
    {"tools": [{"type": "function", "function": {"name": "no spaces here"}}]},
    {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"not": {}}}}},
    {"n": 10**9},
    {"model": "../../etc/passwd"},
    {"": 1},
]


class Clients:
    """So many clients, each of which asks one thing after another; what they do follows from the seed."""

    def __init__(self, site: Served, seed: int) -> None:
        self._site = site
        self._rng = random.Random(seed)
        self.outcomes: Counter[str] = Counter()

    async def ask(self, total: int, clients: int = 32) -> None:
        places = anyio.CapacityLimiter(clients)

        async def one(kind: str, body: dict[str, Any], patience: float) -> None:
            async with places:
                self.outcomes[await self._one(kind, body, patience)] += 1

        async with anyio.create_task_group() as group:
            for _ in range(total):
                kind = self._rng.choices(["whole", "stream", "hang up", "late", "wrong"], [5, 5, 3, 2, 2])[0]
                group.start_soon(one, kind, self._body(kind), self._rng.random() * 0.1)

    def _body(self, kind: str) -> dict[str, Any]:
        rng = self._rng
        said = " ".join(rng.choices(WORDS, k=rng.randrange(1, 40)))
        body: dict[str, Any] = {
            "model": "nano",
            "messages": [
                {"role": "system", "content": "You are Nano, a desk agent."},
                {"role": "user", "content": said},
            ],
            "max_tokens": rng.randrange(1, 24),
            "temperature": rng.choice([0, 1, 1.5]),
            "n": rng.choice([1, 1, 1, 3]),
            "stream": kind in ("stream", "hang up"),
        }
        return body | (rng.choice(WRONG) if kind == "wrong" else {})

    async def _one(self, kind: str, body: dict[str, Any], patience: float) -> str:
        http, headers = self._site.http, {"x-request-timeout": "0.02"} if kind == "late" else {}
        if kind == "hang up":
            with anyio.move_on_after(patience):
                async with http.stream("POST", CHAT, json=body) as answer:
                    async for _ in answer.aiter_lines():
                        pass
            return kind
        answer = await http.post(CHAT, json=body, headers=headers)
        assert answer.status_code in ((400, 404, 422) if kind == "wrong" else (200, 408, 429)), answer.text
        if kind == "stream":
            assert answer.text.endswith("data: [DONE]\n\n")
        return f"{kind} {answer.status_code}"


async def load(site: Served, total: int, seed: int) -> Counter[str]:
    clients = Clients(site, seed)
    await clients.ask(total)
    await site.until_idle()
    assert not site.ctx.branches
    assert site.ctx.stats.cells_used == 0
    assert (site.server.admission.running, site.server.admission.waiting) == (0, 0)
    return clients.outcomes


async def conversation(site: Served, number: int) -> list[tuple[str, str]]:
    """Messages of a conversation of three turns, with the reasons why they end."""
    messages: list[dict[str, str]] = [{"role": "system", "content": "You are Nano, a desk agent."}]
    said = []
    for city in ("Oslo", "Tolvik", "Brasno"):
        messages.append({"role": "user", "content": f"What is the weather in {city}? ({number})"})
        body = {"model": "nano", "messages": messages, "temperature": 0, "max_tokens": 24}
        answer = await site.http.post(CHAT, json=body)
        assert answer.status_code == 200, answer.text
        (choice,) = answer.json()["choices"]
        said.append((choice["message"]["content"] or "", choice["finish_reason"]))
        messages.append({"role": "assistant", "content": said[-1][0]})
    return said


async def test_answers_on_a_full_cache_are_those_of_a_large_one() -> None:
    """None is cut for what others hold, and none is refused."""
    answers = []
    for capacity, offload in ((16384, None), (420, kv.Offload(idle=0))):
        async with serving(SETTINGS, capacity=capacity, offload=offload, rescue=False) as site:
            answers.append(await kv.gather(*(conversation(site, number) for number in range(20))))
            assert (site.ctx.stats.offloads > 0) == (capacity < 16384)
    assert answers[0] == answers[1]


async def test_clients_that_come_and_go() -> None:
    async with serving(replace(SETTINGS, most_kept=0, most_running=16), capacity=2048) as site:
        outcomes = await load(site, 250, seed=1)
        assert outcomes["whole 200"] > 25
        assert outcomes["stream 200"] > 25
        assert outcomes["hang up"] > 10


@pytest.mark.soak
async def test_memory_is_flat_over_twenty_thousand_requests() -> None:
    total = int(os.environ.get("AGENTKV_SOAK_REQUESTS", "20000"))

    def resident() -> float:
        gc.collect()
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20

    async with serving(replace(SETTINGS, most_kept=16), capacity=4096) as site:
        sizes = []
        for part in range(10):
            clients = Clients(site, part)
            await clients.ask(total // 10)
            await site.until_idle()
            sizes.append(resident())
        print(f"{total} requests; resident MiB after each tenth: {[round(size) for size in sizes]}")
        assert len(site.ctx.branches) <= 16
        assert sizes[-1] < sizes[2] * 1.05 + 8
