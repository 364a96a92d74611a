"""A branch as an overflow policy meets it within an agent's turn: it is the branch, not a second one beside it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import agentkv as kv

from .conftest import NO_CALL, OpenDesk, desk_agent

pytestmark = pytest.mark.anyio

Look = Callable[[kv.Branch, kv.overflow.Room], Awaitable[object] | object]


class Asked:
    """Frees cells by closing `filler`, after a look at the room that is asked for."""

    def __init__(self, look: Look) -> None:
        self.look = look
        self.branch: Any = None
        self.filler: Any = None
        self.saw: list[object] = []

    async def make_room(self, room: kv.overflow.Room) -> bool:
        if self.filler.closed:
            return False
        saw = self.look(self.branch, room)
        self.saw.append(await saw if isinstance(saw, Awaitable) else saw)
        await self.filler.close()
        return True


async def saw_in_a_turn(open_desk: OpenDesk, look: Look) -> list[object]:
    """What `look` sees of a turn that lacks cells."""
    policy, agent = Asked(look), desk_agent()
    async with open_desk(capacity=512) as ctx:
        policy.branch = await ctx.branch([{"role": "system", "content": "You are Nano."}], overflow=policy)
        policy.filler = await ctx.branch([5] * (500 - len(policy.branch)))
        await agent.run(policy.branch, NO_CALL)
        return policy.saw


async def forked(branch: kv.Branch, room: kv.overflow.Room) -> object:
    fork = await room.branch.fork()
    parent = fork.parent
    await fork.close()
    return parent is branch


async def rolled_back(branch: kv.Branch, room: kv.overflow.Room) -> object:
    """A policy may act on the branch itself, in a turn as well."""
    length = len(room.branch)
    await room.branch.rollback(length)
    return len(branch) == length


LOOKS: dict[str, Look] = {
    "is it": lambda branch, room: room.branch is branch,
    "equals it": lambda branch, room: room.branch == branch and len({room.branch, branch}) == 1,
    "reused": lambda branch, room: room.branch.reused == branch.reused,
    "loaded": lambda branch, room: room.branch.loaded is branch.loaded,
    "parent": lambda branch, room: room.branch.parent is branch.parent,
    "listed": lambda branch, room: any(room.branch is live for live in branch.context.branches),
    "fork's parent": forked,
    "may act": rolled_back,
}


@pytest.mark.parametrize("look", LOOKS.values(), ids=LOOKS)
async def test_a_room_is_of_the_branch_itself(open_desk: OpenDesk, look: Look) -> None:
    assert await saw_in_a_turn(open_desk, look) == [True]


async def test_a_policy_that_is_set_in_a_turn_is_asked_from_then_on(open_desk: OpenDesk) -> None:
    later = Asked(lambda branch, room: True)
    first = Asked(lambda branch, room: setattr(room.branch, "overflow", later))
    agent = desk_agent("stock")
    async with open_desk(capacity=768) as ctx:
        first.branch = later.branch = branch = await agent.trunk(ctx)
        branch.overflow = first
        room = 768 - len(branch)
        first.filler = await ctx.branch([5] * (room // 2))
        later.filler = await ctx.branch([7] * (room - room // 2 - 4))
        run = await agent.run(branch, "How many Lumora are in stock?")
        assert run.text
        assert branch.overflow is later
        assert first.saw == [None]
        assert first.filler.closed


async def test_a_branch_that_is_closed_in_a_turn_is_closed_for_all(open_desk: OpenDesk) -> None:
    marked: list[str] = []

    def close(branch: kv.Branch, room: kv.overflow.Room) -> object:
        room.branch.close()
        with pytest.raises(kv.BranchClosed):
            room.branch.mark()
        marked.append("refused")
        return branch.closed and room.branch.closed and branch not in branch.context.branches

    policy, agent = Asked(close), desk_agent()
    async with open_desk(capacity=512) as ctx:
        policy.branch = await ctx.branch([{"role": "system", "content": "You are Nano."}], overflow=policy)
        policy.filler = await ctx.branch([5] * (500 - len(policy.branch)))
        with pytest.raises(kv.AgentKVError):
            await agent.run(policy.branch, NO_CALL)
        assert policy.saw == [True]
        assert marked == ["refused"]
        assert ctx.stats.branches == 0


async def test_views_of_turns_equal_their_branch_alone(open_desk: OpenDesk) -> None:
    async with open_desk() as ctx:
        one, other = await ctx.branch("The"), await ctx.branch("The")
        assert one != other
        assert one == one
        assert one != one.id
        assert len({one, other}) == 2
