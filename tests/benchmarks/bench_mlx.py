"""The MLX byte layer: what a decode step costs in a small and a large pool, and what K and V take.

The cases of a line are timed in turns: medians. On Linux MLX runs on the CPU, on one thread and slowly; what carries
over to other devices is that a step does not depend on the size of the pool, and what each kind of pool takes and
loses.
    python tests/benchmarks/bench_mlx.py [seconds per line]
"""

from __future__ import annotations

import statistics
import sys

import numpy as np
import numpy.typing as npt
from agentkv_runtime import _core
from agentkv_runtime.backends import BACKENDS, load_backend
from in_turns import time_in_turns

load_backend("mlx")

from agentkv_runtime import _mlx  # noqa: E402

KV_HEADS, HEADS, DIM = 2, 4, 128
SCALE = DIM**-0.5
CELLS = (1024, 32768)
HISTORY = 512

Float = npt.NDArray[np.float32]


def rows(heads: int, tokens: int, seed: int) -> Float:
    return np.random.default_rng(seed).standard_normal((heads, tokens, DIM)).astype(np.float32)


class Case:
    """One layer of `cells` cells that holds a history; every step writes the next cell and is then taken back."""

    def __init__(self, kv_dtype: str, cells: int, history: int) -> None:
        self.cells = _core.Cells(cells + 8)
        self.cache = _mlx.MlxCache(self.cells, 1, KV_HEADS, DIM, kv_dtype, cells + 8)
        self.cells.begin_step([0] * history)
        self.cache.update(0, self.cells.step_positions(), rows(KV_HEADS, history, 1), rows(KV_HEADS, history, 2))
        self.cells.commit_step()
        self.view: _mlx.LiveView | None = None
        self.q, self.kv = rows(HEADS, 1, 3), rows(KV_HEADS, 1, 4)

    def write(self) -> None:
        """K and V of one token."""
        self.cells.begin_step([0])
        self.cache.update(0, self.cells.step_positions(), self.kv, self.kv)
        self.cells.abort_step()

    def write_beside_a_view(self) -> None:
        """The same while something holds what the last write left."""
        self.cells.begin_step([0])
        self.view = self.cache.update(0, self.cells.step_positions(), self.kv, self.kv)
        self.cells.abort_step()

    def decode(self) -> Float:
        """K and V of one token, and attention over the history."""
        self.cells.begin_step([0])
        positions = self.cells.step_positions()
        out = self.cache.update_and_attend(0, positions, self.q, self.kv, self.kv, SCALE)
        self.cells.abort_step()
        return np.asarray(out)


def main() -> None:
    """Prints one line per kind of pool and question."""
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 2.0
    exact = Case("fp32", HISTORY, HISTORY).decode()
    for kv_dtype in BACKENDS["mlx"].kv_dtypes:
        small, large = (Case(kv_dtype, cells, HISTORY) for cells in CELLS)
        error = float(np.linalg.norm(small.decode() - exact) / np.linalg.norm(exact))
        per_cell = large.cache.bytes / large.cache.allocated_cells
        print(f"{kv_dtype}: {per_cell:.0f} bytes per cell and layer, attention off by {error:.1e} of fp32's")
        for what, calls in (
            ("write", (small.write, large.write)),
            (f"decode after {HISTORY} tokens", (small.decode, large.decode)),
            ("write beside a live view", (small.write_beside_a_view, large.write_beside_a_view)),
        ):
            a, b = (1e6 * statistics.median(kept) for kept in time_in_turns(seconds, *calls))
            print(f"  {what:25} {CELLS[0]:6,} cells {a:9.1f} us   {CELLS[1]:6,} cells {b:9.1f} us   ratio {b / a:6.2f}")


if __name__ == "__main__":
    main()
