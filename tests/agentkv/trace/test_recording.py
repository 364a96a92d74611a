"""What is recorded of a Context, and that recording disturbs nothing."""

from __future__ import annotations

import errno
import logging
import os
import threading
from array import array
from itertools import pairwise
from pathlib import Path

import anyio
import numpy as np
import pytest
from anyio.lowlevel import checkpoint

import agentkv as kv
from agentkv import trace
from agentkv.trace.records import (
    Began,
    Branched,
    CacheLevel,
    CallBegan,
    CallEnded,
    Conversed,
    Ended,
    JobBegan,
    JobEnded,
    Logged,
    Noted,
    Spelled,
    Stepped,
    TurnBegan,
    TurnEnded,
    Verb,
)
from agentkv.trace.story import read_story
from tests.agentkv.agents.conftest import TWO_CALLS, OpenDesk, as_tool, desk_agent
from tests.agentkv.conftest import OpenContext, after_forwards
from tests.waiting import PATIENCE

from .conftest import only, records_of

pytestmark = pytest.mark.anyio


def logs_of(path: Path) -> dict[int, list[int]]:
    """The tokens of every branch, as a trace tells them last."""
    logs: dict[int, array[int]] = {}
    for record in records_of(path):
        if isinstance(record, Branched):
            for branch in record.branches:
                logs[branch] = array("i", logs.get(record.source, ()))
        elif isinstance(record, Verb) and record.name == "adopt":
            logs[record.branch] = array("i", logs[record.numbers[0]])
        elif isinstance(record, Logged):
            del logs[record.branch][record.kept :]
            logs[record.branch].frombytes(record.added)
    return {branch: log.tolist() for branch, log in logs.items()}


async def test_steps_verbs_and_generations_are_recorded(open_context: OpenContext, tmp_path: Path) -> None:
    path = tmp_path / "run.trace"
    async with open_context() as ctx, trace.record(ctx, path) as recording:
        trunk = await ctx.branch("The quick brown fox")
        kids = await trunk.fork(3)
        made = await kv.gather(*(kid.generate(max_tokens=5) for kid in kids))
        await kids[0].rollback(len(trunk) + 2)
        await kids[1].adopt(kids[2])
        recording.note("here", kids[0])
        expected = {branch.id: branch.tokens for branch in (trunk, *kids)}
        steps = ctx.stats.steps
    records = records_of(path)
    assert isinstance(records[0], Began)
    assert isinstance(records[-1], Ended)
    assert recording.error is None
    assert recording.records > 20
    assert logs_of(path) == expected
    assert len(only(Stepped, records)) == steps
    assert [each.how for each in only(Branched, records)] == ["create", "fork"]
    assert [each.name for each in only(Verb, records)] == ["rollback", "adopt"]
    assert [(each.branch, each.text) for each in only(Noted, records)] == [(kids[0].id, "here")]
    assert only(CacheLevel, records)[-1].cells_used == ctx.stats.cells_used
    jobs = {each.job: each for each in only(JobBegan, records)}
    generations = [each for each in only(JobEnded, records) if jobs[each.job].kind == "generate"]
    assert sorted(np.frombuffer(each.tokens, "i4").tolist() for each in generations) == sorted(
        each.tokens for each in made
    )
    assert all(len(each.digests) == 2 * len(each.tokens) and each.first_token > 0 for each in generations)


async def test_shares_add_up_to_the_rows(open_desk: OpenDesk, tmp_path: Path) -> None:
    path = tmp_path / "run.trace"
    async with open_desk(max_batch_tokens=16) as ctx, trace.record(ctx, path):
        trunk = await ctx.branch("Once upon a time " * 8)
        drafts = kv.spec.PromptLookup(adaptive=False)
        await kv.gather(*(kid.generate(max_tokens=9, speculative=drafts) for kid in await trunk.fork(3)))
        stats = ctx.stats
    shares: list[tuple[int, ...]] = []
    dtype = np.dtype([("branch", "i8"), ("kind", "i4"), ("rows", "i4"), ("drafted", "i4"), ("accepted", "i4")])
    last = b""
    for step in only(Stepped, records_of(path)):
        last = step.shares if step.shares is not None else last
        shares.extend(tuple(row) for row in np.frombuffer(last, dtype).tolist())
    assert sum(rows for _, _, rows, _, _ in shares) == stats.tokens
    assert sum(rows for _, kind, rows, _, _ in shares if kind == 0) == stats.prefilled
    assert sum(drafted for *_, drafted, _ in shares) == stats.drafted > 0
    assert sum(accepted for *_, accepted in shares) == stats.accepted


