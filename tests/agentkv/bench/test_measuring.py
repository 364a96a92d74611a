"""What a benchmark measures of forwards: rows and their costs, and what each branch had in them."""

from __future__ import annotations

from pathlib import Path

import pytest

import agentkv as kv
from agentkv._bench.row_costs import ROWS, model_facts, row_costs
from agentkv._bench.shares import StepShares
from agentkv._bench.strategies import Drafted, strategies_for


@pytest.mark.anyio
async def test_forwards_of_as_many_rows_as_are_asked_for() -> None:
    async with kv.Context.open(kv.models.nano(), capacity=1024) as ctx:
        costs = await row_costs(ctx)
        assert list(costs) == list(ROWS)
        assert all(seconds > 0 for seconds in costs.values())
        assert {step.decode_rows for step in ctx.steps if step.decode_rows} == set(ROWS)
        assert ctx.stats.branches == 0


@pytest.mark.anyio
async def test_facts_of_a_model() -> None:
    facts = await model_facts(kv.models.nano(), 1)
    assert (facts.backend, facts.bit_exact) == ("cpu", True)
    assert list(facts.row_ms) == list(ROWS)


@pytest.mark.anyio
async def test_shares_add_up_to_what_the_context_counts() -> None:
    async with kv.Context.open(kv.models.nano(), capacity=4096, speculative=kv.spec.Eagle(adaptive=False)) as ctx:
        shares = await StepShares.of(ctx)
        branches = [await ctx.branch([{"role": "user", "content": text}]) for text in ("Who are you?", "Thank you!")]
        shares.take()
        before = ctx.stats
        made = await kv.gather(*(branch.generate(max_tokens=24) for branch in branches))
        found, after = shares.take(), ctx.stats
    assert sum(share.accepted for share in found) == after.accepted - before.accepted > 0
    assert sum(share.drafted for share in found) == after.drafted - before.drafted
    assert {share.branch for share in found} == {branch.id for branch in branches}
    assert len(found) + sum(share.accepted for share in found) >= sum(len(each.tokens) - 1 for each in made)
    assert shares.take() == []


def test_strategies_that_a_model_has(mtp_folder: Path) -> None:
    nano = kv.models.nano()
    assert list(strategies_for(Drafted(model=nano, draft_model=None, adaptive=True))) == [
        "Suffix",
        "PromptLookup",
        "Eagle",
    ]
    own = strategies_for(Drafted(model=mtp_folder, draft_model=None, adaptive=True))
    assert list(own) == ["Suffix", "PromptLookup", "MTP"]
    every = strategies_for(Drafted(model=nano, draft_model=nano, adaptive=False))
    assert list(every) == ["Suffix", "PromptLookup", "Eagle", "DraftModel"]
    assert all(strategy.adaptive is False for strategy in every.values())
