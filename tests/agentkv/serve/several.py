"""A server of several nanos, as `agentkv serve a=nano b=nano` makes it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import httpx

import agentkv as kv
from agentkv.evaluation.serving import listening
from agentkv.serve import Settings
from agentkv.serve.app import application_of
from agentkv.serve.models import Models
from agentkv.serve.run import Several, models_of
from agentkv.serve.settings import ModelOptions
from tests.waiting import PATIENCE

SMALL: dict[str, Any] = {"model": "nano", "capacity": 1024, "threads": 1}
HI = [{"role": "user", "content": "Say hi"}]
BODY: dict[str, Any] = {"messages": HI, "max_tokens": 4, "temperature": 0}
CHAT = "/v1/chat/completions"


class Site(NamedTuple):
    """A running server of several models, and who talks to it."""

    models: Models
    http: httpx.AsyncClient
    url: str

    async def opened(self, **headers: str) -> str:
        """Names of the open models, as the server tells them."""
        told = (await self.http.get("/v1/models", headers=headers)).json()["data"]
        return "".join(each["id"] for each in told if each["open"])

    async def ask(self, model: str, **more: Any) -> httpx.Response:
        """A short chat with a model."""
        return await self.http.post(CHAT, json={**BODY, "model": model, **more})


@asynccontextmanager
async def serving_several(
    names: str = "abc",
    most: int | None = None,
    idle: float | None = None,
    own: Mapping[str, Mapping[str, Any]] | None = None,
    **settings: Any,
) -> AsyncIterator[Site]:
    """Serves nanos of these names, with memory for `most` of them."""
    given = {name: ModelOptions(how={**SMALL, **(own or {}).get(name, {})}) for name in names}
    memory = None if most is None else most * await size() + 1
    served, pool = models_of(given, Several(memory, idle), Settings(names=tuple(names), **settings))
    pool.start()
    try:
        async with (
            listening(application_of(served)) as url,
            httpx.AsyncClient(base_url=url.removesuffix("/v1"), timeout=PATIENCE) as http,
        ):
            yield Site(served, http, url)
    finally:
        await pool.close()


_sizes: list[int] = []


async def size() -> int:
    """Bytes of one of these nanos."""
    if not _sizes:
        async with kv.open_models({"one": SMALL}) as pool, pool.use("one"):
            _sizes.append(pool.states()[0].bytes)
    return _sizes[0]
