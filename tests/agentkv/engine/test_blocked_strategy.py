"""A strategy that does not return: Ctrl-C ends the program, a cancellation the wait."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import pytest

import agentkv as kv
from agentkv._engine.watchdog import LOOKS_BEFORE_GIVING_UP, StrategyWatchdog
from tests.conftest import FolderFactory
from tests.waiting import PATIENCE, until, until_sync

from ..conftest import OpenContext

SCRIPT = """
import sys, time
import anyio
import agentkv as kv

class Blocks:
    def propose(self, branch, tokens, limit):
        print("proposing", flush=True)
        while sys.argv[2] == "spins":
            pass
        time.sleep(3600)

async def main():
    async with kv.Context.open(sys.argv[1], capacity=256, threads=1) as ctx:
        branch = await ctx.branch([5, 6, 7])
        await branch.generate(max_tokens=40, speculative=Blocks())

anyio.run(main)
"""


@pytest.mark.parametrize("blocks", ["spins", "sleeps"])
def test_ctrl_c_ends_the_program(folder: Path, blocks: str) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(folder), blocks], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "proposing\n"
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
    assert process.returncode in (1, -signal.SIGINT)
    assert "KeyboardInterrupt" in errors
    assert "nanobind" not in errors


class Spins:
    """Does not return before it is told to."""

    def __init__(self) -> None:
        self.proposing = threading.Event()
        self.enough = threading.Event()

    def propose(self, branch: int, tokens: object, limit: int) -> None:
        self.proposing.set()
        until_sync(self.enough.is_set)


@pytest.mark.anyio
async def test_a_cancelled_generation_interrupts_it(open_context: OpenContext) -> None:
    spins = Spins()
    try:
        with anyio.fail_after(PATIENCE):
            async with open_context() as ctx:
                branch, other = await ctx.branch("The quick"), await ctx.branch("fox")
                async with anyio.create_task_group() as group:
                    group.start_soon(lambda: branch.generate(max_tokens=40, speculative=spins))
                    await anyio.to_thread.run_sync(spins.proposing.wait)
                    group.cancel_scope.cancel()
                spins.enough.set()
                assert len((await other.generate(max_tokens=3)).tokens) == 3  # the Context goes on
                assert len((await branch.generate(max_tokens=3)).tokens) == 3
    finally:
        spins.enough.set()


@pytest.mark.asyncio
async def test_what_cannot_be_interrupted_is_given_up(open_context: OpenContext) -> None:
    sleeping, enough = threading.Event(), threading.Event()

    class Waits:
        def propose(self, branch: int, tokens: object, limit: int) -> None:
            sleeping.set()
            enough.wait()

    ends: list[str] = []

    async def generate(branch: kv.Branch, strategy: Waits | None) -> None:
        try:
            await branch.generate(max_tokens=1900, speculative=strategy)
        except kv.StepFailed as error:
            ends.append(str(error))

    try:
        with anyio.fail_after(PATIENCE):
            async with anyio.create_task_group() as outer, open_context() as ctx:
                branch, other = await ctx.branch("The quick"), await ctx.branch("fox")
                outer.start_soon(generate, branch, Waits())
                await anyio.to_thread.run_sync(sleeping.wait)
                outer.start_soon(generate, other, None)
                await anyio.lowlevel.checkpoint()
    finally:
        enough.set()
    assert len(ends) == 2
    assert "did not return" in ends[0]


@pytest.mark.anyio
async def test_a_block_around_another_branch_can_be_left(open_context: OpenContext) -> None:
    """Its error reaches the task group, which cancels what waits for the strategy."""
    spins = Spins()

    async def leave(branch: kv.Branch) -> None:
        async with branch:
            await anyio.to_thread.run_sync(spins.proposing.wait)
            raise ValueError("ends the group")

    try:
        with anyio.fail_after(PATIENCE):
            async with open_context() as ctx:
                branch, other = await ctx.branch("The quick"), await ctx.branch("fox")
                ends: list[str] = []
                try:
                    async with anyio.create_task_group() as group:
                        group.start_soon(lambda: branch.generate(max_tokens=40, speculative=spins))
                        group.start_soon(leave, other)
                except* ValueError:
                    ends.append("the block's own error")
                except* kv.StepFailed:
                    ends.append("interrupted")
                assert "the block's own error" in ends
                assert other.closed
    finally:
        spins.enough.set()


@pytest.mark.asyncio
async def test_a_forward_in_python_is_no_strategy(
    tiny_hf_folder: FolderFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The torch backend runs its model in Python: whoever waits for a forward waits, however long it takes."""
    from agentkv_runtime.torch_backend.model import TorchModel

    forward, interrupt = TorchModel.forward, StrategyWatchdog.interrupt
    slow, begun, looks = threading.Event(), threading.Event(), 0

    def takes_its_time(*arguments: Any) -> Any:
        if slow.is_set():
            begun.set()
            until_sync(lambda: looks > 2 * LOOKS_BEFORE_GIVING_UP)
        return forward(*arguments)

    def counted(watchdog: StrategyWatchdog) -> bool:
        nonlocal looks
        looks += 1
        return interrupt(watchdog)

    monkeypatch.setattr(TorchModel, "forward", takes_its_time)
    monkeypatch.setattr(StrategyWatchdog, "interrupt", counted)
    monkeypatch.setattr("agentkv._engine.loop.WATCH_INTERVAL_S", 0.01)
    async with kv.Context.open(tiny_hf_folder("llama"), capacity=256, kv_dtype="fp32", backend="torch") as ctx:
        branch, other = await ctx.branch("The quick"), await ctx.branch("fox")
        slow.set()
        async with anyio.create_task_group() as group:
            group.start_soon(lambda: branch.generate(max_tokens=40))
            await until(begun.is_set)
            group.cancel_scope.cancel()
        slow.clear()
        assert looks > 2 * LOOKS_BEFORE_GIVING_UP
        assert len((await other.generate(max_tokens=3)).tokens) == 3
        assert len((await branch.generate(max_tokens=3)).tokens) == 3


@pytest.mark.asyncio
async def test_an_interrupt_that_comes_in_c_code_is_the_strategys_own(
    open_context: OpenContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python raises it at its next call, which may be outside of the strategy."""
    monkeypatch.setattr("agentkv._engine.loop.WATCH_INTERVAL_S", 0.01)
    monkeypatch.setattr("agentkv._engine.watchdog.LOOKS_BEFORE_GIVING_UP", 10**6)
    numbers, computing = np.full(4_000_000, 1.5), threading.Event()

    class Computes:
        adaptive = False

        def propose(self, branch: int, tokens: object, limit: int) -> None:
            computing.set()
            numbers**1.1  # long in C, and no call after it

    async with open_context() as ctx:
        branch, other = await ctx.branch("The quick"), await ctx.branch("fox")
        for _ in range(3):
            computing.clear()
            async with anyio.create_task_group() as group:
                group.start_soon(lambda: branch.generate(max_tokens=4, speculative=Computes()))
                await until(computing.is_set)
                group.cancel_scope.cancel()
            assert len((await other.generate(max_tokens=3)).tokens) == 3
