"""The models of one server, open or not: what each of them is called, who may use it, and how long it stays open."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import anyio

from .._types.errors import AdapterError, OutOfMemory
from .._types.log import log
from .admission import Admission, request_timeout
from .branches.registry import Branches
from .http.errors import ApiError
from .http.ignored import Ignored
from .http.middleware import MODELS
from .http.responses import while_connected
from .metrics import Counted, Metrics
from .server import Server

if TYPE_CHECKING:
    from pathlib import Path

    from starlette.requests import Request

    from .._context.branch import Branch
    from .._context.context import Context
    from .._types.adapter import Adapter
    from .settings import Settings

Use: TypeAlias = Callable[[str], AbstractAsyncContextManager["Context"]]
"""The Context of a model, for the length of a block: `ModelPool.use`, or one that is open anyway."""
Warm: TypeAlias = Callable[["Context"], Awaitable[Sequence["Branch"]]]
"""Loads the branches that a model has from its opening on."""


async def _none(context: Context) -> Sequence[Branch]:
    return ()


class Offered(NamedTuple):
    """A model as a server offers it.

    Attributes:
        settings: of its `Server`s.
        warm: what it is opened with.
        base: name of the model whose Context it is in; None for its own.
        adapter: the LoRA adapter that it is under, of a folder or a file; None for none.
    """

    settings: Settings
    warm: Warm = _none
    base: str | None = None
    adapter: Path | None = None


class ServedModel:
    """One model of a server, and what outlives its closing. Under an adapter it is in the Context of its base.

    Attributes:
        name: its own name; `settings.names` are those that clients may call it by.
        base: name of the model whose Context it is in; its own, unless it is an adapter.
        settings: of its `Server`s.
        server: while the model is open; a new one each time.
        branches: those that clients hold, which keep the model open; and the leases that they may have.
        counted: counters of all its Contexts.
    """

    def __init__(self, name: str, offered: Offered, admission: Admission, ignored: Ignored) -> None:
        settings = offered.settings
        self.name = name
        self.base = offered.base or name
        self.settings = settings
        self.server: Server | None = None
        self.branches = Branches(settings.most_branches, settings.branch_seconds, settings.lease_seconds)
        self.counted = Counted()
        self._admission = admission
        self._ignored = ignored
        self._offered = offered
        self._making = anyio.Lock()

    async def over(self, context: Context) -> Server:
        """The server over its Context, made where that was just opened."""
        if self.server is not None and self.server.context is context:
            return self.server
        async with self._making:
            if self.server is None or self.server.context is not context:
                server = self.begin(context, await self._adapter_in(context))
                for branch in await self._offered.warm(context):
                    server.warm(branch)
                self.server = server
        return self.server

    @property
    def is_adapter(self) -> bool:
        """Whether it is another one under an adapter."""
        return self.base != self.name

    def begin(self, context: Context, adapter: Adapter | None = None) -> Server:
        """A server over a Context that was just opened."""
        self.counted.begin(context)
        return Server(context, self.settings, self._admission, self._ignored, self.branches, adapter)

    async def _adapter_in(self, context: Context) -> Adapter | None:
        if self._offered.adapter is None:
            return None
        try:
            return await context.adapter(self._offered.adapter, name=self.name)
        except AdapterError as error:
            raise AdapterError(f"adapter {self.name!r}: {error}") from error

    def let_go(self) -> None:
        """Closes what only waits to be gone on with, where no client holds a branch: the model may be closed then."""
        self.branches.close_idle()
        if self.server is not None and not self.branches.held():
            self.counted.read()
            self.server.close_kept()
            self.server = None


class Models:
    """All models of one server, and what they share.

    Attributes:
        settings: of the whole server; `names` are those of all models.
        several: whether there may be more than one: then answers tell them apart.
        began: when the server was started, in seconds since 1970.
    """

    def __init__(
        self,
        settings: Settings,
        use: Use,
        offered: Mapping[str, Offered],
        several: bool = False,
        is_free: Callable[[str], bool] = lambda name: True,
    ) -> None:
        """`use` takes the names of those that are no adapters; `is_free` says of these whether an open one can be used
        without waiting."""
        self.settings = settings
        self.several = several
        self.began = int(time.time())
        self.admission = Admission(settings.most_running, settings.most_waiting)
        self.metrics = Metrics(self)
        self.ignored = Ignored(self.metrics.ignored, settings.strict)
        self._use = use
        self._is_free = is_free
        self.all = [ServedModel(name, each, self.admission, self.ignored) for name, each in offered.items()]

    def let_go(self, name: str) -> None:
        """Lets go of what would keep a model open that nobody uses, under adapters too, by its own name."""
        for model in self.all:
            if model.base == name:
                model.let_go()

    def usable(self, request: Request) -> list[ServedModel]:
        """The models that the request's key may use, the first one first."""
        names = request.scope.get(MODELS)
        return self.all if names is None else [model for model in self.all if model.name in names]

    def names(self, request: Request) -> list[str]:
        """All names of these."""
        return [name for model in self.usable(request) for name in model.settings.names]

    def called(self, name: str, request: Request, known: str | None = None) -> ServedModel:
        """The model of that name. Unless the server is strict, names that begin with `known` are taken for the first
        one's: clients ask for a second model that nobody configured.

        Raises ApiError for an unknown name, and for a model that the request's key may not use.
        """
        usable, names = self.usable(request), self.names(request)
        for model in usable:
            if name in model.settings.names:
                return model
        if self.settings.any_name:
            return usable[0]
        if known is not None and name.startswith(known) and not self.ignored.strict:
            self.ignored.note(f"models called {known}...", f"{names[0]} answers", name)
            return usable[0]
        what = f"there is no model {name!r}; there is {', '.join(names)}"
        raise ApiError("missing", what, "model_not_found", "model")

    @asynccontextmanager
    async def use(self, model: ServedModel, request: Request) -> AsyncIterator[Server]:
        """The server of a model, which stays open for the length of a block. Opens it where it is not.

        Raises ApiError and TimeoutError as admission does, ClientDisconnect, and OutOfMemory.
        """
        async with AsyncExitStack() as stack:
            if model.server is not None and self._is_free(model.base):
                yield await model.over(await stack.enter_async_context(self._use(model.base)))
                return
            seconds = request_timeout(request.headers.get("x-request-timeout"), self.settings.most_seconds)
            with self.admission.waits(seconds):
                async with while_connected(request.receive):
                    server = await self._opened(model, stack)
            yield server

    async def _opened(self, model: ServedModel, stack: AsyncExitStack) -> Server:
        try:
            return await model.over(await stack.enter_async_context(self._use(model.base)))
        except (ApiError, OutOfMemory):
            raise
        except Exception as error:  # whatever it is, it is no fault of the request
            log.error("a model cannot be opened", model=model.name, error=str(error), exc_info=error)
            what = f"model {model.name!r} cannot be opened; the server's log says why"
            raise ApiError("failed", what, "model_failed") from error


def models_over(context: Context, settings: Settings) -> Models:
    """A single model that its caller keeps open."""

    @asynccontextmanager
    async def use(name: str) -> AsyncIterator[Context]:
        yield context

    models = Models(settings, use, {settings.names[0]: Offered(settings)})
    models.all[0].server = models.all[0].begin(context)
    return models
