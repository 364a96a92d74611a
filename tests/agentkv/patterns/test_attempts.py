"""best_of, vote, race and map_reduce: who wins, who is dropped, and that nothing is left behind."""

from __future__ import annotations

from collections import Counter

import anyio
import anyio.lowlevel
import numpy as np
import pytest

import agentkv as kv
from tests.agentkv.conftest import OpenContext
from tests.agentkv.patterns.places import place
from tests.waiting import SOON

pytestmark = pytest.mark.anyio

HOT = kv.Sampling(temperature=1.5, seed=5)


async def sampled(branch: kv.Branch) -> str:
    return (await branch.generate(max_tokens=6, sampling=HOT)).text


async def place_of(branch: kv.Branch) -> int:
    return place(branch)


async def settled(ctx: kv.Context) -> None:
    await ctx._core.loop.call(lambda _: None)


async def test_the_best_attempt_wins_and_the_trunk_stays(open_context: OpenContext) -> None:
    async with open_context() as ctx:
        trunk = await ctx.branch([1, 2, 3])
        before = trunk.tokens
        seen: list[str] = []

        async def attempt(branch: kv.Branch) -> str:
            seen.append(await sampled(branch))
            return seen[-1]

        win = await kv.patterns.best_of(trunk, 5, attempt, score=lambda text: Counter(text).total())
        assert len(seen) == 5
        assert win.score == max(len(text) for text in seen)
        assert win.result in seen
        assert len(win.result) == win.score
        assert trunk.tokens == before
        assert {branch.id for branch in ctx.branches} == {trunk.id, win.branch.id}
        assert ctx.tokenizer.decode(win.branch.tokens[3:]) == win.result
        await trunk.adopt(win.branch)
        win.branch.close()
        await settled(ctx)
        assert ctx.stats.cells_used <= len(trunk)


async def test_the_earlier_fork_wins_a_tie_whoever_is_first(open_context: OpenContext) -> None:
    async with open_context() as ctx:
        trunk = await ctx.branch([1, 2, 3])
        order: list[int] = []

        async def attempt(branch: kv.Branch) -> int:
            at = await place_of(branch)
            for _ in range(10 * (3 - at)):  # the last one is first
                await anyio.lowlevel.checkpoint()
            order.append(at)
            return at

        async def score(place: int) -> float:
            await anyio.lowlevel.checkpoint()
            return 1.0

        win = await kv.patterns.best_of(trunk, 3, attempt, score=score)
        assert order == [2, 1, 0]
        assert win.result == 0


async def test_losers_free_their_cells_at_once(open_context: OpenContext) -> None:
    async with open_context() as ctx:
        trunk = await ctx.branch([1, 2, 3])
        live: list[int] = []
        turn = [anyio.Event() for _ in range(4)]

        async def attempt(branch: kv.Branch) -> int:
            at = await place_of(branch)
            if at:
                await turn[at].wait()
            live.append(len([b for b in ctx.branches if b is not trunk]))
            if at + 1 < len(turn):
                turn[at + 1].set()
            await anyio.lowlevel.checkpoint()
            return at

        await kv.patterns.best_of(trunk, 4, attempt, score=float)
        assert live[0] == 4
        assert live[-1] < 4  # those that lost before the last one began to answer are gone


async def test_failures_are_dropped_unless_all_fail(open_context: OpenContext) -> None:
    async with open_context() as ctx:
        trunk = await ctx.branch([1, 2, 3])

        async def attempt(branch: kv.Branch) -> int:
            at = await place_of(branch)
            if at != 2:
                raise ValueError(f"attempt {at}")
            return at

        async def fails(branch: kv.Branch) -> int:
            raise ValueError("always")

        for pattern in (kv.patterns.race, kv.patterns.vote):
            win = await pattern(trunk, 4, attempt)
            assert win.result == 2
            win.branch.close()
            with pytest.raises(ExceptionGroup) as group:
                await pattern(trunk, 4, fails)
            assert [str(error) for error in group.value.exceptions] == ["always"] * 4
            assert ctx.branches == [trunk]
        win = await kv.patterns.best_of(trunk, 4, attempt, score=float)
        assert win.result == 2
        win.branch.close()
        with pytest.raises(ExceptionGroup):
            await kv.patterns.best_of(trunk, 4, sampled, score=lambda _: float("nan"))
        assert ctx.branches == [trunk]


