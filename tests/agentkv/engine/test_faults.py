"""What is refused, with which error, and that nothing changed."""

from __future__ import annotations

from typing import Any

import anyio
import numpy as np
import pytest

import agentkv as kv
from tests.faults import fail_at

from ..conftest import OpenContext

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("failing_caches")]


@pytest.mark.parametrize(
    "prompt",
    [
        "",
        b"",
        [],
        np.array([], np.int64),
        b"caf\xe9",
        "lone \ud800 surrogate",
        [-1],
        [1, 384],
        [1.5],
        ["a"],
        [[1, 2]],
        [[1], [2, 3]],
        [None],
        [2**70],
        [True],
        7,
        object(),
        {"role": "user"},
        [{"content": "no role"}],
        [{"role": "user", "content": "x"}, 3],
        np.array([[1, 2]]),
        np.array([1.0]),
    ],
    ids=lambda p: repr(p)[:24].split(" at ")[0],
)
async def test_what_is_no_prompt_is_refused(open_context: OpenContext, prompt: Any) -> None:
    async with open_context() as ctx:
        with pytest.raises(kv.InvalidInput):
            await ctx.branch(prompt)
        assert (ctx.branches, ctx.stats.branches) == ([], 0)
        branch = await ctx.branch("The")
        with pytest.raises(kv.InvalidInput):
            await branch.extend(prompt)
        assert branch.text == "The"


async def test_bytes_are_text_in_utf8(open_context: OpenContext) -> None:
    async with open_context() as ctx:
        assert (await ctx.branch("café".encode())).text == "café"
        with pytest.raises(kv.InvalidInput, match="0xe9 at offset 3"):
            await ctx.branch(b"caf\xe9")


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"max_tokens": 2**40}, "max_tokens"),
        ({"stop": ""}, "stop"),
        ({"stop": ["x", ""]}, "stop"),
        ({"stop": 3}, "stop"),
        ({"stop": [3]}, "stop"),
        ({"sampling": {"temperature": 1}}, "sampling"),
        ({"speculative": "prompt lookup"}, "speculative"),
    ],
)
async def test_arguments_of_generate_are_checked(open_context: OpenContext, arguments: dict, name: str) -> None:
    async with open_context() as ctx:
        branch = await ctx.branch("The")
        with pytest.raises(kv.InvalidInput, match=name):
            await branch.generate(**arguments)
        with pytest.raises(kv.InvalidInput, match=name):
            branch.stream(**arguments)
        assert branch.text == "The"
        assert (await branch.generate(max_tokens=2, speculative=None)).tokens


async def test_other_arguments_are_checked(open_context: OpenContext) -> None:
    async with open_context() as ctx:
        branch = await ctx.branch("The")
        for n in (0, -1, 1.5, "2", True):
            with pytest.raises(kv.InvalidInput):
                await branch.fork(n)  # type: ignore[call-overload]
        for length in (-1, 2**40, 1.0, "1", None, True):
            with pytest.raises(kv.InvalidInput):
                await branch.rollback(length)  # type: ignore[arg-type]
        with pytest.raises(kv.InvalidRollback, match="it has 1"):
            await branch.rollback(2)
        for choices in ([], "yes", [""], [3], None, 3):
            with pytest.raises(kv.InvalidInput):
                await branch.select(choices)  # type: ignore[arg-type]
        with pytest.raises(kv.InvalidInput):
            await branch.adopt("branch")  # type: ignore[arg-type]
        assert branch.text == "The"


async def test_an_empty_branch_has_no_next_token(open_context: OpenContext) -> None:
    async with open_context() as ctx:
        branch = await ctx.branch()
        for verb in (branch.logits, branch.generate, lambda: branch.select(["a"])):
            with pytest.raises(kv.InvalidInput, match="no tokens"):
                await verb()


async def test_a_full_context_refuses_and_keeps_what_was(open_context: OpenContext) -> None:
    async with open_context(capacity=32) as ctx:
        branch = await ctx.branch(list(range(10, 30)))
        with pytest.raises(kv.ContextFull, match="12 of 32"):
            await branch.extend(list(range(13)))
        with pytest.raises(kv.ContextFull):
            await ctx.branch(list(range(100, 113)))
        with pytest.raises(kv.ContextFull):
            await branch.select(["The quick brown fox jumps over the lazy dog"])
        assert len(branch) == 20
        assert (ctx.stats.cells_used, ctx.stats.branches) == (20, 1)
        await branch.extend(list(range(12)))
        assert (await branch.logits()).shape == (384,)


