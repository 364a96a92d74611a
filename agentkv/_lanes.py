"""Files whose cells can be mapped: each lane, one array of one head, begins at a page and takes whole pages.

There `cells.<array>` is a tensor per head, `cells.<array>.<head>` [rows and padding, numbers], and these come first:
safetensors knows no gaps, so what is no whole page lies behind them. A row that lacks
something is zeros there: rows of a lane lie behind each other.
"""

from __future__ import annotations

import mmap
from collections.abc import Mapping, Sequence
from math import gcd
from typing import NamedTuple

from agentkv_runtime.tensor_file import TensorSpec

from ._snapshot import CellArray

VERSION = "2"
PAGE = mmap.PAGESIZE
MOST_DIGITS = 12  # of a number in a header


class Lanes(NamedTuple):
    """How many cells such a file has, and for pages of which size it was made."""

    rows: int
    page: int

    @classmethod
    def of(cls, metadata: Mapping[str, str]) -> Lanes | None:
        """What a header says; None where that is no sense."""
        said = [metadata.get(name, "") for name in cls._fields]
        if not all(text.isascii() and text.isdigit() and len(text) <= MOST_DIGITS for text in said):
            return None
        lanes = cls(*map(int, said))
        return lanes if lanes.page > 0 else None

    def metadata(self) -> dict[str, str]:
        """For the header."""
        return {"version": VERSION, **{name: str(value) for name, value in self._asdict().items()}}

    def tensor(self, lane: CellArray) -> TensorSpec:
        """A lane in the file, padding included."""
        return lane.of(-(-self.rows // unit(lane, self.page)) * unit(lane, self.page))

    def padding(self, lane: CellArray) -> int:
        """Bytes of it behind the last row."""
        return self.tensor(lane).nbytes - self.rows * lane.nbytes


def unit(lane: CellArray, page: int) -> int:
    """After how many rows one begins at a page again."""
    return page // gcd(page, lane.nbytes)


def lanes_of(arrays: Sequence[CellArray]) -> list[CellArray]:
    """The arrays of a cell, [heads, numbers], head by head."""
    lanes: list[CellArray] = []
    for array in arrays:
        heads, *shape = array.spec.shape
        nbytes = array.nbytes // heads
        for head in range(heads):
            begin = array.begin + head * nbytes
            spec = TensorSpec(f"{array.spec.name}.{head}", array.spec.dtype, tuple(shape))
            lanes.append(CellArray(spec, begin, begin + nbytes, array.group))
    return lanes


def alignment(lanes: Sequence[CellArray]) -> int:
    """Where cells must begin for their keys and values to be pages; the scales beside them may still be none."""
    return unit(max(lanes, key=lambda lane: lane.nbytes), PAGE)
