"""Shareable files that are damaged, that lie, or that another machine made: errors, or copies, and never other bits."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import anyio
import pytest

import agentkv as kv

from .test_damaged_saves import damaged, put_together, taken_apart
from .test_shared_prefix import goes_on, nano, one_loop, saved

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def prefix(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, tuple[Any, ...]]:
    path = tmp_path_factory.mktemp("prefix") / "file"
    return path, anyio.run(saved, path)


@one_loop
async def test_damage_is_found_before_anything_is_mapped(tmp_path: Path, prefix: tuple[Path, tuple[Any, ...]]) -> None:
    whole, expected = prefix[0].read_bytes(), prefix[1]
    draw = random.Random(3)
    path = tmp_path / "file"
    errors = 0
    async with nano(capacity=1024) as ctx:
        for _ in range(40):
            _, broken = damaged(whole, draw)
            path.write_bytes(broken)
            try:
                assert await goes_on(await ctx.load(path, shared=True)) == expected
            except kv.SnapshotError:
                errors += 1
                assert ctx.stats.kv_bytes_shared == 0 or ctx.branches == []
            await ctx.keep()
            assert ctx.stats.cells_used == 0
    assert errors > 30


LIES: dict[str, dict[str, str]] = {
    "more rows": {"rows": "705"},
    "fewer rows": {"rows": "640"},
    "no rows": {"rows": ""},
    "negative rows": {"rows": "-1"},
    "rows that overflow": {"rows": "9" * 40},
    "no pages": {"page": "0"},
    "odd pages": {"page": "1000"},
    "large pages": {"page": str(1 << 30)},
    "pages that are no number": {"page": "\u0664096"},
}


@one_loop
async def test_files_that_lie_about_their_pages_are_refused(
    tmp_path: Path, prefix: tuple[Path, tuple[Any, ...]]
) -> None:
    path = tmp_path / "file"
    tensors, metadata = taken_apart(prefix[0])
    cells = {name: tensor for name, tensor in tensors.items() if name.startswith("cells.")}
    others = {name: tensor for name, tensor in tensors.items() if name not in cells}
    async with nano() as ctx:
        for lie, change in LIES.items():
            put_together(path, tensors, metadata | change, align=int(metadata["page"]))
            for shared in (True, False):
                with pytest.raises(kv.SnapshotError, match="damaged") as caught:
                    await ctx.load(path, shared=shared)
                assert type(caught.value) is kv.SnapshotError, lie
        for moved in (others | cells, tensors):
            put_together(path, moved, metadata, align=8 if moved is tensors else int(metadata["page"]))
            with pytest.raises(kv.SnapshotError, match="pages"):
                await ctx.load(path, shared=True)
        assert (ctx.stats.cells_used, ctx.stats.kv_bytes) == (0, 0)
        put_together(path, tensors, metadata | {"page": "64"}, align=64)  # of a machine with other pages
        with pytest.raises(kv.SnapshotError, match="rows on pages of 64 bytes"):
            await ctx.load(path, shared=True)


@pytest.mark.parametrize(("page", "is_shared"), [(64, False), (1 << 16, True)])
@one_loop
async def test_files_of_machines_with_other_pages_are_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, page: int, is_shared: bool
) -> None:
    path = tmp_path / "prefix"
    monkeypatch.setattr("agentkv._storage.save.PAGE", page)
    expected = await saved(path)
    async with nano() as ctx:
        branch = await ctx.load(path, shared=True)
        assert branch.loaded is not None
        assert (branch.loaded.shared > 0) == is_shared
        assert await goes_on(branch) == expected
    async with nano() as ctx:
        assert await goes_on(await ctx.load(path)) == expected
