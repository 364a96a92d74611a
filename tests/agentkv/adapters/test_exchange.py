"""Requests to an application that lives on another event loop end where their client is gone."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import httpx2
import pytest

from agentkv._aio.loop_thread import LoopThread
from agentkv.adapters._asgi import AsyncTransport, InProcessApp
from tests.waiting import PATIENCE, SOON, until_sync


class Endless:
    """An ASGI application whose answers begin, and go on until their client hangs up."""

    def __init__(self) -> None:
        self.running = 0
        self.begun = threading.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answers."""
        self.running += 1
        try:
            await receive()  # the request
            await send({"type": "http.response.start", "status": 200, "headers": []})
            for _ in range(10):  # whoever waits for the first byte has it then
                await asyncio.sleep(0)
            self.begun.set()
            await receive()  # the client's end
        finally:
            self.running -= 1

    def ended(self) -> bool:
        """Has every answer ended?"""
        return not self.running


@asynccontextmanager
async def nothing() -> AsyncIterator[None]:
    yield


@pytest.fixture
def thread() -> Iterator[LoopThread[None]]:
    thread = LoopThread(nothing)
    yield thread
    thread.close()


def client(app: Endless, thread: LoopThread[None]) -> httpx2.AsyncClient:
    async def door() -> InProcessApp:
        return InProcessApp(app, thread)

    return httpx2.AsyncClient(transport=AsyncTransport(door), timeout=None)


async def ask(http: httpx2.AsyncClient) -> None:
    async with http.stream("GET", "http://agentkv.invalid/") as answer:
        async for _ in answer.aiter_raw():
            pass


def test_a_request_that_is_cancelled_as_its_answer_begins_ends(thread: LoopThread[None]) -> None:
    app = Endless()

    async def cancelled() -> None:
        asked = asyncio.create_task(ask(client(app, thread)))
        while not app.running:  # noqa: ASYNC110 - the other event loop says so
            await asyncio.sleep(0)
        app.begun.wait(PATIENCE)  # this event loop stands still: it has not heard of the first byte
        asked.cancel()
        with suppress(asyncio.CancelledError):
            await asked
        until_sync(app.ended)

    asyncio.run(cancelled())


def test_a_request_may_be_cancelled_at_any_moment(thread: LoopThread[None]) -> None:
    app = Endless()

    async def cancelled(turns: int) -> None:
        asked = asyncio.create_task(ask(client(app, thread)))
        for _ in range(turns):
            await asyncio.sleep(0)
        for _ in range(3):  # as a scope does that is cancelled: again, while it is cleaned up
            asked.cancel()
            await asyncio.sleep(0)
        with suppress(asyncio.CancelledError):
            await asked

    async def many() -> None:
        for moment in range(150):
            await cancelled(moment * 3)
        until_sync(app.ended)

    asyncio.run(many())


def test_a_client_waits_as_long_as_it_says(thread: LoopThread[None]) -> None:
    app = Endless()

    async def impatient() -> None:
        http = client(app, thread)
        http.timeout = httpx2.Timeout(SOON)
        with pytest.raises(httpx2.ReadTimeout, match=f"nothing came for {SOON} s"):
            await ask(http)

    asyncio.run(impatient())
    until_sync(app.ended)
