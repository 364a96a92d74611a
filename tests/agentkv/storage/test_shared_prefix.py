"""A saved prefix that is mapped: in memory once for all who load it, and as if each had computed it, to the bit."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from safetensors import safe_open

import agentkv as kv
from agentkv._engine.worker import EngineWorker
from tests.rows import one_in
from tests.waiting import SOON, until

from ..mapped_bytes import mapped_bytes

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="maps files into reserved addresses"),
]

PREFIX = [5 + i % 900 for i in range(700)]
DTYPES = ["fp32", "fp16", "bf16", "int8", "int8/int4", "int4"]
one_loop = pytest.mark.parametrize("anyio_backend", ["asyncio"])


@asynccontextmanager
async def nano(kv_dtype: str = "fp16", capacity: int = 4096, **options: Any) -> AsyncIterator[kv.Context]:
    async with kv.Context.open(
        kv.models.nano(), capacity=capacity, kv_dtype=kv_dtype, threads=1, retain=0, **options
    ) as ctx:
        yield ctx


async def goes_on(branch: kv.Branch) -> tuple[Any, ...]:
    """What forks of a branch see of its cells; the branch stays as it is."""
    known = (await branch.logits()).tobytes()
    async with await branch.fork() as kid, await branch.fork() as last:
        await kid.extend(" and then")
        gen = await kid.generate(max_tokens=8)
        await last.rollback(len(branch) - 1)
        await last.extend(branch.tokens[-1:])
        return known, (await last.logits()).tobytes(), gen.tokens, gen.logprobs, (await kid.logits()).tobytes()


async def saved(path: Path, kv_dtype: str = "fp16") -> tuple[Any, ...]:
    """Writes the file; returns how the branch goes on."""
    async with nano(kv_dtype) as ctx:
        branch = await ctx.branch(PREFIX)
        done = await branch.save(path, shareable=True)
        assert (done.path, done.cells) == (path, len(PREFIX))
        return await goes_on(branch)


@pytest.fixture(scope="module")
def prefix(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, tuple[Any, ...]]:
    path = tmp_path_factory.mktemp("prefix") / "file"
    return path, anyio.run(saved, path)


@pytest.mark.parametrize("kv_dtype", DTYPES)
async def test_bits_are_those_of_a_context_that_computed_them(tmp_path: Path, kv_dtype: str) -> None:
    path = tmp_path / "prefix"
    expected = await saved(path, kv_dtype)
    async with nano(kv_dtype) as one, nano(kv_dtype) as two:
        for ctx in (one, two):
            branch = await ctx.load(path, shared=True)
            loaded, stats = branch.loaded, ctx.stats
            assert loaded is not None
            assert (stats.forwards, stats.cells_used, loaded.reused) == (0, len(PREFIX), len(PREFIX))
            assert 2 * len(PREFIX) / 3 < loaded.shared <= len(PREFIX)
            assert stats.kv_bytes_shared > 2 * stats.kv_bytes  # the last page of each head, and of scales
            assert await goes_on(branch) == expected
        for branch in (*one.branches, *two.branches):
            assert await goes_on(branch) == expected


async def test_a_shareable_file_is_loaded_like_any_other(prefix: tuple[Path, tuple[Any, ...]]) -> None:
    path, expected = prefix
    async with nano() as ctx:
        branch = await ctx.load(path)
        assert branch.loaded == kv.Loaded(path, len(PREFIX), 0, "", 0)
        assert ctx.stats.kv_bytes_shared == 0
        assert await goes_on(branch) == expected
    with safe_open(path, "numpy") as opened:
        assert opened.get_slice("cells.layers.0.k.0").get_shape() == [704, 64]


async def test_families_share_their_trunk(tmp_path: Path) -> None:
    async with nano() as ctx:
        trunk = await ctx.branch(PREFIX)
        kids = await trunk.fork(2)
        for number, kid in enumerate(kids):
            await kid.extend([number] * 100)
        rows = [(await kid.logits()).tobytes() for kid in kids]
        done: list[int] = []
        await ctx.save(
            tmp_path / "family", {"a": kids[0], "b": kids[1]}, shareable=True, progress=lambda n, of: done.append(n)
        )
        assert done == sorted(done)
        assert done[-1] == (tmp_path / "family").stat().st_size
    async with nano() as ctx:
        loaded = await ctx.load_all(tmp_path / "family", shared=True, progress=lambda n, of: done.append(of - n))
        assert done[-1] == 0
        assert ctx.stats.cells_used == 900
        for branch, row, shared in zip(loaded.values(), rows, (800, 796), strict=True):
            assert branch.loaded is not None
            assert branch.loaded.shared == shared  # 896 of 900 cells are whole pages
            await branch.rollback(799)
            await branch.extend([0 if branch is loaded["a"] else 1])
            assert (await branch.logits()).tobytes() == row


async def test_cells_that_are_used_again_change_neither_the_file_nor_others(
    prefix: tuple[Path, tuple[Any, ...]],
) -> None:
    path, expected = prefix
    whole = path.read_bytes()
    async with nano() as one, nano() as two:
        mine, other = await one.load(path, shared=True), await two.load(path, shared=True)
        shared = one.stats.kv_bytes_shared
        await mine.close()
        assert (one.stats.kv_bytes_shared, one.stats.cells_used) == (shared, 0)
        overwriting = await one.branch([7] * 300)
        row = (await overwriting.logits()).tobytes()
        assert one.stats.kv_bytes_shared < 0.65 * shared
        assert one.stats.kv_bytes > 0.35 * shared
        assert path.read_bytes() == whole
        assert await goes_on(other) == expected
        again = await one.load(path, shared=True)  # behind it
        assert again.loaded is not None
        assert again.loaded.shared > 600
        assert await goes_on(again) == expected
        assert (await overwriting.logits()).tobytes() == row
    async with nano() as ctx:
        assert (await (await ctx.branch([7] * 300)).logits()).tobytes() == row


@pytest.mark.parametrize("kv_dtype", DTYPES)
@one_loop
async def test_verbs_work_over_mapped_cells(tmp_path: Path, kv_dtype: str) -> None:
    path, copy = tmp_path / "prefix", tmp_path / "copy"
    expected = await saved(path, kv_dtype)
    whole = path.read_bytes()
    async with nano(kv_dtype) as ctx:
        branch = await ctx.load(path, shared=True)
        shared = ctx.stats.kv_bytes_shared
        kids = await branch.fork(3)
        await kv.gather(*(kid.generate(max_tokens=20) for kid in kids))
        await kids[0].rollback(300)
        await kids[0].extend([8] * 50)
        assert ctx.stats.kv_bytes_shared == shared  # what others have stays
        await ctx.keep(branch)
        assert await goes_on(branch) == expected
        await branch.save(copy, shareable=True)
        assert await branch.offload() == len(PREFIX)
        filling = await ctx.branch([9] * 200)
        assert await goes_on(branch) == expected
        await filling.close()
        await ctx.compact()
        assert await goes_on(branch) == expected
        assert path.read_bytes() == whole
    async with nano(kv_dtype) as ctx:
        assert await goes_on(await ctx.load(copy, shared=True)) == expected


@one_loop
async def test_compacting_moves_cells_out_of_pages_and_into_them(prefix: tuple[Path, tuple[Any, ...]]) -> None:
    path, expected = prefix
    async with nano() as ctx:
        low = await ctx.branch([9] * 400)
        first = await ctx.load(path, shared=True)
        second = await ctx.load(path, shared=True)
        high = await ctx.branch([4] * 500)
        row = (await high.logits()).tobytes()
        before = ctx.stats
        await low.close()
        assert await ctx.compact() > 0
        assert ctx.stats.kv_bytes_shared == before.kv_bytes_shared  # what lies highest is moved, and that is memory
        await first.close()
        assert await ctx.compact() >= 0
        assert ctx.stats.cells <= 1.1 * (len(PREFIX) + 500) + 64
        assert ctx.stats.kv_bytes_shared < before.kv_bytes_shared
        assert await goes_on(second) == expected
        await high.rollback(499)
        await high.extend([4])
        assert (await high.logits()).tobytes() == row


@one_loop
async def test_an_idle_context_does_not_copy_pages_to_give_none_back(
    prefix: tuple[Path, tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    tidied, tidy = threading.Event(), EngineWorker._compact_when_idle

    def counted(worker: EngineWorker) -> None:
        tidy(worker)
        tidied.set()

    async with nano() as ctx:
        first, second = await ctx.load(prefix[0], shared=True), await ctx.load(prefix[0], shared=True)
        await first.close()
        shared = ctx.stats.kv_bytes_shared
        monkeypatch.setattr("agentkv._engine.worker.TIDY_AFTER_S", SOON)
        monkeypatch.setattr(EngineWorker, "_compact_when_idle", counted)
        await ctx.branch()
        await until(tidied.is_set)
        assert (await second.fork()) in ctx.branches
        assert ctx.stats.kv_bytes_shared == shared


@pytest.mark.parametrize("kv_dtype", one_in(2, ["fp16", "fp32", "int8/int4", "int8"]))
@one_loop
async def test_memory_is_within_five_percent_of_what_is_not_mapped(tmp_path: Path, kv_dtype: str) -> None:
    path = tmp_path / "prefix"
    async with nano(kv_dtype, 32768) as ctx:
        await (await ctx.branch([5 + i % 900 for i in range(1, 4097)])).save(path, shareable=True)
    async with nano(kv_dtype, 32768) as ctx:
        branch = await ctx.load(path, shared=True)
        stats = ctx.stats
        assert branch.loaded is not None
        assert branch.loaded.shared == 4096
        assert stats.kv_bytes == 0
        per_cell = stats.kv_bytes_shared // 4096
        other = await ctx.branch([7] * 4000)
        assert len(other) == 4000
        assert 4000 * per_cell <= ctx.stats.kv_bytes <= 1.05 * 4000 * per_cell
        assert ctx.stats.kv_bytes_shared == stats.kv_bytes_shared


async def test_cells_that_are_no_run_are_copied(prefix: tuple[Path, tuple[Any, ...]]) -> None:
    path, expected = prefix
    async with nano(capacity=1000) as ctx:
        low = await ctx.branch([9] * 400)
        middle = await ctx.branch([8] * 50)
        await low.close()
        branch = await ctx.load(path, shared=True)
        assert branch.loaded == kv.Loaded(path, len(PREFIX), 0, "", 0)
        assert ctx.stats.kv_bytes_shared == 0
        assert len(middle) == 50
        async with await branch.fork() as kid:
            await kid.rollback(len(kid) - 1)
            await kid.extend(PREFIX[-1:])
            assert (await kid.logits()).tobytes() == expected[1]


async def test_what_is_retained_makes_room_for_a_run(prefix: tuple[Path, tuple[Any, ...]]) -> None:
    async with kv.Context.open(kv.models.nano(), capacity=1024, threads=1) as ctx:
        for token in range(20):
            async with await ctx.branch([token] * 100):
                pass
        assert ctx.stats.cells_retained > 900
        branch = await ctx.load(prefix[0], shared=True)
        assert branch.loaded is not None
        assert branch.loaded.shared > 600


async def test_files_that_are_replaced_or_removed_stay_mapped(tmp_path: Path) -> None:
    path = tmp_path / "prefix"
    expected = await saved(path)
    async with nano() as ctx:
        branch = await ctx.load(path, shared=True)
        other = await ctx.branch([3] * 650)
        await other.save(path, shareable=True)
        assert await goes_on(branch) == expected
        path.unlink()
        assert await goes_on(branch) == expected


async def test_what_cannot_be_shared_is_refused_before_anything_changes(
    tmp_path: Path, prefix: tuple[Path, tuple[Any, ...]], tiny_hf_folder: Callable[..., Path]
) -> None:
    async with nano() as ctx:
        branch = await ctx.branch(PREFIX)
        await branch.save(tmp_path / "plain")
        before = ctx.stats
        with pytest.raises(kv.SnapshotMismatch, match="saved without shareable=True"):
            await ctx.load(tmp_path / "plain", shared=True)
        with pytest.raises(kv.InvalidInput, match="shared"):
            await ctx.load(prefix[0], shared=1)  # type: ignore[arg-type]
        with pytest.raises(kv.InvalidInput, match="shareable"):
            await branch.save(tmp_path / "none", shareable="yes")  # type: ignore[arg-type]
        assert ctx.stats == before
    async with nano("fp32") as ctx:
        with pytest.raises(kv.SnapshotMismatch, match="kv_dtype"):
            await ctx.load(prefix[0], shared=True)
        fed = await ctx.load(prefix[0], shared=True, recompute=True)
        assert fed.loaded is not None
        assert (fed.loaded.recomputed, fed.loaded.shared) == (len(PREFIX), 0)
    async with kv.Context.open(tiny_hf_folder("llama"), capacity=256, kv_dtype="fp32", backend="torch") as ctx:
        branch = await ctx.branch([1, 2, 3])
        with pytest.raises(kv.InvalidInput, match=r"shareable=True .* 'torch'"):
            await branch.save(tmp_path / "none", shareable=True)
        with pytest.raises(kv.InvalidInput, match=r"shared=True .* 'torch'"):
            await ctx.load(prefix[0], shared=True)
    assert not (tmp_path / "none").exists()


CHILD = """
import anyio, hashlib, sys
import agentkv as kv
from tests.agentkv.mapped_bytes import mapped_bytes

