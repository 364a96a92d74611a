"""Strategies whose attributes and operators are odd: drafts as any, or a typed error, alone and among others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import agentkv as kv
from agentkv.spec import Draft, Mixed, Suffix

from ..conftest import OpenContext

pytestmark = pytest.mark.anyio


class Guess:
    """Guesses one token."""

    adaptive: Any = False

    def propose(self, branch: int, tokens: Any, limit: int) -> Draft:
        return Draft([7], [-1])


def no_answer(*given: Any) -> Any:
    raise RuntimeError("no answer")


def with_the(**attributes: Any) -> Guess:
    return type("Odd", (Guess,), attributes)()  # type: ignore[no-any-return]


ODD = {
    "equals nothing": with_the(__eq__=no_answer, __hash__=None),
    "equals everything": with_the(__eq__=lambda *_: True, __hash__=lambda _: 1),
    "equals an array": with_the(__eq__=lambda *_: np.ones(2), __hash__=None),
    "has no hash": with_the(__hash__=no_answer),
    "has no truth value": with_the(__bool__=no_answer, __len__=no_answer),
    "cannot be shown": with_the(__repr__=no_answer),
    "is all but impossible": with_the(propose=lambda *_: Draft([7, 8], [-1, 0], [1e-300, 5e-324])),
}
REFUSED = {
    "raises for adaptive": (with_the(adaptive=property(no_answer)), "adaptive of Odd raised RuntimeError: no answer"),
    "is adaptive in two ways": (with_the(adaptive=np.ones(2)), "adaptive of Odd returned ndarray"),
}


def among_others(strategy: Any) -> list[Any]:
    return [strategy, Mixed(Suffix(), strategy), Mixed(strategy, Suffix(), Guess())]


@pytest.mark.parametrize("strategy", ODD.values(), ids=list(ODD))
async def test_an_odd_strategy_drafts(open_context: OpenContext, strategy: Any) -> None:
    async with open_context() as ctx:
        trunk = await ctx.branch([7] * 20)
        plain = await (await trunk.fork()).generate(max_tokens=8)
        for speculative in among_others(strategy):
            drafted = ctx.stats.drafted
            assert await (await trunk.fork()).generate(max_tokens=8, speculative=speculative) == plain
            assert ctx.stats.drafted > drafted


@pytest.mark.parametrize(("strategy", "message"), REFUSED.values(), ids=list(REFUSED))
async def test_an_odd_setting_is_refused(open_context: OpenContext, strategy: Any, message: str) -> None:
    async with open_context() as ctx:
        trunk = await ctx.branch([7] * 20)
        for speculative in among_others(strategy):
            with pytest.raises(kv.InvalidInput, match=message):
                await trunk.generate(max_tokens=2, speculative=speculative)
        assert len((await trunk.generate(max_tokens=2)).tokens) == 2
