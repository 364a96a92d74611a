"""Room for conversations and for the turns of agents: whole messages go, and summaries take their place."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest
from anyio.lowlevel import checkpoint

import agentkv as kv
from agentkv.overflow import DropOldest, Room, Summarize
from tests.conftest import FolderFactory
from tests.rows import one_in
from tests.waiting import PATIENCE

from ..conftest import OpenContext
from .test_overflow import endless, small_nano

pytestmark = pytest.mark.anyio


async def test_a_hidden_rewrite_does_not_bring_back_what_was_forgotten() -> None:
    """A second message of the user's takes back the turn that was opened for the model."""
    async with small_nano(400) as ctx:
        branch = await ctx.branch([{"role": "user", "content": "The report is long. " * 30}])
        assert len(branch) > 200
        await branch.forget(20, len(branch) - 12)
        assert (await branch.extend([{"role": "user", "content": "Who are you?"}])).rewritten > 0
        assert ctx.stats.cells_used < 60
        assert ctx.stats.refed < 20


async def test_a_summary_that_cannot_be_made() -> None:
    async with small_nano(200, overflow=Summarize(kv.Agent("", max_tokens=1))) as ctx:
        branch = await ctx.branch(questions(3))
        for turn in range(12):
            await branch.extend([{"role": "user", "content": f"What is {turn % 9} times {turn % 7}?"}])
            assert (await branch.generate(max_tokens=30)).finish_reason in ("eos", "length")
        assert ctx.stats.cells_used <= 200


@pytest.mark.parametrize("capacity", [700, 900])
async def test_a_question_behind_one_that_nobody_answered(capacity: int) -> None:
    """Nothing of the assistant's turn is there that a summary could leave alone."""
    async with small_nano(capacity, overflow=Summarize(kv.Agent("", max_tokens=5))) as ctx:
        branch = await ctx.branch([{"role": "user", "content": "word " * 100}])
        for _ in range(6):
            try:
                await branch.extend([{"role": "user", "content": "again " * 60}])
            except kv.ContextFull:
                break
        last = branch.messages[-1]
        assert last.content in ctx.tokenizer.decode(branch.tokens[last.start : last.end])
        assert branch.tokens == (await ctx.branch(branch.messages)).tokens


def questions(turns: int) -> list[dict[str, str]]:
    asked = [{"role": "system", "content": "You are Nano, a desk agent."}]
    for turn in range(turns):
        asked.append({"role": "user", "content": f"What is {turn % 9} times {turn % 7}?"})
        asked.append({"role": "assistant", "content": f"It is {turn % 9 * (turn % 7)}."})
    return asked


@pytest.mark.parametrize(("capacity", "before"), [(400, 5), (5000, 160)], ids=["cells", "positions"])
async def test_a_conversation_goes_on(capacity: int, before: int) -> None:
    async with small_nano(capacity, overflow=DropOldest(batch=200)) as ctx:
        branch = await ctx.branch(questions(before))
        for turn in range(20):
            extended = await branch.extend([{"role": "user", "content": f"What is {turn % 9} times {turn % 7}?"}])
            assert extended.rewritten == 0, turn
            assert (await branch.generate(max_tokens=40)).finish_reason in ("eos", "length")
        assert (ctx.stats.refed > 500) == (capacity == 5000)  # for want of positions all of it is fed again, but once
        messages = branch.messages
        assert [message.role for message in messages[:3]] == ["system", "user", "assistant"]
        assert len(messages) == 1 + 2 * before + 40 if capacity == 400 else len(messages) < 1 + 2 * before + 40
        assert messages[-1].end <= len(branch) <= 4096
        for message in messages:  # each is where it says
            if message.role == "user":
                assert message.content in ctx.tokenizer.decode(branch.tokens[message.start : message.end])


@pytest.fixture
def of_500_positions(with_manifest: FolderFactory) -> Path:
    """nano, which has room for 19 questions."""
    return with_manifest(kv.models.nano(), max_positions=500)


async def test_a_turn_that_fails_gives_back_what_made_room_for_it(of_500_positions: Path) -> None:
    failing = kv.Agent("You are Nano, a desk agent.", max_tokens=1)
    async with small_nano(1100, of_500_positions, overflow=DropOldest(batch=100)) as ctx:
        branch = await ctx.branch(questions(19))
        assert 420 < len(branch) < 500, len(branch)
        before, row = branch.tokens, await branch.logits()
        with pytest.raises(kv.LimitReached):
            await failing.run(branch, " ".join(["word"] * 90))
        assert branch.tokens == before
        assert len(branch.messages) == 1 + 2 * 19
        assert (await branch.logits() == row).all()
        assert ctx.stats.refed > 300
        assert ctx.stats.branches == 1


