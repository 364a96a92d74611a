"""Several models in one program, of which as many are open as memory allows."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import anyio

from .._aio.background import BackgroundTasks
from .._engine.commands import CellsCall
from .._types.checks import A_MODEL, checked_count, checked_name, checked_path
from .._types.errors import AgentKVError, InvalidInput, OutOfMemory
from .._types.info import ModelState
from .._types.log import log
from .._types.show import bytes_text, preview
from ..models._resolve import folder_called
from ..spec import DraftModel, Mixed
from .context import Context
from .handle import core_of

WantedModel: TypeAlias = "str | Path | Mapping[str, Any]"
"""What `Context.open` takes: a model, or all arguments, `model` among them."""

_WEIGHTS = (".pte", ".ptd", ".safetensors", ".gguf", ".bin")
_LOOK_S = 0.1  # between two looks for branches that were closed, while a model waits for memory
_GIVES_WAY_S = 60.0  # to models that wait for memory: whoever has a model may wait for who wants to use it
_held: ContextVar[tuple[_Use, ...]] = ContextVar("_held", default=())  # by this task, or those that started it


@dataclass(eq=False)
class _Slot:
    """One model, open or not.

    Attributes:
        bytes: weights, and keys and values of a full cache; of the files alone until it was open once.
        leaving: whether it is being closed; its memory is still in use.
        uses: number of blocks of `use` now, those that wait for it included.
        giving_way: number of blocks of `use` that wait because another model, asked for before, lacks memory.
        left: ids of branches that were open when nobody used it, as of the last look: no pause of uses closes them.
        used: when it was used last, in the order of uses.
        idle_since: when its last use ended.
    """

    name: str
    arguments: dict[str, Any]
    bytes: int
    context: Context | None = None
    closing: AsyncExitStack | None = None
    leaving: bool = False
    uses: int = 0
    giving_way: int = 0
    left: frozenset[int] = frozenset()
    opens: int = 0
    used: int = 0
    idle_since: float = field(default_factory=time.monotonic)

    def size(self) -> str:
        """Its bytes, in words."""
        return f"{bytes_text(self.bytes)} {'with' if self.opens else 'without'} its cache"

    def state(self) -> ModelState:
        return ModelState(
            name=self.name,
            is_open=self.context is not None,
            uses=self.uses + self.giving_way,
            bytes=self.bytes,
            opens=self.opens,
        )

    def open_branches(self) -> frozenset[int]:
        return frozenset(branch.id for branch in self.context.branches) if self.context is not None else frozenset()


@dataclass(eq=False)
class _Use:
    """A block of `use`. Tasks that were started within it may outlive it."""

    slot: _Slot
    ended: bool = False


@dataclass(eq=False)
class KeptBranches:
    """Branches that a task closes only once it has the model that it waits for.

    Attributes:
        contexts: what they are branches of.
        in_the_way: whether a model was refused because they keep theirs open.
    """

    contexts: Collection[Context]
    in_the_way: bool = False


_kept: ContextVar[KeptBranches | None] = ContextVar("_kept", default=None)


@contextmanager
def keeping_branches_of(contexts: Collection[Context]) -> Iterator[KeptBranches]:
    """Whoever needs memory within the block does not wait for these Contexts' branches: `use` raises OutOfMemory."""
    kept = KeptBranches(contexts)
    before = _kept.set(kept)
    try:
        yield kept
    finally:
        _kept.reset(before)


def hold_no_model() -> None:
    """This task uses none of the models that whoever started it does."""
    _held.set(())
    _kept.set(None)


@dataclass(frozen=True, slots=True, eq=False)
class PooledModel:
    """One model of a pool, for whoever uses it later: `planner.as_tool(..., context=pool.model("worker"))`.

    Attributes:
        pool: the models.
        name: which of them.
    """

    pool: ModelPool
    name: str

    def use(self) -> AbstractAsyncContextManager[Context]:
        """Its Context for the length of a block, as `ModelPool.use`."""
        return self.pool.use(self.name)

    def check_open(self) -> None:
        """Raises InvalidInput once the block of `kv.open_models` has ended."""
        self.pool.check_open()


