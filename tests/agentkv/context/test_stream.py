"""Streams: the same tokens as generate, bounded, and stopped by leaving."""

from __future__ import annotations

import gc
from typing import Any

import pytest

import agentkv as kv
from agentkv._types.results import joined
from tests.waiting import until

from ..conftest import OpenContext

pytestmark = pytest.mark.anyio

HOT = kv.Sampling(temperature=1.5, seed=3)


async def test_a_stream_is_the_generation_in_pieces(open_context: OpenContext) -> None:
    async with open_context() as ctx:
        trunk = await ctx.branch("The quick brown fox")
        one, two = await trunk.fork(), await ctx.branch("The quick brown fox")
        del one
        mark = two.mark()
        gen = await two.generate(max_tokens=60, sampling=HOT)
        await two.rollback(mark)
        async with two.stream(max_tokens=60, sampling=HOT) as stream:
            tokens = [token async for token in stream]
        assert stream.generation == gen
        assert [token.id for token in tokens] == gen.tokens
        assert [token.logprob for token in tokens] == gen.logprobs
        assert [token.index for token in tokens] == list(range(len(tokens)))
        assert "".join(token.text for token in tokens) == "".join(map(str, tokens)) == gen.text
        assert two.tokens[-len(gen.tokens) :] == gen.tokens


async def test_text_that_may_begin_a_stop_string_is_held_back(open_context: OpenContext) -> None:
    async with open_context() as ctx:
        trunk = await ctx.branch("The quick brown fox")
        mark = trunk.mark()
        free = await trunk.generate(max_tokens=40, sampling=HOT)
        for stop in (free.text[20:23], free.text[20:22] + "never so", free.text[-1] + "never so"):
            await trunk.rollback(mark)
            async with trunk.stream(max_tokens=40, sampling=HOT, stop=stop) as stream:
                text = "".join([token.text async for token in stream])
            expected = free.text[: free.text.index(stop)] if stop in free.text else free.text
            assert text == stream.generation.text == expected


async def test_leaving_the_block_stops_the_generation(open_context: OpenContext) -> None:
    async with open_context() as ctx:
        trunk = await ctx.branch("The quick brown fox")
        before = len(trunk)
        seen = []
        async with trunk.stream(max_tokens=1000, buffer=4) as stream:
            with pytest.raises(kv.AgentKVError, match="still runs"):
                _ = stream.generation
            async for token in stream:
                seen.append(token.id)
                if len(seen) == 3:
                    break
        gen = stream.generation
        assert gen.finish_reason == "cancelled"
        assert gen.tokens == seen
        assert len(trunk) == before + 3
        assert await trunk.logits() is not None
        used = ctx.stats.tokens
        for _ in range(20):
            await ctx._core.loop.call(lambda _: None)  # a step each, where anything still runs
        assert ctx.stats.tokens == used


async def test_a_slow_reader_pauses_its_own_branch_only(open_context: OpenContext) -> None:
    async with open_context() as ctx:
        trunk = await ctx.branch("The quick brown fox")
        slow, fast = await trunk.fork(2)
        async with slow.stream(max_tokens=100, buffer=4) as stream:
            gen = await fast.generate(max_tokens=100)
            assert len(gen.tokens) > 10
            ahead = (await slow.fork()).tokens[len(slow) :]
            assert len(ahead) == 4
            tokens = [token.id async for token in stream]
        assert tokens[:4] == ahead
        assert tokens == gen.tokens == stream.generation.tokens


async def test_every_buffer_size_delivers_everything(open_context: OpenContext) -> None:
    async with open_context() as ctx:
        trunk = await ctx.branch("The quick brown fox")
        kids = await trunk.fork(4)
        expected = (await trunk.generate(max_tokens=40)).tokens

        async def read(kid: kv.Branch, buffer: int) -> list[int]:
            async with kid.stream(max_tokens=40, buffer=buffer) as stream:
                return [token.id async for token in stream]

        assert await kv.gather(*(read(kid, 1 + i) for i, kid in enumerate(kids))) == [expected] * 4


async def test_batches_are_all_that_is_there(open_context: OpenContext) -> None:
    async with open_context() as ctx:
        trunk = await ctx.branch("The quick brown fox")
        kids = await trunk.fork(3)
        expected = (await trunk.generate(max_tokens=40)).tokens

        async def read(kid: kv.Branch, buffer: int) -> list[int]:
            async with kid.stream(max_tokens=40, buffer=buffer) as stream:
                batches = []
                while batch := await stream.batch():
                    assert len(batch) <= buffer
                    batches.append([token.id for token in batch])
                assert stream.generation.tokens == expected
                assert await stream.batch() == []  # and none after that
            return [token for batch in batches for token in batch]

        assert await kv.gather(*(read(kid, 1 + 8 * i) for i, kid in enumerate(kids))) == [expected] * 3
        async with trunk.stream(max_tokens=40, buffer=1) as stream:  # ahead of its reader it might be over
            with pytest.raises(kv.AgentKVError, match="still runs"):
                _ = stream.generation
            read_so_far = await stream.batch()
        assert stream.generation.tokens == [token.id for token in read_so_far]


