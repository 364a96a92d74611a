"""Branches that are saved and loaded go on as the unsaved ones do, to the bit."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import pytest

import agentkv as kv

from ..conftest import OpenContext, after_forwards

pytestmark = pytest.mark.anyio

PROMPT = "The quick brown fox"
MESSAGES = [{"role": "system", "content": "You are Nano."}, {"role": "user", "content": "Who are you?"}]
WARM = kv.Sampling(temperature=1.0, seed=7)


@asynccontextmanager
async def nano(kv_dtype: str = "fp32", **options: Any) -> AsyncIterator[kv.Context]:
    async with kv.Context.open(kv.models.nano(), capacity=1024, kv_dtype=kv_dtype, threads=1, **options) as ctx:
        yield ctx


async def goes_on(branch: kv.Branch) -> tuple[Any, ...]:
    """Everything that a user could see of how a branch goes on."""
    row = await branch.logits()
    kid = await branch.fork()
    drawn = await kid.generate(max_tokens=12, sampling=WARM)
    grandkid = await kid.fork()
    again = await grandkid.generate(max_tokens=4, sampling=WARM)
    await branch.extend(" and then")
    greedy = await branch.generate(max_tokens=12)
    seen = (row.tobytes(), drawn.tokens, drawn.logprobs, again.tokens, greedy.tokens, greedy.logprobs, branch.tokens)
    await grandkid.close()
    await kid.close()
    return seen


async def in_state(ctx: kv.Context, state: str) -> kv.Branch:
    branch = await ctx.branch(PROMPT)
    if state != "prefilled":
        await branch.generate(max_tokens=9, sampling=WARM)
    if state == "rolled back":
        await branch.rollback(len(branch) - 3)
    if state == "forked":
        for _ in range(2):
            await branch.fork()
    return branch


@pytest.mark.parametrize("kv_dtype", ["fp32", "fp16", "bf16", "int8/int4"])
@pytest.mark.parametrize("state", ["prefilled", "pending", "rolled back", "forked"])
async def test_a_loaded_branch_goes_on_to_the_bit(tmp_path: Path, kv_dtype: str, state: str) -> None:
    path = tmp_path / "branch.agentkv"
    async with nano(kv_dtype) as ctx:
        branch = await in_state(ctx, state)
        tokens = branch.tokens
        saved = await branch.save(path)
        assert saved == kv.Saved(path, path.stat().st_size, len(tokens) - (state in ("pending", "forked")))
        expected = await goes_on(branch)
    async with nano(kv_dtype) as ctx:
        loaded = await ctx.load(path)
        assert (ctx.stats.forwards, ctx.stats.cells_used) == (0, saved.cells)
        assert loaded.tokens == tokens
        assert loaded.loaded == kv.Loaded(path, saved.cells, 0, "")
        assert await goes_on(loaded) == expected
    assert os.listdir(tmp_path) == ["branch.agentkv"]


async def test_a_loaded_branch_lies_beside_others(tmp_path: Path) -> None:
    path = tmp_path / "branch"
    async with nano() as ctx:
        branch = await in_state(ctx, "pending")
        await branch.save(path)
        expected = await goes_on(branch)
    async with nano() as ctx:
        await ctx.branch("Something else")
        between = await ctx.branch("Between")
        await ctx.branch("And more")
        await between.close()
        first, second = await ctx.load(path), await ctx.load(path)
        assert await goes_on(first) == expected
        assert await goes_on(second) == expected


async def test_branches_share_in_the_file_and_afterwards_what_they_shared(tmp_path: Path) -> None:
    path = tmp_path / "family"
    async with nano() as ctx:
        trunk = await ctx.branch(PROMPT * 8)
        kids = await trunk.fork(3)
        for number, kid in enumerate(kids):
            await kid.extend(f" number {number}")
        family = {"trunk": trunk, **{f"kid {n}": kid for n, kid in enumerate(kids)}, "empty": await ctx.branch()}
        used, tokens = ctx.stats.cells_used, {name: branch.tokens for name, branch in family.items()}
        saved = await ctx.save(path, family)
        assert saved.cells == used < sum(map(len, tokens.values()))
        expected = {name: await goes_on(branch) for name, branch in family.items() if tokens[name]}
    async with nano() as ctx:
        loaded = await ctx.load_all(path)
        assert (ctx.stats.cells_used, ctx.stats.forwards) == (used, 0)
        assert {name: branch.tokens for name, branch in loaded.items()} == tokens
        assert list(loaded) == list(family)
        assert ctx.stats.cells_shared == len(tokens["trunk"])
        for name, seen in expected.items():
            assert await goes_on(loaded[name]) == seen
        with pytest.raises(kv.InvalidInput, match=r"holds 5 branches \('trunk', 'kid 0'.*use load_all"):
            await ctx.load(path)


async def test_forks_that_nobody_extended_and_one_branch_by_two_names_come_back(tmp_path: Path) -> None:
    async with nano() as ctx:
        trunk = await ctx.branch(PROMPT)
        twins = await trunk.fork(2)
        await ctx.save(tmp_path / "twins", {"a": twins[0], "b": twins[1], "again": twins[0], "trunk": trunk})
        row = await trunk.logits()
    async with nano() as ctx:
        for branch in (await ctx.load_all(tmp_path / "twins")).values():
            assert branch.tokens == ctx.tokenizer.encode(PROMPT)
            assert (await branch.logits() == row).all()
        assert ctx.stats.forwards == 0


async def test_messages_marks_and_templates_come_back(tmp_path: Path) -> None:
    path = tmp_path / "talk"
    more = [{"role": "user", "content": "Thank you!"}]

    async def talk(branch: kv.Branch) -> tuple[Any, ...]:
        await branch.generate(max_tokens=40)
        await branch.extend(more)
        await branch.generate(max_tokens=40)
        seen = branch.messages, branch.tokens
        await branch.rollback(branch.marks["question"])
        return *seen, branch.messages, branch.tokens

    async with nano() as ctx:
        branch = await ctx.branch(MESSAGES)
        branch.mark("question")
        await branch.generate(max_tokens=40)
        await branch.extend(more, template={"limit": 1e300, "worst": -math.inf})
        gone = branch.mark("gone")
        await branch.rollback(gone.length - 2)
        await branch.extend([{"role": "user", "content": "Good bye \u2028 \x00!"}])
        assert list(branch.marks) == ["question"]
        messages = branch.messages
        await branch.save(path)
        expected = await talk(branch)
    async with nano() as ctx:
        loaded = await ctx.load(path)
        assert loaded.messages == messages
        assert list(loaded.marks) == ["question"]
        assert await talk(loaded) == expected


async def test_an_agent_goes_on_after_a_restart(tmp_path: Path) -> None:
    @kv.tool
    def stock(item: str) -> int:
        "How many of an item are in stock."
        return 12

    agent = kv.Agent("You are Nano, a desk agent.", tools=[stock])
    path = tmp_path / "agent"
    async with nano("fp16") as ctx:
        branch = await (await agent.trunk(ctx)).fork()
        await agent.run(branch, "How many Lumora are in stock?")
        await branch.save(path)
        expected = (await agent.run(branch, "Thank you!")).text, branch.tokens, branch.messages
    async with nano("fp16") as ctx:
        loaded = await ctx.load(path)
        assert ((await agent.run(loaded, "Thank you!")).text, loaded.tokens, loaded.messages) == expected


async def test_an_output_goes_on_under_its_grammar(tmp_path: Path) -> None:
    path = tmp_path / "half"
    source = kv.Regex(r"[a-z]{12}[0-9]{8}")
    async with nano() as ctx:
        branch = await ctx.branch(PROMPT)
        half = await branch.generate(max_tokens=4, output=source)
        assert half.finish_reason == "length"
        await branch.save(path)
        whole = await branch.generate(max_tokens=64, output=source)
    async with nano() as ctx:
        loaded = await ctx.load(path)
        again = await loaded.generate(max_tokens=64, output=kv.Regex(r"[a-z]{12}[0-9]{8}"))
        assert (again.output, again.tokens) == (whole.output, whole.tokens)
        await loaded.save(path)  # once more, now that the output is complete
        third = await ctx.load(path)
        assert (await third.generate(max_tokens=64, output=source)).output != whole.output[:4]


async def test_drafters_find_a_loaded_branch(tmp_path: Path) -> None:
    path = tmp_path / "branch"
    async with nano(speculative=kv.spec.Eagle()) as ctx:
        branch = await ctx.branch(MESSAGES)
        await branch.generate(max_tokens=10)
        await branch.save(path)
        expected = (await branch.generate(max_tokens=30)).tokens
    for strategy in (kv.spec.Eagle(), kv.spec.PromptLookup(), kv.spec.Suffix(adaptive=False), None):
        async with nano(speculative=strategy) as ctx:
            loaded = await ctx.load(path)
            assert (await loaded.generate(max_tokens=30)).tokens == expected


async def test_a_save_takes_one_moment_and_lets_others_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentkv._storage.save.SLICE_BYTES", 4096)  # many slices
    path = tmp_path / "branch"
    async with nano() as ctx:
        branch = await ctx.branch(PROMPT * 20)
        other = await ctx.branch("Others")
        tokens = branch.tokens
        forwards: list[int] = []
        heard: list[tuple[int, int]] = []

        def progress(done: int, of: int) -> None:
            heard.append((done, of))
            forwards.append(len(ctx.steps))

        async def generate() -> None:
            await other.generate(max_tokens=400, output=kv.Regex("[a-z]{900}"))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(generate)
            await after_forwards(ctx, 2)
            tasks.start_soon(branch.extend, " which was not there")
            saved = await branch.save(path, progress=progress)
            tasks.cancel_scope.cancel()
        assert len(heard) > 20
        assert heard == sorted(heard)
        assert heard[-1] == (saved.nbytes, saved.nbytes)
        assert len(set(forwards)) > 3  # forwards ran between the slices
        assert len(branch.tokens) > len(tokens)
        heard.clear()
        loaded = await ctx.load(path, progress=progress)
        assert loaded.tokens[: len(tokens)] == tokens
        assert heard[-1] == (saved.nbytes, saved.nbytes)
        assert await loaded.logits() is not None


async def test_a_generating_branch_is_saved_as_it_is(tmp_path: Path) -> None:
    async with nano() as ctx:
        branch = await ctx.branch(PROMPT)
        async with branch.stream(max_tokens=200, sampling=WARM, keep="made") as stream:
            await anext(stream)
            await branch.save(tmp_path / "branch")
        whole = branch.tokens
        loaded = await ctx.load(tmp_path / "branch")
        assert whole[: len(loaded)] == loaded.tokens
        left = await loaded.generate(max_tokens=len(whole) - len(loaded), sampling=WARM)
        assert loaded.tokens == whole[: len(loaded)]
        assert left.tokens


async def test_a_cancelled_save_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentkv._storage.save.SLICE_BYTES", 4096)
    path = tmp_path / "branch"
    path.write_bytes(b"old")
    async with nano() as ctx:
        branch = await ctx.branch(PROMPT * 20)
        for slices in (1, 3, 9):
            with anyio.CancelScope() as scope:
                calls: list[int] = []

                def progress(done: int, of: int, calls: list[int] = calls, slices: int = slices) -> None:
                    calls.append(done)
                    if len(calls) == slices:
                        scope.cancel()

                await branch.save(path, progress=progress)
            assert scope.cancelled_caught
            assert os.listdir(tmp_path) == ["branch"]
            assert path.read_bytes() == b"old"

        def broken(done: int, of: int) -> None:
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await branch.save(path, progress=broken)
        assert os.listdir(tmp_path) == ["branch"]
        await branch.save(path)
        used = ctx.stats.cells_used
        with pytest.raises(ZeroDivisionError):
            await ctx.load(path, progress=broken)
        await branch.logits()
        assert (ctx.stats.cells_used, len(ctx.branches)) == (used, 1)


async def test_leaving_the_context_ends_a_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentkv._storage.save.SLICE_BYTES", 4096)
    failures: list[BaseException] = []
    begun = anyio.Event()

    async def save(branch: kv.Branch) -> None:
        try:
            await branch.save(tmp_path / "branch", progress=lambda done, of: begun.set())
        except kv.AgentKVError as error:
            failures.append(error)

    async with anyio.create_task_group() as tasks, nano() as ctx:
        tasks.start_soon(save, await ctx.branch(PROMPT * 20))
        await begun.wait()
    assert [type(error) for error in failures] == [kv.ContextClosed]
    assert os.listdir(tmp_path) == []


async def test_keys_and_values_of_dtypes_of_their_own_are_saved_as_such(tmp_path: Path) -> None:
    import safetensors

    path = tmp_path / "branch"
    async with nano("int8/int4") as ctx:
        branch = await ctx.branch(MESSAGES)
        await branch.save(path)
        rows, heads, width = len(branch), ctx.model_info.n_kv_heads, ctx.model_info.head_dim
    with safetensors.safe_open(path, "numpy") as opened:
        assert opened.metadata()["kv_dtype"] == "int8/int4"
        for name, dtype, n in (("k", np.int8, width), ("v", np.uint8, width // 2)):
            codes, scales = (opened.get_tensor(f"cells.layers.0.{name}.{plane}") for plane in ("codes", "scales"))
            assert (codes.dtype, codes.shape) == (dtype, (rows, heads, n))
            assert (scales.dtype, scales.shape) == (np.float32, (rows, heads, 1))
    for other in ("int8", "int4"):
        async with nano(other) as ctx:
            with pytest.raises(kv.SnapshotMismatch, match=rf"kv_dtype is 'int8/int4', and here it is '{other}'"):
                await ctx.load(path)
            assert (await ctx.load(path, recompute=True)).tokens == branch.tokens


async def test_another_model_is_refused_or_fed_again(tmp_path: Path, open_context: OpenContext) -> None:
    path = tmp_path / "branch"
    async with nano("fp32") as ctx:
        trunk = await ctx.branch(MESSAGES)
        kid = await trunk.fork()
        await kid.generate(max_tokens=8, sampling=WARM)
        kid.mark("end")
        await ctx.save(path, {"trunk": trunk, "kid": kid})
    async with nano("fp16") as ctx:
        with pytest.raises(kv.SnapshotMismatch, match=r"kv_dtype is 'fp32', and here it is 'fp16'.*recompute=True"):
            await ctx.load_all(path)
        assert (ctx.branches, ctx.stats.cells_used) == ([], 0)
        same = await ctx.branch(MESSAGES)
        child = await same.fork()
        await child.generate(max_tokens=8, sampling=WARM)
        heard: list[tuple[int, int]] = []
        loaded = await ctx.load_all(path, recompute=True, progress=lambda done, of: heard.append((done, of)))
        assert heard[-1] == (len(trunk) + len(kid),) * 2
        assert loaded["trunk"].messages == same.messages
        assert list(loaded["kid"].marks) == ["end"]
        why = loaded["kid"].loaded
        assert why is not None
        assert (why.reused, why.mismatch) == (0, "its kv_dtype is 'fp32', and here it is 'fp16'")
        assert 0 < why.recomputed < len(loaded["kid"])  # its trunk was there by then
        if loaded["kid"].tokens == child.tokens:
            assert await goes_on(loaded["kid"]) == await goes_on(child)
    async with open_context() as ctx:
        for recompute in (False, True):
            with pytest.raises(kv.SnapshotMismatch, match="another tokenizer"):
                await ctx.load_all(path, recompute=recompute)
        assert ctx.branches == []


async def test_there_may_be_no_room(tmp_path: Path) -> None:
    path = tmp_path / "branch"
    async with nano() as ctx:
        branch = await ctx.branch(PROMPT * 8)
        await branch.save(path)
    async with kv.Context.open(kv.models.nano(), capacity=24, kv_dtype="fp32", threads=1) as ctx:
        small = await ctx.branch("small")
        used = ctx.stats.cells_used
        with pytest.raises(kv.ContextFull, match="of 24 are free"):
            await ctx.load(path)
        await small.logits()
        assert ctx.stats.cells_used == used


async def test_bad_arguments_are_refused_before_anything_is_done(tmp_path: Path) -> None:
    async with nano() as ctx, nano() as elsewhere:
        branch = await ctx.branch(PROMPT)
        closed = await ctx.branch(PROMPT)
        await closed.close()
        for branches in ({}, [branch], None, {"": branch}, {1: branch}, {"a": "b"}, {"a": None}):
            with pytest.raises(kv.InvalidInput):
                await ctx.save(tmp_path / "file", branches)  # type: ignore[arg-type]
        with pytest.raises(kv.BranchClosed):
            await ctx.save(tmp_path / "file", {"a": branch, "b": closed})
        with pytest.raises(kv.ForeignBranch):
            await elsewhere.save(tmp_path / "file", {"a": branch})
        for path in ("", None, 3, "a\0b"):
            with pytest.raises(kv.InvalidInput, match="path"):
                await branch.save(path)  # type: ignore[arg-type]
            with pytest.raises(kv.InvalidInput, match="path"):
                await ctx.load(path)  # type: ignore[arg-type]
        with pytest.raises(kv.InvalidInput, match="recompute"):
            await ctx.load(tmp_path / "file", recompute=1)  # type: ignore[arg-type]
        with pytest.raises(kv.InvalidInput, match="name of a mark"):
            branch.mark("")
        assert os.listdir(tmp_path) == []


async def test_files_that_cannot_be_written_are_errors(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    async with nano() as ctx:
        branch = await ctx.branch(PROMPT)
        for name in ("folder", "pipe", "missing/below", "x" * 300):
            with pytest.raises(kv.SnapshotError, match=r"cannot be written: .*unchanged"):
                await branch.save(tmp_path / name)
        assert sorted(os.listdir(tmp_path)) == ["folder", "pipe"]
        assert await branch.logits() is not None


async def test_no_space_is_an_error_and_leaves_the_old_file(tmp_path: Path) -> None:
    script = f"""
