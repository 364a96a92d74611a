"""Cells that are pages of a file: whoever loads it maps the same ones, so that they are in memory once."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from ._commands import CellCall
from ._in_thread import in_thread

if TYPE_CHECKING:
    from ._engine import CellStore, StepEngine
    from ._loop import StepLoop
    from ._saving import Progress
    from ._snapshot import CellArray
    from ._snapshot_file import SnapshotFile

LANES_AT_ONCE = 32  # checked between two looks at whether the load was cancelled


async def map_rows(
    loop: StepLoop, file: SnapshotFile, hold: int, lanes: Sequence[CellArray], progress: Progress
) -> int | None:
    """Maps a file into the cells of a hold, once it is checked. Raises SnapshotError, InvalidInput.

    Returns how many of its rows, from the first on, are pages of the file, the others being copies; None where the
    cells do not lie in a row: nothing was written then.
    """
    for first in range(0, len(lanes), LANES_AT_ONCE):
        await in_thread(loop, partial(file.check_lanes, lanes[first : first + LANES_AT_ONCE]))
        progress(file.nbytes * first // len(lanes), file.nbytes)
    offsets = file.offsets(lanes)

    def into_cells(engine: StepEngine, store: CellStore) -> int | None:
        cells = engine.pinned_cells(hold, 0, file.rows)
        if not cells or list(cells) != list(range(cells[0], cells[0] + len(cells))):
            return None
        mapped = store.map_cells(cells[0], len(cells), file.fileno(), offsets)
        if file.lacks.any():
            engine.discard(hold, 0, file.lacks)
        return mapped

    mapped = await loop.run(CellCall(into_cells))
    progress(file.nbytes, file.nbytes)
    return mapped
