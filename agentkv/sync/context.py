"""A Context, for code that does not await."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Coroutine, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from .._aio.loop_thread import LoopPortal, LoopThread
from .._chat.tokenizer import Tokenizer
from .._context.branch import Branch
from .._context.context import Context
from .._context.overflow import Overflow
from .._storage.save import Progress, Saved
from .._types.adapter import Adapter
from .._types.checks import Prompt
from .._types.errors import InvalidInput
from .._types.info import ModelInfo, Stats, StepRecord
from .._types.show import preview
from .blocking import BlockingVerb
from .branch import SyncBranch

if TYPE_CHECKING:
    from ..agents.agent import Agent
    from ..workspaces.workspace import Workspace

R = TypeVar("R")


class SyncContext:
    """A Context whose verbs block until they are done; otherwise like `Context`.

    Several threads may call them at once: their generations share forwards.

    Made by `kv.Context.open(...).sync()`, which opens the model on an event loop in its own thread until `close`, the
    end of a `with` block or of the process; or by `sync` of an open Context, for other threads than its own.

    Attributes:
        awaited: the Context itself, for code on its event loop.
    """

    def __init__(self, context: Context, loop: LoopPortal) -> None:
        """Private: use `kv.Context.open(...).sync()`."""
        self.awaited = context
        self._loop = loop

    compact = BlockingVerb(Context.compact)

    def branch(
        self,
        prompt: Prompt | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template: Mapping[str, Any] | None = None,
        overflow: Overflow | None = None,
        workspace: Workspace | None = None,
        adapter: Adapter | None = None,
    ) -> SyncBranch:
        """Opens a branch, as `Context.branch` does."""
        opened = self.awaited.branch(
            prompt, tools=tools, template=template, overflow=overflow, workspace=workspace, adapter=adapter
        )
        return self._made(self.wait(opened))

    def adapter(self, folder: str | Path, *, name: str | None = None) -> Adapter:
        """Loads a LoRA adapter, as `Context.adapter` does."""
        return self.wait(self.awaited.adapter(folder, name=name))

    def trunk(
        self, agent: Agent[Any, Any], *, workspace: Workspace | None = None, adapter: Adapter | None = None
    ) -> SyncBranch:
        """Opens a branch with the agent's prompt, for `SyncBranch.run`, as `Agent.trunk` does."""
        return self._made(self.wait(agent.trunk(self.awaited, workspace=workspace, adapter=adapter)))

    def keep(self, *branches: SyncBranch) -> None:
        """Closes all branches but these, as `Context.keep` does."""
        self.wait(self.awaited.keep(branch.awaited for branch in branches))

    def save(
        self,
        path: str | Path,
        branches: Mapping[str, SyncBranch],
        *,
        shareable: bool = False,
        progress: Progress | None = None,
    ) -> Saved:
        """Saves branches by name to a file, as `Context.save` does."""
        named = {name: branch.awaited for name, branch in branches.items()}
        return self.wait(self.awaited.save(path, named, shareable=shareable, progress=progress))

    def load(
        self, path: str | Path, *, shared: bool = False, recompute: bool = False, progress: Progress | None = None
    ) -> SyncBranch:
        """Loads the branch of a file, as `Context.load` does."""
        return self._made(self.wait(self.awaited.load(path, shared=shared, recompute=recompute, progress=progress)))

    def load_all(
        self, path: str | Path, *, shared: bool = False, recompute: bool = False, progress: Progress | None = None
    ) -> dict[str, SyncBranch]:
        """Loads all branches of a file, by name, as `Context.load_all` does."""
        loaded = self.wait(self.awaited.load_all(path, shared=shared, recompute=recompute, progress=progress))
        return {name: self._made(branch) for name, branch in loaded.items()}

    def attach(self, name: str, *, overflow: Overflow | None = None) -> SyncBranch:
        """Opens a published branch by name, as `Context.attach` does."""
        return self._made(self.wait(self.awaited.attach(name, overflow=overflow)))

    def wait(self, awaitable: Awaitable[R]) -> R:
        """Runs any awaitable on the Context's event loop, and returns its result: `ctx.wait(kv.gather(...))`.

        Pass branches to it by their `awaited`. A Ctrl-C cancels it.

        Raises WrongEventLoop on the Context's own event loop, where it would wait for ever, and in a forked process;
        ContextClosed after `close`; InvalidInput for what cannot be awaited.
        """
        if not inspect.isawaitable(awaitable):
            raise InvalidInput(f"wait takes a coroutine, or anything else to await, not {preview(awaitable)}")
        coroutine: Coroutine[Any, Any, R] = awaitable if inspect.iscoroutine(awaitable) else _coroutine(awaitable)
        return self._loop.wait(coroutine)

    def close(self) -> None:
        """Closes a Context that `kv.Context.open(...).sync()` opened; one that was open before stays open."""
        if isinstance(self._loop, LoopThread):
            self._loop.close()

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        return self.awaited.tokenizer

    @property
    def model_info(self) -> ModelInfo:
        """Facts about the model."""
        return self.awaited.model_info

    @property
    def stats(self) -> Stats:
        """Counters of the work done, and of the cells in use."""
        return self.awaited.stats

    @property
    def steps(self) -> list[StepRecord]:
        """Records of the last steps, oldest first."""
        return self.awaited.steps

    @property
    def branches(self) -> list[SyncBranch]:
        """Live branches, oldest first."""
        return [self._made(branch) for branch in self.awaited.branches]

    def _made(self, branch: Branch) -> SyncBranch:
        return SyncBranch(branch, self._loop)

    def __repr__(self) -> str:
        return repr(self.awaited)

    def __enter__(self) -> SyncContext:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


async def _coroutine(awaitable: Awaitable[R]) -> R:
    return await awaitable
