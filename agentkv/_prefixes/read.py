"""Reads an entry into cells of its own."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING

from .._engine.commands import EngineCall
from .._engine.loop import in_thread
from .._engine.pinned_cells import PinnedCells
from .._storage.layout import alignment
from .._storage.load import check_rows, copy_rows, copy_states, map_rows

if TYPE_CHECKING:
    from agentkv_runtime.engine import Pin

    from .._engine.loop import StepLoop
    from .._storage.layout import CellArray
    from .._storage.reader import SnapshotFile


async def read_entry(
    stack: AsyncExitStack,
    loop: StepLoop,
    file: SnapshotFile,
    count: int,
    arrays: Sequence[CellArray],
    states: Sequence[CellArray],
    maps: bool,
) -> Pin:
    """Pins cells with the first `count` rows of a file, until the stack is left; pages of it where the byte layer
    `maps` files. Raises SnapshotError and InvalidInput for a damaged file, ContextFull, TooManyBranches."""
    parts = file.parts(list(arrays))
    if {part.spec for part in parts} != file.arrays:
        raise file.damaged("its cells are laid out otherwise")
    file.check_rows(parts)
    stored = await in_thread(loop, partial(file.states, list(states)))
    align = alignment(parts) if maps else 0
    reserve = EngineCall(lambda engine: engine.reserve(count, align), lambda worker, pin: worker.engine.unpin(pin.id))
    async with AsyncExitStack() as unless_read:
        pin = await unless_read.enter_async_context(PinnedCells(loop, reserve))
        mapped = await map_rows(loop, file, pin, parts, _ignored) if maps and file.shareable else None
        if mapped is None:
            await check_rows(loop, file, parts, _ignored)
            await copy_rows(loop, file, pin, parts, _ignored)
        await copy_states(loop, file, pin, stored)
        stack.push_async_exit(unless_read.pop_all())
    return pin


def _ignored(done: int, of: int) -> None:
    """Progress that nobody is told of."""
