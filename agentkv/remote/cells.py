"""The cells of a remote Context: none."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt


class NoCells:
    """Fills `CellStore`: what is kept here is tokens, and cells are the server's."""

    kv_bytes = mapped_bytes = states = cell_bytes = allocated_cells = 0
    # One array of no numbers: files of branches have a layout, whatever their rows hold.
    cell_arrays: Sequence[tuple[str, str, Sequence[int], int | None]] = (("none", "uint8", (1,), None),)
    state_arrays: Sequence[tuple[str, str, Sequence[int], int | None]] = ()

    def read_cells(self, cells: Sequence[int]) -> npt.NDArray[np.uint8]:
        return np.zeros((len(cells), 1), np.uint8)

    def write_cells(self, cells: Sequence[int], bytes: npt.NDArray[np.uint8]) -> None:
        pass

    def with_states(self, cells: Sequence[int]) -> Sequence[int]:
        return ()

    def read_states(self, cells: Sequence[int]) -> npt.NDArray[np.uint8]:
        return np.zeros((0, 0), np.uint8)

    def write_states(self, cells: Sequence[int], bytes: npt.NDArray[np.uint8]) -> None:
        pass

    def map_cells(self, first: int, count: int, file: int, offsets: Sequence[int]) -> int:
        return 0

    def shrink(self, cells: int) -> None:
        pass
