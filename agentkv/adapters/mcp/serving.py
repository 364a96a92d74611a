"""Runs an MCP server of branches, from opening its model to its last request.

Over stdio it ends with a signal, or when stdin or stdout closes.
"""

from __future__ import annotations

import logging
import math
import re
import signal
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import anyio.from_thread
from anyio.lowlevel import current_token
from anyio.streams.memory import MemoryObjectReceiveStream

from ... import models
from ..._aio.signals import received_signals
from ..._console.console import stderr
from ..._context.context import Context
from ..._types.errors import InvalidInput
from ..._types.extras import needs_extra
from ..._types.show import preview
from .served_branches import ServedBranches
from .server import branch_server

with needs_extra("mcp"):
    from mcp.server.mcpserver import MCPServer
    from mcp.server.stdio import stdio_server
    from starlette.requests import ClientDisconnect

    from ...serve.http.listener import bind_socket, listener


async def over_stdio(server: MCPServer) -> None:
    """Serves one client until it disconnects, Ctrl-C or SIGTERM.

    The SDK's own reader of stdin cannot be cancelled: it would keep the process alive until the client disconnects.
    """
    lines: Any = _stdin_lines()
    lowlevel = server._lowlevel_server  # what the SDK's `run_stdio_async` runs
    try:
        with received_signals(signal.SIGINT, signal.SIGTERM) as signals:
            if sys.stdin.isatty():
                stderr.print("serving branches to an MCP client at stdin and stdout (Ctrl-C to stop; --help)")
            async with anyio.create_task_group() as group:
                group.start_soon(_cancel_on, signals, group.cancel_scope)
                async with stdio_server(lines) as (reading, writing):
                    await lowlevel.run(reading, writing, lowlevel.create_initialization_options())
                group.cancel_scope.cancel()
    except* BrokenPipeError:
        stderr.print("the client no longer reads what it asked for")


async def _cancel_on(signals: Any, scope: anyio.CancelScope) -> None:
    async for _ in signals:
        scope.cancel()


def _stdin_lines() -> MemoryObjectReceiveStream[str]:
    """Lines of stdin, read by a daemon thread that outlives the server."""
    sending, lines = anyio.create_memory_object_stream[str](math.inf)
    token = current_token()

    def feed() -> None:
        with suppress(anyio.BrokenResourceError, RuntimeError), open(0, "rb", closefd=False) as stdin:
            for line in stdin:
                anyio.from_thread.run_sync(sending.send_nowait, line.decode("utf-8", "replace"), token=token)
            anyio.from_thread.run_sync(sending.close, token=token)

    threading.Thread(target=feed, name="agentkv-mcp-stdin", daemon=True).start()
    return lines


async def serve_branches(
    model: Path | None, http: str | None, capacity: int, most: int, saves: Path | None, threads: int | None
) -> None:
    """Serves branches of a model until the client disconnects, Ctrl-C or SIGTERM.

    Raises as `Context.open` does, and InvalidInput for an invalid address.

    Args:
        model: what `Context.open` opens; None for nano.
        http: address to listen on, as "host:port"; None for stdin and stdout.
        capacity: cells of the cache.
        most: maximum number of branches at a time.
        saves: folder for saved branches, created if missing; None for no saving.
        threads: number of the model's threads.
    """
    address = None if http is None else _address(http)
    if saves is not None:
        await anyio.Path(saves).mkdir(parents=True, exist_ok=True)
    async with Context.open(models.nano() if model is None else model, capacity, threads=threads) as context:
        server = branch_server(ServedBranches(context, most, saves))
        if address is None:
            await over_stdio(server)
        else:
            await _over_http(server, *address)


async def _over_http(server: MCPServer, host: str, port: int) -> None:
    app = server.streamable_http_app(host=host)
    with bind_socket(host, port) as sock, received_signals(signal.SIGINT, signal.SIGTERM) as signals:
        name = f"[{host}]" if ":" in host else host
        stderr.print(f"serving branches at http://{name}:{sock.getsockname()[1]}/mcp (Ctrl-C to stop)", soft_wrap=True)
        http = listener(app)
        for name in ("uvicorn.error", "mcp.server.streamable_http"):
            logging.getLogger(name).addFilter(_is_worth_saying)
        async with app.router.lifespan_context(app), anyio.create_task_group() as group:
            group.start_soon(http.serve, [sock])
            async for _ in signals:
                http.should_exit = True
                break


def _is_worth_saying(record: logging.LogRecord) -> bool:
    """Whether a record is logged: tracebacks of clients that disconnect during their request are not."""
    return record.exc_info is None or not isinstance(record.exc_info[1], ClientDisconnect)


def _address(text: str) -> tuple[str, int]:
    found = re.fullmatch(r"(.+):([0-9]{1,5})", text)
    if found is None or int(found[2]) > 65535:
        raise InvalidInput(f"--http is {preview(text)}, but it must be a host and a port, such as 127.0.0.1:8081")
    return found[1], int(found[2])
