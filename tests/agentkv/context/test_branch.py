"""Every verb of a branch, on a real model."""

from __future__ import annotations

import anyio
import numpy as np
import pytest

import agentkv as kv
from tests.waiting import PATIENCE

from ..conftest import OpenContext

pytestmark = pytest.mark.anyio

PROMPT = "The quick brown fox"


async def test_a_branch_holds_its_tokens(open_context: OpenContext) -> None:
    async with open_context() as ctx:
        trunk = await ctx.branch(PROMPT)
        ids = ctx.tokenizer.encode(PROMPT)
        assert trunk.tokens == ids
        assert len(trunk) == len(ids)
        assert trunk.text == PROMPT
        assert (trunk.parent, trunk.closed, trunk.context) == (None, False, ctx)
        await trunk.extend(" jumps")
        await trunk.extend([5, 6])
        await trunk.extend(np.array([7, 8], np.int64))
        assert trunk.tokens == [*ids, *ctx.tokenizer.encode(" jumps"), 5, 6, 7, 8]
        assert ctx.stats.cells_used == len(trunk)


async def test_an_empty_branch_can_be_filled(open_context: OpenContext) -> None:
    async with open_context() as ctx:
        empty = await ctx.branch()
        assert (len(empty), empty.tokens, empty.text) == (0, [], "")
        assert empty
        assert (await empty.fork()).tokens == []
        await empty.extend(PROMPT)
        full = await ctx.branch(PROMPT)
        assert empty.tokens == full.tokens
        np.testing.assert_array_equal(await empty.logits(), await full.logits())


async def test_generation_enters_the_history(open_context: OpenContext) -> None:
    async with open_context() as ctx:
        trunk = await ctx.branch(PROMPT)
        before = trunk.tokens
        gen = await trunk.generate(max_tokens=12)
        assert trunk.tokens == before + gen.tokens
        assert len(gen.tokens) == len(gen.logprobs) == gen.usage.completion_tokens == 12
        assert gen.finish_reason == "length"
        assert gen.usage.prompt_tokens == len(before)
        assert gen.usage.total_tokens == len(trunk)
        assert all(logprob <= 0 for logprob in gen.logprobs)
        assert gen.seed is None
        assert str(gen) == gen.text == ctx.tokenizer.decode(gen.tokens)
        # Greedy is the argmax of the logits, one by one.
        check = await ctx.branch(before)
        for token, logprob in zip(gen.tokens, gen.logprobs, strict=True):
            row = (await check.logits()).astype(np.float64)
            assert token == int(row.argmax())
            assert logprob == pytest.approx(row[token] - np.log(np.exp(row).sum()), abs=1e-3)
            await check.extend([token])


async def test_marks_and_rollback(open_context: OpenContext) -> None:
    async with open_context() as ctx:
        trunk = await ctx.branch(PROMPT)
        row = await trunk.logits()
        mark = trunk.mark()
        gen = await trunk.generate(max_tokens=8)
        await trunk.rollback(mark)
        assert trunk.tokens == ctx.tokenizer.encode(PROMPT)
        np.testing.assert_array_equal(await trunk.logits(), row)
        assert (await trunk.generate(max_tokens=8)).tokens == gen.tokens
        await trunk.rollback(mark)  # a mark holds as long as its history does
        await trunk.rollback(2)
        assert len(trunk) == 2
        await trunk.rollback(0)
        assert trunk.tokens == []


async def test_a_mark_of_rewritten_history_is_refused(open_context: OpenContext) -> None:
    async with open_context() as ctx:
        trunk = await ctx.branch(list(range(10, 20)))
        mark = trunk.mark()
        await trunk.rollback(5)
        with pytest.raises(kv.InvalidRollback, match="rewritten"):
            await trunk.rollback(mark)
        await trunk.extend(list(range(30, 40)))
        with pytest.raises(kv.InvalidRollback, match="rewritten"):
            await trunk.rollback(mark)
        assert len(trunk) == 15
        other = await trunk.fork()
        with pytest.raises(kv.InvalidRollback, match="does not belong"):
            await other.rollback(trunk.mark())


async def test_forks_share_cells_and_go_their_own_way(open_context: OpenContext) -> None:
    async with open_context() as ctx:
        trunk = await ctx.branch(PROMPT)
        used = ctx.stats.cells_used
        kids = await trunk.fork(3)
        assert ctx.stats.cells_used == ctx.stats.cells_shared == used
        assert [kid.parent for kid in kids] == [trunk] * 3
        assert [len(await trunk.fork(1)), (await trunk.fork()).tokens] == [1, trunk.tokens]
        for i, kid in enumerate(kids):
            await kid.extend([40 + i])
            assert kid.tokens == [*trunk.tokens, 40 + i]
        assert ctx.stats.cells_used == used + 3
        assert trunk.text == PROMPT


async def test_a_fork_after_a_generation_has_the_token_that_is_not_in_the_cache_yet(open_context: OpenContext) -> None:
    async with open_context() as ctx:
        trunk = await ctx.branch(PROMPT)
        await trunk.generate(max_tokens=5)
        child = await trunk.fork()
        assert child.tokens == trunk.tokens
        fresh = await ctx.branch(trunk.tokens)
        expected = await fresh.logits()
        np.testing.assert_array_equal(await child.logits(), expected)
        np.testing.assert_array_equal(await trunk.logits(), expected)


