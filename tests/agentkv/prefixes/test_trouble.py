"""What goes wrong with the folder is no error of a prompt: it is told once, and the prompt is computed."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from agentkv_runtime import tensor_file

import agentkv as kv
from agentkv._context.handle import core_of
from agentkv._prefixes import cache as prefix_cache
from agentkv._prefixes.folder import PrefixFolder, StoredPrefix
from agentkv._storage.reader import SnapshotFile
from tests.agentkv.saved_files import put_together, taken_apart
from tests.waiting import SOON, until

from .opening import entries, files_in, goes_on, open_with, written

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("anyio_backend", ["asyncio"])]

ROOT = Path(__file__).resolve().parents[3]
SYSTEM = [3 + i * 11 % 290 for i in range(700)]
KEPT = 640  # of these, in whole blocks


async def filled(folder: Path) -> tuple[Any, ...]:
    """Has an entry written; returns how a branch with its tokens goes on."""
    for _ in range(2):
        async with open_with(kv.models.nano(), folder) as ctx:
            branch = await ctx.branch(SYSTEM)
            await written(ctx)
            want = await goes_on(branch)
    assert len(entries(folder)) == 1
    return want


def undrawn(said: tuple[Any, ...]) -> tuple[Any, ...]:
    """All but the random tokens, which are others for each branch of a Context."""
    return said[:3] + said[4:]


def flip(path: Path, at: float) -> None:
    """Changes a bit of a copy and puts it in the file's place."""
    data = bytearray(path.read_bytes())
    data[int(at * len(data))] ^= 1
    copy = path.with_name("copy")
    copy.write_bytes(data)
    copy.chmod(0o600)
    os.replace(copy, path)


def changed(path: Path, change: Callable[[Any, Any], Any]) -> None:
    """The file with other contents, whose digests are right."""
    tensors, metadata = taken_apart(path)
    change(tensors, metadata)
    put_together(path, tensors, metadata, align=4096)


def other_tokens(tensors: Any, metadata: Any) -> None:
    """They are none of the model's; the prompt's beginning is as it was."""
    tensors["branches.0.tokens"][1].view("i4")[-1] = 2**30


def fewer_rows(tensors: Any, metadata: Any) -> None:
    tensors["branches.0.rows"][1].view("i4")[2] = 64


def rows_elsewhere(tensors: Any, metadata: Any) -> None:
    tensors["branches.0.rows"][1].view("i4")[0] = 1


def another_backend(tensors: Any, metadata: Any) -> None:
    metadata["backend"] = "mlx"


def lane_missing(tensors: Any, metadata: Any) -> None:
    del tensors[next(name for name in tensors if name.startswith("cells."))]


