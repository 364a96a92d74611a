"""Attention over int8 and int4 caches beside fp16, on the shape of Qwen3-0.6B: decode, fan-out, prefill.

All are timed in turns within this run, on one thread: medians of the processor's time, which leaves out what other
processes take. Speed of whole models: bench_model.py with --kv-dtype.
    python tests/benchmarks/bench_kv_dtypes.py [seconds per case]
"""

from __future__ import annotations

import statistics
import sys
import time

from agentkv_runtime import _core
from agentkv_runtime.folder.metadata import KvCacheMetadata
from bench_attention import DIM, KV_HEADS, Case
from in_turns import time_in_turns

KV_DTYPES = ("fp16", "int8", "int8/int4", "int4")
GROUP = 2  # query heads per K/V head
LAYERS = 28
CASES = (
    # name, cells of the trunk, rows, branches, layers that are walked (so that decode reads memory, not caches)
    ("decode, 8,192 cells", 8192, 1, 0, 4),
    ("8 branches on 2,048 cells", 2048, 8, 8, 1),
    ("64 branches on 2,048 cells", 2048, 64, 64, 1),
    ("prefill, 512 rows after 8,192", 8192, 512, 0, 1),
)


def main() -> None:
    """Prints one line per case."""
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 4.0
    _core.set_threads(1)
    print(f"instruction set {_core.get_cpu_isa()} of {', '.join(_core.cpu_isas())}; 1 thread")
    shape = KvCacheMetadata(LAYERS, KV_HEADS, DIM)
    print("bytes per cell:", ", ".join(f"{dtype} {shape.kv_bytes_per_token(dtype)}" for dtype in KV_DTYPES))
    for name, cells, rows, branches, layers in CASES:
        cases = [Case(cells, GROUP, rows, layers, branches, dtype) for dtype in KV_DTYPES]
        times = time_in_turns(seconds, *cases, clock=time.process_time)
        took = [statistics.median(kept) / layers for kept in times]
        ratios = (
            f"{dtype} {seconds * 1e3:.2f} ms ({took[0] / seconds:.2f} times fp16's speed)"
            for dtype, seconds in zip(KV_DTYPES, took, strict=True)
        )
        print(f"{name}, one layer: {'; '.join(ratios)}")


if __name__ == "__main__":
    main()