async def test_a_stream_that_cannot_begin_says_so_where_it_is_entered(open_context: OpenContext) -> None:
    async with open_context() as ctx:
        trunk = await ctx.branch("The")
        async with trunk.stream(max_tokens=100, buffer=1):
            with pytest.raises(kv.BranchBusy):
                async with trunk.stream():
                    pytest.fail("entered")
        stream = trunk.stream(max_tokens=2)
        with pytest.raises(kv.AgentKVError, match="async with"):
            await anext(stream)
        async with stream:
            pass
        with pytest.raises(kv.AgentKVError, match="again"):
            await stream.__aenter__()
        with pytest.raises(kv.InvalidInput):
            trunk.stream(buffer=0)


async def test_closing_the_branch_ends_its_stream(open_context: OpenContext) -> None:
    async with open_context() as ctx:
        trunk = await ctx.branch("The quick brown fox")
        async with trunk.stream(max_tokens=1000, buffer=2) as stream:
            await trunk.close()
            texts = [token.text async for token in stream]
        assert stream.generation.finish_reason == "cancelled"
        assert "".join(texts) == stream.generation.text
        assert ctx.stats.cells_used == 0


@pytest.mark.parametrize("buffer", [None, 0, -1, True, 2.5, "4", 2**31])
async def test_a_buffer_is_a_number_of_tokens(open_context: OpenContext, buffer: Any) -> None:
    async with open_context() as ctx:
        with pytest.raises(kv.InvalidInput, match="buffer"):
            (await ctx.branch("The")).stream(buffer=buffer)


async def test_a_stream_keeps_its_branch(open_context: OpenContext) -> None:
    async with open_context() as ctx:
        async with (await ctx.branch("The quick")).stream(max_tokens=5) as stream:
            gc.collect()
            shown = [token async for token in stream]
        assert [token.id for token in shown if token.id >= 0] == stream.generation.tokens
        assert stream.generation.finish_reason != "cancelled"
        del stream
        gc.collect()
        await ctx.keep()
        assert ctx.stats.branches == 0


@pytest.mark.parametrize("keep", ["read", "made"])
async def test_a_stream_that_is_ended_hands_out_what_was_made(open_context: OpenContext, keep: Any) -> None:
    async with open_context() as ctx:
        branch = await ctx.branch("The quick brown fox")
        length = len(branch)
        async with branch.stream(max_tokens=2000, sampling=HOT, keep=keep) as stream:
            read = [await stream.__anext__()]
            stream.end()
            stream.end()
            read += [token async for token in stream]
            assert stream.was_ended
        assert branch.tokens[length:] == [token.id for token in read] == stream.generation.tokens
        assert stream.generation.finish_reason == "cancelled"
        assert stream.first(10**6).tokens == stream.generation.tokens
        assert stream.first(1).tokens == stream.generation.tokens[:1]


async def test_parts_of_a_generation_are_joined(open_context: OpenContext) -> None:
    async with open_context() as ctx:
        branch = await ctx.branch("The quick brown fox")
        greedy = await (await branch.fork()).generate(max_tokens=12)
        parts = [await branch.generate(max_tokens=4) for _ in range(3)]
        whole = joined(parts)
        assert joined(parts[:1]) is parts[0]
        assert (whole.text, whole.tokens, whole.logprobs) == (greedy.text, greedy.tokens, greedy.logprobs)
        assert (whole.usage, whole.finish_reason) == (greedy.usage, greedy.finish_reason)


async def test_one_that_is_refused_leaves_its_branch_idle(open_context: OpenContext) -> None:
    async with open_context() as ctx:
        branch = await ctx.branch("The")
        async with branch.stream(max_tokens=100, buffer=1):
            with pytest.raises(kv.BranchBusy):
                await branch.stream(max_tokens=3).__aenter__()
        assert not branch._handle.state.is_running


async def test_two_tasks_enter_one_stream(open_context: OpenContext) -> None:
    """The second while the first waits for the cells to come back."""
    async with open_context() as ctx:
        branch = await ctx.branch("The")
        await branch.offload()
        stream, refused = branch.stream(max_tokens=5), list[str]()

        async def read() -> list[int]:
            try:
                async with stream as tokens:
                    return [token.id async for token in tokens]
            except kv.AgentKVError as error:
                refused.append(str(error))
                return []

        first, second = await kv.gather(read(), read())
        assert (len(first) == 5) != (len(second) == 5)
        assert "was entered before" in refused[0]
        await branch.extend([5])


async def test_one_that_is_ended_before_it_begins(open_context: OpenContext) -> None:
    async with open_context() as ctx:
        branch = await ctx.branch("The")
        stream = branch.stream(max_tokens=500)
        with pytest.raises(kv.AgentKVError, match="has not begun"):
            _ = stream.generation
        stream.end()
        async with stream as tokens:
            assert len([token async for token in tokens]) < 500
        assert stream.generation.finish_reason == "cancelled"


async def test_what_was_read_is_the_generation_however_often_it_is_ended() -> None:
    async with kv.testing.replies(["It is three of them."], threads=1) as ctx:
        branch = await ctx.branch([{"role": "user", "content": "How many?"}])
        before = len(branch)
        async with branch.stream(max_tokens=40, buffer=64) as stream:
            for _ in range(3):
                await anext(stream)
            await until(lambda: stream._job.settled.is_set())  # it ends by itself, ahead of its reader
        stream.end()
        await branch.logits()  # behind whatever `end` sent
        assert stream.generation.tokens == branch.tokens[before:]
        assert stream.generation.finish_reason == "cancelled"
