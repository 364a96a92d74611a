"""Which branches an agent takes, and who may use one while a turn runs on it."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

import agentkv as kv

from .conftest import NO_CALL, ONE_CALL, TWO_CALLS, OpenDesk, as_tool, desk_agent

pytestmark = pytest.mark.anyio


async def test_while_a_turn_runs_the_branch_is_its_own(open_desk: OpenDesk) -> None:
    refused: list[str] = []

    async def look(ctx: kv.RunContext[Any], product: str) -> dict[str, int]:
        branch = ctx.branch
        other = await branch.fork()
        mark = branch.mark()
        for name, verb in {
            "extend": lambda: branch.extend("more"),
            "messages": lambda: branch.extend([{"role": "user", "content": "x"}]),
            "rollback": lambda: branch.rollback(mark),
            "generate": lambda: branch.generate(max_tokens=1),
            "select": lambda: branch.select(["a", "b"]),
            "logits": lambda: branch.logits(),
            "adopt": lambda: branch.adopt(other),
            "be adopted": lambda: other.adopt(branch),
            "turn": lambda: agent.run(branch, "?"),
            "step": lambda: agent.step(branch),
        }.items():
            with pytest.raises(kv.BranchBusy, match="turn"):
                await verb()
            refused.append(name)
        with pytest.raises(kv.BranchBusy):
            branch.stream()
        run = await agent_of_fork.run(other, NO_CALL)  # a fork is free
        assert "Nano" in run.text
        await other.close()
        return {"count": 3, "price": 4}

    tool = as_tool("stock", look, takes_context=True)
    agent, agent_of_fork = desk_agent(tools=[tool]), desk_agent()
    async with open_desk() as ctx:
        branch = await agent.trunk(ctx)
        late = branch.stream(max_tokens=1)
        run = await agent.run(branch, ONE_CALL)
        assert run.calls[0].error is None, run.calls[0].error
        assert "3" in run.text
        assert len(refused) == 10
        async with late as tokens:  # the turn is over
            assert [token async for token in tokens]
        await branch.extend("free again")


async def test_a_verb_that_waits_for_its_text_finds_the_branch_held(open_desk: OpenDesk) -> None:
    """A long prompt is made tokens beside the event loop; the turn that begins meanwhile comes first."""
    outcome: list[str] = []
    agent = desk_agent("stock")
    async with open_desk() as ctx:
        branch = await agent.trunk(ctx)

        async def extend() -> None:
            try:
                await branch.extend("x " * 6000)
            except kv.BranchBusy:
                outcome.append("busy")

        async with anyio.create_task_group() as group:
            group.start_soon(extend)
            await anyio.lowlevel.checkpoint()
            run = await agent.run(branch, ONE_CALL)
        assert outcome == ["busy"]
        assert run.messages == tuple(branch.messages[1:])


async def test_a_turn_needs_a_branch_that_is_idle(open_desk: OpenDesk) -> None:
    agent = desk_agent("stock")
    async with open_desk() as ctx:
        branch = await agent.trunk(ctx)
        await branch.extend([{"role": "user", "content": TWO_CALLS}])
        endless = kv.Regex("[a-z]{2000}")  # whatever the model would say: it waits for its reader, and has not ended
        async with branch.stream(max_tokens=900, buffer=1, output=endless) as tokens:
            await tokens.__anext__()
            with pytest.raises(kv.BranchBusy):
                await agent.run(branch, ONE_CALL)
        await agent.run(branch, ONE_CALL)


@pytest.mark.parametrize("what", [None, "branch", 3])
async def test_what_is_no_branch_is_refused(open_desk: OpenDesk, what: Any) -> None:
    with pytest.raises(kv.InvalidInput, match="await agent"):
        await desk_agent().run(what, NO_CALL)


async def test_a_closed_and_a_left_branch_are_refused(open_desk: OpenDesk) -> None:
    agent = desk_agent()
    async with open_desk() as ctx:
        branch = await agent.trunk(ctx)
        gone = await branch.fork()
        await gone.close()
        with pytest.raises(kv.BranchClosed):
            await agent.run(gone, NO_CALL)
    with pytest.raises(kv.ContextClosed):
        await agent.run(branch, NO_CALL)
