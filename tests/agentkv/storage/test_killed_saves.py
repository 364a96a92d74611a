"""A process that is killed while it saves leaves the old file or the new one, whole."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import anyio
import numpy as np
import pytest

import agentkv as kv

from ..saving_process import PROMPTS

ROOT = Path(__file__).resolve().parents[3]


class Saver:
    """A process that saves, and is killed at a random moment of a random save."""

    def __init__(self, path: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.agentkv.saving_process", str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            bufsize=0,
        )

    def kill_once(self, draw: random.Random) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(b"\n")
        child = int(self._process.stdout.readline())
        for _ in range(draw.randrange(1, 4)):
            assert self._process.stdout.read(1) == b"."
        time.sleep(draw.random() * 0.01)
        os.kill(child, signal.SIGKILL)
        while self._process.stdout.read(1) != b"!":
            pass

    def end(self) -> None:
        self._process.kill()
        self._process.wait()


async def check_kills(folder: Path, count: int, seed: int) -> dict[str, int]:
    path = folder / "file"
    draw = random.Random(seed)
    seen = {"none": 0, "first": 0, "second": 0, "leftovers": 0}
    async with kv.Context.open(kv.models.nano(), capacity=1024, kv_dtype="fp16", threads=1) as ctx:
        kinds: dict[tuple[int, ...], tuple[str, np.ndarray]] = {}
        for name, prompt in zip(("first", "second"), PROMPTS, strict=True):
            branch = await ctx.branch(prompt)
            await branch.rollback(len(branch) - 1)
            kinds[tuple(branch.tokens)] = name, await branch.logits()
        await ctx.keep()
        saver = Saver(path)
        try:
            for _ in range(count):
                saver.kill_once(draw)
                left = [name for name in os.listdir(folder) if name != path.name]
                assert len(left) <= 1  # the next save takes it away
                seen["leftovers"] += len(left)
                if not path.exists():
                    seen["none"] += 1
                    continue
                loaded = await ctx.load(path)
                await loaded.rollback(len(loaded) - 1)
                name, row = kinds[tuple(loaded.tokens)]
                np.testing.assert_array_equal(await loaded.logits(), row)
                await loaded.close()
                seen[name] += 1
        finally:
            saver.end()
    return seen


def test_a_kill_leaves_a_whole_file(tmp_path: Path) -> None:
    seen = anyio.run(check_kills, tmp_path, 8, 1)
    assert seen["first"] + seen["second"] >= 6


@pytest.mark.soak
def test_many_kills_leave_a_whole_file(tmp_path: Path) -> None:
    print(anyio.run(check_kills, tmp_path, 1_000, random.randrange(2**32)))
