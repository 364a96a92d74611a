"""Models whose layers keep states: every verb finds the state that it goes on from, whatever was let go meanwhile.

A fresh run of the same tokens is the oracle, to the bit.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import numpy.typing as npt
import pytest
from agentkv_runtime.tensor_file import Bytes, TensorSpec
from typer.testing import CliRunner

import agentkv as kv
from agentkv.cli import app
from tests.agentkv.saved_files import Tensors, put_together, taken_apart
from tests.conftest import FolderFactory
from tests.rows import one_in

pytestmark = pytest.mark.anyio

Row = npt.NDArray[np.float32]

KINDS = ("qwen3_next", "bamba", "mamba2", "mamba", "kimi", "lfm2")
WITH_STATES = KINDS[:-1]
LENGTH = 700
TOKENS = [3 + i * 11 % 290 for i in range(LENGTH)]


@pytest.fixture(scope="module", params=one_in(2, KINDS))
def folder(tiny_exported_folder: FolderFactory, request: pytest.FixtureRequest) -> Path:
    """Of one kind after another."""
    return tiny_exported_folder(request.param)


@pytest.fixture(scope="module")
def want(folder: Path) -> list[Row]:
    """The logits behind each of the tokens, fed one by one to a Context of their own."""
    return anyio.run(rows_of, folder)


async def rows_of(folder: Path) -> list[Row]:
    async with kv.Context.open(folder, LENGTH + 1, threads=1) as ctx:
        branch = await ctx.branch()
        rows = []
        for token in TOKENS:
            await branch.extend([token])
            rows.append(await branch.logits())
        return rows


async def go_back_and_forth(folder: Path, want: list[Row], times: int, seed: int) -> kv.Stats:
    """So many rollbacks to anywhere, each followed by more tokens; every logit is that of a fresh run."""
    rng = random.Random(seed)
    async with kv.Context.open(folder, 2 * LENGTH, threads=1) as ctx:
        branch = await ctx.branch(TOKENS[:1])
        most = 0
        for _ in range(times):
            end = min(LENGTH, len(branch) + rng.choice([1, 3, 20, 70, 200]))
            await branch.extend(TOKENS[len(branch) : end])
            assert np.array_equal(await branch.logits(), want[end - 1])
            most = max(most, ctx.stats.states)
            back = rng.choice([1, 2, 30, 64, 300, LENGTH])
            if rng.random() < 0.2:  # another goes on from there
                async with await branch.fork() as kid:
                    await kid.rollback(max(1, end - back))
                    assert np.array_equal(await kid.logits(), want[len(kid) - 1])
            await branch.rollback(max(1, end - back))
            assert np.array_equal(await branch.logits(), want[len(branch) - 1])
        stats, info = ctx.stats, ctx.model_info
        print(
            f"\n{folder.name}: {times} rollbacks, {stats.tokens} tokens fed, of which {stats.refed} again; at most "
            f"{most} states of {info.state_bytes} bytes"
        )
        return stats


async def test_rollbacks_have_the_bits_of_a_fresh_run(folder: Path, want: list[Row]) -> None:
    stats = await go_back_and_forth(folder, want, 60, 0)
    assert stats.refed <= stats.tokens // 2


@pytest.mark.soak
async def test_so_they_have_for_long(folder: Path, want: list[Row]) -> None:
    await go_back_and_forth(folder, want, 5000, 1)


async def test_a_branch_that_was_saved_goes_on_without_feeding_again(
    folder: Path, want: list[Row], tmp_path: Path
) -> None:
    async with kv.Context.open(folder, LENGTH + 1, threads=1) as ctx:
        branch = await ctx.branch(TOKENS[:300])
        await branch.save(tmp_path / "one.kv")
        await (await ctx.branch(TOKENS[:300])).close()
    async with kv.Context.open(folder, LENGTH + 1, threads=1) as ctx:
        branch = await ctx.load(tmp_path / "one.kv")
        await branch.extend(TOKENS[300:310])
        assert np.array_equal(await branch.logits(), want[309])
        assert (ctx.stats.tokens, ctx.stats.refed) == (10, 0)
        await branch.rollback(290)
        await branch.extend(TOKENS[290:291])
        assert np.array_equal(await branch.logits(), want[290])
        await branch.rollback(40)
        assert np.array_equal(await branch.logits(), want[39])


async def test_a_branch_that_was_set_aside_goes_on_without_feeding_again(folder: Path, want: list[Row]) -> None:
    async with kv.Context.open(folder, LENGTH + 1, threads=1) as ctx:
        branch = await ctx.branch(TOKENS[:300])
        states = ctx.stats.states
        await branch.offload()
        tokens = ctx.stats.tokens
        await branch.extend(TOKENS[300:301])
        assert np.array_equal(await branch.logits(), want[300])
        assert (ctx.stats.tokens, ctx.stats.refed) == (tokens + 1, 0)
        assert ctx.stats.states <= states + 1


@pytest.mark.parametrize("kind", WITH_STATES)
async def test_files_without_their_states_are_damaged(
    tiny_exported_folder: FolderFactory, tmp_path: Path, kind: str
) -> None:
    folder, path = tiny_exported_folder(kind), tmp_path / "one.kv"
    async with kv.Context.open(folder, LENGTH + 1, threads=1) as ctx:
        branch = await ctx.branch(TOKENS[:200])
        assert min(ctx.model_info.state_bytes, ctx.stats.states) > 0
        await branch.save(path)
        tensors, metadata = taken_apart(path)
        rows = tensors["states.rows"][1].view(np.int32)
        assert len(rows) >= 2

        def with_rows(changed: npt.NDArray[Any]) -> Tensors:
            spec = tensors["states.rows"][0]._replace(shape=changed.shape)
            return {**tensors, "states.rows": (spec, changed.view(np.uint8))}

        def first_gone(spec: TensorSpec, data: Bytes) -> tuple[TensorSpec, Bytes]:
            fewer = spec._replace(shape=(len(rows) - 1, *spec.shape[1:]))
            return fewer, data[spec.nbytes - fewer.nbytes :]

        of_states = [name for name in tensors if name.startswith("states.")]
        changed = {
            "elsewhere": with_rows(rows + 1000),
            "twice the same": with_rows(np.repeat(rows[:1], len(rows))),
            "without the first": tensors | {name: first_gone(*tensors[name]) for name in of_states},
            "rows alone": {name: tensors[name] for name in tensors if name not in of_states[1:]},
            "none": {name: tensors[name] for name in tensors if name not in of_states},
        }
        put_together(path, tensors, metadata)
        await ctx.load(path)
        for tensors_of_file in changed.values():
            put_together(path, tensors_of_file, metadata)
            with pytest.raises(kv.SnapshotError, match=r"state|rows") as refused:
                await ctx.load(path)
            assert "digest" not in str(refused.value)


@pytest.mark.parametrize("kind", ["mamba2", "qwen3_next"])
async def test_room_is_made_without_forgetting(tiny_exported_folder: FolderFactory, kind: str) -> None:
    """The oldest tokens leave the branch; what stays is fed again."""
    folder = tiny_exported_folder(kind)
    async with kv.Context.open(folder, 200, threads=1, overflow=kv.overflow.DropOldest(keep=4)) as ctx:
        assert not ctx.model_info.forgets
        branch = await ctx.branch(TOKENS[:150])
        await branch.extend(TOKENS[150:230])
        assert branch.tokens[:4] == TOKENS[:4]
        assert branch.tokens[-80:] == TOKENS[150:230]
        assert len(branch) < 200
        got, held = await branch.logits(), list(branch.tokens)
    async with kv.Context.open(folder, 400, threads=1) as ctx:
        assert np.array_equal(got, await (await ctx.branch(held)).logits())


async def test_nothing_in_the_middle_is_forgotten(tiny_exported_folder: FolderFactory) -> None:
    async with kv.Context.open(tiny_exported_folder("mamba2"), 300, threads=1) as ctx:
        branch = await ctx.branch(TOKENS[:100])
        with pytest.raises(kv.InvalidInput, match="states hold all that came before"):
            await branch.forget(10, 20)
        assert len(branch) == 100


def test_inspect_says_what_states_take(tiny_exported_folder: FolderFactory) -> None:
    said = CliRunner().invoke(app, ["inspect", str(tiny_exported_folder("mamba2")), "--no-verify"]).output
    assert "2 with states" in " ".join(said.split())
    assert "for each block of 64 positions" in " ".join(said.split())