async def test_an_attempt_that_takes_too_long_is_dropped(open_context: OpenContext) -> None:
    async with open_context() as ctx:
        trunk = await ctx.branch([1, 2, 3])

        async def attempt(branch: kv.Branch) -> str:
            if place(branch) == 0:
                await anyio.sleep_forever()
            return "made without a wait, so in time on any machine"

        win = await kv.patterns.best_of(trunk, 3, attempt, score=len, timeout=SOON)
        assert {branch.id for branch in ctx.branches} == {trunk.id, win.branch.id}

        async def hangs(branch: kv.Branch) -> str:
            await anyio.sleep_forever()
            return ""

        with pytest.raises(ExceptionGroup) as group:
            await kv.patterns.vote(trunk, 2, hangs, timeout=SOON)
        assert all(isinstance(error, TimeoutError) for error in group.value.exceptions)


async def test_answers_that_are_equal_to_nothing_have_a_vote_and_those_without_equality_have_none(
    open_context: OpenContext,
) -> None:
    async with open_context() as ctx:
        trunk = await ctx.branch("abc")

        async def nan(branch: kv.Branch) -> float:
            return float("nan")

        async def array(branch: kv.Branch) -> object:
            return np.arange(3)

        win = await kv.patterns.vote(trunk, 4, nan)
        assert (win.score, win.branch.closed) == (0.25, False)
        await win.branch.close()
        with pytest.raises(ExceptionGroup) as caught:
            await kv.patterns.vote(trunk, 3, array)
        assert [type(error) for error in caught.value.exceptions] == [ValueError] * 3
        assert ctx.branches == [trunk]


async def test_items_are_read_before_any_is_worked_on(open_context: OpenContext) -> None:
    async def work(branch: kv.Branch, item: int) -> int:
        return item

    async def reduce(branch: kv.Branch, parts: list[int]) -> int:
        return sum(parts)

    async with open_context() as ctx:
        trunk = await ctx.branch("abc")
        with pytest.raises(kv.InvalidInput, match="items cannot be read"):
            await kv.patterns.map_reduce(trunk, 5, work, reduce)  # type: ignore[arg-type]
        win = await kv.patterns.map_reduce(trunk, (i for i in range(4)), work, reduce)  # type: ignore[arg-type]
        assert (win.result, win.score) == (6, 1.0)