class ModelPool:
    """The models of `kv.open_models`, by name. Each is opened on its first use.

    A model is in use within a block of `use`, and as long as one of its branches is open. Where another one needs
    memory, the least recently used of those that are not in use are closed; they are opened again on their next use.
    """

    def __init__(
        self,
        models: Mapping[str, WantedModel],
        max_memory: int | None,
        idle: float | None,
        let_go: Callable[[str], None] = lambda name: None,
    ) -> None:
        """Private: use `kv.open_models`. `let_go` closes branches of a model that only wait to be gone on with."""
        if not isinstance(models, Mapping) or not models:
            raise InvalidInput(f"models is {preview(models)}, but it must be a mapping of names to models")
        self._most = None if max_memory is None else checked_count(max_memory, "max_memory", 1, 2**62)
        if idle is not None and (isinstance(idle, bool) or not isinstance(idle, int | float) or not 0 <= idle < 1e9):
            raise InvalidInput(f"idle is {preview(idle)}, but it must be a number of seconds from 0, or None")
        self._idle = idle
        self._let_go = let_go
        self._slots = {checked_name(name, "a model's name"): _slot(name, wanted) for name, wanted in models.items()}
        self._uses = itertools.count(1)
        self._wanted: list[_Slot] = []  # opened one after another, in the order in which they were asked for
        self._opens = False  # whether the first of them is being opened
        self._opening: anyio.CancelScope | None = None  # of that
        self._short = False  # and waits for memory
        self._changed = anyio.Event()
        self._background = BackgroundTasks()
        self._closed = False

    def __repr__(self) -> str:
        told = [f"{slot.name} ({'open' if slot.context is not None else 'not open'})" for slot in self._slots.values()]
        return f"<ModelPool: {'closed' if self._closed else ', '.join(told)}>"

    @property
    def names(self) -> list[str]:
        """Names of all models."""
        return list(self._slots)

    def states(self) -> list[ModelState]:
        """All models as they are now: which are open, in use, and how large."""
        return [slot.state() for slot in self._slots.values()]

    def model(self, name: str) -> PooledModel:
        """One of the models, which is neither opened nor in use by this. Raises InvalidInput for an unknown name."""
        return PooledModel(self, self._slot_called(name).name)

    def check_open(self) -> None:
        """Raises InvalidInput once the block of `kv.open_models` has ended."""
        if self._closed:
            raise InvalidInput("these models are closed: their block of kv.open_models has ended")

    @asynccontextmanager
    async def use(self, name: str) -> AsyncIterator[Context]:
        """The Context of a model, which stays open for the length of a block. Opens it where it is not.

        Waits where other models are in use that leave it no memory; and for those that wait so already, for a minute
        at most, unless this task uses a model.

        Raises:
            InvalidInput: there is no model of this name, or the block of `kv.open_models` has ended.
            OutOfMemory: it takes more than `max_memory` by itself, or beside the models that this task itself uses.
        Otherwise raises as `Context.open`.
        """
        slot = self._slot_called(name)
        if not self.is_free(name):
            await self._give_way(slot)
        slot.uses += 1
        use = _Use(slot)
        held = _held.set((*_held.get(), use))
        try:
            yield slot.context or await self._opened(slot)
        finally:
            use.ended = True
            with suppress(ValueError):  # a coroutine that is torn down may end in another context
                _held.reset(held)
            slot.uses -= 1
            slot.used, slot.idle_since = next(self._uses), time.monotonic()
            self._notify()

    def is_free(self, name: str) -> bool:
        """Whether a use would not wait: the model is open, and none that lacks memory was asked for before. Raises
        InvalidInput for an unknown name."""
        slot = self._slot_called(name)
        return slot.context is not None and not self._goes_first(slot)

    async def close_idle(self) -> list[str]:
        """Closes all models that are not in use. Returns their names."""
        closed = []
        while slot := self._least_recently_used():
            closed.append(slot.name)
            await self._close(slot)
        return closed

    def _slot_called(self, name: str) -> _Slot:
        self.check_open()
        if not isinstance(name, str) or name not in self._slots:
            raise InvalidInput(f"there is no model {preview(name)}; there is {', '.join(map(repr, self._slots))}")
        return self._slots[name]

    def _goes_first(self, slot: _Slot) -> bool:
        """Whether a model that waits for memory gets it the sooner, the sooner nobody uses this open one."""
        return self._short and not self._own() and not slot.left & slot.open_branches()

    async def _give_way(self, slot: _Slot) -> None:
        slot.giving_way += 1
        try:
            with anyio.move_on_after(_GIVES_WAY_S):
                while slot.context is not None and self._goes_first(slot):
                    await self._next_change()
        finally:
            slot.giving_way -= 1
        self._slot_called(slot.name)  # closed meanwhile?

    def _own(self) -> list[str]:
        """Names of the open models that this task uses."""
        return [use.slot.name for use in _held.get() if not use.ended and use.slot.context is not None]

    async def _opened(self, slot: _Slot) -> Context:
        if slot not in self._wanted:
            self._wanted.append(slot)
        try:
            while slot.context is None:
                if self._wanted[0] is slot and not self._opens:
                    await self._bring(slot)
                else:
                    self._check_that_waiting_helps(slot)
                    await self._next_change()
                self._slot_called(slot.name)  # closed meanwhile?
            return slot.context
        finally:
            if slot in self._wanted and (slot.context is not None or slot.uses == 1):
                self._wanted.remove(slot)
            self._notify()

    async def _bring(self, slot: _Slot) -> None:
        self._opens = True
        try:
            with anyio.CancelScope() as self._opening:  # cancelled by `close`
                await self._make_room(slot)
                await self._open(slot)
        finally:
            self._opens = self._short = False
            self._opening = None
            self._notify()

    async def _make_room(self, slot: _Slot) -> None:
        while slot.leaving or self._excess(slot.bytes) > 0:
            if unused := self._least_recently_used():
                await self._close(unused)
            elif not any(each.leaving for each in self._slots.values()):
                self._check_size(slot)
                self._check_that_waiting_helps(slot)
                if not self._short:
                    self._short = True
                    self._notify()
                    self._tell_of_branches(slot)
                await self._next_change()
            else:
                await self._next_change()

    async def _next_change(self) -> None:
        with anyio.move_on_after(_LOOK_S):
            await self._changed.wait()

    def _excess(self, more: int) -> int:
        """Bytes beyond `max_memory` with so many more."""
        return -1 if self._most is None else self._taken() + more - self._most

    def _taken(self) -> int:
        return sum(slot.bytes for slot in self._slots.values() if slot.context is not None or slot.leaving)

    def _check_size(self, slot: _Slot) -> None:
        if self._most is not None and slot.bytes > self._most:
            advice = "raise it, or open the model with less capacity" if slot.opens else "raise it"
            raise OutOfMemory(
                f"model {slot.name!r} takes {slot.size()}, and max_memory is {bytes_text(self._most)}; {advice}"
            )

    def _check_that_waiting_helps(self, slot: _Slot) -> None:
        """Two that wait for what each other has would never end: whoever has a model open waits for no memory."""
        kept = _kept.get()
        with_branches = [each for each in self._slots.values() if kept and each.context in kept.contexts]
        mine = dict.fromkeys([*self._own(), *(each.name for each in with_branches)])
        if mine and (self._short or self._wanted[0] is slot):
            if kept and with_branches:
                kept.in_the_way = True
            raise OutOfMemory(
                f"model {slot.name!r} takes {slot.size()}; max_memory is {bytes_text(self._most or 0)}, of which "
                f"{bytes_text(self._taken())} are in use. This task uses {', '.join(mine)} itself: raise max_memory so "
                "that all of these fit, or leave that block and close its branches first"
            )

    def _tell_of_branches(self, slot: _Slot) -> None:
        """Logs which models are in use by their branches alone: nobody may be about to close them."""
        for each in self._slots.values():
            if each.context is not None and not each.uses:
                log.warning(
                    "a model waits for memory until the branches of another one are closed",
                    model=slot.name,
                    other=each.name,
                    branches=len(each.context.branches),
                )

    def _least_recently_used(self, since: float = math.inf) -> _Slot | None:
        """The model to be closed first, if one is idle from `since` on or longer."""
        opened = [slot for slot in self._slots.values() if slot.context is not None]
        for slot in sorted(opened, key=lambda each: each.used):
            if slot.uses or slot.idle_since > since:
                continue
            self._let_go(slot.name)
            slot.left = slot.open_branches()
            if slot.context is not None and not slot.context.branches:
                return slot
        return None

    async def _open(self, slot: _Slot) -> None:
        """Opens a model, and closes it again where it turns out to be too large for now."""
        async with AsyncExitStack() as opening:
            context = await opening.enter_async_context(Context.open(**slot.arguments))
            cell_bytes = await core_of(context).loop.run(CellsCall(lambda _, store: store.cell_bytes))
            weights = _file_bytes(context.model_info.path) + _draft_bytes(slot.arguments)
            slot.bytes = weights + context.stats.capacity * cell_bytes
            slot.opens += 1
            while self._excess(slot.bytes) > 0:  # its cache was in no figure yet
                if (unused := self._least_recently_used()) is None:
                    return
                await self._close(unused)
            slot.context, slot.closing = context, opening.pop_all()

    async def _close(self, slot: _Slot) -> None:
        closing, slot.context, slot.closing = slot.closing, None, None
        assert closing is not None
        log.debug("model closed", model=slot.name, bytes=slot.bytes)
        slot.leaving, slot.left = True, frozenset()
        try:
            with anyio.CancelScope(shield=True):
                await closing.aclose()
        except Exception as error:  # whoever needs its memory has nothing to do with it
            log.error("a model was closed with an error", model=slot.name, error=str(error), exc_info=error)
        finally:
            slot.leaving = False
            self._notify()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    async def _watch(self, idle: float) -> None:
        """Closes models that have not been used for so long."""
        while True:
            while slot := self._least_recently_used(time.monotonic() - idle):
                await self._close(slot)
            await anyio.sleep(max(idle / 4, _LOOK_S))

    def start(self) -> None:
        """Begins to close models that are idle."""
        if self._idle is None:
            return
        scope, idle = anyio.CancelScope(), self._idle

        async def watch() -> None:
            with scope:
                await self._watch(idle)

        self._background.start(watch, scope.cancel, "agentkv-idle-models")

    async def close(self) -> None:
        """Closes all models, in use or not."""
        self._closed = True
        if self._opening is not None:
            self._opening.cancel()
        self._notify()
        with anyio.CancelScope(shield=True):
            for ended in self._background.end():
                await ended.wait()
            for slot in self._slots.values():
                if slot.context is not None:
                    await self._close(slot)
            while self._opens or any(slot.leaving for slot in self._slots.values()):  # in other tasks
                await self._next_change()


