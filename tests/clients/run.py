"""Clients as processes, with the settings that their documentation names and nothing else."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import anyio

SECONDS = 300.0  # a client that waits for longer hangs


async def run(home: Path, command: list[str], environment: dict[str, str]) -> list[dict[str, Any]]:
    """Runs a client in `home/work`; what it printed as lines of JSON."""
    installed = Path(os.environ["AGENTKV_CLIENTS"]) / "node_modules" / ".bin"
    known = {"PATH": f"{installed}{os.pathsep}{os.environ['PATH']}", "HOME": str(home)}
    with anyio.fail_after(SECONDS):
        done = await anyio.run_process(
            command, env=known | environment, cwd=home / "work", check=False, stderr=subprocess.STDOUT
        )
    lines = done.stdout.decode().splitlines()
    assert done.returncode == 0, lines[-5:]
    return [json.loads(line) for line in lines if line.startswith("{")]
