"""The MLX byte layer's own promises: writes in place, quantised rows, memory given back. The rest is conformance."""

from __future__ import annotations

import gc
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt
import pytest
from agentkv_runtime import _core
from agentkv_runtime.backends import load_backend
from agentkv_runtime.folder.metadata import KvCacheMetadata

load_backend("mlx")

from agentkv_runtime import _mlx  # noqa: E402

Float = npt.NDArray[np.float32]

KV_HEADS, HEADS, DIM, SCALE = 2, 4, 64, 0.125
BITS = {"int8": 8, "int4": 4}


def rows(heads: int, tokens: int, seed: int) -> Float:
    return np.random.default_rng(seed).standard_normal((heads, tokens, DIM)).astype(np.float32)


class Sequence:
    """One sequence in one layer."""

    def __init__(self, kv_dtype: str, capacity: int, min_chunk: int | None = None) -> None:
        self.cells = _core.Cells(capacity)
        self.cache = _mlx.MlxCache(self.cells, 1, KV_HEADS, DIM, kv_dtype, min_chunk or capacity)

    def update(self, k: Float, v: Float, seq: int = 0) -> _mlx.LiveView:
        self.cells.begin_step([seq] * k.shape[1])
        view = self.cache.update(0, self.cells.step_positions(), k, v)
        self.cells.commit_step()
        return view

    def decode(self, seed: int = 0) -> Float:
        self.cells.begin_step([0])
        q, kv = rows(HEADS, 1, seed), rows(KV_HEADS, 1, seed + 1)
        out = self.cache.update_and_attend(0, self.cells.step_positions(), q, kv, kv, SCALE)
        self.cells.commit_step()
        return np.asarray(out)

    def decode_peak(self) -> int:
        """Bytes that a decode step takes beyond what MLX holds before it."""
        _mlx.reset_peak_memory()
        before = _mlx.active_memory()
        self.decode()
        return max(0, _mlx.peak_memory() - before)


@pytest.mark.parametrize("cells", [1024, 32768])
def test_a_decode_step_allocates_no_second_buffer(cells: int) -> None:
    sequence = Sequence("fp32", cells + 8)
    history = rows(KV_HEADS, cells, 1)
    view = sequence.update(history, history)
    del view
    pool = sequence.cache.bytes // 2
    sequence.decode()
    assert sequence.decode_peak() < pool // 4  # scores over the history, and no K or V


@pytest.mark.parametrize("cells", [1024, 32768])
def test_a_live_view_is_seen_as_a_second_buffer(cells: int) -> None:
    """What the test above would miss, were it measured wrongly."""
    sequence = Sequence("fp32", cells + 8)
    history = rows(KV_HEADS, cells, 1)
    view = sequence.update(history, history)
    assert sequence.decode_peak() >= sequence.cache.bytes  # K and V were both copied
    del view
    assert sequence.decode_peak() < sequence.cache.bytes // 8


@pytest.mark.parametrize("kv_dtype", BITS)
def test_bytes_of_quantised_pools(kv_dtype: str) -> None:
    for dim, group in ((128, 64), (64, 64), (96, 32), (32, 32)):
        cells = _core.Cells(100)
        cache = _mlx.MlxCache(cells, 3, KV_HEADS, dim, kv_dtype, 16)
        zeros = np.zeros((KV_HEADS, 20, dim), np.float32)
        cells.begin_step([0] * 20)
        for layer in range(3):
            cache.update_and_attend(layer, cells.step_positions(), zeros, zeros, zeros, SCALE)
        row = dim * BITS[kv_dtype] // 8 + 2 * (dim // group) + 2 * (dim // group)  # codes, scales, biases
        assert cache.bytes == 3 * 2 * KV_HEADS * 32 * row
        assert cache.bytes == 32 * KvCacheMetadata(3, KV_HEADS, dim).kv_bytes_per_token(kv_dtype, "mlx")
        cells.abort_step()
    with pytest.raises(_core.InvalidTensor, match="80"):
        _mlx.MlxCache(_core.Cells(8), 1, KV_HEADS, 80, kv_dtype)


