"""beam, tree_search and debate against exhaustive search over the same model."""

from __future__ import annotations

import itertools

import anyio
import numpy as np
import pytest

import agentkv as kv
from tests.agentkv.conftest import OpenContext
from tests.agentkv.patterns.places import place
from tests.waiting import PATIENCE

pytestmark = pytest.mark.anyio


async def log_probability(trunk: kv.Branch, tokens: tuple[int, ...]) -> float:
    async with await trunk.fork() as branch:
        total = 0.0
        for token in tokens:
            row = (await branch.logits()).astype(np.float64)
            total += float(row[token] - np.logaddexp.reduce(row))
            await branch.extend([token])
        return total


async def test_a_beam_as_wide_as_the_choice_finds_the_best(open_context: OpenContext) -> None:
    async with open_context() as ctx:
        trunk = await ctx.branch([1, 2, 3])
        row = await trunk.logits()
        first = np.argsort(-row, kind="stable")[:24]
        win = await kv.patterns.beam(trunk, width=24, max_tokens=2)
        made = tuple(win.branch.tokens[3:])
        assert win.score == pytest.approx(await log_probability(trunk, made), abs=1e-5)
        assert win.result == ctx.tokenizer.decode(made)
        best = -np.inf
        for token in map(int, first):  # what any of the 24 could go on with at best
            async with await trunk.fork() as branch:
                await branch.extend([token])
                second = (await branch.logits()).astype(np.float64)
                here = await log_probability(trunk, (token,))
                best = max(
                    best,
                    here
                    if token in ctx.tokenizer.eos_ids
                    else here + float(second.max() - np.logaddexp.reduce(second)),
                )
        assert win.score == pytest.approx(best, abs=1e-5)
        assert {branch.id for branch in ctx.branches} == {trunk.id, win.branch.id}


@pytest.mark.usefixtures("forwards_wait")
async def test_a_beam_of_one_is_greedy(open_context: OpenContext) -> None:
    async with open_context() as ctx:
        trunk = await ctx.branch([1, 2, 3])
        win = await kv.patterns.beam(trunk, width=1, max_tokens=12)
        async with await trunk.fork() as greedy:
            await greedy.generate(max_tokens=12)
            assert win.branch.tokens == greedy.tokens
        before = ctx.stats.forwards
        (await kv.patterns.beam(trunk, width=4, max_tokens=6)).branch.close()
        assert ctx.stats.forwards - before <= 2 * 6  # all beams ride together


async def test_a_tree_keeps_the_best_of_each_level(open_context: OpenContext) -> None:
    async with open_context() as ctx:
        trunk = await ctx.branch([1, 2, 3])
        grown: list[tuple[int, ...]] = []

        async def expand(branch: kv.Branch) -> tuple[int, ...]:
            await branch.extend([10 + place(branch)])
            grown.append(tuple(branch.tokens[3:]))
            return grown[-1]

        def score(thought: tuple[int, ...]) -> float:
            return sum(token * (1 if at % 2 else -1) for at, token in enumerate(thought))

        win = await kv.patterns.tree_search(trunk, expand, score=score, width=9, children=3, depth=3)
        every = list(itertools.product([10, 11, 12], repeat=3))
        assert win.score == max(score(thought) for thought in every)  # as wide as the tree: nothing is pruned too soon
        assert win.result == tuple(win.branch.tokens[3:])
        assert len(grown) == 3 + 9 + 27
        grown.clear()
        narrow = await kv.patterns.tree_search(trunk, expand, score=score, width=1, children=3, depth=3)
        assert len(grown) == 9
        assert narrow.result == (10, 12, 10)
        short = await kv.patterns.tree_search(trunk, expand, score=score, done=lambda thought: len(thought) == 2)
        assert len(short.result) == 2
        assert {b.id for b in ctx.branches} == {trunk.id, win.branch.id, narrow.branch.id, short.branch.id}


async def test_speakers_hear_what_the_others_said_last(open_context: OpenContext) -> None:
    async with open_context() as ctx:
        trunk = await ctx.branch([1, 2, 3])
        heard: list[list[int]] = []

        async def speak(branch: kv.Branch, others: list[int]) -> int:
            heard.append(others)
            if len(others) == 2 and sum(others) == 21:  # the third speaker, in the second round
                raise ValueError("speechless")
            await branch.extend([sum(others, start=10 + place(branch))])
            return branch.tokens[-1]

        win = await kv.patterns.debate(trunk, 3, speak, score=lambda word: -word, rounds=3)
        assert heard[:3] == [[], [], []]
        assert sorted(map(sum, heard[3:6])) == [21, 22, 23]  # 10, 11 and 12, but one's own
        assert len(heard) == 8  # one left after the second round
        assert win.result == win.branch.tokens[-1]
        assert win.branch.tokens[:4] in ([1, 2, 3, 10], [1, 2, 3, 11])
        assert {b.id for b in ctx.branches} == {trunk.id, win.branch.id}


@pytest.mark.parametrize("question", ["How are you?", "Who are you?", "Thank you!", "Tell me a joke."])
@pytest.mark.usefixtures("forwards_wait")
async def test_a_beam_that_ended_does_not_let_the_others_go_on_for_ever(question: str) -> None:
    async with kv.Context.open(kv.models.nano(), capacity=1024, threads=1) as ctx:
        trunk = await ctx.branch([{"role": "user", "content": question}])
        before = ctx.stats.forwards
        with anyio.fail_after(PATIENCE):
            win = await kv.patterns.beam(trunk, width=4, max_tokens=14)
        assert len(win.branch) <= len(trunk) + 14
        assert ctx.stats.forwards - before <= 2 * 14
