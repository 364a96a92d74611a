"""Cells that lack rows in the layers whose windows have passed them: which rows are held, and slices of no others.

`lacks`, uint8 [rows], says of how many groups of layers each row holds nothing: groups are layers with the same window,
numbered from the shortest on. What a byte layer gives for such rows is zeros.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

from ._snapshot import CellArray

if TYPE_CHECKING:
    from agentkv_runtime.tensor_file import Bytes

Lacks: TypeAlias = npt.NDArray[np.uint8]


def held(array: CellArray, lacks: Lacks) -> npt.NDArray[np.bool_]:
    """Of which rows an array holds something, bool [rows]."""
    return np.ones(len(lacks), np.bool_) if array.group is None else lacks <= array.group


def packed(rows: Bytes, arrays: Sequence[CellArray], lacks: Lacks) -> Bytes:
    """Rows [n, bytes of a cell] without what they lack, array by array."""
    if not lacks.any():
        return rows
    return np.concatenate([rows[held(array, lacks), array.begin : array.end].reshape(-1) for array in arrays])


def unpacked(left: Bytes, arrays: Sequence[CellArray], lacks: Lacks) -> Bytes:
    """The rows [n, bytes of a cell] that were packed, with zeros where they lack something."""
    if not lacks.any():
        return left
    rows = np.zeros((len(lacks), arrays[-1].end), np.uint8)
    for array in arrays:
        here = held(array, lacks)
        nbytes = int(here.sum()) * array.nbytes
        rows[here, array.begin : array.end] = left[:nbytes].reshape(-1, array.nbytes)
        left = left[nbytes:]
    return rows
