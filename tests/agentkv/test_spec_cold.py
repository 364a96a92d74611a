"""A Context that just opened drafts sensibly at once."""

from __future__ import annotations

import pytest

import agentkv as kv
from agentkv._bench.acceptance import measure_acceptance
from agentkv._bench.prompts import default_prompts

pytestmark = pytest.mark.anyio


async def test_a_fresh_context_drafts_deep() -> None:
    tokens = forwards = 0
    async with kv.Context.open(kv.models.nano(), capacity=8192, speculative=kv.spec.Eagle()) as ctx:
        for prompt in default_prompts(kv.models.nano())[:10]:
            branch = await prompt.branch(ctx)
            before = ctx.stats.forwards
            generation = await branch.generate(max_tokens=128)
            tokens += len(generation.tokens) - 1  # the first one follows from the prompt's own forward
            forwards += ctx.stats.forwards - before
            await branch.close()
    assert tokens / forwards >= 3  # 7 to 8 where the machine is not too busy to be timed


async def test_acceptance_is_measured_from_what_the_model_says() -> None:
    nano = kv.models.nano()
    measured = await measure_acceptance(nano, nano, default_prompts(nano)[:4])
    assert len(measured.levels) == len(measured.calibration) == 16
    assert measured.levels[0] > 0.9
    assert measured.calibration[-1] > 0.9 > 0.1 > measured.calibration[0]
