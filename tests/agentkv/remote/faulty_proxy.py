"""A proxy in front of a real server that breaks what passes through it, request by request."""

from __future__ import annotations

import asyncio
import re
import ssl
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from urllib.parse import urlsplit

Fault = Callable[["Exchange"], Awaitable[None]]


class Exchange:
    """One connection of a client, whose first request is read."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, head: bytes, server: str) -> None:
        self.reader, self.writer, self.head, self.server = reader, writer, head, server

    async def answered(self, status: str, body: bytes = b"", *headers: str) -> None:
        """As a server that says this and hangs up."""
        lines = [f"HTTP/1.1 {status}", f"content-length: {len(body)}", "connection: close", *headers]
        self.writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + body)
        await self.writer.drain()

    async def passed_on(self, cut_after: int | None = None) -> None:
        """By the real server, of whose answer so many bytes arrive."""
        parts = urlsplit(self.server)
        there, back = await asyncio.open_connection(parts.hostname, parts.port)
        left = cut_after

        async def forward() -> None:
            back.write(self.head)
            with suppress(ConnectionError):
                while data := await self.reader.read(65536):
                    back.write(data)
                    await back.drain()
            back.close()

        sending = asyncio.create_task(forward())
        try:
            while data := await there.read(65536):
                piece = data if left is None else data[:left]
                self.writer.write(piece)
                await self.writer.drain()
                if left is not None:
                    left -= len(piece)
                    if left <= 0:
                        return
        except ConnectionError:
            pass
        finally:
            sending.cancel()
            back.close()


def until_event(mark: bytes) -> Fault:
    """What the server answers, up to the event that has this in it."""
    return _cut_at(lambda told: told.rfind(b"\n\n", 0, told.find(mark)) + 2 if mark in told else None)


def behind_event(mark: bytes) -> Fault:
    """What the server answers, up to the end of the first event that has this in it, however many tokens it tells."""
    pattern = re.compile(re.escape(mark) + b".*?\n\n", re.DOTALL)
    return _cut_at(lambda told: found.end() if (found := pattern.search(told)) else None)


def _cut_at(end: Callable[[bytes], int | None]) -> Fault:
    """What the server answers, up to the byte that `end` finds in it."""

    async def cut(exchange: Exchange) -> None:
        parts = urlsplit(exchange.server)
        there, back = await asyncio.open_connection(parts.hostname, parts.port)
        back.write(exchange.head)

        async def forward() -> None:  # the body may come behind the head
            while data := await exchange.reader.read(65536):
                back.write(data)

        sending, told = asyncio.create_task(forward()), b""
        while end(told) is None and (data := await there.read(65536)):
            told += data
        sending.cancel()
        exchange.writer.write(told[: end(told)])
        await exchange.writer.drain()
        back.close()

    return cut


class FaultyProxy:
    """What it does to the next connections is in `faults`, one each; those after them pass."""

    def __init__(self, server: str) -> None:
        self.server = server
        self.faults: deque[Fault] = deque()
        self.connections = 0
        self.open = 0
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open += 1
        try:
            head = await reader.read(65536)
            if head:
                head = re.sub(rb"(?i)connection: keep-alive", b"Connection: close", head)  # one fault, one request
                self.connections += 1
                fault = self.faults.popleft() if self.faults else Exchange.passed_on
                await fault(Exchange(reader, writer, head, self.server))
        except ConnectionError:
            pass
        finally:
            self.open -= 1
            writer.close()


@asynccontextmanager
async def proxied(server: str) -> AsyncIterator[FaultyProxy]:
    proxy = FaultyProxy(server)
    listening = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    proxy.url = "http://{}:{}".format(*listening.sockets[0].getsockname())
    try:
        yield proxy
    finally:
        listening.close()


def cut_after(size: int) -> Fault:
    return lambda exchange: exchange.passed_on(size)


def answers(status: str, body: bytes = b"", *headers: str) -> Fault:
    return lambda exchange: exchange.answered(status, body, *headers)


async def hangs(exchange: Exchange) -> None:
    """Reads what comes, and says nothing until the client is gone."""
    while await exchange.reader.read(65536):
        pass


async def hangs_up(exchange: Exchange) -> None:
    """At once."""


@asynccontextmanager
async def tls_in_front_of(server: str, context: ssl.SSLContext) -> AsyncIterator[str]:
    proxy = FaultyProxy(server)
    listening = await asyncio.start_server(proxy.serve, "127.0.0.1", 0, ssl=context)
    try:
        yield f"https://localhost:{listening.sockets[0].getsockname()[1]}"
    finally:
        listening.close()


async def loses_the_answer(exchange: Exchange) -> None:
    """The server does what it was asked, to the end, and nobody hears of it."""
    await _asked(exchange, hears=True)


async def leaves_at_once(exchange: Exchange) -> None:
    """The server is asked, and hung up on before it can say anything."""
    await _asked(exchange, hears=False)


async def _asked(exchange: Exchange, hears: bool) -> None:
    """Sends one request on, whose body may come behind its head."""
    parts = urlsplit(exchange.server)
    there, back = await asyncio.open_connection(parts.hostname, parts.port)
    request = exchange.head
    while b"\r\n\r\n" not in request:
        request += await exchange.reader.read(65536)
    head, _, body = request.partition(b"\r\n\r\n")
    sizes = [line.split(b":")[1] for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    for size in map(int, sizes):
        body += await exchange.reader.readexactly(max(size - len(body), 0))
    back.write(head + b"\r\n\r\n" + body)
    await back.drain()
    while hears and await there.read(65536):
        pass
    back.close()
