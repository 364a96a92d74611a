"""Processes that are killed at a point of a talk: what counts the points, what forks them, and who asks for them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio

from agentkv.journal.writer import JournalWriter

ROOT = Path(__file__).resolve().parents[3]


class Counter:
    """Kills the process at the n-th point that it passes; 0 for never."""

    def __init__(self, at: int) -> None:
        self._left = at

    def point(self) -> None:
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


def count_commits(counter: Counter) -> None:
    """Makes each commit of the journal two points: before it, and once it is made."""
    commit = JournalWriter._commit

    def counted(self: JournalWriter, *given: Any) -> None:
        counter.point()
        commit(self, *given)
        counter.point()

    JournalWriter._commit = counted  # type: ignore[method-assign]


def serve(talk: Callable[[Path, int, Counter], Awaitable[None]]) -> None:
    """Forks a process that talks for each line "[FOLDER, SEED, POINT]" of the input, and says its number, and then its
    status: they start in a moment that way."""
    for line in sys.stdin:
        folder, seed, at = json.loads(line)
        child = os.fork()
        if child == 0:
            counter = Counter(at)
            count_commits(counter)
            status = 1
            try:
                anyio.run(talk, Path(folder), seed, counter)
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(status)
        os.write(1, f"{child}\n".encode())
        _, status = os.waitpid(child, 0)
        os.write(1, f"{os.waitstatus_to_exitcode(status)}\n".encode())


class Talker:
    """The process of a module that calls `serve`, which forks those that talk."""

    def __init__(self, module: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", module], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT, bufsize=0
        )

    def begin(self, folder: Path, seed: int, at: int = 0) -> int:
        """Begins a process that is killed at its point `at`; returns its number."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([str(folder), seed, at]).encode() + b"\n")
        return self._line()

    def end(self) -> int:
        """Waits for its end; returns its status."""
        return self._line()

    def run(self, folder: Path, seed: int, at: int = 0) -> int:
        self.begin(folder, seed, at)
        return self.end()

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()

    def _line(self) -> int:
        assert self._process.stdout is not None
        return int(self._process.stdout.readline())