async def test_turns_and_calls_are_recorded(open_desk: OpenDesk, tmp_path: Path) -> None:
    async def weather(city: str) -> dict[str, int]:
        if city == "Brasno":
            raise kv.Retry("not now")
        return {"temp": 3}

    agent = desk_agent(tools=[as_tool("weather", weather)])
    path = tmp_path / "run.trace"
    async with open_desk() as ctx, trace.record(ctx, path):
        branch = await agent.trunk(ctx)
        run = await agent.run(branch, TWO_CALLS)
        messages = branch.messages
    records = records_of(path)
    (turn,) = only(TurnBegan, records)
    assert (turn.branch, turn.tools) == (branch.id, ["weather"])
    assert [(each.turn, each.error, each.rounds) for each in only(TurnEnded, records)] == [(turn.turn, "", run.rounds)]
    assert {each.call: each.name for each in only(CallBegan, records)} == {call.id: call.name for call in run.calls}
    told = {each.call: (each.status, each.content) for each in only(CallEnded, records)}
    assert told == {call.id: (call.status, call.content) for call in run.calls}
    assert "retried" in [each.what for each in only(Noted, records)]
    story = read_story(path)
    said = [story.value(number) for number, *_ in only(Conversed, records)[-1].messages]
    assert [each["role"] for each in said] == [message.role for message in messages[: len(said)]]


async def test_what_tokens_spell_is_in_the_file(open_desk: OpenDesk, tmp_path: Path) -> None:
    path = tmp_path / "run.trace"
    async with open_desk() as ctx, trace.record(ctx, path):
        branch = await ctx.branch("Hello, Mirela")
        text = branch.text
    pieces: dict[int, bytes] = {}
    for record in only(Spelled, records_of(path)):
        pieces.update(zip(np.frombuffer(record.tokens, "i4").tolist(), record.pieces, strict=True))
    assert b"".join(pieces[token] for token in logs_of(path)[branch.id]).decode() == text


async def test_a_recording_may_begin_and_end_in_the_middle(open_context: OpenContext, tmp_path: Path) -> None:
    path = tmp_path / "run.trace"
    async with open_context() as ctx:
        branch = await ctx.branch("The quick brown fox")
        async with anyio.create_task_group() as group:
            group.start_soon(lambda: branch.generate(max_tokens=300))
            await after_forwards(ctx, 2)
            async with trace.record(ctx, path):
                await (await ctx.branch("jumps")).generate(max_tokens=3)
        untraced = ctx.stats.steps
        await branch.extend("over")
        assert ctx.stats.steps > untraced
    found = [each for each in only(Branched, records_of(path)) if each.how == "found"]
    assert [each.branches for each in found] == [[branch.id]]
    assert not (await trace.replay(path)).differences


async def test_two_recordings_at_once_end_in_any_order(open_context: OpenContext, tmp_path: Path) -> None:
    one, two = trace.record, trace.record
    async with open_context() as ctx:
        first, second = one(ctx, tmp_path / "1"), two(ctx, tmp_path / "2")
        await first.__aenter__()
        await second.__aenter__()
        await ctx.branch("a b")
        await first.__aexit__(None, None, None)
        await ctx.branch("c d")
        await second.__aexit__(None, None, None)
        await ctx.branch("e f")
    assert [len(only(Branched, records_of(tmp_path / name))) for name in "12"] == [1, 2]


async def test_the_same_tokens_come_with_and_without(open_context: OpenContext, tmp_path: Path) -> None:
    async def said(ctx: kv.Context) -> list[list[int]]:
        kids = await (await ctx.branch("The quick")).fork(4)
        sampling = kv.Sampling(temperature=1.0, seed=7)
        return [
            made.tokens for made in await kv.gather(*(kid.generate(max_tokens=20, sampling=sampling) for kid in kids))
        ]

    async with open_context() as ctx:
        plain = await said(ctx)
    async with open_context() as ctx, trace.record(ctx, tmp_path / "run.trace"):
        assert await said(ctx) == plain


