"""Turns with failures of every kind at random moments, on several branches at once: each is a transaction."""

from __future__ import annotations

import random
from typing import Any

import anyio
import numpy as np
import pytest

import agentkv as kv
from tests.faults import fail_at

from .before import Before
from .conftest import NO_CALL, ONE_CALL, TWO_CALLS, OpenDesk, as_tool, desk_agent

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("failing_caches")]


class Chaos:
    """Turns with failures of every kind injected at random, several branches at once."""

    def __init__(self, ctx: kv.Context, seed: int) -> None:
        self.ctx = ctx
        self.rng = random.Random(seed)
        self.outcomes: dict[str, int] = {}
        tools = [as_tool(name, self._tool(name), on_error="raise") for name in ("stock", "train")]
        told = as_tool("weather", self._tool("weather"), retries=1, backoff=0.001, timeout=self.rng.random() * 0.02)
        self.agent = desk_agent(tools=[told, *tools, as_tool("convert", approve=True)], max_rounds=4, max_tokens=200)

    def _tool(self, name: str) -> Any:
        from examples.nano.tools import TOOLS

        async def run(**arguments: Any) -> Any:
            luck = self.rng.random()
            if luck < 0.2:
                raise RuntimeError("bad luck")
            if luck < 0.3:
                raise kv.Retry("again, please")
            if luck < 0.6:
                await anyio.sleep(self.rng.random() * 0.02)
            return TOOLS[name].run(**arguments)

        return run

    async def _approve(self, event: kv.events.ApprovalAsked) -> bool:
        if self.rng.random() < 0.2:
            raise LookupError("nobody")
        await anyio.sleep(self.rng.random() * 0.002)
        return self.rng.random() < 0.5

    async def turn(self, branch: kv.Branch) -> None:
        """One turn, of which nothing but its outcome is left."""
        question = self.rng.choice([TWO_CALLS, ONE_CALL, NO_CALL, "Convert 12 miles to km."])
        mark, before = branch.mark(), (branch.tokens, branch.messages)
        outcome = "done"
        with anyio.CancelScope() as scope:
            if self.rng.random() < 0.4:
                scope.deadline = anyio.current_time() + self.rng.random() ** 2 * 0.1
            try:
                if self.rng.random() < 0.3:
                    async with self.agent.stream(branch, question, approve=self._approve) as events:
                        async for _ in events:
                            if self.rng.random() < 0.02:
                                break
                    if len(branch) != len(before[0]):
                        await branch.rollback(mark)
                else:
                    await self.agent.run(branch, question, approve=self._approve)
                    await branch.rollback(mark)
            except (kv.AgentKVError, LookupError) as error:
                outcome = type(error).__name__
        if scope.cancelled_caught:
            outcome = "cancelled"
            if len(branch) != len(before[0]):  # the turn had ended; the rollback after it was cancelled
                await branch.rollback(mark)
        self.outcomes[outcome] = self.outcomes.get(outcome, 0) + 1
        assert (branch.tokens, branch.messages) == before


async def chaos(open_desk: OpenDesk, seed: int, turns: int) -> dict[str, int]:
    async with open_desk(capacity=900) as ctx:
        run = Chaos(ctx, seed)
        trunk = await run.agent.trunk(ctx)
        before = await Before.of(ctx, trunk)
        branches = await trunk.fork(3)

        async def work(branch: kv.Branch) -> None:
            for _ in range(turns // 3):
                if run.rng.random() < 0.2:
                    await fail_at(ctx, run.rng.randrange(3), after=run.rng.randrange(40))
                filler = None
                if run.rng.random() < 0.1:
                    try:
                        filler = await ctx.branch([7] * run.rng.randrange(1, 700))
                    except (kv.ContextFull, kv.StepFailed):
                        filler = None
                await run.turn(branch)
                if filler is not None:
                    await filler.close()

        async with anyio.create_task_group() as group:
            for branch in branches:
                group.start_soon(work, branch)
        for branch in branches:
            assert branch.tokens == before.tokens
            while True:
                try:
                    np.testing.assert_array_equal(await branch.logits(), before.row)
                    break
                except kv.StepFailed:  # a failure that is still armed
                    continue
            await branch.close()
        await before.check()
        return run.outcomes


async def test_turns_are_transactions_whatever_happens(open_desk: OpenDesk) -> None:
    outcomes = await chaos(open_desk, seed=3, turns=45)
    assert outcomes["done"] > 0 < len(outcomes) - 1, outcomes  # what else there is, the machine's speed decides


@pytest.mark.soak
async def test_two_thousand_turns_are_transactions(open_desk: OpenDesk) -> None:
    outcomes = await chaos(open_desk, seed=4, turns=2000)
    assert {"done", "cancelled", "ToolFailed", "StepFailed", "ContextFull", "LookupError"} <= outcomes.keys(), outcomes
