"""Recordings in which policies made room inside of generations run again without a difference.

One more policy is a row of POLICIES, one more way to generate a row of WAYS.
"""

from __future__ import annotations

from array import array
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import pytest

import agentkv as kv
from agentkv import trace
from agentkv.trace.interruptions import interruptions_of
from agentkv.trace.records import Branched, JobBegan, JobEnded, Logged, Verb
from tests.rows import in_turn

from .conftest import records_of

pytestmark = pytest.mark.asyncio

QUESTION = {"role": "user", "content": "Count from one to a hundred, and say nothing else."}
ANSWER = {"role": "assistant", "content": "one two three four five six seven eight nine ten"}


class Forgets:
    """A user's: every third token of the oldest half."""

    async def make_room(self, room: kv.overflow.Room) -> bool:
        for position in range(4, room.end // 2, 3):
            await room.forget(position, position + 1)
        return True


class Replaces:
    """A user's: the oldest half gives way to three tokens."""

    async def make_room(self, room: kv.overflow.Room) -> bool:
        await room.replace(4, 4 + (room.end - 4) // 2, [7, 8, 9])
        return True


class ForksAndForgets:
    """A user's, which looks at the branch on a fork first, and goes on there afterwards as well."""

    def __init__(self) -> None:
        self.forks: list[kv.Branch] = []

    async def make_room(self, room: kv.overflow.Room) -> bool:
        self.forks.append(await room.branch.fork())
        await self.forks[-1].rollback(12)
        await self.forks[-1].generate(max_tokens=3)
        await room.forget(4, room.end // 2)
        return True


POLICIES: dict[str, Callable[[], kv.overflow.Overflow]] = {
    "drop oldest": kv.overflow.DropOldest,
    "drop oldest, few at a time": lambda: kv.overflow.DropOldest(keep=6, batch=5),
    "summarize": lambda: kv.overflow.Summarize(kv.Agent(max_tokens=8), keep=2),
    "forget": Forgets,
    "replace": Replaces,
    "fork and forget": ForksAndForgets,
}


async def generate(branch: kv.Branch, hot: kv.Sampling, speculative: kv.Speculative | None) -> None:
    await branch.generate(max_tokens=160, sampling=hot, speculative=speculative)


async def read(branch: kv.Branch, hot: kv.Sampling, speculative: kv.Speculative | None) -> None:
    async with branch.stream(max_tokens=160, sampling=hot, speculative=speculative) as stream:
        async for _ in stream:
            pass


async def read_in_part(branch: kv.Branch, hot: kv.Sampling, speculative: kv.Speculative | None) -> None:
    async with branch.stream(max_tokens=200, sampling=hot, speculative=speculative) as stream:
        count = 0
        async for _ in stream:
            count += 1
            if count == 130:
                break


async def ask(branch: kv.Branch, hot: kv.Sampling, speculative: kv.Speculative | None) -> None:
    agent = kv.Agent(max_tokens=160, sampling=hot, speculative=speculative)
    await agent.run(branch, "Go on, please.", keep_partial=True)


WAYS: dict[str, Callable[[kv.Branch, kv.Sampling, kv.Speculative | None], Awaitable[None]]] = {
    "generate": generate,
    "stream": read,
    "part of a stream": read_in_part,
    "agent": ask,
}
DRAFTS = kv.spec.PromptLookup(adaptive=False, min_ngram=1)
HOW: list[tuple[float, kv.Speculative | None]] = [(0, None), (0, DRAFTS), (1.1, None), (1.1, DRAFTS)]  # temperatures


@pytest.mark.parametrize(("policy", "way"), in_turn([*POLICIES], [*WAYS]))
async def test_it_runs_again(policy: str, way: str, tmp_path: Path) -> None:
    path = tmp_path / "run.trace"
    async with kv.Context.open(kv.models.nano(), capacity=110, threads=1) as ctx, trace.record(ctx, path):
        endless = dict.fromkeys(ctx.tokenizer.eos_ids, -100.0)
        for temperature, drafts in HOW:
            async with await ctx.branch([QUESTION, ANSWER] if way == "agent" else [QUESTION]) as branch:
                branch.overflow = POLICIES[policy]()
                with suppress(kv.AgentKVError):  # what a turn comes to is not the question
                    await WAYS[way](branch, kv.Sampling(temperature=temperature, seed=3, logit_bias=endless), drafts)
    result = await trace.replay(path)
    assert [str(each) for each in result.differences] == []
    assert (result.compares, result.left_out) == ("digests", [])
    assert result.digests > 0
    assert any(interruptions_of(records_of(path)).of_job.values())


async def test_where_each_was_made_is_in_the_tokens_that_follow() -> None:
    def verb(name: str, *numbers: int) -> Verb:
        return Verb(0, name, 1, list(numbers))

    def logged(branch: int, kept: int, *added: int) -> Logged:
        return Logged(0, branch, kept, array("i", added).tobytes())

    records = [
        Branched(0, "create", -1, [1], [0]),
        logged(1, 0, 11, 12, 13, 14, 15, 16),
        verb("replace", 0, 2, 1),
        logged(1, 0, 10, 13, 14, 15, 16),  # five tokens
        JobBegan(0, 7, 1, "generate"),
        verb("forget", 1, 2, 1),
        logged(1, 5, 21, 22),
        Branched(0, "fork", 1, [2], [0]),
        logged(2, 0, 10, 13, 14, 15, 16, 21, 22, 23),
        verb("replace", 1, 4, 1),
        logged(1, 1, 9, 16, 21, 22, 23, 24),
        Branched(0, "fork", 1, [3], [0]),
        logged(3, 0, 10, 9, 16, 21, 22, 23, 24, 25),
        JobEnded(0, 7, "length", "", b"", b"", 0),
        logged(1, 7, 24, 25, 26),
    ]
    found = interruptions_of(records)
    made = [(each.made, [*each.tokens]) for each in found.of_job[7]]
    assert made == [(2, []), (3, []), (4, [9]), (5, [])]
    assert found.inside == {5, 6, 7, 9, 10, 11}
    assert {place: [*tokens] for place, tokens in found.tokens.items()} == {2: [10]}


@pytest.mark.parametrize(
    ("job", "taken", "inside"),
    [
        (7, 1, set()),  # the branch keeps fewer tokens than the generation made: that is done after it
        (7, 0, {4}),  # the generation was over before
        (6, 1, {4}),  # another job's
    ],
)
async def test_what_a_generation_that_is_taken_back_leaves_is_not_its_own_work(
    job: int, taken: int, inside: set[int]
) -> None:
    records = [
        Branched(0, "create", -1, [1], [0]),
        Logged(0, 1, 0, array("i", [11]).tobytes()),
        JobBegan(0, 7, 1, "generate"),
        Verb(0, "take_back", 1, [job, 1, taken]),
        Logged(0, 1, 1, array("i", [21]).tobytes()),
        JobEnded(0, 7, "cancelled", "", array("i", [21, 22]).tobytes(), b"", 0),
    ]
    assert interruptions_of(records).inside == inside
