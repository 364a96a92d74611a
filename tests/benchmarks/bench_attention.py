"""CPU attention against what the machine can do: memory reads for decode, torch's float32 matmul for the rest.

Both sides are timed in turns within this run, with two threads: medians, and in brackets the ratio of the best times,
which other processes disturb less. Run it on a quiet machine:
    python tests/benchmarks/bench_attention.py [seconds per case]
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable

import numpy as np
import torch
from agentkv_runtime import _core
from in_turns import time_in_turns
from memory_reader import FOOTPRINT, MemoryReader

THREADS = 2
KV_HEADS, DIM = 8, 128
SCALE = DIM**-0.5


def interleave(seconds: float, *calls: Callable[[], object]) -> tuple[list[float], list[float]]:
    """Median and least seconds of each call, taken in turns."""
    times = time_in_turns(seconds, *calls)
    return [statistics.median(kept) for kept in times], [min(kept) for kept in times]


class Case:
    """Layers filled with `cells` cells of one trunk; `rows` rows per call, on as many branches or on one."""

    def __init__(
        self, cells: int, group: int, rows: int, layers: int, branches: int = 0, kv_dtype: str = "fp16"
    ) -> None:
        self.rows, self.layers = rows, layers
        random = np.random.default_rng(0)
        self.seq = _core.Cells(cells + rows)
        self.cache = _core.CpuCache(self.seq, layers, KV_HEADS, DIM, kv_dtype, cells + rows)
        trunk = random.standard_normal((KV_HEADS, cells, DIM)).astype(np.float32)
        q = np.zeros((KV_HEADS, cells, DIM), np.float32)
        self.seq.begin_step([0] * cells)
        positions = self.seq.step_positions()
        for layer in range(layers):
            self.cache.update_and_attend(layer, positions, q, trunk, trunk, SCALE, 1)  # a window of 1: cheap
        self.seq.commit_step()
        for branch in range(1, branches):
            self.seq.seq_cp(0, branch)
        self.seq.begin_step(list(range(branches)) if branches else [0] * rows)
        self.positions = self.seq.step_positions()
        self.q = random.standard_normal((KV_HEADS * group, rows, DIM)).astype(np.float32)
        self.kv = random.standard_normal((KV_HEADS, rows, DIM)).astype(np.float32)

    def __call__(self) -> None:
        for layer in range(self.layers):
            self.cache.update_and_attend(layer, self.positions, self.q, self.kv, self.kv, SCALE)


def decode(seconds: float, cells: int, group: int, reader: MemoryReader) -> None:
    read = 2 * KV_HEADS * (cells + 1) * DIM * 2  # bytes of K and V of one layer, fp16
    layers = max(1, FOOTPRINT // read)
    case = Case(cells, group, 1, layers)
    (took, reading), (least, least_reading) = interleave(seconds, case, reader)
    best = read * layers / least / (reader.data.nbytes / least_reading)
    ours, machine = read * layers / took / 1e9, reader.data.nbytes / reading / 1e9
    print(
        f"decode, {cells:5} cells, {group} query heads per K/V head: {ours:6.1f} GB/s of K/V, memory "
        f"{machine:6.1f} GB/s: {ours / machine:5.2f} (best {best:.2f}), "
        f"{took / layers * 1e6:.0f} us per layer"
    )


def many(seconds: float, name: str, cells: int, rows: int, branches: int, flop_cells: float) -> None:
    group = 2
    case = Case(cells, group, rows, 1, branches)
    queries = rows * group
    a = [torch.randn(queries, DIM) for _ in range(KV_HEADS)]
    b = [torch.randn(DIM, cells) for _ in range(KV_HEADS)]
    c = [torch.randn(queries, cells) for _ in range(KV_HEADS)]
    d = [torch.randn(cells, DIM) for _ in range(KV_HEADS)]

    def matmuls() -> None:
        for h in range(KV_HEADS):
            torch.mm(a[h], b[h])
            torch.mm(c[h], d[h])

    (took, matmul), (least, least_matmul) = interleave(seconds, case, matmuls)
    best = flop_cells / least / (cells / least_matmul)
    ours = 4 * queries * KV_HEADS * flop_cells * DIM / took / 1e9
    theirs = 4 * queries * KV_HEADS * cells * DIM / matmul / 1e9
    print(f"{name}: {ours:6.1f} GFLOP/s, torch matmul {theirs:6.1f} GFLOP/s: {ours / theirs:5.2f} (best {best:.2f})")


def main() -> None:
    """Prints one line per case."""
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 2.0
    _core.set_threads(THREADS)
    torch.set_num_threads(THREADS)
    print(f"instruction set {_core.get_cpu_isa()} of {', '.join(_core.cpu_isas())}; {THREADS} threads")
    reader = MemoryReader(THREADS)
    for cells in (2048, 8192):
        for group in (1, 2, 4):
            decode(seconds, cells, group, reader)
    # A causal chunk sees, on average, the trunk and half of itself.
    many(seconds, "prefill, 512 rows after 1,536", 1536, 512, 0, 1536 + 256.5)
    many(seconds, "prefill, 512 rows after 2,048", 2048, 512, 0, 2048 + 256.5)
    many(seconds, "8 branches on 2,048 cells", 2048, 8, 8, 2049)
    many(seconds, "64 branches on 2,048 cells", 2048, 64, 64, 2049)


if __name__ == "__main__":
    main()
