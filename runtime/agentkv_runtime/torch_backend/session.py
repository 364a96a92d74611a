"""A Hugging Face folder as a session of the native step loop: `backend="torch"`, on any device torch has.

Imports torch only when a session is opened.
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from agentkv_runtime import _core
from agentkv_runtime.backends import BACKENDS
from agentkv_runtime.errors import BackendError

if TYPE_CHECKING:
    import torch

    from agentkv_runtime.torch_backend.cache import TorchCache
    from agentkv_runtime.torch_backend.model import TorchModel

__all__ = ["TorchSession", "open_torch_session"]

WEIGHT_DTYPES = ("fp32", "fp16", "bf16")
_FIRST_SENTENCE = re.compile(r"\n|\.\s")  # ends it: torch goes on for a page

Rows = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]


class TorchSession(_core.PythonRunner):
    """A torch model and its cache as a program of the step loop, with the attributes of a native session."""

    def __init__(
        self,
        model: TorchModel,
        *,
        capacity: int,
        kv_dtype: str,
        min_chunk: int,
        max_tokens: int,
        max_logits: int,
        max_sequences: int = 256,
        window: int = 0,
        sinks: int = 0,
    ) -> None:
        from agentkv_runtime.torch_backend.cache import TorchCache

        super().__init__(
            self._run,
            vocab_size=model.vocab_size,
            max_tokens=max_tokens,
            max_logits=max_logits,
            feature_dim=model.feature_dim,
        )
        self.model = model
        self.cache = _core.Cells(capacity, max_sequences)
        self.layer = TorchCache(
            self.cache,
            n_layers=model.cached.n_layers,
            capacity=capacity,
            kv_dtype=kv_dtype,
            min_chunk=min_chunk,
            window=window,
            sinks=sinks,
            device=model.device,
        )
        self.cache.set_mover(_mover(self.layer))

    @property
    def max_positions(self) -> int | None:
        """Positions that the model has, like `Manifest.max_positions`; None where nothing bounds them."""
        return self.model.max_positions

    @property
    def kv_bytes(self) -> int:
        """Bytes of K and V allocated now, all layers."""
        return self.layer.bytes

    @property
    def mapped_bytes(self) -> int:
        """Always 0: files cannot be mapped into torch's pools."""
        return 0

    @property
    def cell_bytes(self) -> int:
        """Bytes that K and V of one cell take; 0 until each layer was written once."""
        return self.layer.cell_bytes

    @property
    def allocated_cells(self) -> int:
        """Number of cells that are allocated now."""
        return self.layer.allocated_cells

    @property
    def cell_arrays(self) -> list[tuple[str, str, list[int], None]]:
        """Arrays that a cell consists of, (name, dtype, shape, None), in the order of its bytes."""
        self._learn_shapes()
        return self.layer.cell_arrays

    @property
    def states(self) -> int:
        """Always 0: cells store the terms of states, and no states."""
        return 0

    @property
    def state_arrays(self) -> list[tuple[str, str, list[int], None]]:
        """Always empty: cells store the terms of states, and no states."""
        return []

    def with_states(self, cells: Sequence[int]) -> list[int]:
        """Always empty: no cell has a state."""
        del cells
        return []

    def read_states(self, cells: Sequence[int]) -> npt.NDArray[np.uint8]:
        """Raises InvalidRange: there are no states to read."""
        raise _core.InvalidRange(f"{len(cells)} cells of torch have no states")

    def write_states(self, cells: Sequence[int], bytes: npt.NDArray[np.uint8]) -> None:
        """Raises InvalidRange: there are no states to write."""
        raise _core.InvalidRange(f"{len(cells)} cells of torch have no states for {bytes.shape}")

    def read_cells(self, cells: Sequence[int]) -> npt.NDArray[np.uint8]:
        """K and V of these cells as stored, uint8 `[n, cell_bytes]`. Raises InvalidRange."""
        return self.layer.read_cells(cells)

    def write_cells(self, cells: Sequence[int], bytes: npt.NDArray[np.uint8]) -> None:
        """Writes `bytes` `[n, cell_bytes]` of `read_cells` into these distinct cells. Raises InvalidRange."""
        self._learn_shapes()
        self.layer.write_cells(cells, bytes)

    def shrink(self, cells: int) -> None:
        """Frees memory above the first `cells` cells, as far as that is worth it."""
        self.layer.shrink(cells)

    def _learn_shapes(self) -> None:
        """Runs a forward of one token and aborts its step, since only a write shows the shapes that layers cache."""
        if self.layer.cell_bytes:
            return
        spare = next(seq for seq in range(self.cache.max_sequences) if not self.cache.seq_len(seq))
        self.cache.begin_step([spare])
        try:
            self.model.forward(self.layer, [0], [0], [])
        finally:
            self.cache.abort_step()

    def _run(self, tokens: Rows, positions: Rows, logits_indices: Rows) -> Floats | tuple[Floats, Floats]:
        logits, features = self.model.forward(self.layer, _list(tokens), _list(positions), _list(logits_indices))
        return _array(logits) if features is None else (_array(logits), _array(features))


