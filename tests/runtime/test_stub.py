"""The committed stub says what the native module offers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import agentkv_runtime

STUB = Path(__file__).resolve().parents[2] / "runtime" / "agentkv_runtime" / "_core.pyi"


def test_the_committed_stub_is_that_of_the_module(tmp_path: Path) -> None:
    fresh = tmp_path / "_core.pyi"
    subprocess.run(
        [sys.executable, "-m", "nanobind.stubgen", "-q", "-m", "agentkv_runtime._core", "-o", str(fresh)],
        check=True,
        cwd=Path(agentkv_runtime.__file__).parents[1],
    )
    assert fresh.read_text() == STUB.read_text(), "the native module changed: run `make stub` and commit the result"
