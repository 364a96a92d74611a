"""Turns that wait for each other's cells, and for what others are about to do."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

import agentkv as kv
from agentkv._context import offloader
from tests.waiting import SOON

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("capacity", [150, 200, 350])
async def test_turns_whose_tools_end_at_once_all_get_their_cells(capacity: int) -> None:
    """Claims, reloads and extends of a dozen turns cross each other; none of them fails for what another is about to
    do."""

    @kv.tool
    async def weather(city: str) -> dict[str, object]:
        """Weather of a city now."""
        await anyio.sleep(2 * SOON)
        return {"temp": 3, "sky": "sunny"}

    agent = kv.Agent("You are Nano, a desk agent.", tools=[weather])
    async with kv.Context.open(kv.models.nano(), capacity=capacity) as ctx:

        async def one() -> str:
            async with await agent.trunk(ctx) as branch:
                return (await agent.run(branch, "What is the weather in Tolvik?")).text

        assert await kv.gather(*(one() for _ in range(12))) == ["It is 3 degrees and sunny in Tolvik."] * 12


async def test_a_turn_waits_for_the_branch_of_one_that_has_ended_and_is_about_to_be_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of the others all cells are away, and nothing runs."""
    looked, answers, look = anyio.Event(), [], offloader.Offloader._may_come_free

    def note_look(*arguments: Any) -> Any:
        answers.append(look(*arguments))
        looked.set()
        return answers[-1]

    agent = kv.Agent("You say what is fine.", max_tokens=60)
    async with kv.testing.replies(lambda _: "It is fine.", capacity=400) as ctx:
        branches = [await agent.trunk(ctx) for _ in range(2)]
        ended = anyio.Event()

        async def first() -> None:
            async with branches[0]:
                await agent.run(branches[0], "and so on " * 60)
                monkeypatch.setattr(offloader.Offloader, "_may_come_free", note_look)
                ended.set()
                await looked.wait()

        async def second() -> None:
            await ended.wait()
            assert (await agent.run(branches[1], "and so on " * 60)).text == "It is fine."

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(first)
            tasks.start_soon(second)
    assert answers
    assert set(answers) == {None}
