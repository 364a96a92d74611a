"""A trace runs again as it was recorded, and where something is changed, that alone changes."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

import agentkv as kv
from agentkv import trace
from agentkv.trace.file import TraceWriter
from agentkv.trace.records import JobEnded
from tests.agentkv.agents.conftest import ONE_CALL, TWO_CALLS, OpenDesk, desk_agent
from tests.agentkv.conftest import OpenContext
from tests.agentkv.verb_player import Player

from .conftest import records_of

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("failing_caches")]


class Twos:
    """A constraint: nothing but token 5."""

    done = False

    def __init__(self, vocab_size: int) -> None:
        self._mask = np.arange(vocab_size) == 5

    def mask(self) -> NDArray[np.bool_]:
        return self._mask

    def advance(self, token: int) -> None: ...

    def rollback(self, n: int) -> None: ...

    def fork(self) -> Twos:
        return self


async def played(open_context: OpenContext, path: Path, seed: int, verbs: int) -> None:
    """Random verbs, recorded: forks, rollbacks, streams, adoptions, offloads, saves, cancellations, failed forwards."""
    path.mkdir()  # noqa: ASYNC240 - nobody waits
    rng = random.Random(seed)
    capacity, retain = rng.choice([60, 150, 400]), rng.choice([None, 40])
    async with open_context(capacity, retain=retain) as ctx, trace.record(ctx, path / "run.trace") as recording:
        player = Player(ctx, path, retain, seed)
        while player.played < verbs:
            await player.turn()
    assert recording.error is None


@pytest.mark.parametrize("seed", range(4))
async def test_random_verbs_run_again(open_context: OpenContext, tmp_path: Path, seed: int) -> None:
    await played(open_context, tmp_path / "played", seed, 60)
    result = await trace.replay(tmp_path / "played" / "run.trace")
    assert [str(each) for each in result.differences] == []
    assert result.compares == "digests"
    assert result.digests > 0


@pytest.mark.soak
async def test_many_random_verbs_run_again(open_context: OpenContext, tmp_path: Path) -> None:
    digests = 0
    for seed in range(100, 120):
        await played(open_context, tmp_path / str(seed), seed, 300)
        result = await trace.replay(tmp_path / str(seed) / "run.trace")
        assert [str(each) for each in result.differences] == [], seed
        digests += result.digests
    print(f"6,000 verbs, {digests} digests compared, 0 differ")


async def test_samples_constraints_choices_and_logits_run_again(open_desk: OpenDesk, tmp_path: Path) -> None:
    path = tmp_path / "run.trace"
    async with open_desk() as ctx, trace.record(ctx, path):
        branch = await ctx.branch([{"role": "user", "content": "Who are you?"}])
        hot = kv.Sampling(temperature=1.2, top_k=40, repetition_penalty=1.1, logit_bias={5: -3.0})
        await kv.gather(*(kid.generate(max_tokens=12, sampling=hot, stop="e") for kid in await branch.fork(3)))
        await (await branch.fork()).generate(max_tokens=40, output=list[int])
        await branch.select(["yes", "no"])
        await branch.logits()
        await branch.generate(max_tokens=9, speculative=kv.spec.PromptLookup())
    result = await trace.replay(path)
    assert result.same
    assert (result.generations, result.left_out) == (5, [])
    assert result.digests > 20


async def test_a_constraint_in_python_is_left_out_by_name(open_context: OpenContext, tmp_path: Path) -> None:
    path = tmp_path / "run.trace"
    async with open_context() as ctx, trace.record(ctx, path):
        branch = await ctx.branch("The quick")
        assert (await branch.generate(max_tokens=3, output=Twos(ctx.model_info.vocab_size))).tokens == [5, 5, 5]
        await branch.generate(max_tokens=3)
    result = await trace.replay(path)
    assert result.same
    assert any("Python" in reason for reason in result.left_out)


async def test_what_differs_is_said_once_and_the_rest_is_held_to(open_context: OpenContext, tmp_path: Path) -> None:
    path, changed = tmp_path / "run.trace", tmp_path / "changed.trace"
    async with open_context() as ctx, trace.record(ctx, path):
        trunk = await ctx.branch("The quick brown")
        kids = await trunk.fork(2)
        for kid in kids:
            await kid.generate(max_tokens=6)
    writer = TraceWriter(changed)
    ends = 0
    for record in records_of(path):
        if isinstance(record, JobEnded) and record.tokens:
            ends += 1
            if ends == 1:
                digests = bytearray(record.digests)
                digests[3 * 8] ^= 1
                record = JobEnded(record.at, record.job, "length", "", record.tokens, bytes(digests), 0)
        writer.write([record])
    writer.close()
    result = await trace.replay(changed)
    (difference,) = result.differences
    assert (difference.branch, difference.index, difference.what) == (kids[0].id, 3, "logits")
    assert result.generations == 5


async def test_another_model_is_compared_by_tokens_or_refused(
    open_context: OpenContext, folder: Path, tmp_path: Path
) -> None:
    path, copy = tmp_path / "run.trace", tmp_path / "copy"
    async with open_context() as ctx, trace.record(ctx, path):
        await (await ctx.branch("The quick")).generate(max_tokens=6)
    shutil.copytree(folder, copy)
    assert (await trace.replay(path, copy)).compares == "digests"
    with pytest.raises(kv.TraceError, match="tokens"):
        await trace.replay(path, kv.models.nano())
    with pytest.raises(kv.ModelError):
        await trace.replay(path, tmp_path / "none")


async def asked(open_desk: OpenDesk, path: Path) -> dict[str, int]:
    """Two questions, and a fork of each that asks once more; the numbers of their branches. Turn 1 has the weather."""
    agent = desk_agent("weather", "stock")
    async with open_desk(4096) as ctx, trace.record(ctx, path):
        trunk = await agent.trunk(ctx)
        weather, stock = await trunk.fork(2)
        await agent.run(weather, TWO_CALLS)
        await agent.run(stock, ONE_CALL)
        later, other = await weather.fork(), await stock.fork()
        await agent.run(later, "How many Lumora are in stock?")
        await agent.run(other, "Who are you?")
        return {"weather": weather.id, "stock": stock.id, "later": later.id, "other": other.id}


async def test_another_result_changes_its_branch_and_what_was_forked_from_it(
    open_desk: OpenDesk, tmp_path: Path
) -> None:
    path = tmp_path / "run.trace"
    ids = await asked(open_desk, path)
    plain = await trace.replay(path)
    assert plain.same
    assert plain.changed == []
    result = await trace.replay(path, what_if=[("2:call00000", '{"count": 7, "price": 11}')])
    assert result.same
    assert sorted(each.branch for each in result.changed) == sorted([ids["stock"], ids["other"]])
    stock = next(each for each in result.changed if each.branch == ids["stock"])
    assert '"count": 7' in stock.now
    assert '"count": 7' not in stock.recorded
    assert "7 " in stock.now.split("assistant")[-1]
    assert stock.stopped == ""
    assert 0 < result.generations < plain.generations


async def test_the_same_result_says_the_same(open_desk: OpenDesk, tmp_path: Path) -> None:
    path = tmp_path / "run.trace"
    await asked(open_desk, path)
    story = next(each for each in records_of(path) if getattr(each, "name", "") == "stock" and hasattr(each, "content"))
    result = await trace.replay(path, what_if=[("2:call00000", story.content)])  # type: ignore[union-attr]
    assert result.changed
    assert all(each.now == each.recorded for each in result.changed)


async def test_calls_that_are_not_there_are_listed(open_desk: OpenDesk, tmp_path: Path) -> None:
    path = tmp_path / "run.trace"
    await asked(open_desk, path)
    for name in ("call00000", "9:call00000", "nothing"):
        with pytest.raises(kv.InvalidInput, match="TURN:CALL") as caught:
            await trace.replay(path, what_if=[(name, "x")])
        assert "1:call00000  weather" in str(caught.value)
