"""A test that hangs fails with the stacks of all its threads and children, and the run goes on."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.waiting import PATIENCE

ROOT = Path(__file__).resolve().parents[1]
CONFTEST = "import tests.limits\ntests.limits.GRACE_S = 3.0\ntests.limits.MOST_LIMITS = 2\n"
CHILD = "import time\ndef waits_in_the_child():\n    time.sleep(3600)\nwaits_in_the_child()\n"
BODIES = {
    "a lock": "lock = threading.Lock()\n    lock.acquire()\n    lock.acquire()",
    "an event loop": "anyio.run(anyio.sleep, 3600)",
    "a child": "subprocess.run([sys.executable, '-c', CHILD])",
    "a child in a session of its own": "subprocess.run([sys.executable, '-c', CHILD], start_new_session=True)",
    "native code that keeps the interpreter": "sum(range(10**13))",
    "turning in a circle": "while True: pass",
}
SHOWN = {
    "a lock": "test_it ",
    "an event loop": r"run \(anyio/",
    "a child": "waits_in_the_child",
    "a child in a session of its own": "waits_in_the_child",
    "turning in a circle": "longer than 2 seconds",
    "native code that keeps the interpreter": "crashed while running 'test_hangs.py::test_it'",
}


@pytest.mark.parametrize(("why", "workers"), [*((why, "1") for why in BODIES), ("a lock", "0")])
def test_what_hangs_fails_and_the_next_test_runs(tmp_path: Path, why: str, workers: str) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    child = f"{CHILD}# {tmp_path}"  # one of this run: others may run on the machine
    (tmp_path / "test_hangs.py").write_text(
        f"import subprocess, sys, threading, anyio\nCHILD = {child!r}\n"
        f"def test_it():\n    {BODIES[why]}\ndef test_next(): pass\n"
    )
    plugins = [f"-p{name}" for name in ("xdist", "pytest_timeout", "tests.limits", "no:cacheprovider")]
    command = [sys.executable, "-m", "pytest", *plugins, "-o", "timeout=1", "-n", workers]
    command += ["--rootdir", str(tmp_path), str(tmp_path)]
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=PATIENCE)
    assert "1 failed, 1 passed" in ended.stdout, ended.stdout + ended.stderr
    assert re.search(SHOWN[why], ended.stdout), ended.stdout
    assert not [each for each in psutil.process_iter(["cmdline"]) if child in (each.info["cmdline"] or [])]