@asynccontextmanager
async def open_models(
    models: Mapping[str, WantedModel], *, max_memory: int | None = None, idle: float | None = None
) -> AsyncIterator[ModelPool]:
    """Several models for an `async with` block, each opened on its first use.

    Args:
        models: what `Context.open` takes, by names of your choice: a model, or a mapping of its arguments, with `model`
            among them.
        max_memory: maximum bytes of the open models: weights, and keys and values of full caches. The least recently
            used ones that are not in use are closed for others, and opened again on their next use. None for no limit.
            `ModelPool.states` has the bytes of each, with its cache once it was open.
        idle: seconds after which a model that is not in use is closed; None for never.

    Raises InvalidInput for anything out of range; models are opened, and fail, on their first use.
    """
    pool = ModelPool(models, max_memory, idle)
    pool.start()
    try:
        yield pool
    finally:
        await pool.close()


def _slot(name: str, wanted: WantedModel) -> _Slot:
    arguments: dict[str, Any] = dict(wanted) if isinstance(wanted, Mapping) else {"model": wanted}
    if "model" not in arguments:
        raise InvalidInput(f"model {name!r} is {preview(wanted)}, but a mapping must have `model` among its arguments")
    path = checked_path(arguments["model"], f"model {name!r}", A_MODEL)
    Context.open(**arguments)  # refuses arguments that it does not have
    weights = _named_bytes(path, backend=arguments.get("backend"), quant=arguments.get("quant"))
    return _Slot(name, arguments, weights + _draft_bytes(arguments))


def _file_bytes(path: Path) -> int:
    """Bytes of a model's files, about those of its weights."""
    sizes = []
    for file in path.glob("*") if path.is_dir() else [path]:
        with suppress(OSError):  # removed meanwhile
            if file.suffix in _WEIGHTS and file.is_file():
                sizes.append(file.stat().st_size)
    return sum(sizes)


def _named_bytes(path: Path, **options: str | None) -> int:
    """The same of a model that may be given by its name; 0 for one that cannot be opened."""
    try:
        return _file_bytes(folder_called(path, **options))
    except (AgentKVError, OSError, ValueError, TypeError):
        return 0


def _draft_bytes(arguments: Mapping[str, Any]) -> int:
    """The same of models that draft for it."""
    strategy = arguments.get("speculative")
    parts = strategy.strategies if isinstance(strategy, Mixed) else [strategy]
    return sum(_named_bytes(part.folder) for part in parts if isinstance(part, DraftModel))