@pytest.mark.parametrize("kv_dtype", BITS)
def test_error_of_quantised_rows(kv_dtype: str, record_property: pytest.RecordProperty) -> None:
    k, v = rows(KV_HEADS, 500, 1), 3 * rows(KV_HEADS, 500, 2) + 5
    view = Sequence(kv_dtype, 512).update(k, v)
    for name, have, want in (("k", view.k, k), ("v", view.v, v)):
        step = np.ptp(want, axis=-1, keepdims=True) / (2 ** BITS[kv_dtype] - 1)
        error = np.abs(np.asarray(have) - want) / step
        record_property(f"largest error of {name} in steps", float(error.max()))
        # Half a step for rounding to a code; the rest is the group's end that the codes do not reach.
        assert error.max() < 1.1
        assert np.sqrt(np.mean(error**2)) < 0.36


@pytest.mark.parametrize(
    ("kv_dtype", "bound"), [("fp16", 1e-3), ("bf16", 1e-2), ("int8", 2e-2), ("int8/int4", 0.2), ("int4", 0.3)]
)
def test_error_of_attention(kv_dtype: str, bound: float, record_property: pytest.RecordProperty) -> None:
    exact, narrow = Sequence("fp32", 512), Sequence(kv_dtype, 512)
    for sequence in (exact, narrow):
        sequence.update(rows(KV_HEADS, 500, 1), rows(KV_HEADS, 500, 2))
    errors = []
    for seed in range(5):
        want = exact.decode(seed)
        errors.append(float(np.linalg.norm(narrow.decode(seed) - want) / np.linalg.norm(want)))
    record_property("relative error", max(errors))
    assert max(errors) < bound


@pytest.mark.parametrize("kv_dtype", ["fp32", "fp16", "bf16", "int8", "int8/int4", "int4"])
def test_rows_do_not_change_on_their_way(kv_dtype: str) -> None:
    """A row in a run, scattered into holes, moved, or carried along as the pool grows is the same row, to the bit."""
    k, v = rows(KV_HEADS, 60, 1), rows(KV_HEADS, 60, 2)
    plain = Sequence(kv_dtype, 64).update(k, v)
    other = Sequence(kv_dtype, 64, min_chunk=8)
    other.update(k[:, :1], v[:, :1], seq=1)
    for i in range(6):  # 0 and 1 take cells in turns
        other.update(k[:, i : i + 1], v[:, i : i + 1])
        other.update(k[:, :1], v[:, :1], seq=1)
    other.cells.seq_rm(1)
    other.update(k[:, 6:20], v[:, 6:20])  # into the holes and beyond
    assert len(other.cells.seq_runs(0)) > 1
    other.cache.move_cells(list(range(20)), list(range(19, -1, -1)))
    view = other.update(k[:, 20:], v[:, 20:])
    assert other.cache.allocated_cells == 64
    cells = [cell + i for _, cell, length in other.cells.seq_runs(0) for i in range(length)]
    cells = [19 - cell if cell < 20 else cell for cell in cells]
    assert np.array_equal(np.asarray(view.k)[:, cells], plain.k)
    assert np.array_equal(np.asarray(view.v)[:, cells], plain.v)


def test_memory_comes_back_whichever_thread_closes() -> None:
    gc.collect()
    before = _mlx.active_memory()

    def use(seed: int) -> Float:
        sequence = Sequence("int8" if seed % 2 else "fp16", 600, min_chunk=16)
        history = rows(KV_HEADS, 40, 1)
        sequence.update(history, history)
        return sequence.decode()

    with ThreadPoolExecutor(8) as pool:
        outs = list(pool.map(use, range(200)))
    assert all(np.array_equal(out, outs[seed % 2]) for seed, out in enumerate(outs))
    assert _mlx.active_memory() == before
