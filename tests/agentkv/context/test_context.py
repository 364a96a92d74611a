"""The life of a Context: opening, keeping, reusing, counting, leaving."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable
from pathlib import Path

import anyio
import numpy as np
import pytest

import agentkv as kv
from agentkv._context.handle import handle_of

from ..conftest import OpenContext, loop_threads

pytestmark = pytest.mark.anyio


async def test_model_info_and_tokenizer(open_context: OpenContext, folder: Path) -> None:
    async with open_context() as ctx:
        info = ctx.model_info
        assert (info.path, info.vocab_size, info.n_layers, info.n_kv_heads, info.head_dim) == (folder, 384, 2, 2, 16)
        assert ctx.tokenizer.decode(ctx.tokenizer.encode("fox")) == "fox"
        assert ctx.stats.capacity == ctx.stats.cells_free == 2048
        assert ctx.stats.mean_rows == 0


async def test_a_prompt_that_a_live_branch_holds_is_not_computed_again(open_context: OpenContext) -> None:
    async with open_context() as ctx:
        first = await ctx.branch(list(range(10, 60)))
        before = ctx.stats
        second = await ctx.branch([*range(10, 50), 5, 6, 7])
        after = ctx.stats
        assert after.reused - before.reused == 40
        assert after.tokens - before.tokens == 3
        assert after.cells_shared == 40
        same = await ctx.branch(first.tokens)
        assert ctx.stats.reused - after.reused == 49  # its last token is fed, for its logits
        assert same.tokens == first.tokens
        assert second.tokens == [*range(10, 50), 5, 6, 7]


async def test_keep_frees_every_other_branch(open_context: OpenContext) -> None:
    async with open_context() as ctx:
        trunk = await ctx.branch("The quick brown fox")
        used = ctx.stats.cells_used
        kids = await trunk.fork(4)
        await kv.gather(*(kid.generate(max_tokens=4) for kid in kids))
        await ctx.keep(trunk, kids[0])
        assert ctx.branches == [trunk, kids[0]]
        assert [kid.closed for kid in kids] == [False, True, True, True]
        await ctx.keep([trunk])
        assert ctx.branches == [trunk]
        assert (ctx.stats.cells_used, ctx.stats.branches) == (used, 1)
        with pytest.raises(kv.BranchClosed):
            await ctx.keep(kids[0])
        with pytest.raises(kv.InvalidInput):
            await ctx.keep("trunk")  # type: ignore[arg-type]
        with pytest.raises(kv.InvalidInput):
            await ctx.keep(None)  # type: ignore[arg-type]
        await ctx.keep()
        assert (ctx.branches, ctx.stats.cells_used) == ([], 0)


async def test_keep_frees_a_branch_that_is_gone_but_for_what_runs_on_it(open_context: OpenContext) -> None:
    """Its Branch is no more, and a task, a frame or uncollected garbage still holds the right to act on it."""
    async with open_context() as ctx:
        trunk, handle = await ctx.branch("The"), handle_of(await ctx.branch("fox"))
        assert ctx.branches == [trunk]
        await ctx.keep(trunk)
        assert ctx.stats.branches == 1
        with pytest.raises(kv.BranchClosed):
            handle.check_open()


async def test_keep_ends_what_the_others_run(open_context: OpenContext) -> None:
    async with open_context() as ctx:
        trunk, other = await ctx.branch("The"), await ctx.branch("fox")
        ended = []

        async def run() -> None:
            ended.append(await other.generate(max_tokens=1500))

        async with anyio.create_task_group() as group:
            group.start_soon(run)
            await anyio.wait_all_tasks_blocked()
            await ctx.keep(trunk)
        assert ended[0].finish_reason == "cancelled"
        assert len(other) == ended[0].usage.total_tokens


async def test_statistics_count_what_happened(open_context: OpenContext) -> None:
    async with open_context() as ctx:
        trunk = await ctx.branch(list(range(10, 20)))
        assert (ctx.stats.tokens, ctx.stats.prefilled, ctx.stats.generated) == (10, 10, 0)
        assert ctx.stats.rows_per_step == {10: 1}
        info, stats = ctx.model_info, ctx.stats
        assert stats.cells_used <= stats.cells < stats.capacity
        itemsize = {"fp32": 4, "fp16": 2}[info.kv_dtype]
        assert stats.kv_bytes == 2 * info.n_layers * stats.cells * info.n_kv_heads * info.head_dim * itemsize
        assert ctx.stats.forward_seconds > 0
        kids = await trunk.fork(2)
        await kv.gather(*(kid.generate(max_tokens=4, sampling=kv.Sampling(temperature=1, seed=1)) for kid in kids))
        stats = ctx.stats
        assert stats.generated <= 8
        assert stats.tokens == sum(rows * steps for rows, steps in stats.rows_per_step.items())
        assert (stats.drafted, stats.accepted, stats.retries) == (0, 0, 0)
        with pytest.raises(AttributeError):
            stats.steps = 0  # type: ignore[misc]


async def test_leaving_ends_everything(open_context: OpenContext) -> None:
    caught: list[BaseException] = []

    async def run(branch: kv.Branch) -> None:
        try:
            await branch.generate(max_tokens=1900)
        except kv.ContextClosed as error:
            caught.append(error)

    async with anyio.create_task_group() as group, open_context() as ctx:
        assert len(loop_threads()) == 1
        branches = [await ctx.branch("The"), await ctx.branch("fox")]
        for branch in branches:
            group.start_soon(run, branch)
        await anyio.wait_all_tasks_blocked()
    assert len(caught) == 2
    assert loop_threads() == []
    assert all(branch.closed for branch in branches)
    await branches[0].close()
    for verb in (branches[0].logits, ctx.branch, ctx.keep, lambda: ctx.branch("x")):
        with pytest.raises(kv.ContextClosed):
            await verb()
    assert ctx.stats.capacity == 2048


async def test_logs_are_silent_until_asked_for(
    open_context: OpenContext, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    async with open_context():
        capfd.readouterr()
    assert capfd.readouterr() == ("", "")
    caplog.set_level(logging.DEBUG, "agentkv")
    async with open_context():
        assert "context opened" in caplog.text
    assert "context closed" in caplog.text


async def test_an_error_inside_the_block_goes_out_as_it_is(open_context: OpenContext) -> None:
    async def fail() -> None:
        async with open_context() as ctx:
            await ctx.branch("The")
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        await fail()
    assert loop_threads() == []


async def test_opening_can_be_cancelled(open_context: OpenContext) -> None:
    with anyio.move_on_after(0) as scope:
        async with open_context() as ctx:
            await ctx.branch("The")
            pytest.fail("went on")
    assert scope.cancelled_caught
    assert loop_threads() == []


async def test_branches_of_two_contexts_do_not_mix(open_context: OpenContext) -> None:
    async with open_context() as one, open_context() as two:
        assert len(loop_threads()) == 2
        a, b = await one.branch("The"), await two.branch("The")
        with pytest.raises(kv.ForeignBranch, match="another Context"):
            await a.adopt(b)
        with pytest.raises(kv.ForeignBranch):
            await one.keep(b)
        with pytest.raises(kv.InvalidRollback, match="does not belong"):
            await a.rollback(b.mark())
        gens = await kv.gather(a.generate(max_tokens=5), b.generate(max_tokens=5))
        assert gens[0] == gens[1]


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"capacity": 0}, "capacity"),
        ({"capacity": "8k"}, "capacity"),
        ({"kv_dtype": "fp8"}, "kv_dtype"),
        ({"kv_dtype": "int4/int8"}, "kv_dtype.*int8/int4"),
        ({"kv_dtype": "fp16/int8"}, "kv_dtype.*int8/int4"),
        ({"max_batch_tokens": 0}, "max_batch_tokens"),
        ({"threads": 0}, "threads"),
        ({"threads": True}, "threads"),
        ({"speculative": object()}, "speculative"),
        ({"backend": "gpu"}, "backend.*on a GPU: backend='mlx', or backend='torch' with device='cuda'"),
        ({"backend": "cpu", "device": "cuda"}, "backend 'cpu' takes none; leave device out"),
        ({"device": "cuda"}, "was exported for backend 'cpu', which takes none"),
        ({"device": 3}, "device"),
        ({"device": ""}, "device"),
    ],
)
async def test_options_out_of_range_are_refused_by_name(folder: Path, options: dict, name: str) -> None:
    with pytest.raises(kv.InvalidInput, match=name):
        async with kv.Context.open(folder, **options):
            pytest.fail("opened")


async def test_what_is_no_model_is_refused_and_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "empty").mkdir()
    for path in (tmp_path / "absent", tmp_path / "file", tmp_path / "empty"):
        for backend in (None, "torch", "cpu"):
            with pytest.raises(kv.ModelError, match=path.name):
                async with kv.Context.open(path, backend=backend):
                    pytest.fail("opened")
    with pytest.raises(kv.InvalidInput, match="model"):
        async with kv.Context.open(3):  # type: ignore[arg-type]
            pytest.fail("opened")
    for path in ("~nobody-there/x", "a\0b", "\ud800", "", 5, None):
        with pytest.raises(kv.InvalidInput, match="model"):
            async with kv.Context.open(path):  # type: ignore[arg-type]
                pytest.fail("opened")
    assert loop_threads() == []


@pytest.mark.parametrize(
    "change",
    [
        {"decoder": {"type": "CTC", "pad_token": "<pad>", "word_delimiter_token": "|", "cleanup": True}},
        {"model": {"type": "WordLevel", "vocab": {"a": 0, "b": 2**31}, "unk_token": "a"}},
    ],
    ids=["ctc", "far-apart"],
)
async def test_tokenizers_that_cannot_be_used_are_a_model_error(folder: Path, tmp_path: Path, change: dict) -> None:
    model = shutil.copytree(folder, tmp_path / "model")
    description = json.loads((model / "tokenizer.json").read_text())
    (model / "tokenizer.json").write_text(json.dumps({**description, **change}))
    with pytest.raises(kv.ModelError):
        async with kv.Context.open(model):
            pytest.fail("opened")
    assert loop_threads() == []


async def test_a_hugging_face_folder_runs_on_torch(
    folder: Path, open_context: OpenContext, tiny_hf_folder: Callable[..., Path]
) -> None:
    async with kv.Context.open(
        tiny_hf_folder("llama"), capacity=256, kv_dtype="fp32", backend="torch", threads=1
    ) as ctx:
        assert (ctx.model_info.backend, ctx.model_info.fingerprint) == ("torch", "")
        trunk = await ctx.branch("The quick brown fox")
        kids = await trunk.fork(2)
        outs = await kv.gather(*(kid.generate(max_tokens=8) for kid in kids))
        row = await kids[0].logits()
    async with open_context() as ctx:
        branch = await ctx.branch("The quick brown fox")
        gen = await branch.generate(max_tokens=8)
        assert gen.tokens == outs[0].tokens == outs[1].tokens
        np.testing.assert_allclose(await branch.logits(), row, atol=1e-3)


@pytest.mark.usefixtures("forwards_wait")
async def test_steps_show_what_was_merged(open_context: OpenContext) -> None:
    async with open_context() as ctx:
        trunk = await ctx.branch("The quick brown fox")
        kids = await trunk.fork(3)
        await kv.gather(*(kid.generate(max_tokens=4) for kid in kids))
        steps = ctx.steps
        assert sum(step.forwards for step in steps) == ctx.stats.forwards
        assert sum(step.decode_rows + step.prefill_rows for step in steps) == ctx.stats.tokens
        assert steps[0].prefill_rows == len(trunk)
        assert max(step.decode_rows for step in steps) == 3
