"""cascade: who answers, why, and that nothing is left behind."""

from __future__ import annotations

import math
from typing import Any

import anyio
import anyio.lowlevel
import pytest

import agentkv as kv
from agentkv._types.results import Choice
from agentkv.patterns.cascade import _judged
from tests.agentkv.conftest import OpenContext

pytestmark = pytest.mark.anyio


async def three(branch: kv.Branch) -> kv.Generation[str]:
    return await branch.generate(max_tokens=3)


def generation(probability: float, ended: Any = "eos") -> kv.Generation[str]:
    return kv.Generation("so", [1, 2], [math.log(probability)] * 2, ended, kv.Usage(1, 2))


@pytest.mark.parametrize(
    ("result", "sure", "score", "passes", "why"),
    [
        (generation(0.9), 0.8, 0.9, True, "probability 0.90"),
        (generation(0.5), 0.8, 0.5, False, "probability 0.50, below 0.8"),
        (generation(0.9, "stop"), 0.8, 0.9, True, "probability 0.90"),
        (generation(0.9, "length"), 0.1, 0.0, False, "was cut (length)"),
        (generation(0.9, "context_full"), 0.0, 0.0, False, "was cut (context_full)"),
        (Choice("a", 0, [-20.0, -23.0]), 0.9, 0.9526, True, "probability 0.95"),
        (Choice("b", 1, [-20.0, -20.0]), 0.6, 0.5, False, "probability 0.50, below 0.6"),
        (Choice("only", 0, [-700.0]), 1.0, 1.0, True, "probability 1.00"),
        ("text", lambda text: text == "text", 1.0, True, "the check took it"),
        ("text", lambda text: "", 0.0, False, "the check refused it"),
        (generation(0.9, "length"), lambda _: True, 1.0, True, "the check took it"),
    ],
)
async def test_what_is_sure(result: Any, sure: Any, score: float, passes: bool, why: str) -> None:
    judged = await _judged(result, sure)
    assert judged == (pytest.approx(score, abs=1e-3), passes, why)


async def test_the_first_that_is_sure_answers_and_the_others_are_not_asked(open_context: OpenContext) -> None:
    async with open_context() as small, open_context() as large:
        trunks = [await small.branch([1, 2, 3]), await large.branch([1, 2, 3])]
        forwards = large.stats.steps
        win = await kv.patterns.cascade(trunks, three, sure=lambda _: True)
        assert (win.index, win.sure, win.score, win.why) == (0, True, 1.0, ("the check took it",))
        assert win.branch.context is small
        assert win.branch.tokens == [1, 2, 3, *win.result.tokens]
        assert large.stats.steps == forwards
        assert (small.branches, large.branches) == ([trunks[0], win.branch], [trunks[1]])


async def test_the_next_is_asked_where_the_first_is_unsure(open_context: OpenContext) -> None:
    asked: list[kv.Context] = []

    async def check(result: Any) -> bool:
        await anyio.lowlevel.checkpoint()
        return len(asked) == 2

    async def attempt(branch: kv.Branch) -> kv.Choice:
        asked.append(branch.context)
        return await branch.select(["a", "b"])

    async with open_context() as small, open_context() as large:
        trunks = [await small.branch([1, 2, 3]), await large.branch([1, 2, 3])]
        win = await kv.patterns.cascade(trunks, attempt, sure=check)
        assert asked == [small, large]
        assert (win.index, win.sure, win.why) == (1, True, ("the check refused it", "the check took it"))
        assert (small.branches, large.branches) == ([trunks[0]], [trunks[1], win.branch])
        unsure = await kv.patterns.cascade(trunks, attempt, sure=1.0)
        assert (unsure.index, unsure.sure) == (1, False)
        assert all(line.endswith(", below 1") for line in unsure.why)


async def test_one_that_fails_is_passed_over_and_an_earlier_answer_counts(open_context: OpenContext) -> None:
    async def attempt(branch: kv.Branch) -> str:
        if len(branch) == 2:
            raise ValueError("no")
        return f"{len(branch)}"

    async with open_context() as ctx:
        good, bad = await ctx.branch([1, 2, 3]), await ctx.branch([1, 2])
        for trunks, index, why in (
            ([bad, good], 1, ("failed: ValueError: no", "the check refused it")),
            ([good, bad], 0, ("the check refused it", "failed: ValueError: no")),
        ):
            win = await kv.patterns.cascade(trunks, attempt, sure=lambda _: False)
            assert (win.result, win.index, win.sure, win.why) == ("3", index, False, why)
            win.branch.close()
        with pytest.raises(ExceptionGroup, match="every candidate failed") as failed:
            await kv.patterns.cascade([bad, bad], attempt, sure=lambda _: True)
        assert [str(error) for error in failed.value.exceptions] == ["no", "no"]
        with pytest.raises(ExceptionGroup) as unknown:
            await kv.patterns.cascade([good], attempt)
        assert "probability of" in str(unknown.value.exceptions[0])
        assert ctx.branches == [good, bad]


