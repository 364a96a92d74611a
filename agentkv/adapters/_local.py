"""The Context behind a framework's model: the user's own, or one that the model opens."""

from __future__ import annotations

import asyncio
import inspect
import math
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._aio.loop_thread import LoopPortal, LoopThread
from .._chat.tokenizer import Tokenizer
from .._context.context import Context
from .._context.handle import core_of
from .._types.checks import A_MODEL, checked_path
from .._types.errors import InvalidInput, WrongEventLoop
from ..serve import Settings, application
from ._asgi import InProcessApp

if TYPE_CHECKING:
    from starlette.types import ASGIApp

MOST_WAITING = 1_000_000  # requests of one process wait and are not refused


class LocalModel:
    """The Context of a framework's model. A name or folder, as `Context.open` takes it, is opened in a thread of its
    own with the first request and closed with the process. An open Context stays its owner's.

    Raises InvalidInput for anything else and for unknown options; WrongEventLoop for a Context of another event loop,
    or of trio.
    """

    def __init__(self, model: Context | str | Path, opening: Mapping[str, Any]) -> None:
        self._opening = dict(opening)
        self._lock = threading.Lock()
        self._opens: int | None = None  # id of the thread that is opening or closing the model
        self._thread: LoopThread[Context] | None = None
        self._door: InProcessApp | None = None
        self._context = model if isinstance(model, Context) else None
        if isinstance(model, Context):
            self.name = model.model_info.path.name
            if opening:
                raise InvalidInput(f"this Context is open: {', '.join(opening)} went to `Context.open`, not here")
            self._door = InProcessApp(loop=_loop_of(model), app=_app_of(model, self.name))
        else:
            self._path = checked_path(model, "model", A_MODEL)
            if unknown := opening.keys() - inspect.signature(Context.open).parameters.keys():
                raise InvalidInput(f"Context.open has no {', '.join(sorted(unknown))}; see its `help`")
            self.name = self._path.name

    def door(self) -> InProcessApp:
        """Returns the application; opens the model if needed. Raises as `Context.open` does."""
        with self._alone():
            if self._door is None:
                self._thread = LoopThread(partial(Context.open, self._path, **self._opening))
                self._context = self._thread.value
                self._door = InProcessApp(_app_of(self._context, self.name), self._thread)
            return self._door

    async def async_door(self) -> InProcessApp:
        """Returns the application as `door` does, without blocking the event loop."""
        return await asyncio.to_thread(self.door) if self._door is None else self._door

    def tokenizer(self) -> Tokenizer:
        """Returns the model's tokenizer; opens the model if needed."""
        self.door()
        assert self._context is not None
        return self._context.tokenizer

    def close(self) -> None:
        """Closes the model if it was opened here; the next request opens it again."""
        with self._alone():
            if self._thread is not None:
                self._thread.close()
                self._thread = self._door = self._context = None

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Excludes other threads. Raises WrongEventLoop in a signal handler of the thread that is opening or closing
        the model."""
        if self._opens == threading.get_ident():
            raise WrongEventLoop("a signal handler uses a model that its own thread opens or closes just then")
        with self._lock:
            self._opens = threading.get_ident()
            try:
                yield
            finally:
                self._opens = None


def _app_of(context: Context, name: str) -> ASGIApp:
    """The single application of a Context, so that all models over it share conversations and their limit."""
    return core_of(context).singleton(_application, context, name)


def _application(context: Context, name: str) -> ASGIApp:
    names = tuple(dict.fromkeys((name, context.model_info.path.name)))
    settings = Settings(names=names, most_waiting=MOST_WAITING, most_seconds=math.inf, any_name=True)
    return application(context, settings)


def _loop_of(context: Context) -> LoopPortal:
    core_of(context).loop.check_open()
    try:
        return LoopPortal(asyncio.get_running_loop())
    except RuntimeError:
        raise WrongEventLoop("frameworks run on asyncio, but this Context is trio's; open it on asyncio") from None
