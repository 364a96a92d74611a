"""Cells without rows in some layers: packed to what they hold, and files that say what cannot be."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from agentkv_runtime.tensor_file import TensorSpec

import agentkv as kv
from agentkv._storage.layout import cell_arrays, stored_rows, with_zeros, without_dropped
from tests.conftest import FolderFactory

from .test_damaged_saves import Tensors, put_together, taken_apart

TOKENS = [3 + i * 11 % 290 for i in range(700)]
Change = Callable[[Tensors, dict[str, str]], Any]


@pytest.mark.parametrize("lacks", [[], [0, 0], [2, 1, 0, 1], [2, 2, 2]], ids=str)
def test_packing_leaves_out_what_is_lacking(lacks: list[int]) -> None:
    arrays = cell_arrays([("a", "F16", [2, 3], 0), ("b", "U8", [1, 5], 1), ("c", "F32", [1, 2], None)])
    groups = np.array(lacks, np.uint8)
    rows = np.random.default_rng(1).integers(1, 256, (len(lacks), arrays[-1].end), np.uint8)
    for array in arrays:
        rows[~stored_rows(array, groups), array.begin : array.end] = 0
    small = without_dropped(rows, arrays, groups)
    assert small.nbytes == np.count_nonzero(rows)
    assert (with_zeros(small, arrays, groups) == rows).all()


@pytest.fixture(scope="module")
def folder(tiny_exported_folder: FolderFactory) -> Path:
    return tiny_exported_folder("gemma3", layers=4, window=24, head_dim=64, max_positions=2048)


def lacks(change: Callable[[Any], Any]) -> Change:
    def apply(tensors: Tensors, metadata: dict[str, str]) -> None:
        array = np.ascontiguousarray(change(tensors["lacks"][1].copy()), np.uint8)
        tensors["lacks"] = TensorSpec("lacks", "U8", array.shape), array.reshape(-1)

    return apply


def none_held(tensors: Tensors, metadata: dict[str, str]) -> None:
    """In the layers with a window, the last positions included, and the arrays are as the header says."""
    lacks(np.ones_like)(tensors, metadata)
    for name in ("layers.0.k", "layers.0.v", "layers.2.k", "layers.2.v"):
        spec, _ = tensors[f"cells.{name}"]
        tensors[spec.name] = TensorSpec(spec.name, spec.dtype, (0, *spec.shape[1:])), np.zeros(0, np.uint8)


HOSTILE: dict[str, Change] = {
    "nothing said of what is lacking": lambda tensors, metadata: tensors.pop("lacks"),
    "a version that lacks nothing": lambda tensors, metadata: metadata.update(version="1"),
    "fewer rows": lacks(lambda array: array[:-1]),
    "more rows": lacks(lambda array: np.append(array, 0)),
    "more rows that lack something": lacks(lambda array: np.append(array, 1)),
    "one row less that is held": lacks(lambda array: np.where(np.arange(len(array)) == len(array) - 1, 1, array)),
    "one row more that is held": lacks(lambda array: np.where(np.arange(len(array)) == 0, 0, array)),
    "groups of layers that are not there": lacks(lambda array: array * 2),
    "very many groups": lacks(lambda array: array * 255),
    "another shape": lacks(lambda array: array.reshape(-1, 1)),
    "a window that is not held": none_held,
}


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_hostile_files_are_refused(tmp_path: Path, folder: Path) -> None:
    good, bad = tmp_path / "good", tmp_path / "bad"
    async with kv.Context.open(folder, 2048, threads=1) as ctx:
        branch = await ctx.branch(TOKENS)
        await branch.save(good)
        row, used = await branch.logits(), ctx.stats.cells_used
        for name, change in HOSTILE.items():
            tensors, metadata = taken_apart(good)
            assert metadata["version"] == "3"
            change(tensors, metadata)
            put_together(bad, tensors, metadata)
            with pytest.raises(kv.SnapshotError) as caught:
                await ctx.load(bad)
            assert str(bad) in str(caught.value), name
            assert type(caught.value) is kv.SnapshotError, name
            await ctx.keep(branch)
            assert (ctx.branches, ctx.stats.cells_used) == ([branch], used)
        put_together(bad, *taken_apart(good))  # that which was not changed is good
        assert (await (await ctx.load(bad)).logits() == row).all()


@pytest.mark.anyio
async def test_files_that_lack_nothing_are_as_they_were(tmp_path: Path, folder: Path) -> None:
    """Whoever read them reads them still."""
    async with kv.Context.open(folder, 2048, threads=1) as ctx:
        await (await ctx.branch(TOKENS[:60])).save(tmp_path / "branch")
    tensors, metadata = taken_apart(tmp_path / "branch")
    assert metadata["version"] == "1"
    assert "lacks" not in tensors
