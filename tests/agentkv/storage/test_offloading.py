"""Branches whose cells wait outside of the cache come back with the same bits, when they are needed."""

from __future__ import annotations

import errno
import gc
import os
import random
import threading
import weakref
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

import agentkv as kv
from agentkv._engine.loop import StepLoop
from agentkv._storage.offload import InFile
from tests.waiting import PATIENCE

from .test_saving import MESSAGES, PROMPT, goes_on, nano

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("kv_dtype", ["fp32", "fp16", "bf16", "int8/int4"])
@pytest.mark.parametrize("to", ["memory", "file"])
async def test_a_branch_comes_back_to_the_bit(tmp_path: Path, kv_dtype: str, to: str) -> None:
    async with nano(kv_dtype) as ctx:
        trunk = await ctx.branch(PROMPT * 4)
        branch, witness = await trunk.fork(2)
        for kid in (branch, witness):
            await kid.extend(" jumps over the lazy dog")
            await kid.generate(max_tokens=4, output=kv.Regex("[a-z]{90}"))
        expected = await goes_on(await _same_stream(ctx, witness, branch))
        unshared = len(branch) - 1 - len(trunk)
        used = ctx.stats.cells_used
        assert not branch.offloaded
        assert await branch.offload(None if to == "memory" else tmp_path) == unshared
        assert branch.offloaded
        assert ctx.stats.cells_used == used - unshared
        assert os.listdir(tmp_path) == []  # the file has no name
        assert await branch.offload() == 0
        others = [await ctx.branch(f"Other number {n} takes its cells") for n in range(8)]
        forwards = ctx.stats.forwards
        mark = branch.mark()
        await branch.rollback(mark)
        assert ctx.stats.forwards == forwards  # nothing was computed again
        assert not branch.offloaded
        for other in others:
            await other.close()
        assert await goes_on(branch) == expected


async def _same_stream(ctx: kv.Context, branch: kv.Branch, other: kv.Branch) -> kv.Branch:
    """A branch that draws as another one, which has the same tokens."""
    assert branch.tokens == other.tokens
    stream = await ctx._core.loop.call(lambda engine: engine.rng_stream(other.id))  # type: ignore[attr-defined]
    await ctx._core.loop.call(lambda engine: engine.set_stream(branch.id, stream, 0))
    return branch


VERBS: dict[str, Callable[[kv.Context, kv.Branch], Awaitable[Any]]] = {
    "extend": lambda ctx, b: b.extend(" more"),
    "generate": lambda ctx, b: b.generate(max_tokens=4),
    "stream": lambda ctx, b: _streamed(b),
    "select": lambda ctx, b: b.select(["yes", "no"]),
    "logits": lambda ctx, b: b.logits(),
    "rollback": lambda ctx, b: b.rollback(4),
    "fork": lambda ctx, b: b.fork(),
    "adopt": lambda ctx, b: _adopted(ctx, b),
    "be adopted": lambda ctx, b: _adopts(ctx, b),
    "save": lambda ctx, b: b.save("/proc/missing/file"),
    "messages": lambda ctx, b: b.extend([{"role": "user", "content": "And?"}]),
    "turn": lambda ctx, b: kv.Agent("You are Nano.").run(b, "Hello"),
}


async def _streamed(branch: kv.Branch) -> None:
    async with branch.stream(max_tokens=4) as tokens:
        async for _ in tokens:
            pass


async def _adopted(ctx: kv.Context, branch: kv.Branch) -> None:
    await branch.adopt(await ctx.branch("Another"))


async def _adopts(ctx: kv.Context, branch: kv.Branch) -> None:
    await (await ctx.branch("Another")).adopt(branch)


@pytest.mark.parametrize("verb", VERBS)
async def test_every_verb_brings_it_back(verb: str) -> None:
    async with nano() as ctx:
        branch = await ctx.branch(MESSAGES)
        await branch.generate(max_tokens=6)
        tokens = branch.tokens
        assert await branch.offload() == len(tokens) - 1
        assert branch.tokens == tokens
        try:
            await VERBS[verb](ctx, branch)
        except kv.SnapshotError:
            assert verb == "save"
        assert not branch.offloaded
        assert await branch.logits() is not None


async def test_what_is_done_at_once_is_done_in_order() -> None:
    async with nano() as ctx:
        branch = await ctx.branch(PROMPT)
        twin = await ctx.branch(PROMPT)
        await twin.extend(" jumps")
        expected = (await twin.generate(max_tokens=5)).tokens
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(branch.offload)
            await anyio.lowlevel.checkpoint()
            tasks.start_soon(branch.extend, " jumps")
        assert (await branch.generate(max_tokens=5)).tokens == expected
        async with anyio.create_task_group() as tasks:
            for _ in range(4):
                tasks.start_soon(branch.offload)
                tasks.start_soon(branch.fork)
        assert await branch.logits() is not None


async def test_a_branch_that_runs_something_is_not_offloaded() -> None:
    async with nano() as ctx:
        branch = await ctx.branch(PROMPT)
        async with branch.stream(max_tokens=300, output=kv.Regex("[a-z]{250}")) as tokens:
            await anext(tokens)
            with pytest.raises(kv.BranchBusy):
                await branch.offload()
            assert not branch.offloaded
            await anext(tokens)
        assert await branch.offload() > 0


