"""A server's stdin and stdout: it ends with a signal, or with either of them."""

from __future__ import annotations

import math
import signal
import sys
import threading
from contextlib import suppress
from typing import Any

import anyio
import anyio.from_thread
from anyio.lowlevel import current_token
from anyio.streams.memory import MemoryObjectReceiveStream
from mcp.server.mcpserver import MCPServer
from mcp.server.stdio import stdio_server

from ..._console import stderr


async def over_stdio(server: MCPServer) -> None:
    """Serves one client, until it hangs up, Ctrl-C or SIGTERM.

    The SDK's own reader of stdin cannot be cancelled: it would hold the process until its client hangs up.
    """
    lines: Any = _stdin_lines()
    lowlevel = server._lowlevel_server  # what the SDK's `run_stdio_async` runs
    try:
        with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
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
    """From a thread that is left behind where nobody waits for more."""
    sending, lines = anyio.create_memory_object_stream[str](math.inf)
    token = current_token()

    def feed() -> None:
        with suppress(anyio.BrokenResourceError, RuntimeError), open(0, "rb", closefd=False) as stdin:
            for line in stdin:
                anyio.from_thread.run_sync(sending.send_nowait, line.decode("utf-8", "replace"), token=token)
            anyio.from_thread.run_sync(sending.close, token=token)

    threading.Thread(target=feed, name="agentkv-mcp-stdin", daemon=True).start()
    return lines
