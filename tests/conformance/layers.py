"""The byte layers under test, and a way to drive one so that a history alone decides what every row must give."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from agentkv_runtime import _core
from agentkv_runtime.backends import keys_and_values
from agentkv_runtime.byte_layer import ByteLayer

from tests import code_rows

Float = npt.NDArray[np.float32]
Double = npt.NDArray[np.float64]

N_LAYERS, SCALE, VOCAB = 2, 0.13, 50


@dataclass(frozen=True)
class Shape:
    """Heads of the layer under test."""

    kv_heads: int = 2
    heads: int = 4
    dim: int = 32


def _cpu(cells: Any, shape: Shape, kv_dtype: str, min_chunk: int) -> ByteLayer:
    return _core.CpuCache(cells, N_LAYERS, shape.kv_heads, shape.dim, kv_dtype, min_chunk)


def _mlx(cells: Any, shape: Shape, kv_dtype: str, min_chunk: int) -> ByteLayer:
    from agentkv_runtime.backends import load_backend

    load_backend("mlx")
    from agentkv_runtime._mlx import MlxCache

    return MlxCache(cells, N_LAYERS, shape.kv_heads, shape.dim, kv_dtype, min_chunk)


def _torch(cells: Any, shape: Shape, kv_dtype: str, min_chunk: int) -> ByteLayer:
    from agentkv_runtime.torch_backend.cache import TorchCache

    return TorchCache(cells, n_layers=N_LAYERS, capacity=cells.capacity, kv_dtype=kv_dtype, min_chunk=min_chunk)


LAYERS: dict[str, Callable[[Any, Shape, str, int], ByteLayer]] = {"cpu": _cpu, "mlx": _mlx, "torch": _torch}


CODES = ("int8", "int8/int4", "int4")
TOLERANCE = {"fp32": 1e-5, "fp16": 1e-5, "bf16": 1e-5, **dict.fromkeys(CODES, 5e-4)}
"""Over codes the CPU weighs V with 16-bit integers."""


def row_bytes(dim: int, kv_dtype: str) -> int:
    """Bytes of one row of K or V on the CPU and torch; of floats on any backend."""
    if kv_dtype in CODES:
        return code_rows.cell_bytes(dim, kv_dtype)
    return dim * {"fp32": 4, "fp16": 2, "bf16": 2}[kv_dtype]


def rounded(x: Float, kv_dtype: str) -> Double:
    """What a pool of that dtype gives back; of codes those on the CPU and torch."""
    if kv_dtype in CODES:
        return code_rows.kept(x, kv_dtype)
    if kv_dtype == "fp16":
        return np.clip(x, -65504, 65504).astype(np.float16).astype(np.float64)
    if kv_dtype == "bf16":
        bits = x.view(np.uint32)
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32).astype(np.float64)
    return x.astype(np.float64)


class Feeder:
    """Sequences over one byte layer; q, k and v of each layer are functions of (token, position)."""

    def __init__(
        self, backend: str, kv_dtype: str = "fp32", shape: Shape = Shape(), *, capacity: int = 256, min_chunk: int = 16
    ) -> None:
        self.kv_dtype, self.shape = kv_dtype, shape
        self.tolerance = TOLERANCE.get(kv_dtype, 0.0)  # an unknown one is for the layer to refuse
        self.asks_in_codes = backend == "cpu" and kv_dtype in CODES
        self.cells = _core.Cells(capacity)
        self.layer = LAYERS[backend](self.cells, shape, kv_dtype, min_chunk)
        random = np.random.default_rng(7)

        def table(heads: int) -> Float:
            return random.standard_normal((N_LAYERS, heads, VOCAB, shape.dim)).astype(np.float32)

        self.q, self.k, self.v = table(shape.heads), table(shape.kv_heads), table(shape.kv_heads)
        self.turn = random.standard_normal((capacity, shape.dim)).astype(np.float32)
        self.log: dict[int, list[int]] = {}

    def rows(self, layer: int, tokens: Sequence[int], positions: npt.NDArray[np.int64]) -> tuple[Float, Float, Float]:
        """q `[n_heads, T, dim]`, k and v `[n_kv_heads, T, dim]` of tokens at positions."""
        turn = self.turn[positions]
        index = np.array(tokens)
        return self.q[layer][:, index] * turn, self.k[layer][:, index] * turn, self.v[layer][:, index] + turn

    def run(self, tokens: Sequence[int], window: int = 0, sinks: int = 0) -> list[Float]:
        """Attends in every layer of the open step; outputs by layer."""
        positions = np.array(self.cells.step_positions(), dtype=np.int64)
        return [
            self.layer.update_and_attend(layer, positions, *self.rows(layer, tokens, positions), SCALE, window, sinks)
            for layer in range(N_LAYERS)
        ]

    def advance(self, pieces: Mapping[int, Sequence[int]], window: int = 0, sinks: int = 0) -> dict[int, list[Float]]:
        """Feeds each sequence its tokens in one step; per sequence, outputs by layer of its rows."""
        order = [seq for seq, tokens in pieces.items() for _ in tokens]
        self.cells.begin_step(order)
        try:
            outs = self.run([token for tokens in pieces.values() for token in tokens], window, sinks)
        except BaseException:
            self.cells.abort_step()
            raise
        self.cells.commit_step()
        for seq, tokens in pieces.items():
            self.log.setdefault(seq, []).extend(tokens)
        at = np.array(order)
        return {seq: [out[:, at == seq] for out in outs] for seq in pieces}

    def check(self, pieces: Mapping[int, Sequence[int]], window: int = 0, sinks: int = 0) -> float:
        """The largest error of `advance` over what each sequence's history says."""
        outs = self.advance(pieces, window, sinks)
        return max(self.error(self.log[seq], outs[seq], window, sinks) for seq in pieces)

    def error(self, log: Sequence[int], outs: Sequence[Float], window: int = 0, sinks: int = 0) -> float:
        """The largest error of the last rows of a history, over all layers."""
        errors = []
        for layer, out in enumerate(outs):
            want = self.reference(layer, log, out.shape[1], window, sinks)
            errors.append(float(np.abs(out - want).max()))
        return max(errors)

    def reference(self, layer: int, log: Sequence[int], last: int, window: int = 0, sinks: int = 0) -> Double:
        """Attention of the last rows of a history in float64, over q, K and V as the layer reads them."""
        n = len(log)
        q, k, v = self.rows(layer, log, np.arange(n))
        q = q[:, -last:]
        keys, values = (
            np.repeat(rounded(x, dtype), self.shape.heads // self.shape.kv_heads, axis=0)
            for x, dtype in zip((k, v), keys_and_values(self.kv_dtype), strict=True)
        )
        queries = rounded(q, "int8") if self.asks_in_codes else q.astype(np.float64)
        scores = np.einsum("htd,hsd->hts", queries, keys) * SCALE
        rows, columns = np.arange(n - last, n)[:, None], np.arange(n)[None, :]
        hidden = columns > rows
        if window:
            hidden |= (columns <= rows - window) & (columns >= sinks)
        scores[:, hidden] = -np.inf
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        out: Double = np.einsum("hts,hsd->htd", weights / weights.sum(-1, keepdims=True), values)
        return out

    def fork(self, src: int, dst: int) -> None:
        """dst shares all that src holds."""
        self.cells.seq_cp(src, dst)
        self.log[dst] = list(self.log[src])

    def rollback(self, seq: int, length: int) -> None:
        """Forgets all from a length on."""
        self.cells.seq_rm(seq, length)
        del self.log[seq][length:]