async def test_shared_cells_stay() -> None:
    async with nano() as ctx:
        trunk = await ctx.branch(PROMPT)
        kid = await trunk.fork()
        assert await kid.offload() == 0
        assert not kid.offloaded
        empty = await ctx.branch()
        assert await empty.offload() == 0
        again = await ctx.branch(PROMPT + " jumps")  # shares what is there
        assert ctx.stats.reused > 0
        assert await again.logits() is not None


async def test_others_prompts_share_what_stayed() -> None:
    async with nano() as ctx:
        trunk = await ctx.branch(PROMPT * 2)
        kid = await trunk.fork()
        await kid.extend(" one")
        await kid.offload()
        reused = ctx.stats.reused
        other = await ctx.branch([*kid.tokens, 5, 6])
        assert ctx.stats.reused - reused == len(trunk)
        await other.close()
        assert await kid.logits() is not None


async def test_it_waits_on_where_there_is_no_room() -> None:
    async with kv.Context.open(kv.models.nano(), capacity=64, kv_dtype="fp32", threads=1) as ctx:
        branch = await ctx.branch(list(range(5, 45)))
        row = await branch.logits()
        tokens = branch.tokens
        await branch.rollback(39)
        freed = await branch.offload()
        assert freed == 39
        other = await ctx.branch(list(range(50, 100)))
        for _ in range(2):
            with pytest.raises(kv.ContextFull, match="bringing back"):
                await branch.extend([44])
            assert branch.offloaded
        await other.close()
        await branch.extend([44])
        assert branch.tokens == tokens
        assert (await branch.logits()).tobytes() == row.tobytes()


async def test_cancelling_leaves_it_here_or_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentkv._storage.offload.SLICE_BYTES", 2048)
    async with nano() as ctx:
        branch = await ctx.branch(PROMPT * 10)
        await branch.rollback(len(branch) - 1)
        row, used = await branch.logits(), ctx.stats.cells_used
        await branch.rollback(len(branch))
        rng = random.Random(3)
        for ticks in range(0, 60, 7):
            for verb in (branch.offload, branch.logits):
                with anyio.CancelScope() as scope:
                    async with anyio.create_task_group() as tasks:
                        tasks.start_soon(verb)
                        for _ in range(ticks):
                            await anyio.sleep(rng.random() * 0.0004)
                        scope.cancel()
        assert (await branch.logits()).tobytes() == row.tobytes()
        assert ctx.stats.cells_used == used
        await branch.offload()
        await branch.close()
        assert ctx.stats.cells_used == 0


async def test_a_folder_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    async with nano() as ctx:
        branch = await ctx.branch(PROMPT)
        row = await branch.logits()
        for folder in (tmp_path / "missing", Path("/proc")):
            with pytest.raises(kv.SnapshotError, match=r"cannot be written: .*they stay in the cache"):
                await branch.offload(folder)
            assert not branch.offloaded
        with pytest.raises(kv.InvalidInput, match="folder"):
            await branch.offload(3)  # type: ignore[arg-type]
        assert (await branch.logits()).tobytes() == row.tobytes()


async def test_many_branches_take_turns_in_a_small_cache() -> None:
    async with kv.Context.open(kv.models.nano(), capacity=160, kv_dtype="fp16", threads=1) as ctx:
        prompts = [list(range(5 + 3 * n, 105 + 3 * n)) for n in range(6)]
        alone = []
        for prompt in prompts:
            async with await ctx.branch(prompt) as branch:
                alone.append((await branch.generate(max_tokens=16, sampling=kv.Sampling(temperature=0.0))).tokens)
        branches: list[kv.Branch] = []
        made: list[list[int]] = [[] for _ in prompts]
        for prompt in prompts:
            branches.append(await ctx.branch(prompt))
            await branches[-1].offload()
        assert ctx.stats.cells_used == 0
        for _ in range(4):
            for n, branch in enumerate(branches):
                made[n] += (await branch.generate(max_tokens=4)).tokens
                await branch.offload()
        for tokens, expected in zip(made, alone, strict=True):  # which may end earlier
            assert tokens[: len(expected)] == expected


@pytest.mark.parametrize("to", ["memory", "file", "full disk"])
async def test_nothing_is_kept_of_a_branch_that_is_closed_or_could_not_leave(
    tmp_path: Path, to: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nameless_files() -> int:
        links = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
        return sum("(deleted)" in os.readlink(link) for link in links if os.path.islink(link))

    def full(store: InFile, rows: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    def post_and_linger(loop: StepLoop, done: Callable[[], None]) -> None:
        post(loop, done)
        if threading.current_thread().name == "agentkv-file":
            looked.wait(PATIENCE)  # the thread that wrote ends after the test has looked

    post, looked = StepLoop.post, threading.Event()
    monkeypatch.setattr(StepLoop, "post", post_and_linger)
    before = nameless_files()
    async with nano() as ctx:
        branch = await ctx.branch(PROMPT)
        gc.disable()  # nothing waits for the collector
        try:
            if to == "full disk":
                monkeypatch.setattr(InFile, "put", full)
                with pytest.raises(kv.SnapshotError, match="No space left"):
                    await branch.offload(tmp_path)
            else:
                await branch.offload(None if to == "memory" else tmp_path)
                store = weakref.ref(branch._handle.state.offloaded._store)
                await branch.close()
                del branch
                assert store() is None
            assert nameless_files() == before
        finally:
            looked.set()
            gc.enable()