async def test_leaving_the_context_first_ends_the_recording(open_context: OpenContext, tmp_path: Path) -> None:
    path = tmp_path / "run.trace"
    opened = open_context()
    ctx = await opened.__aenter__()
    recording = trace.record(ctx, path)
    await recording.__aenter__()
    await ctx.branch("The quick")
    await opened.__aexit__(None, None, None)
    await recording.__aexit__(None, None, None)
    assert isinstance(records_of(path)[-1], Ended)
    assert not [thread for thread in threading.enumerate() if thread.name == "agentkv-trace"]


@pytest.mark.parametrize("ticks", [0, 1, 2, 3, 5, 10, 100])
async def test_a_cancelled_recording_is_whole_or_not_there(
    open_context: OpenContext, tmp_path: Path, ticks: int
) -> None:
    path, has_begun = tmp_path / "run.trace", False
    async with open_context() as ctx:

        async def recorded() -> None:
            nonlocal has_begun
            async with trace.record(ctx, path):
                has_begun = True
                branch = await ctx.branch("The quick")
                while True:
                    await branch.generate(max_tokens=50)
                    await branch.rollback(2)

        async with anyio.create_task_group() as group:
            group.start_soon(recorded)
            for _ in range(ticks):
                await checkpoint()
            group.cancel_scope.cancel()
        assert path.exists() == has_begun
        assert not has_begun or isinstance(records_of(path)[-1], Ended)
        await ctx.branch("and on")


async def test_where_it_cannot_be_written_nothing_begins(open_context: OpenContext, tmp_path: Path) -> None:
    mine = tmp_path / "notes.txt"
    mine.write_text("my notes")
    async with open_context() as ctx:
        with pytest.raises(kv.InvalidInput, match="is there already"):
            async with trace.record(ctx, mine):
                pass
        with pytest.raises(kv.TraceError, match="cannot be written"):
            async with trace.record(ctx, tmp_path / "no" / "folder"):
                pass
        with pytest.raises(kv.InvalidInput, match="path"):
            async with trace.record(ctx, 3):  # type: ignore[arg-type]
                pass
        await ctx.branch("The quick")
    assert mine.read_text() == "my notes"
    with pytest.raises(kv.ContextClosed):
        async with trace.record(ctx, tmp_path / "run.trace"):
            pass


async def test_a_full_disk_ends_the_recording_and_nothing_else(
    open_context: OpenContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, write = tmp_path / "run.trace", os.write

    def full(file: int, data: bytes) -> int:
        if threading.current_thread().name == "agentkv-trace" and path.stat().st_size > 3000 and records_of(path):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(file, data[:100])

    monkeypatch.setattr("agentkv.trace.file.os.write", full)
    async with open_context() as ctx, trace.record(ctx, path) as recording:
        branch = await ctx.branch("The quick")
        mark = branch.mark()
        with anyio.fail_after(PATIENCE):
            while recording.error is None:
                await branch.generate(max_tokens=5)
                await branch.rollback(mark)
        assert isinstance(recording.error, kv.TraceError)
        assert "No space left" in str(recording.error)
        await branch.generate(max_tokens=5)
    assert isinstance(records_of(path)[0], Began)


async def test_log_events_say_what_happens(open_context: OpenContext, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, logger="agentkv"):
        async with open_context() as ctx, trace.logged(ctx):
            branch = await ctx.branch("The quick")
            await branch.generate(max_tokens=3)
            await branch.rollback(1)
    said = [record.message for record in caplog.records]
    assert any("generate began" in line for line in said)
    assert any("generate ended" in line and "tokens=3" in line for line in said)
    assert any("rollback" in line and "[1, 0]" in line for line in said)


async def test_steps_and_generations_have_times(open_context: OpenContext) -> None:
    async with open_context() as ctx:
        made = await (await ctx.branch("The quick")).generate(max_tokens=8)
        steps = ctx.steps
    assert 0 < made.first_token_seconds < made.seconds < 60
    assert all(step.seconds >= step.forward_seconds > 0 for step in steps)
    assert all(a.began + a.seconds <= b.began + 1e-3 for a, b in pairwise(steps))
