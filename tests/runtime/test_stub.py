"""The committed stubs say what the native modules offer."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import agentkv_runtime
import pytest

STUBS = Path(__file__).resolve().parents[2] / "runtime" / "agentkv_runtime"


@pytest.mark.parametrize("name", ["_core", "_mlx"])
def test_the_committed_stub_is_that_of_the_module(tmp_path: Path, name: str) -> None:
    fresh = tmp_path / f"{name}.pyi"
    subprocess.run(
        [sys.executable, "-m", "nanobind.stubgen", "-q", "-m", f"agentkv_runtime.{name}", "-o", str(fresh)],
        check=True,
        cwd=Path(agentkv_runtime.__file__).parents[1],
    )
    committed = (STUBS / f"{name}.pyi").read_text()
    assert fresh.read_text() == committed, "the native module changed: run `make stub` and commit the result"
