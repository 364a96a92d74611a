"""One layer's K or V in torch: the planes of its rows, cells along axis 2."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from agentkv_runtime.torch_backend.rows import Rows

__all__ = ["Pool"]


class Pool:
    """Planes `[1, n_heads, cells, width]`, grown together."""

    def __init__(self, rows: Rows, heads: int, dim: int, device: torch.device) -> None:
        self.rows, self.heads, self.dim, self.device = rows, heads, dim, device
        self._planes = self._empty(0)

    @property
    def cells(self) -> int:
        """Number of allocated cells."""
        return self._planes[0].shape[2]

    @property
    def bytes(self) -> int:
        """Bytes allocated now."""
        return sum(plane.nbytes for plane in self._planes)

    @property
    def cell_bytes(self) -> int:
        """Bytes that one cell takes."""
        return sum(plane.shape[1] * plane.shape[3] * plane.element_size() for plane in self._planes)

    def describe(self, name: str) -> list[tuple[str, str, list[int]]]:
        """Arrays that a cell's bytes consist of, (name, dtype, shape), in order; names begin with `name`."""
        return [
            (name + plane_name, dtype, [plane.shape[1], plane.shape[3]])
            for (plane_name, dtype), plane in zip(self.rows.names, self._planes, strict=True)
        ]

    def grow(self, cells: int) -> None:
        """Reallocates the planes for `cells` cells and copies what they store."""
        grown = self._empty(cells)
        for new, old in zip(grown, self._planes, strict=True):
            new[:, :, : self.cells] = old
        self._planes = grown

    def shrink(self, cells: int) -> None:
        """Keeps the first `cells` cells and frees the others."""
        self._planes = tuple(plane[:, :, :cells].clone() for plane in self._planes)

    def write(self, cells: torch.Tensor, rows: torch.Tensor) -> None:
        """Stores rows `[1, n_heads, T, dim]` into cells `[T]`."""
        for plane, new in zip(self._planes, self.rows.encode(rows), strict=True):
            plane.index_copy_(2, cells, new)

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of its numbers; float32 for codes, which are decoded to it."""
        return self._planes[0].dtype if len(self._planes) == 1 else torch.float32

    def read(self, end: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """The first `end` cells decoded, `[n_heads, end, dim]`, in the basis of `rows`; no copy in its own dtype."""
        return self.rows.decode(tuple(plane[0, :, :end] for plane in self._planes), self.dim, dtype)

    def move(self, src: Sequence[int], dst: Sequence[int]) -> None:
        """Copies cell src[i] to dst[i] for all i at once."""
        for plane in self._planes:
            plane[:, :, list(dst)] = plane[:, :, list(src)]

    def read_bytes(self, cells: Sequence[int]) -> npt.NDArray[np.uint8]:
        """Cells as stored, uint8 `[n, cell_bytes]`."""
        parts = []
        for plane in self._planes:
            rows = plane[0, :, list(cells)].transpose(0, 1).reshape(len(cells), -1).cpu().contiguous()
            parts.append(rows.view(torch.uint8).numpy())
        return np.concatenate(parts, axis=1)

    def restore(self, cells: Sequence[int], bytes: npt.NDArray[np.uint8]) -> None:
        """Writes `bytes` of `read_bytes` into these cells; as in a forward, numbers that are not finite become 0."""
        at = 0
        for plane in self._planes:
            width = plane.shape[1] * plane.shape[3] * plane.element_size()
            part = torch.from_numpy(np.ascontiguousarray(bytes[:, at : at + width])).view(plane.dtype)
            at += width
            rows = part.reshape(len(cells), plane.shape[1], plane.shape[3]).transpose(0, 1)
            if plane.is_floating_point():
                rows = rows.where(rows.isfinite(), 0)
            plane[0, :, list(cells)] = rows.to(self.device)

    def _empty(self, cells: int) -> tuple[torch.Tensor, ...]:
        return tuple(
            torch.zeros((1, self.heads, cells, width), dtype=dtype, device=self.device)
            for dtype, width in zip(self.rows.planes, self.rows.widths(self.dim), strict=True)
        )