def open_torch_session(
    folder: str | Path,
    *,
    capacity: int,
    kv_dtype: str = "fp16",
    min_chunk: int = 256,
    device: str | None = None,
    dtype: str | None = None,
    threads: int | None = None,
    max_tokens: int = 512,
    max_logits: int = 64,
    max_sequences: int = 256,
    window: int = 0,
    sinks: int = 0,
    feature_layers: Sequence[int] = (),
) -> TorchSession:
    """Loads a Hugging Face folder and opens one cache over it.

    `device` defaults to the CPU. `dtype` is the weights' ("fp32", "fp16", "bf16"); by default float32 on the CPU and
    the checkpoint's dtype elsewhere. With a `window` each layer sees at most the last `window` positions and the first
    `sinks`. `threads` is torch's thread count, process-wide; None leaves it unchanged. `feature_layers` are numbers of
    decoder layers after which a forward also returns the residual stream, for draft heads.

    Raises BackendError without torch and transformers, or for a device that this torch cannot use; ValueError for a
    dtype that torch pools do not have.
    """
    backend = BACKENDS["torch"]
    for name, value, known in (("kv_dtype", kv_dtype, backend.kv_dtypes), ("dtype", dtype, WEIGHT_DTYPES)):
        if value is not None and value not in known:
            raise ValueError(f"{name} {value!r} is not one of {', '.join(known)}: what the torch backend has")
    try:
        backend.load()
    except BackendError as error:
        raise BackendError(
            f"{folder} is a Hugging Face folder: {error}. Or export the model once on a machine that has them "
            f"(agentkv export {folder} OUT) and open OUT, which needs neither"
        ) from error
    from agentkv_runtime.hf.dtypes import TORCH_DTYPES
    from agentkv_runtime.torch_backend.model import TorchModel

    _check_device(device or "cpu")
    if threads is not None:
        import torch

        torch.set_num_threads(threads)
    weights = None if dtype is None else TORCH_DTYPES[dtype]
    model = TorchModel(folder, device=device or "cpu", dtype=weights, feature_layers=feature_layers)
    return TorchSession(
        model,
        capacity=capacity,
        kv_dtype=kv_dtype,
        min_chunk=min_chunk,
        max_tokens=max_tokens,
        max_logits=max_logits,
        max_sequences=max_sequences,
        window=window,
        sinks=sinks,
    )


def _check_device(device: str) -> None:
    """Computes something there, before weights are read. Raises BackendError."""
    import torch

    try:
        torch.ones(1, device=device).tolist()
    except (AssertionError, ImportError, RuntimeError) as error:  # without CUDA; without another package's device
        raise BackendError(
            f"torch {torch.__version__} cannot compute on device {device!r}: {_FIRST_SENTENCE.split(str(error))[0]}. "
            "Leave device out for the CPU, or install a torch that was built for it"
        ) from error


def _mover(layer: TorchCache) -> Callable[[Sequence[int], Sequence[int]], None]:
    # The layer leads to its bookkeeping, which would keep it alive in turn.
    held = weakref.ref(layer)

    def move_cells(src: Sequence[int], dst: Sequence[int]) -> None:
        if (layer := held()) is None:
            return
        stored = [pair for pair in zip(src, dst, strict=True) if pair[0] < layer.allocated_cells]
        layer.move_cells([cell for cell, _ in stored], [cell for _, cell in stored])

    return move_cells


def _array(rows: torch.Tensor) -> Floats:
    return np.ascontiguousarray(rows.cpu().numpy())


def _list(array: Rows) -> Sequence[int]:
    return [int(value) for value in array]