DAMAGES: dict[str, Callable[[Path], None]] = {
    "bit in cells": lambda path: flip(path, 0.5),
    "bit in a scale or the last lane": lambda path: flip(path, 0.99),
    "cut": lambda path: os.truncate(path, path.stat().st_size // 2),
    "empty": lambda path: os.truncate(path, 0),
    **{each.__name__: lambda path, each=each: changed(path, each) for each in (  # type: ignore[misc]
        fewer_rows, rows_elsewhere, another_backend, lane_missing)},
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGES)
async def test_damaged_entries_are_removed_and_computed(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    want = await filled(tmp_path)
    (path,) = entries(tmp_path)
    DAMAGES[name](path)
    async with open_with(kv.models.nano(), tmp_path) as ctx:
        branch = await ctx.branch(SYSTEM)
        assert (branch.reused, ctx.stats.prefix_cache_hits, ctx.stats.cells_used) == (0, 0, len(SYSTEM))
        assert await goes_on(branch) == want
        await written(ctx)
        assert ctx.stats.prefix_cache_written == 1
    assert [record.getMessage().count("is no good") for record in caplog.records] == [1]
    async with open_with(kv.models.nano(), tmp_path) as ctx:
        branch = await ctx.branch(SYSTEM)
        assert (branch.reused, ctx.stats.prefix_cache_hits) == (KEPT, 1)
        assert await goes_on(branch) == want


async def test_tokens_that_are_none_serve_what_is_before_them(tmp_path: Path) -> None:
    want = await filled(tmp_path)
    changed(*entries(tmp_path), other_tokens)
    async with open_with(kv.models.nano(), tmp_path) as ctx:
        branch = await ctx.branch(SYSTEM)
        assert branch.reused == KEPT - 1
        assert await goes_on(branch) == want


@pytest.mark.parametrize("when", ["before it is opened", "once it is opened"])
async def test_an_entry_that_is_evicted_under_its_reader(
    when: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    want = await filled(tmp_path)
    opened = PrefixFolder.open

    def evicted(folder: PrefixFolder, entry: StoredPrefix, tokens: list[int]) -> SnapshotFile | None:
        if when == "before it is opened":
            entry.path.unlink()
        file = opened(folder, entry, tokens)
        entry.path.unlink(missing_ok=True)
        return file

    monkeypatch.setattr(PrefixFolder, "open", evicted)
    async with open_with(kv.models.nano(), tmp_path) as ctx:
        branch = await ctx.branch(SYSTEM)
        assert ctx.stats.prefix_cache_hits == (when == "once it is opened")
        assert await goes_on(branch) == want
    assert caplog.records == []


def full(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("what", ["cells", "hashes", "folder"])
async def test_a_disk_that_takes_nothing_is_told_once(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    if what == "cells":
        monkeypatch.setattr(tensor_file.FreshFile, "write", full)
    elif what == "hashes":
        monkeypatch.setattr("agentkv._prefixes.seen.SeenPrefixes._append", full)
    else:
        monkeypatch.setattr(PrefixFolder, "make", full)
    async with open_with(kv.models.nano(), tmp_path) as ctx:
        for seed in range(3):
            for number in range(2):
                branch = await ctx.branch([5 + i * (7 + seed) % 280 for i in range(400 + number)])
                await written(ctx)
                assert len(await branch.logits()) == ctx.model_info.vocab_size
        assert ctx.stats.prefix_cache_written == 0
    assert len(caplog.records) == 1
    assert "not kept any more" in caplog.records[0].getMessage()
    assert os.strerror(errno.ENOSPC) in caplog.records[0].getMessage()
    assert [path for path in files_in(tmp_path) if path.name != "seen"] == []


async def test_what_is_there_is_read_where_nothing_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    want = await filled(tmp_path)

    def read_only(path: Any, flags: int, *mode: int, **more: Any) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT) and str(path).startswith(str(tmp_path)):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
        return opened(path, flags, *mode, **more)

    opened = os.open
    monkeypatch.setattr(os, "open", read_only)
    monkeypatch.setattr(os, "utime", full)
    async with open_with(kv.models.nano(), tmp_path) as ctx:
        branch = await ctx.branch(SYSTEM)
        assert (branch.reused, ctx.stats.prefix_cache_hits) == (KEPT, 1)
        assert await goes_on(branch) == want
        assert caplog.records == []  # there was nothing to write
        await ctx.branch([*SYSTEM, *range(3, 100)])
        await ctx.branch([*SYSTEM, *range(3, 200)])
    assert len(caplog.records) == 1


async def test_a_folder_that_is_removed_meanwhile_is_made_again(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    want = await filled(folder)
    async with open_with(kv.models.nano(), folder) as ctx:
        await to_thread_rmtree(folder)
        for length in (700, 700):
            async with await ctx.branch(SYSTEM[:length]) as branch:
                await written(ctx)
                assert undrawn(await goes_on(branch)) == undrawn(want)
        assert ctx.stats.prefix_cache_hits == 0
    assert len(entries(folder)) == 1


async def to_thread_rmtree(folder: Path) -> None:
    await anyio.to_thread.run_sync(shutil.rmtree, folder)


async def test_an_entry_that_would_not_fit_is_not_written(tmp_path: Path) -> None:
    for _ in range(3):
        async with open_with(kv.models.nano(), tmp_path, kv_dtype="fp32", prefix_cache_bytes=1 << 20) as ctx:
            await ctx.branch(SYSTEM)
            await written(ctx)
            assert (ctx.stats.prefix_cache_written, ctx.stats.prefix_cache_hits) == (0, 0)
    assert entries(tmp_path) == []


async def test_a_cache_without_room_says_so_as_ever(tmp_path: Path) -> None:
    await filled(tmp_path)
    async with open_with(kv.models.nano(), tmp_path, capacity=900) as ctx:
        other = await ctx.branch([9] * 400)
        with pytest.raises(kv.ContextFull):
            await ctx.branch(SYSTEM)
        assert (ctx.stats.cells_used, ctx.branches) == (400, [other])
        await other.close()
        assert (await ctx.branch(SYSTEM)).reused == KEPT


async def test_the_last_branch_may_begin_with_what_was_read(tmp_path: Path) -> None:
    await filled(tmp_path)
    async with open_with(kv.models.nano(), tmp_path) as ctx:
        trunk = await ctx.branch([1, 2, 3])
        kids = await trunk.fork(254)
        last = await ctx.branch(SYSTEM)
        assert (last.reused, len(ctx.branches)) == (KEPT, 256)
        with pytest.raises(kv.TooManyBranches):
            await ctx.branch(SYSTEM)
        assert len(kids) == 254


async def test_reading_that_takes_longer_than_computing_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    want = await filled(tmp_path)
    async with open_with(kv.models.nano(), tmp_path) as ctx:
        prefixes = core_of(ctx).prefixes
        assert prefixes is not None
        prefixes.note_computed(1000, 0.001)
        prefixes.note_read(1000, 1.0)
        branch = await ctx.branch(SYSTEM)
        assert (branch.reused, ctx.stats.prefix_cache_hits) == (0, 0)
        assert await goes_on(branch) == want


async def test_cancelled_prompts_leave_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    want = await filled(tmp_path)
    reading, read_entry = anyio.Event(), prefix_cache.read_entry

    async def slow(*how: Any) -> Any:
        pin = await read_entry(*how)
        reading.set()
        await anyio.sleep_forever()
        return pin

    async with open_with(kv.models.nano(), tmp_path) as ctx:
        monkeypatch.setattr(prefix_cache, "read_entry", slow)
        async with anyio.create_task_group() as group:
            group.start_soon(ctx.branch, SYSTEM)
            await reading.wait()
            with anyio.move_on_after(SOON):  # waits for the one that reads
                await ctx.branch(SYSTEM)
            group.cancel_scope.cancel()
        monkeypatch.undo()
        await until(lambda: ctx.stats.cells_used == 0)
        branch = await ctx.branch(SYSTEM)
        assert (branch.reused, ctx.stats.prefix_cache_hits) == (KEPT, 1)
        assert undrawn(await goes_on(branch)) == undrawn(want)
        await branch.close()
        assert (ctx.stats.cells_used, ctx.branches) == (0, [])


CHILD = """
import anyio, sys
import agentkv as kv
import agentkv._prefixes.write as write

write.SLICE_BYTES = 1  # a cell at a time
slices = write.slices

def told(*how):
    for number, each in enumerate(slices(*how)):
        if number == 300:
            print("writing", flush=True)
            sys.stdin.readline()
        yield each

write.slices = told

async def main():
    async with kv.Context.open(kv.models.nano(), 4096, threads=1, prefix_cache=sys.argv[1]) as ctx:
        await ctx.branch([3 + i * 11 % 290 for i in range(700)])
        await ctx.branch([3 + i * 11 % 290 for i in range(700)])
        await anyio.sleep_forever()

anyio.run(main)
"""


async def test_a_process_that_is_killed_while_it_writes_leaves_nothing_that_stays(tmp_path: Path) -> None:
    await anyio.to_thread.run_sync(kill_a_writer, tmp_path)
    assert [path.suffix for path in files_in(tmp_path) if path.name != "seen"] == [".unfinished"]
    want = await filled(tmp_path)
    assert [path.suffix for path in files_in(tmp_path) if path.name != "seen"] == [".prefix"]
    async with open_with(kv.models.nano(), tmp_path) as ctx:
        assert await goes_on(await ctx.branch(SYSTEM)) == want


def kill_a_writer(folder: Path) -> None:
    command = [sys.executable, "-c", CHILD, str(folder)]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert child.stdout is not None
    assert child.stdout.readline() == "writing\n"
    child.send_signal(signal.SIGKILL)
    child.communicate()