async def test_one_prompt_too_many_fails_alone(open_context: OpenContext) -> None:
    async with open_context(capacity=64, max_batch_tokens=16) as ctx:
        outcomes: list[Any] = [None] * 3

        async def begin(index: int) -> None:
            try:
                outcomes[index] = await ctx.branch([50 + index] * 30)
            except kv.ContextFull as error:
                outcomes[index] = error

        async with anyio.create_task_group() as group:
            for index in range(3):
                group.start_soon(begin, index)
        made = [outcome for outcome in outcomes if isinstance(outcome, kv.Branch)]
        assert len(made) == 2
        assert ctx.stats.cells_used == 60
        assert ctx.stats.branches == 2


async def test_the_257th_branch_is_refused(open_context: OpenContext) -> None:
    async with open_context() as ctx:
        trunk = await ctx.branch("The")
        kids = await trunk.fork(200)
        with pytest.raises(kv.TooManyBranches):
            await trunk.fork(56)
        assert len(ctx.branches) == ctx.stats.branches == 201
        kids += await trunk.fork(55)
        assert ctx.stats.branches == 256
        with pytest.raises(kv.TooManyBranches, match="256"):
            await trunk.fork()
        with pytest.raises(kv.TooManyBranches):
            await ctx.branch("fox")
        with pytest.raises(kv.TooManyBranches):
            await ctx.branch()
        await kids.pop().close()
        kids.append(await trunk.fork())
        outs = await kv.gather(*(kid.generate(max_tokens=2) for kid in kids))
        assert len({tuple(out.tokens) for out in outs}) == 1


async def test_a_fork_that_is_too_wide_says_how_many_are_live(open_context: OpenContext) -> None:
    async with open_context() as ctx:
        trunk = await ctx.branch("The")
        kid = await trunk.fork()
        with pytest.raises(kv.TooManyBranches, match="300 more branches were asked for, but 2 of at most 256 are live"):
            await trunk.fork(300)
        with pytest.raises(kv.TooManyBranches):
            await trunk.fork(2**31 - 1)
        assert ctx.branches == [trunk, kid]


async def test_dropped_branches_make_room_at_once(open_context: OpenContext) -> None:
    async with open_context() as ctx:
        trunk = await ctx.branch("The")
        kids: list[kv.Branch] = []
        for _ in range(60):
            kids = []
            kids = await trunk.fork(200)
        assert len(kids) == 200


async def fail_forward(ctx: kv.Context, after: int = 0) -> None:
    """Has the forward after the next `after` ones fail at its last layer, once."""
    await fail_at(ctx, ctx.model_info.n_layers - 1, after)


async def test_a_forward_that_fails_ends_its_own_verb(open_context: OpenContext) -> None:
    async with open_context() as ctx:
        branch = await ctx.branch("The")
        before = branch.tokens
        await fail_forward(ctx)
        with pytest.raises(kv.StepFailed, match="layer 1"):
            await branch.extend(" fox")
        assert branch.tokens == before
        assert ctx.stats.cells_used == len(before)
        gen = await branch.generate(max_tokens=4)
        await fail_forward(ctx, after=2)
        with pytest.raises(kv.StepFailed):
            await branch.generate(max_tokens=200)
        kept = branch.tokens
        assert kept[: len(before) + 4] == before + gen.tokens
        assert len(kept) == len(before) + 4 + 2
        await branch.generate(max_tokens=4)
        assert branch.tokens[: len(kept)] == kept


async def test_a_merged_forward_that_fails_is_retried_one_by_one(open_context: OpenContext) -> None:
    async with open_context() as ctx:
        trunk = await ctx.branch("The")
        kids = await trunk.fork(3)
        await fail_forward(ctx, after=1)
        outs = await kv.gather(*(kid.generate(max_tokens=6) for kid in kids))
        assert outs[0] == outs[1] == outs[2]
        assert ctx.stats.retries == (3 if ctx.model_info.holds_cells else 0)  # a server's own are its own affair