async def main():
    async with kv.Context.open(kv.models.nano(), capacity=4096, kv_dtype="fp16", threads=1, retain=0) as ctx:
        branch = await ctx.load(sys.argv[1], shared=True)
        await branch.rollback(len(branch) - 1)
        await branch.extend([int(sys.argv[2])])
        digest = hashlib.sha256((await branch.logits()).tobytes()).hexdigest()
        print(digest, *mapped_bytes(sys.argv[1]))

anyio.run(main)
"""


@one_loop
async def test_processes_have_one_prefix_in_memory(prefix: tuple[Path, tuple[Any, ...]]) -> None:
    path, expected = prefix
    async with nano() as one, nano() as two:
        branches = [await ctx.load(path, shared=True) for ctx in (one, two)]
        for branch in branches:
            await goes_on(branch)
        resident, proportional = mapped_bytes(path)
        assert resident >= 2 * one.stats.kv_bytes_shared - (64 << 10)
        assert proportional <= 0.55 * resident
        run = await anyio.to_thread.run_sync(
            lambda: subprocess.run(
                [sys.executable, "-c", CHILD, str(path), str(PREFIX[-1])], capture_output=True, text=True, check=True
            )
        )
        digest, of_child, of_it_alone = run.stdout.split()
        assert digest == hashlib.sha256(expected[1]).hexdigest()
        assert int(of_it_alone) < 0.45 * int(of_child)  # three map it