import anyio, os, resource, signal
import agentkv as kv

async def main():
    async with kv.Context.open(kv.models.nano(), capacity=512, threads=1) as ctx:
        branch = await ctx.branch("a b c d e f g h" * 20)
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000))
        try:
            await branch.save({str(tmp_path / "file")!r})
        except kv.SnapshotError as error:
            print(error)

anyio.run(main)
"""
    (tmp_path / "file").write_bytes(b"old")
    done = await anyio.run_process([sys.executable, "-c", script])
    assert b"cannot be written: File too large; what was there is unchanged" in done.stdout
    assert os.listdir(tmp_path) == ["file"]
    assert (tmp_path / "file").read_bytes() == b"old"


async def test_a_file_is_plain_safetensors(tmp_path: Path) -> None:
    import safetensors

    path = tmp_path / "branch"
    async with nano("fp16") as ctx:
        branch = await ctx.branch(MESSAGES)
        await branch.save(path)
        info = ctx.model_info
        tokens = branch.tokens
    with safetensors.safe_open(path, "numpy") as opened:
        metadata = opened.metadata()
        assert (metadata["model"], metadata["kv_dtype"]) == (info.fingerprint, "fp16")
        assert opened.get_tensor("branches.0.tokens").tolist() == tokens
        for layer in range(info.n_layers):
            for name in "kv":
                rows = opened.get_tensor(f"cells.layers.{layer}.{name}")
                assert (rows.shape, rows.dtype) == ((len(tokens), info.n_kv_heads, info.head_dim), np.float16)
                assert np.isfinite(rows).all()
        document = json.loads(opened.get_tensor("document").tobytes())
    assert list(document["branches"]) == ["branch"]


async def test_progress_that_cannot_be_called_is_refused(tmp_path: Path) -> None:
    async with nano() as ctx:
        branch = await ctx.branch("The")
        with pytest.raises(kv.InvalidInput, match="progress is int 5"):
            await branch.save(tmp_path / "saved", progress=5)  # type: ignore[arg-type]
        assert os.listdir(tmp_path) == []
