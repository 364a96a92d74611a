"""Runs a server from opening its model to its last response."""

from __future__ import annotations

import logging
import signal
import socket
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import anyio

from .._console.console import escaped, stdout
from .._context.context import Context
from .._types.errors import InvalidInput, SnapshotMismatch
from ..trace import record
from .app import application
from .http.listener import bind_socket, listener

if TYPE_CHECKING:
    import uvicorn
    from anyio.abc import TaskGroup
    from starlette.types import ASGIApp

    from .._context.branch import Branch
    from .server import Server
    from .settings import Settings


class Listening(NamedTuple):
    """Address of a server, and how long it drains when it is stopped."""

    host: str
    port: int
    drain_seconds: float


async def run(
    model: Path,
    how: Mapping[str, Any],
    settings: Settings,
    warm: Sequence[Path],
    listening: Listening,
    trace: Path | None,
) -> None:
    """Serves a model until SIGINT or SIGTERM.

    Raises as `Context.open` and `Context.load_all` do, and InvalidInput for an address that cannot be bound.

    Args:
        model: what `Context.open` opens, with the options `how`.
        settings: configuration of the server.
        warm: files of saved branches with messages; conversations with the same beginning fork them.
        listening: address, and the seconds for draining.
        trace: file for a recording of the whole run; None for no recording.
    """
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.WARNING)
    with bind_socket(listening.host, listening.port) as sock:
        _say(f"opening {escaped(model)} ...")
        async with AsyncExitStack() as stack:
            context = await stack.enter_async_context(Context.open(model, **how))
            if trace is not None:
                await stack.enter_async_context(record(context, trace))
            app = application(context, settings)
            for path in warm:
                for branch in (await _loaded(context, path)).values():
                    app.state.server.warm(branch)
            host, port = sock.getsockname()[:2]
            shown = f"[{host}]" if ":" in host else host
            _say(f"serving {escaped(settings.names[0])} at http://{shown}:{port}/v1 (Ctrl-C to stop)")
            await _serve(app, app.state.server, sock, listening.drain_seconds)
    _say("stopped")


async def _loaded(context: Context, path: Path) -> Mapping[str, Branch]:
    """Loads the branches of a file, memory-mapped where its format allows."""
    try:
        branches = await context.load_all(path, shared=True)
    except (SnapshotMismatch, InvalidInput):
        branches = await context.load_all(path)
    tokens = sum(map(len, branches.values()))
    _say(f"loaded {len(branches)} branches of {tokens} tokens from {escaped(path)}")
    return branches


async def _serve(app: ASGIApp, server: Server, sock: socket.socket, drain_seconds: float) -> None:
    server_of_http = listener(app)
    async with anyio.create_task_group() as group:
        group.start_soon(_until_told, group, server_of_http, server, drain_seconds)
        await server_of_http.serve(sockets=[sock])
        group.cancel_scope.cancel()


async def _until_told(group: TaskGroup, http: uvicorn.Server, server: Server, drain_seconds: float) -> None:
    """Drains the server at the first signal and stops it at the second."""
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async for _ in signals:
            if server.admission.draining:
                http.force_exit = http.should_exit = True
                return
            running = server.admission.running
            _say(f"stopping: {running} requests are at work" if running else "stopping")
            group.start_soon(_drain, http, server, drain_seconds)


async def _drain(http: uvicorn.Server, server: Server, seconds: float) -> None:
    late = await server.admission.drain(seconds)
    if late:
        _say(f"{late} requests were not done within {seconds:g} s, and were told so")
    http.should_exit = True


def _say(text: str) -> None:
    """Prints to stdout; a closed pipe does not stop the server."""
    with suppress(SystemExit, OSError):  # rich leaves by SystemExit where a pipe is broken
        stdout.print(text, soft_wrap=True)