async def test_adopt(open_context: OpenContext) -> None:
    async with open_context() as ctx:
        trunk = await ctx.branch(PROMPT)
        shared = trunk.mark()
        child = await trunk.fork()
        await trunk.extend(" sleeps")
        beyond = trunk.mark()
        gen = await child.generate(max_tokens=6)
        await trunk.adopt(child)
        assert trunk.tokens == child.tokens == ctx.tokenizer.encode(PROMPT) + gen.tokens
        np.testing.assert_array_equal(await trunk.logits(), await child.logits())
        with pytest.raises(kv.InvalidRollback, match="rewritten"):
            await trunk.rollback(beyond)
        await trunk.rollback(shared)
        assert trunk.text == PROMPT
        assert len(child) > len(trunk)
        await trunk.adopt(trunk)
        assert trunk.text == PROMPT


@pytest.mark.usefixtures("forwards_wait")
async def test_select_scores_every_choice_and_changes_nothing(open_context: OpenContext) -> None:
    async with open_context() as ctx:
        trunk = await ctx.branch(PROMPT)
        choices = [" jumps over", " sleeps", "\n"]
        forwards = ctx.stats.forwards
        pick = await trunk.select(choices)
        assert ctx.stats.forwards == forwards + 1
        assert isinstance(pick, str)
        assert pick == pick.text == choices[pick.index]
        assert type(pick.text) is str
        assert pick.logprob == max(pick.logprobs) == pick.logprobs[pick.index]
        assert trunk.text == PROMPT
        for choice, score in zip(choices, pick.logprobs, strict=True):
            child = await trunk.fork()
            expected = 0.0
            for token in ctx.tokenizer.encode(choice):
                row = (await child.logits()).astype(np.float64)
                expected += row[token] - np.log(np.exp(row).sum())
                await child.extend([token])
            assert score == pytest.approx(expected, abs=1e-3)


async def test_logits_are_the_callers_own(open_context: OpenContext) -> None:
    async with open_context() as ctx:
        trunk = await ctx.branch(PROMPT)
        row = await trunk.logits()
        assert (row.shape, row.dtype) == ((ctx.model_info.vocab_size,), np.float32)
        kept = row.copy()
        row[:] = 0
        np.testing.assert_array_equal(await trunk.logits(), kept)


async def test_closing(open_context: OpenContext) -> None:
    async with open_context() as ctx:
        async with await ctx.branch(PROMPT) as trunk:
            child = await trunk.fork()
        assert trunk.closed
        trunk.close()
        await trunk.close()
        await child.close()
        assert (ctx.branches, ctx.stats.cells_used, ctx.stats.branches) == ([], 0, 0)
        assert trunk.tokens  # what it was can still be read
        for verb in (trunk.logits, trunk.fork, trunk.generate, lambda: trunk.extend("x"), lambda: trunk.rollback(0)):
            with pytest.raises(kv.BranchClosed, match=f"branch {trunk.id} is closed"):
                await verb()
        with pytest.raises(kv.BranchClosed):
            trunk.mark()
        with pytest.raises(kv.BranchClosed):
            async with trunk:
                pass
        other = await ctx.branch("x")
        with pytest.raises(kv.BranchClosed):
            await other.adopt(trunk)


async def test_a_branch_that_nobody_holds_is_freed(open_context: OpenContext) -> None:
    async with open_context() as ctx:
        trunk = await ctx.branch(PROMPT)
        await trunk.fork(5)
        child = await trunk.fork()
        del trunk
        for _ in range(2):
            await ctx._core.loop.call(lambda _: None)  # the thread lets go of what it posted with the next post
        assert child.parent is None
        assert [branch.id for branch in ctx.branches] == [child.id]
        await child.logits()
        assert ctx.stats.branches == 1


async def test_a_branch_does_one_thing_at_a_time(open_context: OpenContext) -> None:
    async with open_context() as ctx:
        trunk = await ctx.branch(PROMPT)
        async with trunk.stream(max_tokens=500, buffer=1):
            for verb in (
                lambda: trunk.extend("x"),
                lambda: trunk.generate(),
                lambda: trunk.rollback(1),
                lambda: trunk.logits(),
                lambda: trunk.select(["a"]),
            ):
                with pytest.raises(kv.BranchBusy):
                    await verb()
            with anyio.fail_after(PATIENCE):
                while len(child := await trunk.fork()) == len(trunk):  # a server's first token takes a while
                    await child.close()
            assert child.tokens[: len(trunk)] == trunk.tokens  # and what was made so far
            await child.logits()
        await trunk.logits()


async def test_chat_messages_go_on_from_what_a_branch_holds(open_context: OpenContext) -> None:
    system, first, second = (
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hello?"},
        {"role": "user", "content": "And then?"},
    )
    async with open_context() as ctx:
        trunk = await ctx.branch([system])
        await trunk.extend([first])
        assert trunk.tokens == ctx.tokenizer.apply_chat([system, first])
        reply = ctx.tokenizer.encode("Hi.")
        after = ctx.tokenizer.apply_chat([system, first, {"role": "assistant", "content": "Hi."}, second])
        end = ctx.tokenizer.encode("<|im_end|>")
        for ending in ([], end):  # cut short, or with its end token
            child = await trunk.fork()
            await child.extend([*reply, *ending])
            await child.extend([second])
            assert child.tokens == after


async def test_tools_reach_the_chat_template(open_context: OpenContext) -> None:
    async with open_context() as ctx:
        with pytest.raises(kv.InvalidInput, match="messages"):
            await ctx.branch("text", tools=[{"name": "search"}])
        message = {"role": "user", "content": "Hello?"}
        branch = await ctx.branch([message], tools=[{"name": "search"}])
        assert branch.tokens == ctx.tokenizer.apply_chat([message], [{"name": "search"}])