async def test_what_opens_a_trunk_is_called_where_it_is_needed(open_context: OpenContext) -> None:
    opened: list[str] = []

    async with open_context() as ctx:

        async def small() -> kv.Branch:
            opened.append("small")
            return await ctx.branch([1, 2, 3])

        async def large() -> kv.Branch:
            opened.append("large")
            return await ctx.branch([4, 5, 6])

        async def none() -> Any:
            return None

        first = await kv.patterns.cascade([small, large], three, sure=lambda _: True)
        assert opened == ["small"]
        win = await kv.patterns.cascade([none, large], three, sure=lambda _: True)  # type: ignore[list-item]
        assert opened == ["small", "large"]
        assert win.index == 1
        assert win.why[0].startswith("failed: InvalidInput: what opens a trunk returned None")
        assert ctx.branches == [first.branch, win.branch]  # the trunks are closed


SMALL = {"model": "nano", "capacity": 400, "threads": 1}


@pytest.mark.parametrize("room", [1, 2])
@pytest.mark.parametrize("fails", [False, True])
async def test_models_that_do_not_fit_beside_each_other_take_turns(room: int, fails: bool) -> None:
    async with kv.open_models({"one": SMALL}) as pool, pool.use("one"):
        size = pool.states()[0].bytes
    async with kv.open_models({"small": SMALL, "large": SMALL}, max_memory=room * size) as pool:

        def asked(name: str) -> Any:
            async def trunk() -> kv.Branch:
                async with pool.use(name) as model:
                    return await model.branch([1, 2, 3])

            return trunk

        async def attempt(branch: kv.Branch) -> kv.Generation[str]:
            if fails and len(began) == 1:
                raise ValueError("no")
            began.append(branch)
            return await three(branch)

        began: list[kv.Branch] = []
        trunks = [asked("small"), asked("large")]
        if fails and room == 1:  # the small one's answer was let go
            with pytest.raises(ExceptionGroup) as failed:
                await kv.patterns.cascade(trunks, attempt, sure=lambda _: False)
            assert [str(error) for error in failed.value.exceptions] == ["no"]
        else:
            win = await kv.patterns.cascade(trunks, attempt, sure=lambda _: False)
            assert (win.index, win.sure) == (int(not fails), False)
            assert not win.branch.closed
        assert [state.is_open for state in pool.states()] == [room == 2, True]


async def test_a_trunk_of_the_caller_that_leaves_no_room_fails_the_larger_one() -> None:
    async with kv.open_models({"one": SMALL}) as pool, pool.use("one"):
        size = pool.states()[0].bytes
    async with kv.open_models({"small": SMALL, "large": SMALL}, max_memory=size) as pool:
        async with pool.use("small") as model:
            given = await model.branch([1, 2, 3])

        async def large() -> kv.Branch:
            async with pool.use("large") as model:
                return await model.branch([1, 2, 3])

        win = await kv.patterns.cascade([given, large], three, sure=lambda _: False)
        assert (win.index, win.sure) == (0, False)
        assert "OutOfMemory: model 'large'" in win.why[1]
        assert not given.closed


async def test_a_cancelled_cascade_leaves_nothing(open_context: OpenContext) -> None:
    began = anyio.Event()

    async def attempt(branch: kv.Branch) -> None:
        began.set()
        await anyio.sleep_forever()

    async with open_context() as ctx:
        trunk = await ctx.branch([1, 2, 3])
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(kv.patterns.cascade, [trunk, trunk], attempt)
            await began.wait()
            tasks.cancel_scope.cancel()
        assert ctx.branches == [trunk]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"trunks": []}, "list of branches"),
        ({"trunks": None}, "list of branches"),
        ({"trunks": ["nano"]}, "each must be a Branch"),
        ({"attempt": 3}, "attempt is"),
        ({"sure": 1.5}, "sure is"),
        ({"sure": "yes"}, "sure is"),
        ({"timeout": 0}, "timeout is"),
    ],
)
async def test_what_cannot_be_meant_is_refused_first(open_context: OpenContext, wrong: Any, said: str) -> None:
    async with open_context() as ctx:
        trunk = await ctx.branch([1])
        given: dict[str, Any] = {"trunks": [trunk], "attempt": three} | wrong
        with pytest.raises(kv.InvalidInput, match=said):
            await kv.patterns.cascade(given.pop("trunks"), given.pop("attempt"), **given)
        assert ctx.branches == [trunk]
