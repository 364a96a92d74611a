"""vLLM on the CPU (bf16: it has no 4-bit weights there), in a process of its own environment."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import IO

from .rows import Decode, Prefill, Row

WORKER = Path(__file__).with_name("vllm_worker.py")


class Vllm:
    """A worker that holds the model; see WORKER."""

    name = "vLLM (bf16)"

    def __init__(self, asked: IO[str], answers: IO[str]) -> None:
        self._asked, self._answers = asked, answers

    def rate(self, row: Row) -> float:
        with suppress(BrokenPipeError):
            print(json.dumps(asdict(row)), file=self._asked, flush=True)
        answer = self._answers.readline()
        if not answer:
            raise RuntimeError(f"vLLM ended at {row}: run it by hand, see {WORKER}")
        return float(json.loads(answer))


def has_vllm(python: str) -> bool:
    """Can that interpreter import it?"""
    find = "import importlib.util, sys; sys.exit(importlib.util.find_spec('vllm') is None)"
    try:
        return subprocess.run([python, "-c", find], check=False).returncode == 0
    except OSError:
        return False


@contextmanager
def worked_by(python: str, checkpoint: Path, rows: Sequence[Row], tokens: int) -> Iterator[Vllm]:
    """A worker for these rows."""
    decodes = [row for row in rows if isinstance(row, Decode)]
    prompts = [row.tokens for row in rows if isinstance(row, Prefill)]
    positions = max(*(row.depth for row in decodes), *prompts) + tokens + 32
    branches = max(row.branches for row in decodes)
    reading, writing = os.pipe()
    command = [python, WORKER, checkpoint, *map(str, (writing, positions, branches, tokens))]
    environment = {"VLLM_CPU_KVCACHE_SPACE": "4", **os.environ}  # GiB
    with (
        subprocess.Popen(command, stdin=subprocess.PIPE, text=True, pass_fds=[writing], env=environment) as process,
        os.fdopen(reading) as answers,
    ):
        os.close(writing)
        assert process.stdin is not None
        yield Vllm(process.stdin, answers)