async def test_nothing_of_a_turn_makes_room_for_it() -> None:
    agent = kv.Agent("You are Nano, a desk agent.")
    async with small_nano(300, overflow=DropOldest()) as ctx:
        branch = await ctx.branch(questions(9))
        run = await agent.run(branch, "Who are you?")
        assert [message.role for message in run.messages] == ["user", "assistant"]
        before = branch.tokens
        with pytest.raises(kv.ContextFull):
            await agent.run(branch, " ".join(["word"] * 300))
        assert branch.tokens == before


async def test_a_summary_takes_the_place_of_the_oldest() -> None:
    agent = kv.Agent("", max_tokens=24)
    async with small_nano(overflow=Summarize(agent)) as ctx:
        branch = await ctx.branch([{"role": "system", "content": "You are Nano, a desk agent."}])
        for turn in range(40):
            await branch.extend([{"role": "user", "content": f"What is {turn % 9} times {turn % 7}?"}])
            generation = await branch.generate(max_tokens=40)
            assert generation.finish_reason in ("eos", "length")
        assert any("(What was said before:" in message.content for message in branch.messages)
        assert ctx.stats.cells_used <= 400
        assert len(ctx.branches) == 1


async def test_two_that_cannot_be_summarized_beside_each_other_go_on() -> None:
    agent = kv.Agent("Sum up.", max_tokens=20)  # needs more than the two of them leave
    async with small_nano(200, overflow=Summarize(agent)) as ctx:
        both = [await ctx.branch("hello " * 20), await ctx.branch("goodbye " * 20)]
        for branch in both:
            await branch.extend([{"role": "user", "content": "Who are you?"}])
        with anyio.fail_after(PATIENCE):
            made = await kv.gather(*(branch.generate(max_tokens=30) for branch in both))
        assert {each.finish_reason for each in made} <= {"eos", "length"}


async def test_two_that_only_lend_each_other_cells_end() -> None:
    class Lends:
        async def make_room(self, room: Room) -> bool:
            await room.uncache(max(room.length - 20, 0))
            return True

    async with small_nano(120, overflow=Lends()) as ctx:
        both = [await ctx.branch("hello " * 12), await ctx.branch("goodbye " * 12)]
        with anyio.fail_after(PATIENCE):
            made = await kv.gather(*(branch.generate(max_tokens=100, sampling=endless(ctx)) for branch in both))
        assert "context_full" in {each.finish_reason for each in made}


@pytest.mark.parametrize("turns", one_in(4, range(0, 24, 2)))
async def test_a_turn_that_is_cancelled_as_room_is_made_for_it_gives_it_back(
    of_500_positions: Path, turns: int
) -> None:
    agent = kv.Agent("You are Nano, a desk agent.", max_tokens=1)

    class Cancels(DropOldest):
        async def make_room(self, room: Room) -> bool:
            async with anyio.create_task_group() as group:
                group.start_soon(cancel, turns)
                made = await super().make_room(room)
                group.cancel_scope.cancel()
            return made

    async def cancel(after: int) -> None:
        for _ in range(after):
            await checkpoint()
        scope.cancel()

    async with small_nano(1100, of_500_positions, overflow=Cancels(batch=100)) as ctx:
        branch = await ctx.branch(questions(19))
        before = branch.tokens, branch.messages
        with anyio.CancelScope() as scope:
            with pytest.raises(kv.LimitReached):
                await agent.run(branch, " ".join(["word"] * 90))
        assert (branch.tokens, branch.messages) == before
        assert await ctx._core.loop.call(lambda engine: engine.live()) == [branch.id]


async def test_a_summary_of_text_is_text(open_context: OpenContext) -> None:
    agent = kv.Agent("", max_tokens=24)
    async with small_nano(capacity=200, overflow=Summarize(agent)) as ctx:
        branch = await ctx.branch(ctx.tokenizer.encode("one two three four five six seven " * 8))
        length = len(branch)
        generation = await branch.generate(max_tokens=150, sampling=endless(ctx))
        assert generation.tokens
        assert len(branch) < length + len(generation.tokens)


@pytest.mark.parametrize("kept", [4, 20, 50, 60, 70])
async def test_a_rollback_into_what_is_before_the_messages_is_gone_on_from(kept: int) -> None:
    class Cuts:
        async def make_room(self, room: Room) -> bool:
            await room.replace(4, 50)
            return True

    async with small_nano(150) as ctx:
        branch = await ctx.branch([492] * 116, overflow=Cuts())
        await branch.extend([{"role": "user", "content": "Who are you?"}])
        await branch.extend([9] * 30)
        assert branch.messages[0].start < 116  # room was made in front of it
        await branch.rollback(kept)
        await branch.extend([{"role": "user", "content": "Hello"}])
        assert branch.tokens[: kept + 1] == [492] * kept + branch.tokens[kept : kept + 1]
        assert [message.content for message in branch.messages] == ["Hello"]
