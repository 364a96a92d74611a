"""LoRA adapters: loading them into a Context, and giving them to branches."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

from anyio import to_thread

from .._engine.commands import CellsCall, Command
from .._types.errors import AdapterError, BranchBusy

if TYPE_CHECKING:
    from agentkv_runtime.adapters import LoraAdapter

    from .._engine.commands import Worker
    from .._engine.interface import AdapterCells, AdapterEngine, CellStore, StepEngine
    from .._types.adapter import Adapter
    from .core import ContextCore
    from .handle import BranchHandle

MOST_KEYS = 2**31 - 1  # of tokens under adapters: where cells are shared they are int32
MERGE = "merge the adapter at export: agentkv export --adapter"


async def load_adapter(core: ContextCore, path: Path, name: str) -> Adapter:
    """Loads the adapter of a folder or a GGUF file; one that is loaded already is returned as it is.

    Raises AdapterError.
    """
    _check_takes_adapters(core)
    async with core.adapters.loading:
        loaded = await to_thread.run_sync(partial(_read, core, path))
        known = core.adapters.found(loaded.digest)
        if known is not None:
            return known
        if (len(core.adapters) + 2) * core.model.info.vocab_size > MOST_KEYS:
            raise AdapterError(f"{len(core.adapters)} adapters are loaded, and a Context takes no more; open another")
        added: list[Adapter] = []  # as the engine has it: a cancelled load leaves it loaded, under its digest
        await core.loop.run(
            CellsCall(partial(_add, loaded), on_result=lambda id: added.append(core.adapters.add(id, name, loaded)))
        )
        return added.pop()


def _add(loaded: LoraAdapter, engine: StepEngine, cells: CellStore) -> int:
    del engine
    return cast("AdapterCells", cells).add_adapter(loaded.weights)


def _read(core: ContextCore, path: Path) -> LoraAdapter:
    from agentkv_runtime.adapters import read_adapter
    from agentkv_runtime.errors import AdapterError as Unreadable

    try:
        return read_adapter(path, core.model.linears, core.model.info.head_dim)
    except Unreadable as error:
        raise AdapterError(str(error)) from error


def _check_takes_adapters(core: ContextCore) -> None:
    info = core.model.info
    if core.model.linears:
        return
    if info.backend != "cpu":
        raise AdapterError(
            f"adapters run beside models on the backend 'cpu', and this one is on {info.backend!r}; {MERGE}"
        )
    if info.quantization == "none":
        raise AdapterError(
            f"adapters run beside quantised weights, and {info.path} has none; export it with --quant q8, say, or "
            f"{MERGE}"
        )
    raise AdapterError(f"{info.path} was exported before adapters could run beside it; export it again, or {MERGE}")


class SetAdapter(Command):
    """Gives a branch another adapter from its present end on."""

    __slots__ = ("_adapter", "_branch")

    def __init__(self, branch: int, adapter: int) -> None:
        self._branch = branch
        self._adapter = adapter

    def apply(self, worker: Worker) -> None:
        cast("AdapterEngine", worker.engine).set_adapter(self._branch, self._adapter)


def set_adapter(handle: BranchHandle, adapter: object) -> None:
    """Gives a branch another adapter, or none. Raises as `BranchHandle.check_free`, and AdapterError; BranchBusy if
    the branch runs something."""
    handle.check_free()
    id = handle.core.adapters.checked(adapter)
    if handle.state.is_running:
        raise BranchBusy(f"branch {handle.id} runs something; set its adapter before or after that, or on a fork")
    if id != handle.state.adapter:
        handle.loop.submit(SetAdapter(handle.id, id))
        handle.state.adapter = id


def keep_adapter(engine: StepEngine, branch: int, adapter: int) -> None:
    """Gives a branch that was rolled back to be rewritten the adapter that it had; a plain rollback keeps that of the
    tokens which are left. Engines without adapters have nothing to keep."""
    present = getattr(engine, "adapter", None)
    if present is not None and present(branch) != adapter:
        cast("AdapterEngine", engine).set_adapter(branch, adapter)
