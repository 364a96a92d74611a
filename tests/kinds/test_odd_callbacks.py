"""What users' own functions and objects return or raise that is not what was asked for, and numbers that are none.

A row of PATTERNS is a pattern, of RETURNED what a function gave back; each ends with an error of ours that says what to
do, and leaves no fork behind.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import agentkv as kv


def nano(capacity: int = 2048) -> Any:
    return kv.Context.open(kv.models.nano(), capacity=capacity, threads=1)


async def cancelled(*_: Any) -> int:
    raise asyncio.CancelledError


async def one(*_: Any) -> int:
    return 1


def plain(*_: Any) -> int:
    return 1


P = kv.patterns
PATTERNS: dict[str, Callable[[kv.Branch, Any], Any]] = {
    "best_of": lambda trunk, attempt: P.best_of(trunk, 2, attempt, score=float),
    "race": lambda trunk, attempt: P.race(trunk, 2, attempt),
    "vote": lambda trunk, attempt: P.vote(trunk, 2, attempt),
    "debate": lambda trunk, attempt: P.debate(trunk, 2, attempt, score=float),
    "tree_search": lambda trunk, attempt: P.tree_search(trunk, attempt, score=float),
    "map_reduce": lambda trunk, attempt: P.map_reduce(trunk, [1, 2], attempt, one),
}
COUNTS: dict[str, Callable[[kv.Branch, Any], Any]] = {
    "best_of n": lambda trunk, n: P.best_of(trunk, n, one, score=float),
    "race n": lambda trunk, n: P.race(trunk, n, one),
    "vote n": lambda trunk, n: P.vote(trunk, n, one),
    "debate n": lambda trunk, n: P.debate(trunk, n, one, score=float),
    "debate rounds": lambda trunk, n: P.debate(trunk, 2, one, score=float, rounds=n),
    "tree_search width": lambda trunk, n: P.tree_search(trunk, one, score=float, width=n),
    "tree_search children": lambda trunk, n: P.tree_search(trunk, one, score=float, children=n),
    "tree_search depth": lambda trunk, n: P.tree_search(trunk, one, score=float, depth=n),
    "map_reduce at_once": lambda trunk, n: P.map_reduce(trunk, [1], one, one, at_once=n),
    "beam width": lambda trunk, n: P.beam(trunk, width=n),
    "beam max_tokens": lambda trunk, n: P.beam(trunk, max_tokens=n),
}
ARRAY = np.array([True, False])
RETURNED: dict[str, tuple[Callable[[kv.Branch], Any], str]] = {
    "good: an array": (lambda trunk: P.race(trunk, 2, one, good=lambda _: ARRAY), "good returned ndarray"),
    "good: a coroutine": (lambda trunk: P.race(trunk, 2, one, good=one), "good returned .* plain function"),
    "done: an array": (
        lambda trunk: P.tree_search(trunk, one, score=float, done=lambda _: ARRAY),
        "done returned ndarray",
    ),
    "score: an array": (lambda trunk: P.best_of(trunk, 2, one, score=lambda _: ARRAY), "a score is ndarray"),
    "score: cancelled": (lambda trunk: P.best_of(trunk, 2, one, score=cancelled), "a score raised CancelledError"),
    "reduce: no coroutine": (lambda trunk: P.map_reduce(trunk, [1], one, plain), "reduce returned int 1"),
    "reduce: cancelled": (lambda trunk: P.map_reduce(trunk, [1], one, cancelled), "reduce raised CancelledError"),
    "gather: cancelled": (lambda trunk: kv.gather(one(), cancelled()), "awaitable 1 raised CancelledError"),
}


def said(error: BaseException) -> str:
    """Of an error, or of those in a group."""
    return "; ".join(map(said, error.exceptions)) if isinstance(error, BaseExceptionGroup) else str(error)


async def check(ctx: kv.Context, trunk: kv.Branch, run: Any, message: str) -> None:
    with pytest.raises((kv.InvalidInput, ExceptionGroup)) as caught:
        await run
    faults = caught.value.exceptions if isinstance(caught.value, ExceptionGroup) else [caught.value]
    assert {type(fault) for fault in faults} == {kv.InvalidInput}, faults
    assert re.search(message, said(caught.value)), said(caught.value)
    assert ctx.branches == [trunk]


@pytest.mark.asyncio
async def test_patterns() -> None:
    async with nano() as ctx:
        trunk = await ctx.branch([1, 2, 3])
        for pattern in PATTERNS.values():
            await check(ctx, trunk, pattern(trunk, cancelled), "raised CancelledError, but nobody cancelled it")
            await check(ctx, trunk, pattern(trunk, plain), "returned int 1, but it must be an async function")
        for what, pattern in COUNTS.items():
            for wrong in (None, 0, 1.5, True, "2", 2**40):
                await check(ctx, trunk, pattern(trunk, wrong), f"{what.split()[1]} is ")
        for run, message in RETURNED.values():
            await check(ctx, trunk, run(trunk), message)


@pytest.mark.asyncio
@pytest.mark.parametrize("name", PATTERNS)
async def test_a_pattern_that_is_cancelled_is_cancelled(name: str) -> None:
    begun = asyncio.Event()

    async def hangs(*_: Any) -> int:
        begun.set()
        await asyncio.Event().wait()
        return 1

    async with nano() as ctx:
        trunk = await ctx.branch([1, 2, 3])
        task = asyncio.ensure_future(PATTERNS[name](trunk, hangs))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert ctx.branches == [trunk]


class Policy:
    def __init__(self, answer: Any) -> None:
        self.answer = answer

    async def make_room(self, room: Any) -> Any:
        return self.answer


@pytest.mark.asyncio
async def test_policies() -> None:
    prompt = list(range(1, 31))
    async with nano(48) as ctx:
        branch = await ctx.branch(prompt, overflow=Policy(ARRAY))
        with pytest.raises(kv.InvalidInput, match=r"make_room of .*Policy.* returned ndarray"):
            await branch.extend(prompt)
        assert branch.tokens == prompt
        branch.overflow = Policy(None)
        with pytest.raises(kv.ContextFull):
            await branch.extend(prompt)


@pytest.mark.asyncio
async def test_strategies_and_constraints() -> None:
    class Adaptive:
        adaptive = ARRAY

        def propose(self, *_: Any) -> None:
            return None

    class Done:
        done = ARRAY

        def __init__(self, size: int) -> None:
            self.size = size

        def mask(self) -> Any:
            return np.ones(self.size, np.bool_)

        def advance(self, token: int) -> None: ...

        def rollback(self, n: int) -> None: ...

        def fork(self) -> Any:
            return self

    async with nano() as ctx:
        branch = await ctx.branch([1, 2, 3])
        with pytest.raises(kv.InvalidInput, match="adaptive of Adaptive returned ndarray"):
            await branch.generate(speculative=Adaptive(), max_tokens=2)
        with pytest.raises(kv.StepFailed, match=r"Done\.done: ValueError"):
            await branch.generate(output=Done(ctx.model_info.vocab_size), max_tokens=2)  # type: ignore[arg-type]
