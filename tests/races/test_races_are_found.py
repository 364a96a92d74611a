"""What the sanitizer is there for: two threads write the same cells, each without the interpreter's lock."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

RACE = """
import sys, threading
from agentkv_runtime import _core
import numpy as np

cells = _core.Cells(64)
layer = _core.CpuCache(cells, n_layers=1, n_kv_heads=1, head_dim=64, kv_dtype="fp32")
which = [list(range(32))] * 2 if sys.argv[1] == "same" else [list(range(32)), list(range(32, 64))]
bytes = np.zeros((32, layer.cell_bytes), np.uint8)
layer.write_cells(list(range(64)), np.zeros((64, layer.cell_bytes), np.uint8))
begin = threading.Barrier(2)

def write(cells):
    begin.wait()
    for _ in range(2000):
        layer.write_cells(cells, bytes)

threads = [threading.Thread(target=write, args=(cells,)) for cells in which]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""


@pytest.mark.skipif("AGENTKV_SANITIZED_MODULE" not in os.environ, reason="`make tsan` runs it")
@pytest.mark.parametrize(("cells", "status"), [("same", 66), ("others", 0)])
def test_two_threads_in_a_byte_layer(cells: str, status: int) -> None:
    script = f"import tests.races.plugin\n{RACE}"
    options = os.environ["TSAN_OPTIONS"] + ":log_path=stderr"
    done = subprocess.run(
        [sys.executable, "-c", script, cells],
        capture_output=True,
        text=True,
        env=os.environ | {"TSAN_OPTIONS": options},
    )
    assert done.returncode == status, done.stderr
    assert ("data race" in done.stderr) == (status != 0)
