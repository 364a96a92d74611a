"""`agentkv serve`'s application behind a server of HTTP/2, which clients are offered over TLS."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import trustme
from hypercorn.asyncio import serve
from hypercorn.config import Config

import agentkv as kv
from agentkv._aio.loop_thread import LoopThread
from agentkv.serve import Settings, application
from tests.waiting import listens, until

from .conftest import QUESTION

pytestmark = pytest.mark.anyio


class Spoken(NamedTuple):
    url: str
    versions: set[str]


@asynccontextmanager
async def http2_server(folder: Path) -> AsyncIterator[Spoken]:
    authority = trustme.CA()
    certificate = authority.issue_cert("localhost")
    authority.cert_pem.write_to_path(str(folder / "authority.pem"))
    certificate.private_key_pem.write_to_path(str(folder / "key.pem"))
    certificate.cert_chain_pems[0].write_to_path(str(folder / "certificate.pem"))
    with socket.create_server(("127.0.0.1", 0)) as bound:
        port = bound.getsockname()[1]
    config = Config()
    config.bind, config.alpn_protocols = [f"127.0.0.1:{port}"], ["h2"]
    config.certfile, config.keyfile = str(folder / "certificate.pem"), str(folder / "key.pem")
    spoken = Spoken(f"https://localhost:{port}", set())
    async with kv.Context.open(kv.models.nano(), capacity=8192, threads=1) as ctx:
        app = application(ctx, Settings(names=("nano",)))

        async def noted(scope: Any, receive: Any, send: Any) -> None:
            spoken.versions.add(scope.get("http_version", ""))
            await app(scope, receive, send)

        stop = asyncio.Event()
        serving = asyncio.create_task(serve(noted, config, shutdown_trigger=stop.wait))  # type: ignore[arg-type]
        await until(lambda: serving.done() or listens(port))
        yield spoken
        stop.set()
        await serving


async def test_the_same_is_said_over_http2(tmp_path: Path, local: kv.Context) -> None:
    async def said(ctx: kv.Context) -> list[Any]:
        trunk = await ctx.branch(QUESTION)
        await trunk.draw_as(5)
        kids = await trunk.fork(6)
        hot: dict[str, Any] = {"max_tokens": 20, "sampling": kv.Sampling(temperature=1.0, seed=3)}
        whole = [generation.tokens for generation in await kv.gather(*(kid.generate(**hot) for kid in kids))]
        async with trunk.stream(max_tokens=200, sampling=kv.Sampling(logit_bias={2: -100})) as tokens:
            whole.append([(await anext(tokens)).id for _ in range(3)])  # and the rest is cancelled
        return [*whole, trunk.tokens, (await trunk.select(["yes", "no"])).logprobs]

    thread = LoopThread(lambda: http2_server(tmp_path))
    try:
        certificate = tmp_path / "authority.pem"
        async with kv.Context.connect(thread.value.url, backend="agentkv", verify=certificate) as ctx:
            assert await said(ctx) == await said(local)
            assert ctx.stats.retries == 0
        assert thread.value.versions - {""} == {"2"}
    finally:
        thread.close()
