"""A sample of the SDK's own tests over `agentkv serve`; `make test-remote` runs them all."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.rows import one_in
from tests.waiting import PATIENCE

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("module", one_in(2, ["agents/test_attempts", "context/test_stream_shared"]))
def test_the_tests_of_the_sdk(module: str) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"tests/agentkv/{module}.py"]
    outer = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**outer, "AGENTKV_TESTS_OVER": "agentkv"},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    assert " passed" in done.stdout
