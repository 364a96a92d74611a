"""The interface of every byte layer: the CPU's, MLX's and torch's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from agentkv_runtime._core import CpuCache
    from agentkv_runtime._mlx import MlxCache
    from agentkv_runtime.torch_backend.cache import TorchCache

__all__ = ["ByteLayer"]

_Heads = npt.NDArray[np.float32]


class ByteLayer(Protocol):
    """K and V of all layers of one cache, over the plans of its bookkeeping.

    Programs reach a byte layer without going through NumPy; tests and benchmarks use this interface, and a new
    backend must pass `tests/conformance` with it.
    """

    @property
    def bytes(self) -> int:
        """Bytes of K and V allocated now, all layers: 0 before the first write, then doubling up to the capacity."""

    @property
    def allocated_cells(self) -> int:
        """Cells that have memory now."""

    def update_and_attend(
        self,
        layer: int,
        positions: npt.NDArray[np.int64],
        q: _Heads,
        k: _Heads,
        v: _Heads,
        scale: float,
        window: int = 0,
        sinks: int = 0,
    ) -> _Heads:
        """Stores K and V `[n_kv_heads, T, head_dim]` of the open step's rows; attends with q `[n_heads, T, head_dim]`.

        Returns float32 `[n_heads, T, head_dim]`: what each row, at positions `[T]`, sees by the plan. window > 0 hides
        positions <= the row's - window, except the first `sinks`. Raises InvalidTensor before anything changes, or
        InvalidStep or CacheFull.
        """

    def move_cells(self, src: Sequence[int], dst: Sequence[int]) -> None:
        """Copies cell src[i] to dst[i] in every layer, as if all were read first. Raises InvalidRange."""

    @property
    def cell_bytes(self) -> int:
        """Bytes that K and V of one cell take, all layers. The torch layer says 0 until each layer was written once."""

    @property
    def cell_arrays(self) -> Sequence[tuple[str, str, Sequence[int], int | None]]:
        """Arrays that the bytes of a cell consist of, in order: (name, dtype, shape, group).

        Such as `layers.0.k`, a dtype of safetensors, `[n_kv_heads, numbers]`. `group` numbers the layers of one window,
        whose bytes a cell may have dropped; None for layers that every cell stores.
        """

    def read_cells(self, cells: Sequence[int]) -> npt.NDArray[np.uint8]:
        """K and V of these cells as stored, uint8 `[n, cell_bytes]`. Raises InvalidRange."""

    def write_cells(self, cells: Sequence[int], bytes: npt.NDArray[np.uint8]) -> None:
        """Writes `bytes` `[n, cell_bytes]` into these distinct cells.

        `read_cells` of this layer, or of another of equal backend, shape and kv_dtype, returned them. Raises
        InvalidRange before anything changes.
        """

    def shrink(self, cells: int) -> None:
        """Frees memory above the first `cells` cells, as far as that is worth it."""


if TYPE_CHECKING:
    _LAYERS: tuple[type[ByteLayer], ...] = (CpuCache, MlxCache, TorchCache)
