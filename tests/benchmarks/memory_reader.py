"""How fast this machine reads memory: what decoding could not be faster than."""

from __future__ import annotations

import threading

import numpy as np

FOOTPRINT = 256 << 20  # bytes, well beyond the caches


class MemoryReader:
    """Reads a buffer with so many threads: a maximum over float32, which NumPy vectorises."""

    def __init__(self, threads: int) -> None:
        self.data = np.ones(FOOTPRINT // 4, np.float32)
        self.parts = np.array_split(self.data, threads)

    def __call__(self) -> None:
        threads = [threading.Thread(target=np.max, args=(part,)) for part in self.parts]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
