"""Runs a server from opening its models to its last response."""

from __future__ import annotations

import logging
import signal
import socket
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import anyio

from .._aio.signals import received_signals
from .._console.console import escaped, stdout
from .._context.model_pool import ModelPool
from .._types.errors import InvalidInput, SnapshotMismatch
from .._types.extras import needs_extra
from ..trace import record

with needs_extra("serve"):
    from .app import application_of
    from .http.listener import bind_socket, listener
    from .models import Models, Offered

if TYPE_CHECKING:
    import uvicorn
    from anyio.abc import TaskGroup
    from starlette.types import ASGIApp

    from .._context.branch import Branch
    from .._context.context import Context
    from .admission import Admission
    from .settings import ModelOptions, Settings


class Listening(NamedTuple):
    """Address of a server, and how long it drains when it is stopped."""

    host: str
    port: int
    drain_seconds: float


class Several(NamedTuple):
    """How several models share the memory, as `kv.open_models` takes it."""

    max_memory: int | None
    idle: float | None


async def run(
    models: Mapping[str, ModelOptions],
    several: Several | None,
    settings: Settings,
    listening: Listening,
    trace: Path | None,
) -> None:
    """Serves models until SIGINT or SIGTERM.

    A single one is open from the start to the end; each of `several` is opened on its first request.

    Raises as `Context.open` and `Context.load_all` do for a single one, and InvalidInput for what is out of range, and
    for an address that cannot be bound.

    Args:
        models: the models by name, the first one first.
        several: None for a single model.
        settings: configuration of the server.
        listening: address, and the seconds for draining.
        trace: file for a recording of the whole run of a single model; None for no recording.
    """
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.WARNING)
    with bind_socket(listening.host, listening.port) as sock:
        async with AsyncExitStack() as stack:
            served = await _opened(models, several, settings, trace, stack)
            app = application_of(served)
            host, port = sock.getsockname()[:2]
            shown = f"[{host}]" if ":" in host else host
            names = ", ".join(model.settings.names[0] for model in served.all)
            _say(f"serving {escaped(names)} at http://{shown}:{port}/v1 (Ctrl-C to stop)")
            await _serve(app, served.admission, sock, listening.drain_seconds)
    _say("stopped")


async def _opened(
    models: Mapping[str, ModelOptions],
    several: Several | None,
    settings: Settings,
    trace: Path | None,
    stack: AsyncExitStack,
) -> Models:
    """The models, closed with the stack; a single one is open."""
    if several is None:
        _say(f"opening {escaped(next(iter(models.values())).how['model'])} ...")
    served, pool = models_of(models, several, settings)
    pool.start()
    stack.push_async_callback(pool.close)
    if several is None:
        context = await stack.enter_async_context(pool.use(served.all[0].name))
        if trace is not None:
            await stack.enter_async_context(record(context, trace))
        for model in served.all:  # it, and its adapters
            await model.over(context)
    return served


def models_of(
    models: Mapping[str, ModelOptions], several: Several | None, settings: Settings
) -> tuple[Models, ModelPool]:
    """The models of a server, and the pool that opens and closes them."""
    max_memory, idle = several or (None, None)
    how = {name: each.how for name, each in models.items()}
    pool = ModelPool(how, max_memory, idle, lambda name: served.let_go(name))
    offered = {}
    for name, each in models.items():
        own = replace(settings, names=(name,) if several else settings.names, call_threshold=each.call_threshold)
        offered[name] = Offered(own, partial(_warm, each.warm))
        for called, adapter in each.adapters.items():
            offered[called] = Offered(replace(own, names=(called,)), base=name, adapter=adapter)
    served = Models(settings, pool.use, offered, len(offered) > 1 or several is not None, pool.is_free)
    return served, pool


async def _warm(files: Sequence[Path], context: Context) -> list[Branch]:
    return [branch for path in files for branch in (await _loaded(context, path)).values()]


async def _loaded(context: Context, path: Path) -> Mapping[str, Branch]:
    """Loads the branches of a file, memory-mapped where its format allows."""
    try:
        branches = await context.load_all(path, shared=True)
    except (SnapshotMismatch, InvalidInput):
        branches = await context.load_all(path)
    tokens = sum(map(len, branches.values()))
    _say(f"loaded {len(branches)} branches of {tokens} tokens from {escaped(path)}")
    return branches


async def _serve(app: ASGIApp, admission: Admission, sock: socket.socket, drain_seconds: float) -> None:
    server_of_http = listener(app)
    async with anyio.create_task_group() as group:
        group.start_soon(_until_told, group, server_of_http, admission, drain_seconds)
        await server_of_http.serve(sockets=[sock])
        group.cancel_scope.cancel()


async def _until_told(group: TaskGroup, http: uvicorn.Server, admission: Admission, drain_seconds: float) -> None:
    """Drains the server at the first signal and stops it at the second."""
    with received_signals(signal.SIGINT, signal.SIGTERM) as signals:
        async for _ in signals:
            if admission.draining:
                http.force_exit = http.should_exit = True
                return
            running = admission.running
            _say(f"stopping: {running} requests are at work" if running else "stopping")
            group.start_soon(_drain, http, admission, drain_seconds)


async def _drain(http: uvicorn.Server, admission: Admission, seconds: float) -> None:
    late = await admission.drain(seconds)
    if late:
        _say(f"{late} requests were not done within {seconds:g} s, and were told so")
    http.should_exit = True


def _say(text: str) -> None:
    """Prints to stdout; a closed pipe does not stop the server."""
    with suppress(SystemExit, OSError):  # rich leaves by SystemExit where a pipe is broken
        stdout.print(text, soft_wrap=True)
