"""A Context about to be opened: for an `async with` block, or for blocking code."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import wraps
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, ParamSpec

from .._types.checks import known_keywords
from .._types.errors import InvalidInput, WrongEventLoop
from .._types.show import preview
from .handle import core_of

if TYPE_CHECKING:
    from ..journal.journal import Journal
    from ..sync.context import SyncContext
    from .context import Context

P = ParamSpec("P")
HOW = "write `async with kv.Context.open(...) as ctx:`, or `.sync()` behind it where nothing is awaited"


class ContextOpener(AbstractAsyncContextManager["Context", bool | None]):
    """Result of `Context.open`: `async with` opens the model, and so does `sync()`; use one of the two, once."""

    def __init__(self, opened: AbstractAsyncContextManager[Context]) -> None:
        """Private: use `Context.open`."""
        self._opened = opened

    def __aenter__(self) -> Coroutine[Any, Any, Context]:
        return self._opened.__aenter__()

    def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> Coroutine[Any, Any, bool | None]:
        return self._opened.__aexit__(kind, error, traceback)

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"nothing is open yet, so there is no {name}: {HOW}", name=name, obj=self)

    def __enter__(self) -> NoReturn:
        raise InvalidInput(f"`with` opens nothing here: {HOW}")

    def __exit__(self, *of: object) -> None: ...

    def __await__(self) -> NoReturn:
        raise InvalidInput(f"`await` opens nothing here: {HOW}")

    def sync(self) -> SyncContext:
        """Opens the model on an event loop in its own thread: a Context with blocking methods.

        `with kv.Context.open("my-model").sync() as ctx: ...`, or without `with`, until `ctx.close()` or the end of the
        process. Raises as `Context.open`.
        """
        from .._aio.loop_thread import LoopThread
        from ..sync.context import SyncContext

        thread = LoopThread(lambda: self._opened)
        return SyncContext(thread.value, thread)


def context_opener(open_it: Callable[P, AsyncIterator[Context]]) -> Callable[P, ContextOpener]:
    """`contextlib.asynccontextmanager` whose result also has `sync`."""
    made = asynccontextmanager(open_it)

    @known_keywords
    @wraps(open_it)
    def opened(*args: P.args, **kwargs: P.kwargs) -> ContextOpener:
        return ContextOpener(made(*args, **kwargs))

    return opened


def sync_of(context: Context) -> SyncContext:
    """Blocking view of a Context on the caller's event loop, for other threads. Raises ContextClosed,
    WrongEventLoop."""
    from .._aio.loop_thread import LoopPortal
    from ..sync.context import SyncContext

    core_of(context).loop.check_open()
    try:
        return SyncContext(context, LoopPortal(asyncio.get_running_loop()))
    except RuntimeError:
        raise WrongEventLoop("blocking calls need asyncio, and this Context is trio's; await its verbs") from None


def checked_journal(journal: object) -> Journal | None:
    """A journal, made of a path where one is given. Raises InvalidInput."""
    if journal is None:
        return None
    from ..journal.journal import Journal

    if isinstance(journal, str | Path):
        return Journal(journal)
    if not isinstance(journal, Journal):
        raise InvalidInput(f"journal is {preview(journal)}, but it must be a kv.Journal, or the path of one")
    return journal
