"""The MLX backend of agentkv: byte layer, graph, ExecuTorch delegate."""

from collections.abc import Sequence
from typing import Annotated

import numpy
from numpy.typing import NDArray

import agentkv_runtime._core


class LiveView:
    """
    What attention reads of one layer. Writes copy the pools as long as it lives.
    """

    @property
    def k(self) -> Annotated[NDArray[numpy.float32], dict(shape=(None, None, None))]:
        """A copy of K as kept, float32 [n_kv_heads, cells read, head_dim]."""

    @property
    def v(self) -> Annotated[NDArray[numpy.float32], dict(shape=(None, None, None))]:
        """A copy of V as kept, float32 [n_kv_heads, cells read, head_dim]."""

class MlxCache:
    """
    K and V pools as MLX arrays, and attention over the plans of a bookkeeping.
    """

    def __init__(self, cells: agentkv_runtime._core.Cells, n_layers: int, n_kv_heads: int, head_dim: int, kv_dtype: str = 'fp16', min_chunk: int = 256) -> None:
        """
        kv_dtype: "fp32", "fp16", "bf16", or "int8", "int4" or "int8/int4" where 32 divides head_dim. Raises InvalidTensor.
        """

    @property
    def state_arrays(self) -> list[tuple[str, str, list[int], int | None]]:
        """
        (name, dtype, shape, group) of what a state's bytes are, as cell_arrays; empty where no layer keeps states.
        """

    def with_states(self, cells: Sequence[int]) -> list[int]:
        """Which of these cells, by their index, have states."""

    def read_states(self, cells: Sequence[int]) -> Annotated[NDArray[numpy.uint8], dict(shape=(None, None))]:
        """
        uint8 [n, bytes of a state]: those of these cells. Raises InvalidRange for one that has none.
        """

    def write_states(self, cells: Sequence[int], bytes: Annotated[NDArray[numpy.uint8], dict(shape=(None, None), order='C', device='cpu', writable=False)]) -> None:
        """
        What read_states gave becomes the states of these cells, which have memory. Raises InvalidRange, OutOfMemory.
        """

    @property
    def cell_bytes(self) -> int:
        """Bytes that K and V of one cell take, all layers."""

    @property
    def cell_arrays(self) -> list[tuple[str, str, list[int], int | None]]:
        """
        (name, dtype, shape, group) of what those bytes are, in their order: `layers.0.k`, as safetensors calls the dtype, [n_kv_heads, numbers], and the group of layers without which cells may be, or None.
        """

    def read_cells(self, cells: Sequence[int]) -> Annotated[NDArray[numpy.uint8], dict(shape=(None, None))]:
        """
        uint8 [n, cell_bytes]: K and V of these cells, all layers, as they are kept. Raises InvalidRange for a cell that has no memory.
        """

    def write_cells(self, cells: Sequence[int], bytes: Annotated[NDArray[numpy.uint8], dict(shape=(None, None), order='C', device='cpu', writable=False)]) -> None:
        """
        What read_cells gave, of this layer or another of its backend, shape and kv_dtype, back into these cells, no cell twice. Raises InvalidRange.
        """

    def map_cells(self, first: int, count: int, file: int, offsets: Sequence[int]) -> int:
        """
        Cells [first, first + count) become those of an open file (its descriptor), which nobody may change in place from then on: row after row from offsets[i] on, for each head of each array of cell_arrays. Its pages are shared with all who map them, where pages of cells and file agree, until these cells are written; the rest is copied. Returns how many cells, from the first on, are pages of the file. Raises InvalidRange, also by a layer whose cells files cannot be mapped into.
        """

    def to_quantized(self, cells: Sequence[int]) -> None:
        """
        These cells are held in fewer bits until they are written again. Raises InvalidRange, also by a layer that has no fewer bits for them, and OutOfMemory.
        """

    def shrink(self, cells: int) -> None:
        """
        Gives memory above the first `cells` cells back to the system, as far as that is worth it.
        """

    def update_and_attend(self, layer: int, positions: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], q: Annotated[NDArray[numpy.float32], dict(shape=(None, None, None), order='C', device='cpu', writable=False)], k: Annotated[NDArray[numpy.float32], dict(shape=(None, None, None), order='C', device='cpu', writable=False)], v: Annotated[NDArray[numpy.float32], dict(shape=(None, None, None), order='C', device='cpu', writable=False)], scale: float, window: int = 0, sinks: int = 0) -> Annotated[NDArray[numpy.float32], dict(shape=(None, None, None))]:
        """
        Stores K and V [n_kv_heads, T, head_dim] of the open step's rows and returns attention of q [n_heads, T, head_dim] over what each row sees, float32 [n_heads, T, head_dim]. positions: int64 [T]. window > 0 hides positions <= the row's - window, except the first `sinks`. Raises InvalidTensor, InvalidStep, CacheFull.
        """

    def move_cells(self, src: Sequence[int], dst: Sequence[int]) -> None:
        """
        Copies cell src[i] to dst[i] in every layer, as if all were read first. Raises InvalidRange.
        """

    @property
    def bytes(self) -> int:
        """K and V bytes of memory now, all layers."""

    @property
    def mapped_bytes(self) -> int:
        """K and V bytes that are pages of files, beside `bytes`."""

    @property
    def allocated_cells(self) -> int:
        """Cells that have memory now."""

    def update(self, layer: int, positions: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], k: Annotated[NDArray[numpy.float32], dict(shape=(None, None, None), order='C', device='cpu', writable=False)], v: Annotated[NDArray[numpy.float32], dict(shape=(None, None, None), order='C', device='cpu', writable=False)]) -> LiveView:
        """
        Stores K and V as update_and_attend does, and returns what attention would read.
        """

def active_memory() -> int:
    """Bytes that MLX's arrays take now, in the whole process."""

def peak_memory() -> int:
    """The most bytes that they took since reset_peak_memory."""

def reset_peak_memory() -> None:
    """Starts peak_memory afresh."""