async def test_what_was_cut_has_no_vote_and_the_log_says_so(
    open_context: OpenContext, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_context() as ctx:
        trunk = await ctx.branch([1, 2, 3])

        async def attempt(branch: kv.Branch) -> kv.Generation[str]:
            if await place_of(branch) == 2:
                return await branch.generate(max_tokens=16, output=kv.Regex("yes"))
            return await branch.generate(max_tokens=2, output=kv.Regex("no{90}"))

        win = await kv.patterns.vote(trunk, 3, attempt, key=lambda gen: gen.text)
        assert (win.result.text, win.score) == ("yes", 1.0)
        assert "attempts that were cut have no vote" in caplog.text
        win.branch.close()
        with pytest.raises(ExceptionGroup) as caught:
            await kv.patterns.vote(trunk, 2, attempt, key=lambda gen: gen.text)
        assert all(isinstance(error, kv.OutputIncomplete) for error in caught.value.exceptions)
        assert ctx.branches == [trunk]


async def test_the_majority_wins_a_vote(open_context: OpenContext) -> None:
    async with open_context() as ctx:
        trunk = await ctx.branch([1, 2, 3])
        answers = ["a", "b", "c", "b", "b", "a"]

        async def attempt(branch: kv.Branch) -> dict[str, str]:
            return {"answer": answers[await place_of(branch)]}  # no hash: == is enough

        win = await kv.patterns.vote(trunk, 6, attempt)
        assert win.result == {"answer": "b"}
        assert win.score == 0.5
        kin = await kv.patterns.vote(trunk, 6, attempt, key=lambda result: result["answer"] in "ac")
        assert kin.result == {"answer": "a"}
        assert len(ctx.branches) == 3


async def test_a_race_cancels_the_others(open_context: OpenContext) -> None:
    async with open_context() as ctx:
        trunk = await ctx.branch([1, 2, 3])
        stopped: list[int] = []

        async def attempt(branch: kv.Branch) -> int:
            at = await place_of(branch)
            try:
                if at != 1:
                    await branch.generate(max_tokens=2000, sampling=HOT)
                    await anyio.sleep_forever()
            except BaseException:
                stopped.append(at)
                raise
            return at

        win = await kv.patterns.race(trunk, 3, attempt)
        assert win.result == 1
        assert sorted(stopped) == [0, 2]
        with pytest.raises(ExceptionGroup, match="every candidate failed"):
            await kv.patterns.race(trunk, 3, place_of, good=lambda at: at > 5)
        assert {branch.id for branch in ctx.branches} == {trunk.id, win.branch.id}


async def test_items_are_worked_on_and_reduced_in_order(open_context: OpenContext) -> None:
    async with open_context() as ctx:
        trunk = await ctx.branch([1, 2, 3])
        most = 0

        async def work(branch: kv.Branch, item: int) -> int:
            nonlocal most
            most = max(most, len(ctx.branches) - 1)
            await branch.extend([item])
            if item == 7:
                raise ValueError("seven")
            return len(branch)

        async def reduce(branch: kv.Branch, parts: list[int]) -> int:
            await branch.extend(parts)
            return sum(parts)

        win = await kv.patterns.map_reduce(trunk, [5, 6, 7, 8, 9, 10], work, reduce, at_once=2)
        assert win.result == 5 * 4
        assert win.score == pytest.approx(5 / 6)
        assert win.branch.tokens == [1, 2, 3, 4, 4, 4, 4, 4]
        assert most == 2
        with pytest.raises(ExceptionGroup):
            await kv.patterns.map_reduce(trunk, [7, 7], work, reduce)
        empty = await kv.patterns.map_reduce(trunk, [], work, lambda branch, parts: place_of(branch))
        assert empty.score == 1.0
        assert {branch.id for branch in ctx.branches} == {trunk.id, win.branch.id, empty.branch.id}


async def test_a_cancelled_pattern_closes_its_forks(open_context: OpenContext) -> None:
    async with open_context() as ctx:
        trunk = await ctx.branch([1, 2, 3])

        async def hangs(branch: kv.Branch, *_: object) -> int:
            await branch.extend([4])
            await anyio.sleep_forever()
            return 0

        async def once(branch: kv.Branch) -> int:
            return await hangs(branch) if await place_of(branch) else 1

        for run in (
            lambda: kv.patterns.best_of(trunk, 3, once, score=float),
            lambda: kv.patterns.vote(trunk, 3, once),
            lambda: kv.patterns.race(trunk, 3, hangs),
            lambda: kv.patterns.map_reduce(trunk, [1, 2], hangs, hangs),
            lambda: kv.patterns.debate(trunk, 3, hangs, score=float),
            lambda: kv.patterns.tree_search(trunk, hangs, score=float),
            lambda: kv.patterns.beam(trunk, max_tokens=1500),
        ):
            with anyio.move_on_after(SOON):
                await run()
            assert ctx.branches == [trunk]
        await settled(ctx)
        assert ctx.stats.cells_used == 3


async def test_bad_input_is_refused_before_anything_is_forked(open_context: OpenContext) -> None:
    async with open_context() as ctx:
        trunk = await ctx.branch([1, 2, 3])
        for run in (
            lambda: kv.patterns.best_of(trunk, 0, sampled, score=len),
            lambda: kv.patterns.best_of(trunk, 2, sampled, score=len, timeout=-1),
            lambda: kv.patterns.vote(trunk, 2, "attempt"),  # type: ignore[arg-type]
            lambda: kv.patterns.race("trunk", 2, sampled),  # type: ignore[arg-type]
            lambda: kv.patterns.debate(trunk, 2, sampled, score=len, rounds=0),  # type: ignore[arg-type]
            lambda: kv.patterns.tree_search(trunk, sampled, score=len, width=0),
            lambda: kv.patterns.beam(trunk, width=0),
            lambda: kv.patterns.map_reduce(trunk, [1], sampled, sampled, at_once=0),  # type: ignore[arg-type]
        ):
            with pytest.raises(kv.InvalidInput):
                await run()
            assert ctx.branches == [trunk]


async def test_attempts_and_scores_of_the_wrong_kind_say_so(open_context: OpenContext) -> None:
    async with open_context() as ctx:
        trunk = await ctx.branch([1, 2, 3])
        with pytest.raises(ExceptionGroup) as failed:
            await kv.patterns.vote(trunk, 2, lambda _: "yes")  # type: ignore[arg-type, return-value]
        assert "an attempt returned str 'yes', but it must be an async function" in str(failed.value.exceptions[0])
        with pytest.raises(ExceptionGroup) as failed:
            await kv.patterns.best_of(trunk, 2, place_of, score=lambda _: "good")  # type: ignore[arg-type, return-value]
        assert "a score is str 'good', but it must be a number" in str(failed.value.exceptions[0])
        await settled(ctx)
        assert ctx.branches == [trunk]
