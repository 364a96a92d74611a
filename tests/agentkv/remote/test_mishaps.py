"""What goes wrong on this side: no verb waits for ever, and whoever leaves does leave."""

from __future__ import annotations

import gzip
import logging

import anyio
import pytest

import agentkv as kv
from agentkv.remote.connect import RemoteHost
from tests.waiting import PATIENCE

from .conftest import QUESTION, Broken
from .faulty_proxy import answers, hangs_up

pytestmark = pytest.mark.anyio


class Raising(logging.Handler):
    """An application's, which fails."""

    def emit(self, record: logging.LogRecord) -> None:
        raise OSError("the log is full")


async def test_a_log_that_fails_fails_the_verb(broken: Broken) -> None:
    async with kv.Context.connect(broken.proxy.url, backend="agentkv") as ctx:
        branch = await ctx.branch(QUESTION)
        broken.proxy.faults.append(hangs_up)
        logger, handler = logging.getLogger("agentkv"), Raising()
        logger.addHandler(handler)
        try:
            with anyio.fail_after(PATIENCE), pytest.raises(kv.RemoteError, match="the log is full"):
                await branch.generate(max_tokens=4)
        finally:
            logger.removeHandler(handler)
        assert (await branch.generate(max_tokens=4)).tokens


async def test_who_leaves_is_let_go_whatever_closing_comes_to(broken: Broken, monkeypatch: pytest.MonkeyPatch) -> None:
    close = RemoteHost.close

    def fails(host: RemoteHost) -> None:
        close(host)
        raise OSError("no descriptors are left")

    monkeypatch.setattr(RemoteHost, "close", fails)
    with anyio.fail_after(PATIENCE):
        async with kv.Context.connect(broken.proxy.url, backend="agentkv") as ctx:
            assert (await (await ctx.branch(QUESTION)).generate(max_tokens=4)).tokens


async def test_what_is_packed_twice_is_not_unpacked(broken: Broken) -> None:
    bomb = gzip.compress(gzip.compress(bytes(1 << 26)))
    async with kv.Context.connect(broken.proxy.url, backend="agentkv") as ctx:
        branch = await ctx.branch(QUESTION)
        for status in ("200 OK", "400 Bad Request"):
            broken.proxy.faults.append(answers(status, bomb, "content-encoding: gzip, gzip"))
            with pytest.raises(kv.RemoteError, match="packed twice"):
                await branch.logits()
