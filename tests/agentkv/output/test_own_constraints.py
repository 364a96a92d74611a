"""Constraints of users' own, on nano."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import AsyncIterator
from typing import Any

import anyio
import numpy as np
import pytest
from numpy.typing import NDArray

import agentkv as kv
from tests.waiting import PATIENCE, SOON

pytestmark = pytest.mark.anyio


@pytest.fixture
async def ctx() -> AsyncIterator[kv.Context]:
    async with kv.Context.open(kv.models.nano(), capacity=4096, threads=1) as ctx:
        yield ctx


class Rule:
    """Tokens of [3, vocab_size) that have the parity of the one before or, at every third place, are forced."""

    def __init__(self, vocab_size: int, most: int = 20, said: tuple[int, ...] = ()) -> None:
        self.vocab_size, self.most, self.said = vocab_size, most, said
        self.threads: set[int] = set()

    def mask(self) -> NDArray[np.bool_]:
        self.threads.add(threading.get_ident())
        ids = np.arange(self.vocab_size)
        if len(self.said) % 3 == 2:
            return ids == 3 + sum(self.said) % (self.vocab_size - 3)
        return (ids % 2 == (self.said[-1] if self.said else 0) % 2) & (ids >= 3)

    def advance(self, token: int) -> None:
        assert self.mask()[token]
        self.said = (*self.said, token)

    def rollback(self, n: int) -> None:
        assert 0 < n <= len(self.said)
        self.said = self.said[:-n]

    def fork(self) -> Rule:
        fork = type(self)(self.vocab_size, self.most, self.said)
        fork.threads = self.threads
        return fork

    @property
    def done(self) -> bool:
        return len(self.said) >= self.most


async def by_hand(branch: kv.Branch, rule: Rule) -> list[int]:
    while not rule.done:
        row = await branch.logits()
        token = int(np.argmax(np.where(rule.mask(), row, -np.inf)))
        await branch.extend([token])
        rule.advance(token)
    return list(rule.said)


@pytest.mark.parametrize(
    "speculative", [None, kv.spec.PromptLookup(), kv.spec.Suffix()], ids=["none", "lookup", "suffix"]
)
async def test_an_object_of_ones_own_is_kept_to(ctx: kv.Context, speculative: Any) -> None:
    trunk = await ctx.branch([{"role": "user", "content": "Who are you?"}])
    rule = Rule(ctx.model_info.vocab_size)
    wanted = await by_hand(await trunk.fork(), rule.fork())
    branch = await trunk.fork()
    gen = await branch.generate(output=rule, max_tokens=50, speculative=speculative)
    assert (gen.tokens, gen.finish_reason) == (wanted, "stop")
    assert ctx.stats.forced > 3
    assert rule.said == ()  # it was forked
    assert len(rule.threads) == 2  # that of the loop above, and the step loop's


async def test_forks_and_rollbacks_go_on(ctx: kv.Context) -> None:
    trunk = await ctx.branch("a")
    rule = Rule(ctx.model_info.vocab_size)
    whole = await trunk.fork()
    await whole.generate(output=rule)
    for length in range(len(trunk) + 1, len(whole), 3):
        branch = await whole.fork()
        await branch.rollback(length)
        await branch.generate(output=rule)
        assert branch.tokens == whole.tokens


class Silent(Exception):
    def __str__(self) -> str:
        raise RuntimeError("nothing to say")


class Failing(Rule):
    where = "advance"
    masks: dict[str, Any] = {}  # noqa: RUF012

    def advance(self, token: int) -> None:
        if self.where == "advance" and len(self.said) == 4:
            raise RuntimeError("enough of this")
        if self.where == "silent" and len(self.said) == 4:
            raise Silent
        super().advance(token)

    def mask(self) -> NDArray[np.bool_]:
        if len(self.said) == 4 and self.where in self.masks:
            return self.masks[self.where]  # type: ignore[no-any-return]
        return super().mask()


@pytest.mark.parametrize(
    ("where", "words"),
    [
        ("advance", "Failing.advance: RuntimeError: enough of this"),
        ("shape", "must be bool"),
        ("dead", "allows no token"),
        ("ragged", "ValueError: setting an array element"),
        ("silent", r"Failing.advance: Silent: \(which cannot be shown\)"),
    ],
)
async def test_what_it_raises_ends_its_own_generation(ctx: kv.Context, where: str, words: str) -> None:
    class Bad(Failing):
        pass

    Bad.__name__ = "Failing"
    Bad.where = where
    Bad.masks = {
        "shape": np.ones(7, bool),
        "dead": np.zeros(ctx.model_info.vocab_size, bool),
        "ragged": [[True], [True, False]],
    }
    bad, good = await (await ctx.branch("a")).fork(2)
    results: list[Any] = []

    async def fails() -> None:
        with pytest.raises(kv.StepFailed, match=words):
            await bad.generate(output=Bad(ctx.model_info.vocab_size))

    async def goes_on() -> None:
        results.append(await good.generate(output=kv.Regex("[a-z]{30}")))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(fails)
        tasks.start_soon(goes_on)
    assert results[0].finish_reason == "stop"
    assert 1 < len(bad) < 8  # what was said before stays
    assert (await bad.generate(max_tokens=2)).finish_reason in ("length", "eos")


class Undone(Rule):
    @property
    def done(self) -> bool:
        raise RuntimeError("who knows")


async def test_a_done_that_raises_ends_its_generation(ctx: kv.Context) -> None:
    with pytest.raises(kv.StepFailed, match=r"Undone\.done: RuntimeError: who knows"):
        await (await ctx.branch("a")).generate(output=Undone(ctx.model_info.vocab_size))


class Blocking(Rule):
    def mask(self) -> NDArray[np.bool_]:
        while True:
            pass


async def test_one_that_does_not_return_is_interrupted(ctx: kv.Context) -> None:
    branch = await ctx.branch("a")
    with anyio.fail_after(PATIENCE), anyio.move_on_after(SOON) as scope:
        await branch.generate(output=Blocking(ctx.model_info.vocab_size))
    assert scope.cancelled_caught
    assert (await branch.generate(max_tokens=2)).tokens


class Knowing(Rule):
    """One that leads back to its Context."""

    context: kv.Context

    def fork(self) -> Rule:
        fork = super().fork()
        fork.context = self.context  # type: ignore[attr-defined]
        return fork


async def test_one_that_knows_its_context_keeps_nothing_alive() -> None:
    async def run() -> weakref.ref[kv.Context]:
        async with kv.Context.open(kv.models.nano(), capacity=512, threads=1) as ctx:
            rule = Knowing(ctx.model_info.vocab_size)
            rule.context = ctx
            await (await ctx.branch("Hello")).generate(output=rule)
        return weakref.ref(ctx)

    left = await run()
    gc.collect()
    assert left() is None
