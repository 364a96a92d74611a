"""Turns are dropped, and what is left of the journal stays whole."""

from __future__ import annotations

from pathlib import Path

import pytest

import agentkv as kv

pytestmark = pytest.mark.anyio


@kv.tool
def look(what: str) -> str:
    "looks"
    return what


def reply(text: str) -> object:
    if "second" in text:
        return "fine"
    return "done" if '"it"' in text.rpartition("question")[2] else kv.testing.call("look", what="it")


@pytest.mark.parametrize("max_rounds", [1, 5])  # the turn fails, or finishes
async def test_a_branch_goes_on_after_its_turn_was_dropped(tmp_path: Path, max_rounds: int) -> None:
    """What is written next is no difference from what went."""
    agent = kv.Agent("x", tools=[look], max_rounds=max_rounds)
    journal = kv.Journal(tmp_path / "runs.db")
    async with kv.testing.replies(reply, capacity=1024, journal=journal) as ctx:
        branch = await agent.trunk(ctx)
        await journal.track(branch, "talk")
        try:
            await agent.run(branch, "first question")
        except kv.LimitReached:
            assert max_rounds == 1
        for info in await journal.runs():
            await journal.drop(info.id)
        await agent.run(branch, "second question")
        tokens = branch.tokens
    later = kv.Journal(tmp_path / "runs.db")
    async with kv.testing.replies(reply, capacity=1024, journal=later) as ctx:
        assert (await later.branch(ctx, "talk")).tokens == tokens
        assert [info.start.prompt for info in await later.runs()] == [[{"role": "user", "content": "second question"}]]
        with pytest.raises(kv.JournalError, match="no run"):
            await later.drop("nowhere")
