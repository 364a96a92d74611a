"""Branches that do not fit any more, and the policies that make room for them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

import agentkv as kv
from agentkv._context.overflow import MOST_FUTILE_ROUNDS, OverflowHandler
from agentkv.overflow import DropOldest, Overflow, Room, Stop, Summarize
from tests.conftest import FolderFactory
from tests.waiting import PATIENCE, until

from ..conftest import OpenContext, after_forwards

pytestmark = pytest.mark.anyio

PROMPT = [3 + i * 7 % 290 for i in range(40)]


@asynccontextmanager
async def small_nano(capacity: int = 400, model: Path | None = None, **options: Any) -> AsyncIterator[kv.Context]:
    async with kv.Context.open(model or kv.models.nano(), capacity=capacity, threads=1, **options) as ctx:
        yield ctx


@pytest.fixture
def of_300_positions(with_manifest: FolderFactory) -> Path:
    """nano, which soon runs out of positions."""
    return with_manifest(kv.models.nano(), max_positions=300)


def endless(ctx: kv.Context) -> kv.Sampling:
    """Greedy, and without an end."""
    return kv.Sampling(logit_bias=dict.fromkeys(ctx.tokenizer.eos_ids, -100.0))


async def test_cells_that_others_take_each_time_are_tried_for_anew_after_each_token() -> None:
    async with small_nano() as ctx, await ctx.branch(PROMPT) as branch:
        room = OverflowHandler(branch, 1)
        for token in (5, 6, 7):
            assert all([await room.make() for _ in range(MOST_FUTILE_ROUNDS - 1)])
            await branch.extend([token])
        assert False in [await room.make() for _ in range(MOST_FUTILE_ROUNDS)]


class Noting:
    """Forgets what DropOldest does, and remembers that it was asked."""

    def __init__(self, *, makes: bool = True) -> None:
        self.asked: list[tuple[int, int, int]] = []
        self._makes = makes

    async def make_room(self, room: Room) -> bool:
        self.asked.append((room.length, room.cells, room.positions))
        return self._makes and await DropOldest().make_room(room)


class Lying:
    """Says that it made room."""

    async def make_room(self, room: Room) -> bool:
        return True


class Exchanging:
    """Gives tokens for as many others."""

    async def make_room(self, room: Room) -> bool:
        await room.replace(0, 4, [300 + room.branch.tokens[0] % 50] * 4)
        return True


class Failing:
    """Raises."""

    async def make_room(self, room: Room) -> bool:
        raise ZeroDivisionError("the policy's own")


async def test_without_a_policy_nothing_goes(open_context: OpenContext) -> None:
    async with open_context(capacity=48, overflow=Stop()) as ctx:
        branch = await ctx.branch(PROMPT)
        assert branch.overflow == Stop()
        assert (await branch.generate(max_tokens=30, sampling=endless(ctx))).finish_reason == "context_full"
        with pytest.raises(kv.ContextFull):
            await branch.extend(PROMPT)


async def test_the_oldest_go_for_whatever_needs_cells(open_context: OpenContext) -> None:
    async with open_context(capacity=64, overflow=DropOldest(keep=4, batch=10)) as ctx:
        branch = await ctx.branch(PROMPT)
        generation = await branch.generate(max_tokens=100, sampling=endless(ctx))
        assert len(generation.tokens) == 100
        assert len(branch) == 140
        assert ctx.stats.refed == 0
        assert ctx.stats.cells_used <= 64
        await branch.extend(PROMPT)
        assert branch.tokens[-40:] == PROMPT
        await branch.logits()
        assert len((await branch.select(["yes", "no"])).logprobs) == 2
        used = ctx.stats.cells_used
        with pytest.raises(kv.ContextFull):  # more than everything: nothing goes for it
            await branch.extend(PROMPT * 2)
        assert (len(branch), ctx.stats.cells_used) == (180, used)


async def test_streams_make_room_as_they_are_read(open_context: OpenContext) -> None:
    async with open_context(capacity=64, overflow=DropOldest()) as ctx:
        plain = await (await ctx.branch(PROMPT)).generate(max_tokens=100, sampling=endless(ctx))
    async with open_context(capacity=64, overflow=DropOldest()) as ctx:
        branch = await ctx.branch(PROMPT)
        async with branch.stream(max_tokens=100, sampling=endless(ctx)) as tokens:
            read = [token.id async for token in tokens]
        assert read == plain.tokens
        assert branch.tokens == PROMPT + read


async def test_who_waits_for_room_holds_up_nobody(open_context: OpenContext) -> None:
    """One that nobody makes room for meanwhile, beside one that goes on."""
    async with open_context(capacity=80) as ctx:
        waiting = await ctx.branch(PROMPT)
        waiting.overflow = policy = Noting()
        other = await ctx.branch([9, 8, 7])
        async with waiting.stream(max_tokens=200, buffer=200, sampling=endless(ctx)) as tokens:
            await anext(tokens)
            while ctx.stats.cells_free:
                await after_forwards(ctx, 1)
            assert not policy.asked  # the reader makes room when it comes to it
            assert (await other.generate(max_tokens=3, sampling=endless(ctx))).finish_reason == "context_full"
            await other.rollback(1)
            assert [token async for token in tokens]
        assert policy.asked
        assert len(waiting) == 240


async def test_a_policy_that_refuses_lies_or_fails(open_context: OpenContext) -> None:
    async with open_context(capacity=48) as ctx:
        for policy in (Noting(makes=False), Lying(), Exchanging()):
            branch = await ctx.branch(PROMPT, overflow=policy)
            assert (await branch.generate(max_tokens=30, sampling=endless(ctx))).finish_reason == "context_full"
            with pytest.raises(kv.ContextFull):
                await branch.extend(PROMPT)
            assert len(branch) == 49
            await branch.close()
        branch = await ctx.branch(PROMPT, overflow=Failing())
        with pytest.raises(ZeroDivisionError):
            await branch.generate(max_tokens=30, sampling=endless(ctx))
        made = len(branch)
        assert made == 49
        with pytest.raises(ZeroDivisionError):
            async with branch.stream(max_tokens=5) as tokens:
                await anext(tokens)
        with pytest.raises(ZeroDivisionError):
            await branch.extend(PROMPT)
        assert len(branch) == made
        branch.overflow = DropOldest()
        await branch.extend(PROMPT)


@pytest.mark.parametrize("summarizes", [False, True])
async def test_nothing_goes_that_makes_no_room(open_context: OpenContext, summarizes: bool) -> None:
    policy = Summarize(kv.Agent("Say it shortly.")) if summarizes else DropOldest()
    async with open_context(capacity=48, overflow=policy) as ctx:
        branch = await ctx.branch(PROMPT[:5] * 8)
        fork = await branch.fork()
        for verb in (lambda: fork.extend([7] * 20), lambda: fork.select(["one two three " * 9])):
            with pytest.raises(kv.ContextFull):
                await verb()
            assert fork.tokens == branch.tokens == PROMPT[:5] * 8
        await branch.close()
        await fork.extend([7] * 20)
        assert fork.tokens[-20:] == [7] * 20


async def test_one_that_is_cancelled_while_room_is_made(open_context: OpenContext) -> None:
    class Slow:
        def __init__(self) -> None:
            self.began = anyio.Event()

        async def make_room(self, room: Room) -> bool:
            await (room.forget(5, 6) if room.forgets else room.replace(5, 6))
            self.began.set()
            await anyio.sleep_forever()
            return True

    async with open_context(capacity=48) as ctx:
        branch = await ctx.branch(PROMPT, overflow=(policy := Slow()))
        async with anyio.create_task_group() as group:
            group.start_soon(lambda: branch.generate(max_tokens=30, sampling=endless(ctx)))
            await policy.began.wait()
            with pytest.raises(kv.BranchBusy):
                await branch.extend([5])
            group.cancel_scope.cancel()
        assert len(branch) == (49 if ctx.model_info.forgets else 48)
        branch.overflow = DropOldest()
        assert (await branch.generate(max_tokens=3, sampling=endless(ctx))).finish_reason == "length"


async def test_what_made_room_stays_forgotten(open_context: OpenContext) -> None:
    """A branch that is longer than the cache can be rolled back, and goes on, however far."""
    async with open_context(capacity=64, overflow=DropOldest(batch=10)) as ctx:
        branch = await ctx.branch(PROMPT)
        while len(branch) < 400:
            await branch.extend(PROMPT[:20])
        for length in (399, 380, 300, 120, 50, 3):
            await branch.rollback(length)
            await branch.logits()
            assert (await branch.generate(max_tokens=2, sampling=endless(ctx))).finish_reason == "length"
            await branch.rollback(length)
        await branch.extend(PROMPT)


async def test_what_a_policy_does_on_its_branch_asks_nobody(open_context: OpenContext) -> None:
    rooms: list[Room] = []

    class Busy:
        """Forks and generates, extends the branch itself, closes it."""

        async def make_room(self, room: Room) -> bool:
            rooms.append(room)
            async with await room.branch.fork() as fork:
                assert fork.overflow == Stop()
                assert (await fork.generate(max_tokens=50, sampling=endless(ctx))).finish_reason == "context_full"
            with pytest.raises((kv.ContextFull, kv.BranchBusy)):
                await room.branch.extend(PROMPT)
            await room.branch.close()
            return True

    async with open_context(capacity=48) as ctx:
        with anyio.fail_after(PATIENCE):
            branch = await ctx.branch(PROMPT, overflow=Busy())
            async with branch.stream(max_tokens=50, sampling=endless(ctx)) as tokens:
                assert len([token async for token in tokens]) == 9
            branch = await ctx.branch(PROMPT, overflow=Busy())
            with pytest.raises(kv.ContextFull):
                await branch.extend(PROMPT)
            assert ctx.stats.branches == 0
        for room in rooms:
            with pytest.raises(kv.InvalidInput, match="answered"):
                await room.forget(0, 1)


async def test_a_read_that_is_cancelled_while_room_is_made(open_context: OpenContext) -> None:
    class Slow:
        asked = 0

        async def make_room(self, room: Room) -> bool:
            Slow.asked += 1
            if Slow.asked == 1:
                await anyio.sleep_forever()
            if Slow.asked == 2:
                raise ZeroDivisionError
            return await DropOldest().make_room(room)

    async with open_context(capacity=48) as ctx:
        branch = await ctx.branch(PROMPT, overflow=Slow())
        async with branch.stream(max_tokens=60, sampling=endless(ctx)) as tokens:
            read = [await anext(tokens) for _ in range(9)]
            async with anyio.create_task_group() as group:
                group.start_soon(tokens.__anext__)
                await until(lambda: Slow.asked == 1)
                group.cancel_scope.cancel()
            with pytest.raises(ZeroDivisionError):
                await anext(tokens)
            with anyio.fail_after(PATIENCE):
                read += [token async for token in tokens]
        assert len(read) == 60


async def test_outputs_that_are_done_give_way_and_those_under_way_do_not(open_context: OpenContext) -> None:
    class Replaces:
        async def make_room(self, room: Room) -> bool:
            with pytest.raises(kv.InvalidInput):
                await room.replace(4, room.replaceable + 1)
            await room.replace(4, min(room.replaceable, 42))
            return True

    async with open_context(capacity=64, overflow=Replaces()) as ctx:
        branch = await ctx.branch(PROMPT)
        made = (await branch.generate(max_tokens=20, output=kv.Regex("[a-z]{20}"))).tokens
        assert len(made) > 3
        await branch.extend(PROMPT[:30])
        assert branch.tokens == PROMPT[:4] + made[2:] + PROMPT[:30]
        assert len((await branch.generate(max_tokens=20, output=kv.Regex("[a-z]{20}"))).text) == 20
        await branch.close()
        branch = await ctx.branch(PROMPT)
        long = kv.Regex("[a-z]{200}")
        cut = await branch.generate(max_tokens=100, output=long)
        assert (cut.finish_reason, branch.tokens) == ("context_full", PROMPT[:4] + cut.tokens)
        await branch.generate(max_tokens=100, output=long)
        assert branch.tokens[: 4 + len(cut.tokens)] == PROMPT[:4] + cut.tokens


async def test_positions_run_out_again_and_again(of_300_positions: Path) -> None:
    async with small_nano(900, of_300_positions, overflow=DropOldest(keep=4, batch=20)) as ctx:
        branch = await ctx.branch([300 + i % 50 for i in range(244)])
        generation = await branch.generate(max_tokens=150, sampling=endless(ctx))
        assert len(generation.tokens) == 150
        with_drafts = await ctx.branch([300 + i % 50 for i in range(244)])
        again = await with_drafts.generate(max_tokens=150, sampling=endless(ctx), speculative=kv.spec.PromptLookup())
        assert again.tokens == generation.tokens


async def test_a_branch_at_its_last_position_goes_on(of_300_positions: Path) -> None:
    tokens = [300 + i % 50 for i in range(300)]
    async with small_nano(900, of_300_positions, overflow=DropOldest()) as ctx:
        for known in (True, False):
            branch = await ctx.branch(tokens)
            if not known:
                await branch.rollback(299)
                await branch.generate(max_tokens=1)
            assert (await branch.generate(max_tokens=3, sampling=endless(ctx))).finish_reason == "length"
            assert len(branch) < 300
        stuck = await ctx.branch(tokens, overflow=Stop())
        with pytest.raises(kv.PositionsExhausted):
            await stuck.generate(max_tokens=3)


@pytest.mark.parametrize("wrong", ["abc", [1.5], None, 5, ["x"], [-1], [10**9]])
async def test_what_a_room_refuses(open_context: OpenContext, wrong: Any) -> None:
    class Wrong:
        async def make_room(self, room: Room) -> bool:
            with pytest.raises(kv.InvalidInput):
                await room.replace(0, 3, wrong)
            for p0, p1 in ((-1, 2), (3, 2), (0, room.length)):
                with pytest.raises(kv.InvalidInput):
                    await room.forget(p0, p1)
                with pytest.raises(kv.InvalidInput):
                    await room.replace(p0, p1)
            with pytest.raises(kv.InvalidInput):
                await room.uncache(-1)
            return False

    async with open_context(capacity=48, overflow=Wrong()) as ctx:
        branch = await ctx.branch(PROMPT)
        with pytest.raises(kv.ContextFull):
            await branch.extend(PROMPT)
        assert branch.tokens == PROMPT


async def test_policies_that_are_none(open_context: OpenContext) -> None:
    class Plain:
        def make_room(self, room: Room) -> bool:
            return True

    async with open_context(capacity=48) as ctx:
        branch = await ctx.branch(PROMPT, overflow=Plain())
        with pytest.raises(kv.InvalidInput, match="async def"):
            await branch.extend(PROMPT)
    for wrong in (None, "agent", kv.Agent("", output=int)):
        with pytest.raises(kv.InvalidInput, match="agent"):
            Summarize(wrong)  # type: ignore[arg-type]


async def test_positions_run_out_under_a_window() -> None:
    async with small_nano(300, window=128, sinks=4, overflow=DropOldest()) as ctx:
        branch = await ctx.branch()
        for _ in range(100):
            await branch.extend(PROMPT + PROMPT[:10])
        assert ctx.stats.refed > 0
        assert len(branch) < 4096


async def test_policies_are_checked_and_inherited(open_context: OpenContext) -> None:
    for wrong in (DropOldest, 3, "drop", object()):
        with pytest.raises(kv.InvalidInput, match="overflow"):
            async with open_context(overflow=wrong):
                pass
    for bad in ({"keep": -1}, {"batch": 0}, {"keep": 1.5}):
        with pytest.raises(kv.InvalidInput):
            DropOldest(**bad)  # type: ignore[arg-type]
    async with open_context(overflow=DropOldest()) as ctx:
        branch = await ctx.branch(PROMPT, overflow=Stop())
        child = await branch.fork()
        assert (branch.overflow, child.overflow) == (Stop(), Stop())
        assert (await ctx.branch()).overflow == DropOldest()
        with pytest.raises(kv.InvalidInput, match="overflow"):
            branch.overflow = DropOldest  # type: ignore[assignment]
        assert isinstance(DropOldest(), Overflow)
